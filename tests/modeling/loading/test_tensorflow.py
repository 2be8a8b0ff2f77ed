"""TensorFlow checkpoints, written by TensorFlow: every value, and what goes wrong."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import convert_albert_original_tf_checkpoint_to_pytorch as converter
from modeling import UserError, load_pretrained, load_tokenizer
from modeling.loading.tensorflow import checkpoint_prefix, load_tf_checkpoint, sort_variables
from tests.commands import Outcome
from tests.conftest import TINY, contents

# Google's file: a key of its own, too, and "gelu" for what is GELU by tanh.
CONFIG = {
    **TINY,
    "type_vocab_size": 2,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "net_structure_type": 0,
}
# V words, E embedding, H hidden, I intermediate, P positions, T types, L labels.
SIZES = {"V": 90, "E": 16, "H": 32, "I": 48, "P": 40, "T": 2, "L": 3, "2": 2, "1": 1}

# Google's variables, their shapes, and HF's names, written down one by one. Of a line that ends in
# /, kernel and bias, or gamma and beta, are weight and bias.
EMBEDDINGS = """
bert/embeddings/word_embeddings                 V E  albert.embeddings.word_embeddings.weight
bert/embeddings/position_embeddings             P E  albert.embeddings.position_embeddings.weight
bert/embeddings/token_type_embeddings           T E  albert.embeddings.token_type_embeddings.weight
bert/embeddings/LayerNorm/                      E    albert.embeddings.LayerNorm
bert/encoder/embedding_hidden_mapping_in/       E H  albert.encoder.embedding_hidden_mapping_in
bert/pooler/dense/                              H H  albert.pooler
"""
LAYER = """
attention_1/self/query/                         H H  attention.query
attention_1/self/key/                           H H  attention.key
attention_1/self/value/                         H H  attention.value
attention_1/output/dense/                       H H  attention.dense
LayerNorm/                                      H    attention.LayerNorm
ffn_1/intermediate/dense/                       H I  ffn
ffn_1/intermediate/output/dense/                I H  ffn_output
LayerNorm_1/                                    H    full_layer_layer_norm
"""
MLM = """
cls/predictions/transform/dense/                H E  predictions.dense
cls/predictions/transform/LayerNorm/            E    predictions.LayerNorm
cls/predictions/output_bias                     V    predictions.bias
"""
SOP = """
cls/seq_relationship/output_weights             2 H  sop_classifier.classifier.weight
cls/seq_relationship/output_bias                2    sop_classifier.classifier.bias
"""
CLASSIFIER = """
output_weights                                  L H  classifier.weight
output_bias                                     L    classifier.bias
"""
# Adaptive Depth, pre-trained under TensorFlow 1 and 2; each as above.
HALTING = """
bert/encoder/transformer/halting/dense/         H 1  albert.encoder.albert_layer.act.dense
"""

Table = dict[str, tuple[str, tuple[int, ...]]]
Arrays = dict[str, np.ndarray]


def table(*texts: str) -> Table:
    """TensorFlow's name -> (PyTorch's name, shape in TensorFlow)."""
    found = {}
    for name, *sizes, target in filter(None, map(str.split, "\n".join(texts).splitlines())):
        shape = tuple(SIZES[size] for size in sizes)
        if not name.endswith("/"):
            found[name] = (target, shape)
            continue
        weight, bias = ("gamma", "beta") if len(shape) == 1 else ("kernel", "bias")
        found[name + weight] = (f"{target}.weight", shape)
        found[name + bias] = (f"{target}.bias", shape[-1:])
    return found


def albert(*heads: str, groups: int = 1, inner: int = 1) -> Table:
    names = table(EMBEDDINGS, *heads)
    for group in range(groups):
        for number in range(inner):
            scope = f"bert/encoder/transformer/group_{group}/inner_group_{number}"
            layer = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{number}"
            for name, (target, shape) in table(LAYER).items():
                names[f"{scope}/{name}"] = (f"{layer}.{target}", shape)
    return names


def adaptive(*heads: str, tensorflow_2: bool = False) -> Table:
    """Under TensorFlow 2 the norms are Keras's, and the layer's own have lost their outer scope."""
    names = table(EMBEDDINGS, HALTING, *heads)
    for name, (target, shape) in table(LAYER).items():
        target = target.replace("attention.LayerNorm", "LayerNorm")
        names[f"bert/encoder/transformer/{name}"] = (f"albert.encoder.albert_layer.{target}", shape)
    if not tensorflow_2:
        return names
    renamed = {}
    for name, tensor in names.items():
        name = name.replace("LayerNorm", "layer_normalization")
        name = name.replace("bert/encoder/transformer/layer_", "transformer/layer_")
        name = name.replace("transform/layer_normalization", "transform/layer_normalization_1")
        renamed[name] = tensor
    return renamed


def random_arrays(names: Table) -> Arrays:
    """A value for every variable, so that no two tensors are alike."""
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(float(name.endswith("gamma")), 0.3, shape).astype("float32")
        for name, (_, shape) in names.items()
    }


def with_optimizer(arrays: Arrays) -> Arrays:
    moments = {f"{name}/adam_{x}": array + 1 for name, array in arrays.items() for x in "mv"}
    others = ("bert/pooler/dense/kernel/accum", "beta1_power")
    moments |= dict.fromkeys(others, np.zeros((), "float32"))
    return {**arrays, **moments, "global_step": np.array(125000, dtype="int64")}


def write_config(folder: Path, **changes) -> Path:
    path = folder / "albert_config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


def assert_every_value(weights: dict, names: Table, arrays: Arrays, prefix: str = "") -> None:
    """Of the variables whose tensors' names begin so; a bare encoder's lack that beginning."""
    for name, (target, _) in names.items():
        expected = arrays[name].T if name.endswith("kernel") else arrays[name]
        if target.startswith(prefix):
            found = weights[target.removeprefix(prefix)]
            assert torch.equal(found, torch.from_numpy(expected.copy())), name


@pytest.fixture(scope="session")
def tf():
    return pytest.importorskip("tensorflow", reason="needs pip install -r requirements-tf.txt")


@pytest.fixture
def save(tf, tmp_path) -> Callable[..., Path]:
    """`save(arrays)` writes a checkpoint as TensorFlow 1 does: variables of a graph by name."""

    def run(arrays: Arrays, name: str = "model.ckpt-best") -> Path:
        v1, prefix = tf.compat.v1, tmp_path / name
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with tf.Graph().as_default(), v1.Session() as session:
            variables = [v1.get_variable(key, initializer=array) for key, array in arrays.items()]
            session.run(v1.global_variables_initializer())
            v1.train.Saver(variables).save(session, str(prefix), write_meta_graph=False)
        return prefix

    return run


@pytest.fixture
def convert(script) -> Callable[[Path, Path, Path], Outcome]:
    """(checkpoint, configuration, target) -> what the script ended with."""

    def run(checkpoint: Path, config: Path, target: Path) -> Outcome:
        flags = ("--tf_checkpoint_path", "--albert_config_file", "--pytorch_dump_path")
        given = zip(flags, (checkpoint, config, target), strict=True)
        return script(converter.main, *(word for pair in given for word in pair))

    return run


# Names, without TensorFlow.


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
    for name in ("model.ckpt-2", "model.ckpt-best"):
        (tmp_path / f"{name}.index").touch()
    for suffix in ("", ".index", ".meta", ".data-00000-of-00001"):
        given = tmp_path / f"model.ckpt-best{suffix}"
        assert checkpoint_prefix(given) == str(tmp_path / "model.ckpt-best")
    with pytest.raises(UserError, match=r"model\.ckpt-2 or .*model\.ckpt-best"):
        checkpoint_prefix(tmp_path)


# Every value.


@pytest.mark.tf
@pytest.mark.parametrize(
    ("names", "changes", "kind"),
    [
        (albert(), {}, "AlbertModel"),
        (albert(MLM, SOP), {}, "AlbertForPreTraining"),
        (albert(CLASSIFIER), {}, "AlbertForSequenceClassification"),
        (
            albert(MLM, SOP, groups=2, inner=2),
            {"num_hidden_groups": 2, "inner_group_num": 2},
            "AlbertForPreTraining",
        ),
        (adaptive(), {}, "AlbertActModel"),
        (adaptive(MLM, SOP), {}, "AlbertActForPreTraining"),
        (adaptive(tensorflow_2=True), {}, "AlbertActModel"),
        (adaptive(MLM, SOP, tensorflow_2=True), {}, "AlbertActForPreTraining"),
    ],
)
def test_the_state_dict_has_every_value(save, convert, tmp_path, names, changes, kind):
    arrays = random_arrays(names)
    prefix, config = save(with_optimizer(arrays)), write_config(tmp_path, **changes)
    outcome = convert(prefix, config, tmp_path / "deep/er/albert.bin")
    assert f"Weights loaded from {prefix}: {len(names)} tensors\n" in outcome.out
    assert f" and {2 * len(names) + 3 - 6} more\n" in outcome.out  # of the optimizer
    assert f"{kind} written" in outcome.out
    weights = torch.load(tmp_path / "deep/er/albert.bin", weights_only=True)
    assert_every_value(weights, names, arrays, "albert." if kind.endswith("Model") else "")
    model, _ = load_tf_checkpoint(prefix, config)
    keras = any("layer_normalization" in name for name in names)
    assert model.config.layer_norm_eps == (1e-3 if keras else 1e-12)  # 1e-3 is Keras's


@pytest.mark.tf
@pytest.mark.parametrize("given", ["", "variables"])
def test_a_tf_hub_export_loads_in_hf_and_here(save, convert, spiece, tmp_path, given):
    """Its variables stand in the scope `module`; MLM alone, as exported, keeps the pooler."""
    names = albert(MLM)
    arrays = random_arrays(names)
    exported = {f"module/{name}": array for name, array in arrays.items()}
    save(exported, "hub/variables/variables")
    (tmp_path / "hub/assets").mkdir()
    (tmp_path / "hub/assets/30k-clean.model").write_bytes(spiece.read_bytes())
    outcome = convert(tmp_path / "hub" / given, write_config(tmp_path), tmp_path / "out")
    assert "AlbertForMaskedLM written" in outcome.out
    assert {*contents(tmp_path / "out")} == {"config.json", "model.safetensors", "spiece.model"}
    twin = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "out")
    assert_every_value(twin.state_dict(), names, arrays)
    assert twin.config.hidden_act == "gelu_new"
    model, report = load_pretrained(tmp_path / "out")
    assert_every_value(model.albert.state_dict(), names, arrays, "albert.")
    assert all("exit" in name for name in report.initialised)
    assert load_tokenizer(tmp_path / "out")("a dog").input_ids


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
    model, report = load_tf_checkpoint(saved, write_config(tmp_path))
    assert_every_value(model.state_dict(), names, arrays)
    assert sorted([*report.loaded, *report.ignored]) == sorted(keys)


# What goes wrong: a line that names the file or the key, and nothing written.


def test_no_tensorflow_is_one_line_with_the_remedy(convert, tmp_path, monkeypatch):
    loaded = [name for name in sys.modules if name.startswith("tensorflow.")]
    for name in ("tensorflow", *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "model.index").touch()
    outcome = convert(tmp_path / "model", write_config(tmp_path), tmp_path / "out")
    outcome.refused("pip install -r requirements-tf.txt")
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
    convert(*arguments).refused(words)
    assert contents(tmp_path) == before


WHOLE, DATA, INDEX = albert(MLM, SOP), "data-00000-of-00001", "index"


@pytest.mark.tf
@pytest.mark.parametrize(
    ("names", "config", "cut", "words"),
    [
        (WHOLE, {}, (DATA, 0), "fetch all of them"),
        (WHOLE, {}, (DATA, 0.5), "fetch all of them"),
        (WHOLE, {}, (INDEX, 0), "damaged"),
        (WHOLE, {}, (INDEX, 0.5), "damaged"),
        (WHOLE, {"hidden_size": 64}, None, "the configuration asks for ("),
        (WHOLE, {"num_hidden_groups": 2}, None, "num_hidden_groups"),
        (WHOLE, {"num_attention_heads": 5}, None, "num_attention_heads = 5"),
        (WHOLE, {"hidden_size": "wide"}, None, "hidden_size"),
        ({n: x for n, x in WHOLE.items() if "pooler/dense/b" not in n}, {}, None, "pooler.bias"),
        (albert(MLM, SOP, groups=2), {}, None, "albert_layer_groups.1"),
        (albert(SOP, CLASSIFIER), {}, None, "classifier, sop_classifier"),  # no model has both
        (albert(CLASSIFIER), {"num_labels": 2}, None, "(3"),
    ],
)
def test_what_is_no_whole_model_is_named(save, convert, tmp_path, names, config, cut, words):
    """A file cut short, the configuration of another model, variables of none."""
    prefix = save(random_arrays(names))
    if cut:
        file = prefix.with_name(f"{prefix.name}.{cut[0]}")
        file.write_bytes(file.read_bytes()[: int(cut[1] * file.stat().st_size)])
    outcome = convert(prefix, write_config(tmp_path, **config), tmp_path / "out")
    outcome.refused(prefix, "albert_config.json", words)
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
