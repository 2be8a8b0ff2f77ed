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
from modeling.loading.tensorflow import (
    checkpoint_prefix,
    load_tf_checkpoint,
    sort_variables,
)
from tests.conftest import contents
from tests.models import assert_near, hidden_states
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
    with_optimizer,
    write_config,
)

# Names, without TensorFlow.


@pytest.mark.parametrize(
    "names",
    [
        albert(MLM, SOP, groups=2, inner=2),
        albert(CLASSIFIER),
        adaptive(MLM, SOP),
        adaptive(MLM, SOP, tensorflow_2=True),
    ],
)
def test_every_published_name_has_its_place(names):
    found, ignored = sort_variables({name: (name,) for name in names})
    assert found == {target: name for name, (target, _) in names.items()}
    assert ignored == []


@pytest.mark.parametrize("scope", ["module", "tower_0/model"])
def test_outer_scopes_do_not_matter(scope):
    names = albert(MLM, SOP)
    found, _ = sort_variables({name: (f"{scope}/{name}",) for name in names})
    assert found == {target: name for name, (target, _) in names.items()}


@pytest.mark.parametrize(
    "variable",
    [
        "bert/pooler/dense/kernel/adam_m",
        "beta1_power",
        "global_step",
        "bert/pooler/dense/kernel/accum",
        "optimizer/learning_rate/.ATTRIBUTES/VARIABLE_VALUE",
        "save_counter/.ATTRIBUTES/VARIABLE_VALUE",
    ],
)
def test_what_is_no_weight_is_left_out(variable):
    assert sort_variables({variable: (variable,)}) == ({}, [variable])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cls/squad/output_weights"], r"1 variables: cls/squad/output_weights\. Nothing is conv"),
        (["xbert/pooler/dense/bias"], r"1 variables: xbert/pooler/dense/bias\."),
        (
            ["bert/pooler/dense/bias", "module/bert/pooler/dense/bias"],
            r"bert/pooler.* and module/bert.*albert\.pooler\.bias",
        ),
    ],
)
def test_unknown_and_doubled_variables_are_errors(names, words):
    with pytest.raises(UserError, match=words):
        sort_variables({name: (name,) for name in names})


def test_any_file_of_a_checkpoint_names_it_and_a_directory_lists_its_checkpoints(tmp_path):
    with pytest.raises(UserError, match="no TensorFlow checkpoint"):
        checkpoint_prefix(tmp_path)
    for name in ("model.ckpt-2", "model.ckpt-best"):
        (tmp_path / f"{name}.index").touch()
    for suffix in ("", ".index", ".meta", ".data-00000-of-00001"):
        given = tmp_path / f"model.ckpt-best{suffix}"
        assert checkpoint_prefix(given) == str(tmp_path / "model.ckpt-best")
    with pytest.raises(UserError, match=r"model\.ckpt-2 or .*model\.ckpt-best"):
        checkpoint_prefix(tmp_path)


# Every value.


@pytest.mark.tf
@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 2)])
def test_the_state_dict_has_every_value(tf, convert, tmp_path, groups, inner):
    names = albert(MLM, SOP, groups=groups, inner=inner)
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "model.ckpt-best", with_optimizer(arrays))
    config = write_config(tmp_path, num_hidden_groups=groups, inner_group_num=inner)
    outcome = convert(prefix, config, tmp_path / "deep/er/albert.bin")
    assert f"Weights loaded from {prefix}: {len(names)} tensors\n" in outcome.out
    assert f" and {2 * len(names) + 1 - 6} more\n" in outcome.out  # moments, the step
    assert "AlbertForPreTraining written" in outcome.out
    weights = torch.load(tmp_path / "deep/er/albert.bin", weights_only=True)
    assert_every_value(weights, names, arrays)
    hf_config = transformers.AlbertConfig(**json.loads(config.read_text()))
    transformers.AlbertForPreTraining(hf_config).load_state_dict(weights)


@pytest.mark.tf
@pytest.mark.parametrize("given", ["", "variables"])
def test_a_tf_hub_export_loads_in_hf_and_here(tf, convert, spiece, tmp_path, given):
    """Its variables stand in the scope `module`; MLM alone, as exported, keeps the pooler."""
    names = albert(MLM)
    arrays = random_arrays(names)
    exported = {f"module/{name}": array for name, array in arrays.items()}
    save_by_name(tf, tmp_path / "hub/variables/variables", exported)
    (tmp_path / "hub/assets").mkdir()
    (tmp_path / "hub/assets/30k-clean.model").write_bytes(spiece.read_bytes())
    outcome = convert(tmp_path / "hub" / given, write_config(tmp_path), tmp_path / "out")
    assert "AlbertForMaskedLM written" in outcome.out
    assert {*contents(tmp_path / "out")} == {"config.json", "model.safetensors", "spiece.model"}
    twin = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "out")
    assert_every_value(twin.state_dict(), names, arrays)
    assert twin.config.hidden_act == "gelu_new"
    model, report = load_pretrained(tmp_path / "out")
    backbone = {n: p for n, p in names.items() if p[0].startswith("albert.")}
    assert_every_value(model.state_dict(), backbone, arrays)
    assert all("exit" in name for name in report.initialised)
    assert load_tokenizer(tmp_path / "out")("a dog").input_ids


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
def test_an_embedding_as_wide_as_the_hidden_state_needs_no_mapping(tf, tmp_path, monkeypatch):
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
@pytest.mark.parametrize("style", ["dictionary", "names"])
def test_object_based_checkpoints(tf, tmp_path, style):
    """The name is in a dictionary's key, or only the variable's own."""
    names = albert(MLM, SOP)
    arrays = random_arrays(names)
    variables = {n: tf.Variable(a, name=n if style == "names" else "v") for n, a in arrays.items()}
    parts = {"model": tf.Module()}
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


@pytest.mark.tf
@pytest.mark.parametrize("tensorflow_2", [False, True])
@pytest.mark.parametrize("heads", [(), (MLM, SOP)])
def test_adaptive_depth(tf, convert, tmp_path, tensorflow_2, heads):
    names = adaptive(*heads, tensorflow_2=tensorflow_2)
    arrays = random_arrays(names)
    prefix = save_by_name(tf, tmp_path / "model.ckpt-112500", with_optimizer(arrays))
    outcome = convert(prefix, write_config(tmp_path), tmp_path / "out")
    assert f"{'AlbertActForPreTraining' if heads else 'AlbertActModel'} written" in outcome.out
    model = AlbertActModel.from_pretrained(tmp_path / "out")
    assert model.config.layer_norm_eps == (1e-3 if tensorflow_2 else 1e-12)  # 1e-3 is Keras's
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
REAL = INPUTS["attention_mask"].bool()


@pytest.mark.tf
def test_outputs_are_tensorflows(tf, tmp_path):
    """Embedding, and every layer pass of two groups of two."""
    names = albert(groups=2, inner=2)
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
    for mine, theirs in zip(hidden_states(ours.eval(), *INPUTS.values()), states, strict=True):
        assert_near(mine[REAL], torch.from_numpy(theirs.numpy())[REAL], 1e-5)


# What goes wrong: a line that names the file or the key, and nothing written.


def refusal(convert, checkpoint, config, target) -> str:
    outcome = convert(checkpoint, config, target)
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not target.exists()
    return outcome.err


def test_no_tensorflow_is_one_line_with_the_remedy(convert, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "model.index").touch()
    message = refusal(convert, tmp_path / "model", write_config(tmp_path), tmp_path / "out")
    assert "pip install -r requirements-tf.txt" in message
    assert (Path(converter.__file__).parent / "requirements-tf.txt").exists()


@pytest.mark.parametrize(
    ("checkpoint", "content", "target", "words"),
    [
        ("albert_config.json", json.dumps(CONFIG), "out", "no TensorFlow checkpoint"),
        ("model", "{", "out", "albert_config.json"),
        ("model", json.dumps(CONFIG), "model.index", "ends in .bin"),
    ],
)
def test_files_that_are_none(convert, tmp_path, checkpoint, content, target, words):
    (tmp_path / "model.index").touch()
    (tmp_path / "albert_config.json").write_text(content)
    before = contents(tmp_path)
    arguments = [tmp_path / name for name in (checkpoint, "albert_config.json", target)]
    outcome = convert(*arguments)
    assert outcome.status == 2
    assert words in outcome.err
    assert contents(tmp_path) == before


@pytest.fixture(scope="module")
def saved(tf, tmp_path_factory) -> dict[str, bytes]:
    """A whole checkpoint with its configuration, as files by name."""
    folder = tmp_path_factory.mktemp("tf")
    save_by_name(tf, folder / "model.ckpt", random_arrays(albert(MLM, SOP)))
    write_config(folder)
    return contents(folder)


def restore(saved: dict[str, bytes], folder: Path) -> tuple[Path, Path, Path]:
    """The arguments of `convert`, for a copy of `saved`."""
    for name, content in saved.items():
        (folder / name).write_bytes(content)
    return folder / "model.ckpt", folder / "albert_config.json", folder / "out"


DATA, INDEX = "model.ckpt.data-00000-of-00001", "model.ckpt.index"


@pytest.mark.tf
@pytest.mark.parametrize(("name", "words"), [(DATA, "fetch all of them"), (INDEX, "damaged")])
@pytest.mark.parametrize("kept", [0, 0.5])
def test_a_damaged_file_is_named(convert, saved, tmp_path, name, words, kept):
    arguments = restore(saved, tmp_path)
    (tmp_path / name).write_bytes(saved[name][: int(kept * len(saved[name]))])
    assert words in refusal(convert, *arguments)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 64}, "the configuration asks for ("),
        ({"num_hidden_groups": 2}, "num_hidden_groups"),
        ({"num_attention_heads": 5}, "num_attention_heads = 5"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_a_configuration_of_another_model_is_refused(convert, saved, tmp_path, changes, words):
    checkpoint, _, target = restore(saved, tmp_path)
    message = refusal(convert, checkpoint, write_config(tmp_path, **changes), target)
    assert all(word in message for word in (str(checkpoint), "albert_config.json", words))


@pytest.mark.tf
@pytest.mark.parametrize(
    ("names", "missing", "config", "words"),
    [
        (albert(MLM, SOP), "bert/pooler/dense/bias", {}, "albert.pooler.bias"),
        (albert(MLM, SOP, groups=2), None, {}, "albert_layer_groups.1"),
        (albert(SOP, CLASSIFIER), None, {}, "classifier, sop_classifier"),  # no model has both
        (albert(CLASSIFIER), None, {"num_labels": 2}, "(3"),
    ],
)
def test_variables_of_no_model_are_named(tf, convert, tmp_path, names, missing, config, words):
    arrays = random_arrays(names)
    arrays.pop(missing, None)
    prefix = save_by_name(tf, tmp_path / "m", arrays)
    assert words in refusal(convert, prefix, write_config(tmp_path, **config), tmp_path / "out")
