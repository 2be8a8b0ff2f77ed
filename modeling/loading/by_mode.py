"""`load_model` for each mode, under the mode's name."""

from pathlib import Path
from typing import Any

from transformers import AlbertConfig

from ..act.heads import AlbertActForSequenceClassification
from ..exits.model import ElbertForSequenceClassification
from ..ponder.model import PonderAlbertClassifier
from .weights import LoadReport, load_model


def load_pretrained(
    source: str | Path,
    config: AlbertConfig | None = None,
    *,
    other_task: bool = False,
    **keys: Any,
) -> tuple[ElbertForSequenceClassification, LoadReport]:
    """Load an ELBERT from an ELBERT, an ALBERT, a BERT or another encoder that it supports.

        model, report = elbert.load_pretrained("albert/albert-base-v2", num_labels=3)

    The arguments, `keys` among them, and the errors are those of `load_model`.
    """
    return load_model(
        ElbertForSequenceClassification, source, config, other_task=other_task, **keys
    )


def load_ponder(
    source: str | Path,
    config: AlbertConfig | None = None,
    *,
    other_task: bool = False,
    **keys: Any,
) -> tuple[PonderAlbertClassifier, LoadReport]:
    """Load a ponder model from a ponder model, or from an encoder with one shared layer.

        model, report = elbert.load_ponder("albert/albert-base-v2", num_labels=3)

    The arguments, `keys` among them, and the errors are those of `load_model`.
    """
    return load_model(PonderAlbertClassifier, source, config, other_task=other_task, **keys)


def load_act(
    source: str | Path,
    config: AlbertConfig | None = None,
    *,
    other_task: bool = False,
    **keys: Any,
) -> tuple[AlbertActForSequenceClassification, LoadReport]:
    """Load an Adaptive Depth model from such a model, or from an encoder with one shared layer.

        model, report = elbert.load_act("asi/albert-act-base", num_labels=3)

    The arguments, `keys` among them, and the errors are those of `load_model`.
    """
    return load_model(
        AlbertActForSequenceClassification, source, config, other_task=other_task, **keys
    )
