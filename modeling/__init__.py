"""Adaptive-depth ALBERT models: every public name of the package."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .act import (
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForPreTrainingOutput,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActModel,
    AlbertActModelOutput,
    AlbertActOutput,
    AlbertActQuestionAnsweringOutput,
    load_act,
)
from .checkpoints import apply_exit_config, load_config, load_pretrained, load_tokenizer
from .configuration import AlbertActConfig, ElbertConfig, ExitRule, HaltingRule, PonderAlbertConfig
from .elbert import ElbertForSequenceClassification, ElbertOutput
from .errors import UserError
from .halting import GeneralizedGeometricDist, PonderClassificationLoss, scan_halting
from .parity import ParityPonderGRU, ReconstructionLoss, RegularizationLoss
from .ponder import PonderAlbertClassifier, PonderOutput, load_ponder, with_halting_token

AutoConfig.register("elbert", ElbertConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    ElbertConfig, ElbertForSequenceClassification, exist_ok=True
)

AutoConfig.register("ponder_albert", PonderAlbertConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    PonderAlbertConfig, PonderAlbertClassifier, exist_ok=True
)

AutoConfig.register("albert_act", AlbertActConfig, exist_ok=True)
for auto_class, act_class in (
    (AutoModel, AlbertActModel),
    (AutoModelForPreTraining, AlbertActForPreTraining),
    (AutoModelForMaskedLM, AlbertActForMaskedLM),
    (AutoModelForSequenceClassification, AlbertActForSequenceClassification),
    (AutoModelForTokenClassification, AlbertActForTokenClassification),
    (AutoModelForQuestionAnswering, AlbertActForQuestionAnswering),
    (AutoModelForMultipleChoice, AlbertActForMultipleChoice),
):
    auto_class.register(AlbertActConfig, act_class, exist_ok=True)

__all__ = [
    "AlbertActConfig",
    "AlbertActForMaskedLM",
    "AlbertActForMultipleChoice",
    "AlbertActForPreTraining",
    "AlbertActForPreTrainingOutput",
    "AlbertActForQuestionAnswering",
    "AlbertActForSequenceClassification",
    "AlbertActForTokenClassification",
    "AlbertActModel",
    "AlbertActModelOutput",
    "AlbertActOutput",
    "AlbertActQuestionAnsweringOutput",
    "ElbertConfig",
    "ElbertForSequenceClassification",
    "ElbertOutput",
    "ExitRule",
    "GeneralizedGeometricDist",
    "HaltingRule",
    "ParityPonderGRU",
    "PonderAlbertClassifier",
    "PonderAlbertConfig",
    "PonderClassificationLoss",
    "PonderOutput",
    "ReconstructionLoss",
    "RegularizationLoss",
    "UserError",
    "apply_exit_config",
    "load_act",
    "load_config",
    "load_ponder",
    "load_pretrained",
    "load_tokenizer",
    "scan_halting",
    "with_halting_token",
]
