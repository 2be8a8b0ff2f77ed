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

from modeling.act.model import (
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
from modeling.configuration import (
    AlbertActConfig,
    ElbertConfig,
    PonderAlbertConfig,
)
from modeling.elbert.model import ElbertForSequenceClassification, ElbertOutput
from modeling.elbert.rules import ExitRule
from modeling.errors import UserError
from modeling.loading.weights import apply_exit_config, load_config, load_pretrained, load_tokenizer
from modeling.ponder.criteria import HaltingRule, scan_halting
from modeling.ponder.distribution import GeneralizedGeometricDist
from modeling.ponder.losses import PonderClassificationLoss
from modeling.ponder.model import (
    PonderAlbertClassifier,
    PonderOutput,
    load_ponder,
)
from modeling.ponder.parity import ParityPonderGRU, ReconstructionLoss, RegularizationLoss
from modeling.ponder.texts import with_halting_token

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
