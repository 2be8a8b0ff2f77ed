"""Loading a classifier of each mode, from the weights of any checkpoint that fits it."""

from pathlib import Path

from ..act.heads import AlbertActForSequenceClassification
from ..configuration import AlbertActConfig, ElbertConfig, PonderAlbertConfig
from ..elbert.model import ElbertForSequenceClassification
from ..ponder.model import PonderAlbertClassifier
from .weights import LoadReport, load_model


def load_pretrained(
    source: str | Path, config: ElbertConfig | None = None, other_task: bool = False
) -> tuple[ElbertForSequenceClassification, LoadReport]:
    """Load an ELBERT from an ALBERT, a BERT or an ELBERT; see `load_model`."""
    return load_model(ElbertForSequenceClassification, source, config, other_task)


def load_ponder(
    source: str | Path, config: PonderAlbertConfig | None = None, other_task: bool = False
) -> tuple[PonderAlbertClassifier, LoadReport]:
    """Load a ponder model from an ALBERT or a ponder model; see `load_model`."""
    return load_model(PonderAlbertClassifier, source, config, other_task)


def load_act(
    source: str | Path, config: AlbertActConfig | None = None, other_task: bool = False
) -> tuple[AlbertActForSequenceClassification, LoadReport]:
    """Load an ACT classifier from an ALBERT, whose halting head is new, or from an ACT model."""
    return load_model(AlbertActForSequenceClassification, source, config, other_task)
