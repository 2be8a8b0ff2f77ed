"""The modes of --model_type: who stops, and when. Each is one class in one file here.

MODES is the registry. Importing it loads no torch: a mode imports its model when it is used.
"""

from pathlib import Path

from evaluation.modes.act import AdaptiveDepth
from evaluation.modes.base import Mode
from evaluation.modes.elbert import Elbert
from evaluation.modes.ponder import Ponder
from modeling.loading.files import find_file, read_json

MODES: dict[str, Mode] = {mode.name: mode for mode in (Elbert(), Ponder(), AdaptiveDepth())}


def mode_of_type(model_type: object) -> Mode:
    """The mode whose models have this model_type in config.json; an unknown one is ELBERT's."""
    found = (mode for mode in MODES.values() if mode.model_type == model_type)
    return next(found, MODES["albert"])


def trained_mode(directory: str | Path) -> Mode:
    """The mode that the model in `directory` was trained in."""
    path = find_file(directory, "config.json")
    return mode_of_type(read_json(path).get("model_type") if path else None)
