"""The public names of the package; importing them makes all modes known to transformers."""

# ruff: noqa: F401

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
from .depth import EarlyExitOutput
from .elbert.model import ElbertConfig, ElbertForSequenceClassification
from .loading.configs import load_config
from .loading.models import load_act, load_ponder, load_pretrained
from .loading.tokenizers import load_tokenizer
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
    AlbertStep,
    ParityDataset,
    ParityPonderGRU,
    PonderNet,
    ReconstructionLoss,
    RegularizationLoss,
)
from .rules import ExitRule, scan, scan_answers
