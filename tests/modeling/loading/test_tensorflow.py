"""TensorFlow checkpoints, written by TensorFlow: every value, the outputs, and what goes wrong."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import convert_albert_original_tf_checkpoint_to_pytorch as converter
from modeling import AlbertActModel, UserError, load_pretrained, load_tokenizer
from modeling.loading.tensorflow import checkpoint_prefix, load_tf_checkpoint, object_path
from tests.conftest import contents
from tests.models import hidden_states
from tests.tf_albert import (
    CLASSIFIER,
    CONFIG,
    MLM,
    SIZES,
    SOP,
    Reference,
    adaptive,
    albert,
    assert_every_value,
    random_arrays,
    save_by_name,
    tree,
    with_optimizer,
    write_config,
)


def test_object_paths_of_a_table():
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert object_path(f"model/kernel{value}") == "model/kernel"
    assert object_path(f"model/bert.Spooler.Sdense.Skernel{value}") == (
        "model/bert/pooler/dense/kernel"
    )
    assert object_path(f"a..b{value}") == "a.b"


def test_no_tensorflow_is_one_line_with_the_remedy(convert, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "model.index").touch()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    outcome = convert(tmp_path / "model", tmp_path / "config.json", tmp_path / "out")
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "pip install -r requirements-tf.txt" in outcome.err
    assert (Path(converter.__file__).parent / "requirements-tf.txt").exists()


def test_a_directory_is_answered_with_the_checkpoints_in_it(tmp_path):
    with pytest.raises(UserError, match="holds none"):
        checkpoint_prefix(tmp_path)
    for name in ("model.ckpt-2", "model.ckpt-best"):
        (tmp_path / f"{name}.index").touch()
    with pytest.raises(UserError) as caught:
        checkpoint_prefix(tmp_path)
    assert f"{tmp_path}/model.ckpt-2 or {tmp_path}/model.ckpt-best" in str(caught.value)


def test_any_file_of_a_checkpoint_names_it(tmp_path):
    (tmp_path / "model.ckpt-best.index").touch()
    for suffix in ("", ".index", ".meta", ".data-00000-of-00001"):
        given = tmp_path / f"model.ckpt-best{suffix}"
        assert checkpoint_prefix(given) == str(tmp_path / "model.ckpt-best")


@pytest.mark.tf
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 2)])
def test_the_state_dict_has_every_value(tf, convert, tmp_path, groups, inner):
    names = albert(MLM, SOP, groups=groups, inner=inner)
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "model.ckpt-best", with_optimizer(arrays))
    config = write_config(tmp_path, num_hidden_groups=groups, inner_group_num=inner)
    outcome = convert(prefix, config, tmp_path / "deep/er/albert.bin")
    assert outcome.status == 0
    assert f"Variables loaded from {prefix}: {len(names)}\n" in outcome.out
    ignored = f"moments of Adam and LAMB ({2 * len(names)}), training step (1)"
    assert f"Variables ignored: {ignored}\n" in outcome.out
    assert "AlbertForPreTraining written" in outcome.out
    weights = torch.load(tmp_path / "deep/er/albert.bin", weights_only=True)
    assert_every_value(weights, names, arrays)
    tied = {"predictions.decoder.weight", "predictions.decoder.bias"}
    assert set(weights) == {target for target, _ in names.values()} | tied
    hf_config = transformers.AlbertConfig(**json.loads(config.read_text()))
    transformers.AlbertForPreTraining(hf_config).load_state_dict(weights)


@pytest.mark.tf
def test_a_directory_loads_in_hf_and_here(tf, convert, spiece, tmp_path):
    names = albert(MLM, SOP)
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "albert_base/model.ckpt-best", arrays)
    (prefix.parent / "30k-clean.model").write_bytes(spiece.read_bytes())
    (prefix.parent / "30k-clean.vocab").write_text("pieces")
    outcome = convert(prefix, write_config(tmp_path), tmp_path / "out")
    assert outcome.status == 0
    assert "Variables ignored: none" in outcome.out
    files = "config.json model.safetensors spiece.model spiece.vocab"
    assert " ".join(sorted(contents(tmp_path / "out"))) == files
    twin = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "out")
    assert_every_value(twin.state_dict(), names, arrays)
    assert twin.config.hidden_act == "gelu_new"
    model, report = load_pretrained(tmp_path / "out")
    backbone = {n: p for n, p in names.items() if p[0].startswith("albert.")}
    assert_every_value(model.state_dict(), backbone, arrays)
    assert all("exit" in name for name in report.initialised)
    assert load_tokenizer(tmp_path / "out")("a dog").input_ids


@pytest.mark.tf
@pytest.mark.parametrize("given", ["", "variables", "variables/variables"])
def test_a_tf_hub_export(tf, convert, spiece, tmp_path, given):
    """Its variables stand in the scope `module`; MLM alone, as exported, keeps the pooler."""
    names = albert(MLM)
    arrays = random_arrays(names)
    hub = tmp_path / "hub"
    exported = {f"module/{name}": array for name, array in arrays.items()}
    save_by_name(tf, hub / "variables/variables", exported)
    (hub / "assets").mkdir()
    (hub / "assets/30k-clean.model").write_bytes(spiece.read_bytes())
    config = write_config(tmp_path)
    outcome = convert(hub / given, config, tmp_path / "out")
    assert outcome.status == 0
    assert "AlbertForMaskedLM written" in outcome.out
    assert (tmp_path / "out/spiece.model").read_bytes() == spiece.read_bytes()
    twin = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "out")
    assert_every_value(twin.state_dict(), names, arrays)


@pytest.mark.tf
def test_a_fine_tuned_classifier_becomes_the_exit(tf, tmp_path):
    names = albert(CLASSIFIER)
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "model.ckpt-300", with_optimizer(arrays))
    model, _ = load_tf_checkpoint(prefix, write_config(tmp_path))
    assert isinstance(model, transformers.AlbertForSequenceClassification)
    assert model.config.num_labels == 3
    assert_every_value(model.state_dict(), names, arrays)
    model.save_pretrained(tmp_path / "out")
    ours, report = load_pretrained(tmp_path / "out")
    assert report.ignored == []
    weight = ours.state_dict()["albert.encoder.exit_out_layer.classifier.weight"]
    assert torch.equal(weight, torch.from_numpy(arrays["output_weights"]))


@pytest.mark.tf
def test_a_bare_model_and_an_embedding_as_wide_as_the_hidden_state(tf, tmp_path, monkeypatch):
    """Google's code then has no mapping between the two: it is the identity."""
    monkeypatch.setitem(SIZES, "E", 32)
    names = {name: p for name, p in albert().items() if "mapping_in" not in name}
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "model.ckpt", arrays)
    model, _ = load_tf_checkpoint(prefix, write_config(tmp_path, embedding_size=32))
    assert type(model) is transformers.AlbertModel
    mapping = model.encoder.embedding_hidden_mapping_in
    assert torch.equal(mapping.weight, torch.eye(32))
    assert not mapping.bias.any()
    weights = {f"albert.{name}": tensor for name, tensor in model.state_dict().items()}
    assert_every_value(weights, names, arrays)


@pytest.mark.tf
@pytest.mark.parametrize("style", ["attributes", "dictionary", "names"])
def test_object_based_checkpoints(tf, tmp_path, style):
    """The name is in the path of attributes, in a dictionary's key, or only the variable's own."""
    names = albert(MLM, SOP)
    arrays = random_arrays(names)
    variables = {n: tf.Variable(a, name=n if style == "names" else "v") for n, a in arrays.items()}
    parts = {"model": tree(tf, variables)}
    if style != "attributes":
        parts["model"] = tf.Module()
        parts["model"].inner = variables if style == "dictionary" else list(variables.values())
    if style == "names":  # an optimizer has paths to the weights, too, and shorter ones
        parts["optimizer"] = tf.keras.optimizers.Adam()
        parts["optimizer"].build(list(variables.values()))
    saved = tf.train.Checkpoint(**parts).save(str(tmp_path / "ckpt"))
    keys = [key for key, _ in tf.train.list_variables(saved)]
    assert any(key.endswith("/.ATTRIBUTES/VARIABLE_VALUE") for key in keys)
    model, report = load_tf_checkpoint(saved, write_config(tmp_path))
    assert_every_value(model.state_dict(), names, arrays)
    assert sorted([*report.loaded, *report.ignored]) == sorted(keys)
    optimizer = {"object-based optimizer"} if style == "names" else set()
    assert set(report.ignored.values()) == {"object-based bookkeeping"} | optimizer


@pytest.mark.tf
@pytest.mark.parametrize("tensorflow_2", [False, True])
@pytest.mark.parametrize("heads", [(), (MLM, SOP)])
def test_adaptive_depth(tf, convert, tmp_path, tensorflow_2, heads):
    names = adaptive(*heads, tensorflow_2=tensorflow_2)
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "model.ckpt-112500", with_optimizer(arrays))
    outcome = convert(prefix, write_config(tmp_path), tmp_path / "out")
    assert outcome.status == 0
    kind = "AlbertActForPreTraining" if heads else "AlbertActModel"
    assert f"{kind} written" in outcome.out
    model = AlbertActModel.from_pretrained(tmp_path / "out")
    assert model.config.model_type == "albert_act"
    weights = {f"albert.{name}": tensor for name, tensor in model.state_dict().items()}
    encoder = {n: p for n, p in names.items() if p[0].startswith("albert.")}
    assert_every_value(weights, encoder, arrays)


# The outputs, computed by TensorFlow from the checkpoint.

IDS = np.random.default_rng(3).integers(1, 90, (3, 7))
MASK = np.array([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]], dtype="float32")
TYPES = (IDS % 2).astype("int64")
INPUTS = {
    "input_ids": torch.from_numpy(IDS),
    "attention_mask": torch.from_numpy(MASK).long(),
    "token_type_ids": torch.from_numpy(TYPES),
}


def assert_close(found: torch.Tensor, expected, where=slice(None)) -> None:
    expected = torch.from_numpy(expected.numpy())
    torch.testing.assert_close(found[where], expected[where], atol=1e-5, rtol=0)


@pytest.mark.tf
def test_outputs_are_tensorflows(tf, tmp_path):
    """Embedding, every layer pass of two groups of two, pooler and both heads."""
    names = albert(MLM, SOP, groups=2, inner=2)
    prefix = save_by_name(tf, tmp_path / "model.ckpt-best", random_arrays(names))
    config = write_config(tmp_path, num_hidden_groups=2, inner_group_num=2)
    reference = Reference(tf, prefix)
    states = [reference.embed(IDS, TYPES)]
    for group in (0, 0, 1, 1):  # four layers in two groups
        state = states[-1]
        for number in (0, 1):
            scope = f"bert/encoder/transformer/group_{group}/inner_group_{number}"
            state = reference.layer(state, MASK, scope)
        states.append(state)

    twin, _ = load_tf_checkpoint(prefix, config)
    twin.save_pretrained(tmp_path / "out")
    ours, _ = load_pretrained(tmp_path / "out")
    real = INPUTS["attention_mask"].bool()
    for mine, theirs in zip(hidden_states(ours.eval(), *INPUTS.values()), states, strict=True):
        assert_close(mine, theirs, real)
    with torch.no_grad():
        out = twin(**INPUTS)
        encoded = twin.albert(**INPUTS)
    assert_close(encoded.last_hidden_state, states[-1], real)
    assert_close(encoded.pooler_output, reference.pool(states[-1]))
    head = "cls/predictions/transform"
    transformed = tf.nn.gelu(reference.dense(states[-1], f"{head}/dense"), approximate=True)
    transformed = reference.norm(transformed, f"{head}/LayerNorm")
    words = reference.variable("bert/embeddings/word_embeddings")
    logits = tf.matmul(transformed, words, transpose_b=True)
    logits += reference.variable("cls/predictions/output_bias")
    assert_close(out.prediction_logits, logits, real)
    weights = reference.variable("cls/seq_relationship/output_weights")
    order = tf.matmul(reference.pool(states[-1]), weights, transpose_b=True)
    assert_close(out.sop_logits, order + reference.variable("cls/seq_relationship/output_bias"))


@pytest.mark.tf
@pytest.mark.parametrize("tensorflow_2", [False, True])
def test_adaptive_depths_first_update_is_tensorflows(tf, tmp_path, tensorflow_2):
    """One update: p · new + (1 − p) · old, or the new state where p is above 1 − ε."""
    arrays = random_arrays(adaptive(tensorflow_2=tensorflow_2))
    # Embeddings so small that what a norm adds to their variance shows.
    arrays = {n: a * 0.1 if n.endswith("_embeddings") else a for n, a in arrays.items()}
    prefix = save_by_name(tf, tmp_path / "model.ckpt", arrays)
    reference = Reference(tf, prefix)
    norm = "layer_normalization" if tensorflow_2 else "LayerNorm"
    old = reference.embed(IDS, TYPES, f"bert/embeddings/{norm}")
    outer = "" if tensorflow_2 else "bert/encoder/"
    new = reference.layer(old, MASK, "bert/encoder/transformer", f"{outer}transformer/{norm}")
    p = tf.sigmoid(reference.dense(new, "bert/encoder/transformer/halting/dense"))
    weight = tf.where(p > 1 - 0.25, tf.ones_like(p), p)
    assert 0 < int(tf.reduce_sum(tf.cast(p > 1 - 0.25, "int32"))) < IDS.size
    model, _ = load_tf_checkpoint(
        prefix, write_config(tmp_path, num_hidden_layers=1, act_epsilon=0.25)
    )
    with torch.no_grad():
        out = model(**INPUTS)
    expected = weight * new + (1 - weight) * old
    assert_close(out.last_hidden_state, expected, INPUTS["attention_mask"].bool())
    assert_close(out.pooler_output, reference.pool(expected))
