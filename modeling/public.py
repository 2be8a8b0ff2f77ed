"""The public names of the package; importing them makes all modes known to transformers."""

# ruff: noqa: F401

from pathlib import Path

from .act.heads import (
    AlbertActConfig,
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActModel,
    AlbertActModelOutput,
    AlbertActOutput,
)
from .cpu_packing import packed_weights
from .depth import EarlyExitModel, EarlyExitOutput
from .depth_batching import DepthBatcher
from .elbert.model import ElbertConfig, ElbertForSequenceClassification
from .loading.configs import load_config
from .loading.tokenizers import load_tokenizer
from .loading.weights import LoadReport, load_model
from .losses import PonderClassificationLoss
from .ponder.distribution import GeneralizedGeometricDist
from .ponder.model import (
    PonderAlbertClassifier,
    PonderAlbertConfig,
    PonderAlbertForSequenceClassification,
    PonderOutput,
    with_halting_token,
)
from .ponder.pondernet import (
    ParityDataset,
    ParityPonderGRU,
    PonderNet,
    ReconstructionLoss,
    RegularizationLoss,
)
from .rules import ExitRule, scan, scan_answers


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
