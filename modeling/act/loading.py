"""A classifier of Adaptive Depth from the weights of an ALBERT or of an ACT model."""

import re
from pathlib import Path

from ..configuration import AlbertActConfig
from ..loading.configs import load_config
from ..loading.names import Tensors, suite_names
from ..loading.weights import LoadReport, load_into, read_renamed
from .heads import AlbertActForSequenceClassification
from .model import NAMES_OF_ALBERT


def load_act(
    source: str | Path,
    config: AlbertActConfig | None = None,
    cache_dir: str | None = None,
    other_task: bool = False,
) -> tuple[AlbertActForSequenceClassification, LoadReport]:
    """A classifier with the weights of `source`, an ALBERT or ACT model, and what was loaded.

    A plain ALBERT has no halting head. `other_task`: the source was fine-tuned on another task, so
    its classifier is left out, as is one of another number of labels. Raises UserError when other
    weights have another shape than the configuration asks for.
    """
    config = config or load_config(source, cache_dir, AlbertActConfig)
    model = AlbertActForSequenceClassification(config)
    tensors = read_renamed(act_names, source, cache_dir)
    ours, theirs = model.classifier.weight, tensors.get("classifier.weight")
    foreign = other_task or (theirs is not None and theirs.shape != ours.shape)
    heads = ("albert.pooler.", "albert.encoder.albert_layer.act.", "classifier.")
    return model, load_into(model, tensors, source, heads, ("classifier.",) if foreign else ())


def act_names(tensors: Tensors) -> Tensors:
    """An ALBERT or ACT checkpoint's tensors under the names of `AlbertActTask`."""
    renamed = {}
    for name, tensor in suite_names(tensors).items():
        for theirs, ours in NAMES_OF_ALBERT.items():
            name = re.sub(theirs, ours, name)
        renamed[name] = tensor
    return renamed
