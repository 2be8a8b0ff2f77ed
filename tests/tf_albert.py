"""ALBERT in TensorFlow: the variables of published checkpoints, files of them, and the outputs."""

import json
from pathlib import Path

import numpy as np
import torch

# V words, E embedding, H hidden, I intermediate, P positions, T types, L labels.
SIZES = {"V": 90, "E": 16, "H": 32, "I": 48, "P": 40, "T": 2, "L": 3, "2": 2, "1": 1}
# Google's file: a key of its own, too, and "gelu" for what is GELU by tanh.
CONFIG = {
    "vocab_size": 90,
    "embedding_size": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
    "initializer_range": 0.02,
    "net_structure_type": 0,
}

# Google's variables, their shapes, and HF's names, written down one by one. Of a line that ends in
# /, kernel and bias, or gamma and beta, are weight and bias.
EMBEDDINGS = """
bert/embeddings/word_embeddings                 V E  albert.embeddings.word_embeddings.weight
bert/embeddings/position_embeddings             P E  albert.embeddings.position_embeddings.weight
bert/embeddings/token_type_embeddings           T E  albert.embeddings.token_type_embeddings.weight
bert/embeddings/LayerNorm/                      E    albert.embeddings.LayerNorm
bert/pooler/dense/                              H H  albert.pooler
"""
MAPPING = """
bert/encoder/embedding_hidden_mapping_in/       E H  albert.encoder.embedding_hidden_mapping_in
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
    names = table(EMBEDDINGS, MAPPING, *heads)
    for group in range(groups):
        for number in range(inner):
            scope = f"bert/encoder/transformer/group_{group}/inner_group_{number}"
            layer = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{number}"
            for name, (target, shape) in table(LAYER).items():
                names[f"{scope}/{name}"] = (f"{layer}.{target}", shape)
    return names


def adaptive(*heads: str, tensorflow_2: bool = False) -> Table:
    """Under TensorFlow 2 the norms are Keras's, and the layer's own have lost their outer scope."""
    names = table(EMBEDDINGS, MAPPING, HALTING, *heads)
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


def random_arrays(names: Table) -> dict[str, np.ndarray]:
    """A value for every variable, so that no two tensors are alike."""
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(float(name.endswith("gamma")), 0.3, shape).astype("float32")
        for name, (_, shape) in names.items()
    }


def with_optimizer(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    moments = {f"{name}/adam_{x}": array + 1 for name, array in arrays.items() for x in "mv"}
    return {**arrays, **moments, "global_step": np.array(125000, dtype="int64")}


def write_config(folder: Path, **changes) -> Path:
    path = folder / "albert_config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


def save_by_name(tf, prefix: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A checkpoint as TensorFlow 1 writes it: variables of a graph under their scopes."""
    v1 = tf.compat.v1
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, initializer=array) for name, array in arrays.items()]
        session.run(v1.global_variables_initializer())
        v1.train.Saver(variables).save(session, str(prefix), write_meta_graph=False)
    return prefix


def assert_every_value(weights: dict, names: Table, arrays: dict[str, np.ndarray]) -> None:
    for name, (target, _) in names.items():
        expected = arrays[name].T if name.endswith("kernel") else arrays[name]
        assert torch.equal(weights[target], torch.from_numpy(expected.copy())), name


class Reference:
    """ALBERT as its paper has it, by TensorFlow's operations on the variables of a checkpoint."""

    def __init__(self, tf, prefix: Path) -> None:
        self.tf = tf
        self.variable = lambda name: tf.train.load_variable(str(prefix), name)

    def dense(self, x, scope: str):
        return self.tf.matmul(x, self.variable(f"{scope}/kernel")) + self.variable(f"{scope}/bias")

    def norm(self, x, scope: str):
        gamma, beta = self.variable(f"{scope}/gamma"), self.variable(f"{scope}/beta")
        mean, variance = self.tf.nn.moments(x, axes=[-1], keepdims=True)
        return self.tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)

    def embed(self, ids, types):
        """(batch, length) -> (batch, length, hidden)."""
        words = self.tf.gather(self.variable("bert/embeddings/word_embeddings"), ids)
        kinds = self.tf.gather(self.variable("bert/embeddings/token_type_embeddings"), types)
        positions = self.variable("bert/embeddings/position_embeddings")[: ids.shape[1]]
        embedded = self.norm(words + kinds + positions, "bert/embeddings/LayerNorm")
        return self.dense(embedded, "bert/encoder/embedding_hidden_mapping_in")

    def layer(self, state, mask, scope: str, heads: int = 4):
        """One layer pass over (batch, length, hidden); mask (batch, length)."""
        tf, (batch, length, hidden) = self.tf, state.shape

        def split(part: str):
            projected = self.dense(state, f"{scope}/attention_1/self/{part}")
            return tf.transpose(tf.reshape(projected, (batch, length, heads, -1)), (0, 2, 1, 3))

        scores = tf.matmul(split("query"), split("key"), transpose_b=True)
        scores = scores / (hidden // heads) ** 0.5 - 1e4 * (1 - mask[:, None, None, :])
        context = tf.matmul(tf.nn.softmax(scores), split("value"))
        context = tf.reshape(tf.transpose(context, (0, 2, 1, 3)), state.shape)
        attended = self.dense(context, f"{scope}/attention_1/output/dense") + state
        attended = self.norm(attended, f"{scope}/LayerNorm")
        inner = self.dense(attended, f"{scope}/ffn_1/intermediate/dense")
        inner = tf.nn.gelu(inner, approximate=True)
        output = self.dense(inner, f"{scope}/ffn_1/intermediate/output/dense")
        return self.norm(output + attended, f"{scope}/LayerNorm_1")
