"""The modes of --model_type: who stops, and when."""

from pathlib import Path

from evaluation.modes.act import AdaptiveDepth
from evaluation.modes.base import Mode
from evaluation.modes.examples import Elbert, Ponder
from modeling.loading.configs import mode_in

MODES: dict[str, Mode] = {
    "elbert": Elbert(),
    "ponder_albert": Ponder(),
    "albert_act": AdaptiveDepth(),
}


def trained_mode(directory: str | Path) -> Mode:
    """Tell the mode that the model in `directory` was trained in; see `mode_in`."""
    return MODES[mode_in(directory)]
