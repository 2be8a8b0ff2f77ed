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
from elbert import load_pretrained, load_tokenizer
from modeling.loading.tensorflow import load_tf_checkpoint
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
    """Read tables: TensorFlow's name -> (PyTorch's name, shape in TensorFlow)."""
    names = {}
    rows = [line.split() for line in "\n".join(texts).splitlines() if line]
    for name, *sizes, target in rows:
        shape = tuple(SIZES[size] for size in sizes)
        if not name.endswith("/"):
            names[name] = (target, shape)
            continue
        weight, bias = ("gamma", "beta") if len(shape) == 1 else ("kernel", "bias")
        names[name + weight] = (f"{target}.weight", shape)
        names[name + bias] = (f"{target}.bias", shape[-1:])
    return names


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
    """Compare the variables whose tensors' names begin with `prefix`, which `weights` leave out."""
    for name, (target, _) in names.items():
        expected = arrays[name].T if name.endswith("kernel") else arrays[name]
        if target.startswith(prefix):
            weight = weights[target.removeprefix(prefix)]
            assert torch.equal(weight, torch.from_numpy(expected.copy())), name


@pytest.fixture(scope="session")
def tf():
    return pytest.importorskip("tensorflow", reason="needs pip install -r requirements/tf.txt")


@pytest.fixture
def save(tf, tmp_path) -> Callable[..., Path]:
    """`save(arrays)` writes a checkpoint as TensorFlow 1 does: variables of a graph by name."""

    def run(arrays: Arrays, name: str = "model.ckpt-best") -> Path:
        v1 = tf.compat.v1
        prefix = tmp_path / name
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with tf.Graph().as_default(), v1.Session() as session:
            variables = [v1.get_variable(key, initializer=array) for key, array in arrays.items()]
            session.run(v1.global_variables_initializer())
            v1.train.Saver(variables).save(session, str(prefix), write_meta_graph=False)
        return prefix

    return run


@pytest.fixture
def convert(script) -> Callable[..., Outcome]:
    """A function (checkpoint, configuration, target, flags) -> what the script ended with."""

    def run(checkpoint: Path, config: Path, target: Path, *flags: str) -> Outcome:
        return script(
            converter.main,
            "--tf_checkpoint_path",
            checkpoint,
            "--albert_config_file",
            config,
            "--pytorch_dump_path",
            target,
            *flags,
        )

    return run


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
    prefix = save(with_optimizer(arrays))
    config = write_config(tmp_path, **changes)
    outcome = convert(prefix, config, tmp_path / "deep/er/albert.bin")
    assert f"Weights loaded from {prefix}: {len(names)} tensors\n" in outcome.out
    assert f" and {2 * len(names) + 3 - 6} more\n" in outcome.out  # of the optimizer
    assert f"{kind} written" in outcome.out
    weights = torch.load(tmp_path / "deep/er/albert.bin", weights_only=True)
    assert_every_value(weights, names, arrays, "albert." if kind.endswith("Model") else "")
    one_of_its_files = prefix.with_name(f"{prefix.name}.index")  # names the whole checkpoint
    model, _ = load_tf_checkpoint(one_of_its_files, config)
    keras = any("layer_normalization" in name for name in names)
    assert model.config.layer_norm_eps == (1e-3 if keras else 1e-12)  # 1e-3 is Keras's


@pytest.mark.tf
def test_a_tf_hub_export_loads_in_hf_and_here(save, convert, spiece, tmp_path):
    """Its variables stand in the scope `module`; MLM alone, as exported, keeps the pooler."""
    names = albert(MLM)
    arrays = random_arrays(names)
    exported = {f"module/{name}": array for name, array in arrays.items()}
    prefix = save(exported, "hub/variables/variables")
    (tmp_path / "hub/assets").mkdir()
    (tmp_path / "hub/assets/30k-clean.model").write_bytes(spiece.read_bytes())
    (tmp_path / "hub/assets/30k-clean.vocab").write_text("<pad>\t0\n")
    outcome = convert(prefix, write_config(tmp_path), tmp_path / "out", "--save_format", "pytorch")
    assert "AlbertForMaskedLM written" in outcome.out
    assert {*contents(tmp_path / "out")} == {
        *("config.json", "model.safetensors", "pytorch_model.bin"),
        *("spiece.model", "spiece.vocab", "tokenizer.json", "tokenizer_config.json"),
    }
    state = torch.load(tmp_path / "out/pytorch_model.bin", weights_only=True)
    assert_every_value(state, names, arrays)
    twin = transformers.AlbertForPreTraining.from_pretrained(tmp_path / "out")
    assert_every_value(twin.state_dict(), names, arrays)
    assert twin.config.hidden_act == "gelu_new"
    model, report = load_pretrained(tmp_path / "out")
    assert_every_value(model.albert.state_dict(), names, arrays, "albert.")
    assert all("exit" in name for name in report.initialised)
    assert load_tokenizer(tmp_path / "out")("a dog").input_ids


# What goes wrong: a line that names the file or the key, and nothing written.


def test_no_tensorflow_is_one_line_with_the_remedy(convert, tmp_path, monkeypatch):
    loaded = [name for name in sys.modules if name.startswith("tensorflow.")]
    for name in ("tensorflow", *loaded):
        monkeypatch.setitem(sys.modules, name, None)
    outcome = convert(tmp_path / "model", write_config(tmp_path), tmp_path / "out")
    outcome.refused("pip install -r requirements/tf.txt")
    assert (Path(converter.__file__).parent / "requirements/tf.txt").exists()


WHOLE = albert(MLM, SOP)
SQUAD = "cls/squad/output_weights    2 H  none\n"


@pytest.mark.tf
@pytest.mark.parametrize(
    ("names", "config", "cut", "words"),
    [
        (WHOLE, {}, "index", "cannot read it"),
        (WHOLE, {}, "data-00000-of-00001", "cannot read it"),
        (WHOLE, {"hidden_size": 64}, None, "the configuration asks for ("),
        (WHOLE, {"num_attention_heads": 5}, None, "num_attention_heads = 5"),
        (albert(MLM, SOP, groups=2), {}, None, "albert_layer_groups.1"),
        (albert(SOP, CLASSIFIER), {}, None, "classifier, sop_classifier"),  # no model has both
        (
            albert(SQUAD),
            {},
            None,
            "1 variables are unknown: cls/squad/output_weights. Nothing was",
        ),
    ],
)
def test_what_is_no_whole_model_is_named(save, convert, tmp_path, names, config, cut, words):
    """A file cut short, the configuration of another model, variables of none."""
    prefix = save(random_arrays(names))
    if cut:
        file = prefix.with_name(f"{prefix.name}.{cut}")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    outcome = convert(prefix, write_config(tmp_path, **config), tmp_path / "out")
    outcome.refused(prefix, "albert_config.json", words)
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
