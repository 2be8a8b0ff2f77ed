"""The modes of --model_type: who stops, and when."""

from pathlib import Path

from evaluation.modes.act import AdaptiveDepth
from evaluation.modes.base import Mode
from evaluation.modes.examples import Elbert, Ponder
from modeling.loading.configs import mode_in
from modeling.public import MODELS

# What runs and reports a model; a model of a subclass is run in the same way.
KINDS = (Elbert, Ponder, AdaptiveDepth)
MODES: dict[str, Mode] = {
    mode.name: mode
    for model in MODELS
    for mode in [kind(model) for kind in KINDS if issubclass(model, kind.runs)]
}


def trained_mode(directory: str | Path) -> Mode:
    """Tell the mode that the model in `directory` was trained in; see `mode_in`."""
    return MODES[mode_in(directory)]
