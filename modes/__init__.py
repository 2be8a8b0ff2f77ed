"""The modes of --model_type: who stops, and when."""

from pathlib import Path

from elbert.act.heads import AlbertActForSequenceClassification
from elbert.exits.model import ElbertForSequenceClassification
from elbert.loading.configs import mode_in
from elbert.ponder.model import PonderAlbertClassifier
from modes.adaptive_depth import AdaptiveDepth
from modes.base import Mode
from modes.early_exit import Elbert, Ponder

# The models that scripts train, one for each mode; a mode's name is its configuration's model_type.
MODELS = (
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    AlbertActForSequenceClassification,
)
# What runs and reports a model: the first kind whose models it is one of, or a subclass of one.
KINDS: tuple[type[Mode], ...] = (Elbert, Ponder, AdaptiveDepth)


def mode_for(model_class: type) -> Mode:
    """Make the mode that runs and reports models of a class."""
    kind = next(kind for kind in KINDS if issubclass(model_class, kind.runs))
    return kind(model_class)


MODES: dict[str, Mode] = {mode.name: mode for mode in map(mode_for, MODELS)}


def trained_mode(directory: str | Path) -> Mode:
    """Tell the mode that the model in `directory` was trained in; see `mode_in`."""
    return MODES[mode_in(directory)]
