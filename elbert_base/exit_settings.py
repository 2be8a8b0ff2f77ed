"""Resolve which exit keys are in force, and say where each value stands. Loads no torch.

A flag wins over the folder's exit_config.json, or another file that `exit_config_path` names; this
file wins over config.json, and config.json over the default.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.files import read_json, read_regular_file, resolve_within
from elbert_base.keys import KeyTable, checked, nearest_names

logger = logging.getLogger(__name__)

Setting = dict[str, Any]  # keys of an exit_config.json: the rule's name and what it reads
EXIT_FILE = "exit_config.json"


@dataclass(frozen=True)
class KeyValues:
    """Values of configuration keys, and where each stands: a file, a flag, or "default"."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    @classmethod
    def given(cls, values: Mapping[str, Any], source: str) -> "KeyValues":
        """Make the settings of one source."""
        return cls(values, dict.fromkeys(values, source))

    def under(self, other: "KeyValues") -> "KeyValues":
        """Put the values of `other` over these."""
        return KeyValues({**self.values, **other.values}, {**self.sources, **other.sources})

    def line(self) -> str:
        """ "thres_name = bias_1 (config.json), exit_thres = 0.3 (exit_config.json)"."""
        shown = [k for k, x in self.values.items() if not isinstance(x, list)]
        return ", ".join(f"{key} = {self.values[key]} ({self.sources[key]})" for key in shown)


NOTHING = KeyValues({}, {})


def resolve(
    source: str | Path,
    table: KeyTable,
    flags: KeyValues = NOTHING,
    config: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> "KeyValues":
    """Resolve a model's exit keys: flag over exit_config.json over config.json over default.

    Args:
        source: the model's folder, or its config.json.
        table: the keys of the model's mode.
        flags: typed values of flags; keys that decide no exit are left out.
        config: the content of config.json, where it has been read already.
        trusted: is its exit_config_path the user's own?

    Raises:
        UserError: an unknown key or a value out of range, with the file or flag that holds it.
    """
    path = Path(source) if Path(source).is_file() else Path(source) / "config.json"
    config = read_json(path) if config is None else config
    folder = path.parent
    exit_keys, layers = table.exit_keys, depth_of(config)
    defaults = {name: key.initial(layers) for name, key in exit_keys.items()}
    found = KeyValues.given(defaults, "default")

    def add(values: Mapping[str, Any], source: str, where: str | Path) -> None:
        nonlocal found
        stated = {name: values[name] for name in exit_keys if values.get(name) is not None}
        try:
            typed = {name: checked(name, x, exit_keys, layers) for name, x in stated.items()}
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        found = found.under(KeyValues.given(typed, source))

    add(config, path.name, path)
    has_file = "exit_config_path" in table.keys
    if has_file and (file := overriding_file(config, folder, trusted)):
        add(read_overrides(file, table), os.path.relpath(file, folder), file)
    for name, value in flags.values.items():
        add({name: value}, flags.sources[name], flags.sources[name])
    return found


def depth_of(config: Mapping[str, Any]) -> int | None:
    """Return num_hidden_layers; None for no number of layers, which loading the model refuses."""
    layers = config.get("num_hidden_layers")
    return layers if isinstance(layers, int) and layers > 0 else None


def overriding_file(
    config: Mapping[str, Any], folder: str | Path, trusted: bool = False
) -> Path | None:
    """Return the folder's exit_config.json, or the file that `exit_config_path` names, if any.

    The path is relative to `folder`; a folder stands for the exit_config.json in it. A path to
    nothing is one warning, since published configurations carry their author's paths. Raises
    UserError for a file outside `folder`: a foreign config.json may not read any. A `trusted`
    path, the user's own, may lead anywhere, and to nothing is an error.
    """
    named, own = config.get("exit_config_path"), Path(folder) / EXIT_FILE
    if not named or not isinstance(named, str):  # what is no text, loading the model refuses
        named = EXIT_FILE if own.exists() else ""
    if not named:
        return None
    path = Path(folder) / named
    if os.path.isdir(path):
        path /= EXIT_FILE
    if os.path.exists(path):  # unlike Path.exists, no error for a name too long
        if trusted or resolve_within(folder, path.absolute()):
            return path
        raise UserError(
            f"exit_config_path {named} leads out of {folder}: copy the file there, and give its "
            "name by change_config.py --key exit_config_path"
        )
    if trusted:
        raise UserError(f"exit_config_path {path} does not exist")
    found = own if own.exists() else None
    logger.warning("exit_config_path %s does not exist: %s", path, found or "no overrides")
    return found


def read_overrides(path: Path, table: KeyTable) -> dict[str, Any]:
    """Read an exit_config.json; UserError for an unknown key."""
    values = read_exit_file(path)
    values.pop("provenance", None)  # of a sweep: what the keys were chosen for
    for name in values.keys() - table.keys.keys() - table.ignored.keys():
        near = nearest_names(name, list(table.exit_keys))
        raise UserError(f"{path}: unknown key {name} = {values[name]!r}; {near}")
    return values


def read_exit_file(path: Path) -> dict[str, Any]:
    """Read the JSON object in an exit_config.json; no file and an empty one are an empty object."""
    return read_json(path) if path.exists() and read_regular_file(path).strip() else {}


def describe(setting: Setting) -> str:
    """Write "bias_1, exit_thres 0.3, cnt_thres 4": for messages and titles."""
    name, *keys = [item for item in setting.items() if not isinstance(item[1], list)]
    return ", ".join([name[1], *(f"{k} {x if isinstance(x, str) else f'{x:g}'}" for k, x in keys)])
