"""A checkpoint's tensors under the names of this suite's models, which are the published ones.

BERT is ALBERT with untied layers: as many groups as layers, an embedding as wide as the hidden
state, and the identity as mapping.
"""

import re

import torch

from ..errors import UserError

Tensors = dict[str, torch.Tensor]  # by name

BERT_NAMES = {
    "attention.self.": "attention.",
    "attention.output.": "attention.",
    "intermediate.dense.": "ffn.",
    "output.dense.": "ffn_output.",
    "output.LayerNorm.": "full_layer_layer_norm.",
}
# Regular expressions of a plain ALBERT's names -> an ACT model's, in this order.
ACT_NAMES = {
    r"encoder\.albert_layer_groups\.0\.albert_layers\.0\.": "encoder.albert_layer.",
    r"encoder\.albert_layer\.attention\.LayerNorm\.": "encoder.albert_layer.LayerNorm.",
}


def suite_names(tensors: Tensors) -> Tensors:
    """The tensors under this suite's names, the published ones: `albert.*`.

    Raises UserError for weights that are neither ALBERT's nor BERT's.
    """
    tensors = {modern_name(name): tensor for name, tensor in tensors.items()}
    if any(".attention.self.query." in name for name in tensors):
        return bert_as_albert(tensors)
    if not any(name.endswith("embedding_hidden_mapping_in.weight") for name in tensors):
        raise UserError(
            "the weights are neither ALBERT's nor BERT's; their first tensors are "
            + ", ".join(sorted(tensors)[:4])
        )
    return {
        f"albert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name: t
        for name, t in tensors.items()
    }


def modern_name(name: str) -> str:
    """Undo `module.` of DataParallel and TensorFlow's gamma/beta."""
    name = name.removeprefix("module.")
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def bert_as_albert(tensors: Tensors) -> Tensors:
    """BERT's tensors as one ALBERT layer group a layer."""
    renamed = {}
    for full_name, tensor in tensors.items():
        name = full_name.removeprefix("bert.")
        layer = re.match(r"encoder\.layer\.(\d+)\.", name)
        if layer:
            inner = name[layer.end() :]
            old = next((old for old in BERT_NAMES if inner.startswith(old)), "")
            inner = BERT_NAMES.get(old, "") + inner.removeprefix(old)
            name = f"albert.encoder.albert_layer_groups.{layer[1]}.albert_layers.0.{inner}"
        elif name.startswith(("embeddings.", "pooler.dense.")):
            name = "albert." + name.replace("pooler.dense.", "pooler.")
        renamed[name] = tensor
    words = renamed.get("albert.embeddings.word_embeddings.weight")
    if words is None:
        raise UserError("the weights hold no word embeddings")
    size = words.shape[1]
    renamed["albert.encoder.embedding_hidden_mapping_in.weight"] = torch.eye(size)
    renamed["albert.encoder.embedding_hidden_mapping_in.bias"] = torch.zeros(size)
    return renamed


def act_names(tensors: Tensors) -> Tensors:
    """Name an ALBERT or ACT checkpoint's tensors as `AlbertActTask` does."""
    renamed = {}
    for name, tensor in suite_names(tensors).items():
        for theirs, ours in ACT_NAMES.items():
            name = re.sub(theirs, ours, name)
        renamed[name] = tensor
    return renamed


def ponder_names(tensors: Tensors) -> Tensors:
    """Name an ALBERT checkpoint's tensors as `PonderAlbertClassifier` does."""
    layer = r"^encoder\.albert_layer_groups\.0\.albert_layers\.0\."
    renamed = {}
    for name, tensor in tensors.items():
        name = modern_name(name).removeprefix("albert.")
        name = re.sub(layer, "albert_layer.", name)
        renamed[name.removeprefix("encoder.")] = tensor
    return renamed
