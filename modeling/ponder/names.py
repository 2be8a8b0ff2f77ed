"""An ALBERT checkpoint's tensors under a ponder model's names."""

import re

from ..loading.names import Tensors, modern_name

HEADS = ("classifier.", "ponder.")  # what a plain ALBERT lacks


def ponder_names(tensors: Tensors) -> Tensors:
    """An ALBERT checkpoint's tensors under the names of `PonderAlbertClassifier`."""
    layer = r"^encoder\.albert_layer_groups\.0\.albert_layers\.0\."
    renamed = {}
    for name, tensor in tensors.items():
        name = modern_name(name).removeprefix("albert.")
        name = re.sub(layer, "albert_layer.", name)
        renamed[name.removeprefix("encoder.")] = tensor
    return renamed
