"""The modes of --model_type: who stops, and when."""

from pathlib import Path

from evaluation.modes.adaptive_depth import AdaptiveDepth
from evaluation.modes.base import Mode
from evaluation.modes.early_exit import Elbert, Ponder
from modeling.act.heads import AlbertActForSequenceClassification
from modeling.encoder import AlbertPreTrainedModel
from modeling.exits.model import ElbertForSequenceClassification
from modeling.loading.configs import mode_in
from modeling.ponder.model import PonderAlbertClassifier

# The models that scripts train, one for each mode; a mode's name is its configuration's model_type.
MODELS = (
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    AlbertActForSequenceClassification,
)
# Ways to run and report models: a model gets the first that runs its class, or a base of it.
KINDS: tuple[type[Mode], ...] = (Elbert, Ponder, AdaptiveDepth)


def mode_for(model_class: type[AlbertPreTrainedModel]) -> Mode:
    """Make the mode that runs and reports models of a class."""
    kind = next(kind for kind in KINDS if issubclass(model_class, kind.runs))
    return kind(model_class)


MODES: dict[str, Mode] = {mode.name: mode for mode in map(mode_for, MODELS)}


def trained_mode(directory: str | Path) -> Mode:
    """Return the mode that the model in `directory` was trained in; see `mode_in`."""
    return MODES[mode_in(directory)]
