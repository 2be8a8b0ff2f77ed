"""The modes of --model_type: who stops, and when."""

from pathlib import Path

from evaluation.modes.act import AdaptiveDepth
from evaluation.modes.base import Mode
from evaluation.modes.examples import Elbert, Ponder
from modeling.errors import UserError
from modeling.keys import mode_name
from modeling.loading.files import find_file, read_json

MODES: dict[str, Mode] = {
    "elbert": Elbert(),
    "ponder_albert": Ponder(),
    "albert_act": AdaptiveDepth(),
}


def trained_mode(directory: str | Path) -> Mode:
    """Tell the mode that the model in `directory` was trained in; UserError for none at all."""
    path = find_file(directory, "config.json")
    model_type = read_json(path).get("model_type") if path else None
    if not isinstance(model_type, str | None):
        raise UserError(
            f"{path}: model_type = {model_type!r}: allowed is one of {', '.join(MODES)}"
        )
    return MODES[mode_name(model_type)]
