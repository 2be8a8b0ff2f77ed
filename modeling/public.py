"""The public names of the package; importing them makes all modes known to transformers."""

# ruff: noqa: F401

from functools import partial

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
from .classification import classify
from .cpu_packing import packed_weights
from .depth import EarlyExitModel, EarlyExitOutput
from .depth_batching import DepthBatcher
from .elbert.model import ElbertConfig, ElbertForSequenceClassification
from .loading.configs import load_config
from .loading.tokenizers import load_tokenizer
from .loading.weights import load_model
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

# A mode's model and a report of its weights, from any checkpoint that fits it; see `load_model`.
load_pretrained = partial(load_model, ElbertForSequenceClassification)
load_ponder = partial(load_model, PonderAlbertClassifier)
load_act = partial(load_model, AlbertActForSequenceClassification)
