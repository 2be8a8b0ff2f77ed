"""The modes of --model_type: who stops, and when. Each is one class in one file here.

REGISTRY names them. Loading it loads no torch: a mode imports its model when it is used.
"""

from pathlib import Path
from pkgutil import resolve_name

from evaluation.modes.base import Mode
from modeling.errors import UserError
from modeling.loading.files import find_file, read_json

REGISTRY = (
    "evaluation.modes.elbert:Elbert",
    "evaluation.modes.ponder:Ponder",
    "evaluation.modes.act:AdaptiveDepth",
)
MODES: dict[str, Mode] = {mode.name: mode for mode in (resolve_name(path)() for path in REGISTRY)}


def mode_of_type(model_type: object) -> Mode:
    """The mode whose models have this model_type in config.json; an unknown one is ELBERT's."""
    found = (mode for mode in MODES.values() if mode.model_type == model_type)
    return next(found, MODES["albert"])


def check_mode(directory: Path, wanted: Mode) -> None:
    """UserError unless the model in `directory` was trained in the mode that --model_type names."""
    trained_in = trained_mode(directory)
    if wanted is not trained_in:
        raise UserError(
            f"--model_type {wanted.name}: {directory} holds a model that was trained with "
            f"--model_type {trained_in.name}; give that one"
        )


def trained_mode(directory: str | Path) -> Mode:
    """The mode that the model in `directory` was trained in."""
    path = find_file(directory, "config.json")
    return mode_of_type(read_json(path).get("model_type") if path else None)
