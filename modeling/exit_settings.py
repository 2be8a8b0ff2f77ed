"""Which exit keys a model's folder means, and where each value is written. Loads no torch.

`config.json` holds a model's exit keys. Its `exit_config_path` may name a second file, whose exit
keys win over these. A flag wins over both. Whatever reads a rule asks here: the models' loading,
`change_config.py`, evaluations, sweeps, the export.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UserError
from .keys import KeyTable, checked, nearest_names
from .loading.files import WEIGHT_FILES, read_json, resolve_within, weights_hash

logger = logging.getLogger(__name__)

DEFAULT = "default"
BLANK = 1000  # bytes; a larger file than this is not one that holds nothing
PROVENANCE = (
    "provenance"  # in an exit_config.json that a sweep wrote: what its keys were chosen for
)


@dataclass(frozen=True)
class ExitSettings:
    """The exit keys in force, by name, and where each stands: a file, a flag, or "default"."""

    values: dict[str, Any]
    sources: dict[str, str]

    def under(self, values: Mapping[str, Any], source: str) -> "ExitSettings":
        """These, with `values` from `source` in the place of their own."""
        sources = self.sources | dict.fromkeys(values, source)
        return ExitSettings(self.values | dict(values), sources)

    def line(self, without: str = "") -> str:
        """ "thres_name = bias_1 (config.json), exit_thres = 0.3 (exit_config.json)"."""
        shown = [key for key in self.values if key != without]
        return ", ".join(f"{key} = {self.values[key]} ({self.sources[key]})" for key in shown)


def exit_settings(directory: str | Path, table: KeyTable) -> ExitSettings:
    """The exit keys that the model in `directory` has, with their sources.

    table: the keys of its mode. Raises UserError naming the file for an unknown key or a value out
    of range.
    """
    path = Path(directory) / "config.json"
    config = read_json(path)
    layers = depth_of(config)
    found = ExitSettings({}, {})
    for name, key in table.exit_keys.items():
        value = config.get(name)
        if value is None:
            found = found.under({name: key.initial(layers)}, DEFAULT)
            continue
        try:
            value = checked(name, value, table.exit_keys, layers)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        found = found.under({name: value}, path.name)
    file, overrides = read_overrides(config, directory, table)
    return found.under(overrides, file and os.path.relpath(file, directory))


def depth_of(config: Mapping[str, Any]) -> int | None:
    """num_hidden_layers; None for anything but a whole number: loading the model says so."""
    layers = config.get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def overriding_file(config: Mapping[str, Any], directory: str | Path) -> Path | None:
    """The file that `exit_config_path` names, relative to `directory`; None where it names none.

    A path to nothing is one warning, since published configurations carry their author's paths.
    Raises UserError for a file outside `directory`: a foreign config.json may not read any.
    """
    named = config.get("exit_config_path")
    if not named or not isinstance(named, str):  # what is no text, loading the model refuses
        return None
    path = Path(directory) / named
    if os.path.exists(path):  # unlike Path.exists, no error for a name too long
        if resolve_within(directory, named):
            return path
        raise UserError(
            f"exit_config_path {named} leads out of {directory}: copy the file there, and give its "
            "name by change_config.py --key exit_config_path"
        )
    logger.warning("exit_config_path %s does not exist: no overrides", path)
    return None


def read_overrides(
    config: Mapping[str, Any], directory: str | Path, table: KeyTable
) -> tuple[Path | None, dict[str, Any]]:
    """The file that `exit_config_path` names, and the exit keys in it, which win.

    No path, an empty file and `{}` override nothing. Raises UserError for an unknown key or a
    value out of range.
    """
    known, exit_keys, ignored = table
    path = overriding_file(config, directory) if "exit_config_path" in known else None
    overrides: dict[str, Any] = {}
    values = read_exit_file(path) if path else {}
    check_weights(path, values.pop(PROVENANCE, None), directory)
    for name, value in values.items():
        if name in exit_keys:
            try:
                overrides[name] = checked(name, value, exit_keys, depth_of(config))
            except UserError as error:
                raise UserError(f"{path}: {error}") from error
        elif name not in known and name not in ignored:
            near = nearest_names(name, list(exit_keys))
            raise UserError(f"{path}: unknown key {name} = {value!r}; {near}")
    return path, overrides


def check_weights(path: Path | None, made_for: Any, directory: str | Path) -> None:
    """Warn where `path` was chosen for other weights than those in `directory`."""
    chosen_for = made_for.get("weights") if isinstance(made_for, dict) else None
    there = any((Path(directory) / name).exists() for name in WEIGHT_FILES)
    if chosen_for and there and weights_hash(directory) != chosen_for:
        logger.warning(
            "%s was chosen for other weights than those in %s: choose again with sweep_exits.py "
            "--pick, or delete that file",
            path,
            directory,
        )


def read_exit_file(path: Path) -> dict[str, Any]:
    """The JSON object in an exit_config.json; no file and an empty one are an empty object."""
    small = path.is_file() and path.stat().st_size < BLANK
    if not os.path.exists(path) or (small and not path.read_bytes().strip()):
        return {}
    return read_json(path)
