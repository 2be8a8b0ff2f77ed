"""Text classifiers that stop when they are sure: ELBERT, PonderNet and Adaptive Depth.

classifier             `classify` and `Classifier`: texts in, answers out
exits/, ponder/, act/  the three modes
layer, albert          the layer pass, and the encoder around it
depth, depth_batching  loops over depth: for a batch, and for slots that are kept full
rules                  what an exit rule is, and scans of recorded layers
configuration          the modes' configurations, and what a layer pass costs
losses                 losses of a task, and of all exits
recipes                a recipe's keys, and an optimiser's groups by them
model_summary          a model's parameters, and the operations up to each exit
cpu_packing            models packed for inference on a CPU, number types
loading/, export/      checkpoints and tokenizers; ONNX files
published/             import names of other repositories

Importing the package makes all modes known to transformers. `elbert_base` has what loads no torch:
errors, configuration keys, files.
"""

from elbert_base.errors import UserError

from .act.encoder import AlbertActModel, AlbertActModelOutput
from .act.heads import (
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActOutput,
)
from .classifier import Classifier, EarlyExitPipeline, classify
from .configuration import AlbertActConfig, ElbertConfig, PonderAlbertConfig
from .cpu_packing import cast_layers, packed_copy
from .depth import EarlyExitModel, EarlyExitOutput
from .depth_batching import DepthBatcher
from .exits.model import ElbertForSequenceClassification
from .loading.by_mode import load_act, load_ponder, load_pretrained
from .loading.configs import load_config
from .loading.tokenizers import load_tokenizer
from .loading.weights import LoadReport, load_model
from .losses import PonderClassificationLoss
from .model_summary import summary
from .ponder.distribution import GeneralizedGeometricDist
from .ponder.model import (
    PonderAlbertClassifier,
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
from .recipes import parameter_groups, recipe
from .rules import ExitRule, exit_scores, scan, scan_answers

__version__ = "1.0.0"

__all__ = [
    "AlbertActConfig",
    "AlbertActForMaskedLM",
    "AlbertActForMultipleChoice",
    "AlbertActForPreTraining",
    "AlbertActForQuestionAnswering",
    "AlbertActForSequenceClassification",
    "AlbertActForTokenClassification",
    "AlbertActModel",
    "AlbertActModelOutput",
    "AlbertActOutput",
    "Classifier",
    "DepthBatcher",
    "EarlyExitModel",
    "EarlyExitOutput",
    "EarlyExitPipeline",
    "ElbertConfig",
    "ElbertForSequenceClassification",
    "ExitRule",
    "GeneralizedGeometricDist",
    "LoadReport",
    "ParityDataset",
    "ParityPonderGRU",
    "PonderAlbertClassifier",
    "PonderAlbertConfig",
    "PonderAlbertForSequenceClassification",
    "PonderClassificationLoss",
    "PonderNet",
    "PonderOutput",
    "ReconstructionLoss",
    "RegularizationLoss",
    "UserError",
    "__version__",
    "cast_layers",
    "classify",
    "exit_scores",
    "load_act",
    "load_config",
    "load_model",
    "load_ponder",
    "load_pretrained",
    "load_tokenizer",
    "packed_copy",
    "parameter_groups",
    "recipe",
    "scan",
    "scan_answers",
    "summary",
    "with_halting_token",
]
