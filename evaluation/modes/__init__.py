"""The modes of --model_type: who stops, and when. Each is one class in one file here.

base      what a mode is, and the exit rules that a sweep varies
examples  what the modes share whose whole examples stop
elbert    a rule over the exits' answers so far stops an example
ponder    a learned halting probability per layer stops an example
act       a learned halting probability an update stops a token

Importing this package loads no torch: a mode is imported when it is first asked for, and its keys
may stand in a module without torch.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from modeling.errors import UserError
from modeling.keys import KeyTable
from modeling.loading.files import find_file, read_json

if TYPE_CHECKING:
    from evaluation.modes.base import Mode


class Entry(NamedTuple):
    """Where a mode's class stands, and its keys; without the latter they are asked of the class."""

    mode: str  # module:class
    keys: str = ""  # module:KeyTable


# Named as in --model_type. A config.json has the same names, but for ELBERT's: `elbert` there means
# `albert`, as any unknown one does.
REGISTRY = {
    "albert": Entry("evaluation.modes.elbert:Elbert", "modeling.elbert.keys:TABLE"),
    "ponder_albert": Entry("evaluation.modes.ponder:Ponder", "modeling.ponder.keys:TABLE"),
    "albert_act": Entry("evaluation.modes.act:AdaptiveDepth", "modeling.act.keys:TABLE"),
}


class Modes(dict[str, "Mode"]):
    """The modes by name; each is imported, and torch with it, when it is first asked for."""

    def __missing__(self, name: str) -> Mode:
        self[name] = resolve_name(REGISTRY[name].mode)()
        return self[name]


MODES = Modes()


def name_of_type(model_type: object) -> str:
    """The --model_type of the mode whose models have this model_type in config.json."""
    return str(model_type) if str(model_type) in REGISTRY else "albert"


def mode_of_type(model_type: object) -> Mode:
    """The mode whose models have this model_type in config.json."""
    return MODES[name_of_type(model_type)]


def keys_of(model_type: object) -> KeyTable:
    """The keys of a config.json with this model_type; its mode is imported only if it must be."""
    keys = REGISTRY[name_of_type(model_type)].keys
    return resolve_name(keys) if keys else mode_of_type(model_type).table


def check_mode(directory: Path, wanted: Mode) -> None:
    """UserError unless the model in `directory` was trained in the mode that --model_type names."""
    trained_in = trained_mode(directory)
    if wanted is not trained_in:
        raise UserError(
            f"--model_type {wanted.name}: {directory} holds a model that was trained with "
            f"--model_type {trained_in.name}; give that one"
        )


def trained_mode(directory: str | Path) -> Mode:
    """The mode that the model in `directory` was trained in; UserError for none at all."""
    path = find_file(directory, "config.json")
    model_type = read_json(path).get("model_type") if path else None
    if not isinstance(model_type, str | None):
        raise UserError(
            f"{path}: model_type = {model_type!r}: allowed is one of {', '.join(REGISTRY)}"
        )
    return mode_of_type(model_type)
