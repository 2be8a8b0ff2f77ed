"""Resolve which exit keys are in force, and where each value is written. Loads no torch.

A flag wins over the folder's exit_config.json, or over another file that `exit_config_path` names;
this file wins over config.json, and config.json over the default.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.files import read_json, read_regular_file, resolve_within
from elbert_base.keys import KeyTable, checked, nearest_names

logger = logging.getLogger(__name__)

Setting = dict[str, Any]  # keys of an exit_config.json: the rule's name and what it reads
EXIT_FILE = "exit_config.json"
BLANK_BYTES = (
    8  # most bytes of a file outside of a model's folder that is read, whether it is blank
)


@dataclass(frozen=True)
class KeyValues:
    """Values of configuration keys, and the source of each: a file, a flag, or "default".

    Attributes:
        values: the value of each key.
        sources: where each key's value is written; the same keys.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    @classmethod
    def from_source(cls, values: Mapping[str, Any], source: str) -> "KeyValues":
        """Make the values that all stand in one source."""
        return cls(values, dict.fromkeys(values, source))

    def overridden_by(self, other: "KeyValues") -> "KeyValues":
        """Return these values with those of `other` in their place."""
        return KeyValues(
            values={**self.values, **other.values},
            sources={**self.sources, **other.sources},
        )

    def without(self, name: str) -> "KeyValues":
        """Return these values without one of them, if it is there."""
        kept = [key for key in self.values if key != name]
        return KeyValues(
            values={key: self.values[key] for key in kept},
            sources={key: self.sources[key] for key in kept},
        )

    def line(self) -> str:
        """Write all but lists in one line.

        For example: thres_name = bias_1 (config.json), exit_thres = 0.3 (exit_config.json).
        """
        parts = []
        for key, value in self.values.items():
            if not isinstance(value, list):
                parts.append(f"{key} = {value} ({self.sources[key]})")
        return ", ".join(parts)


NO_KEYS = KeyValues({}, {})


def resolve(
    source: str | Path,
    table: KeyTable,
    flags: KeyValues = NO_KEYS,
    config: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> KeyValues:
    """Find out which exit keys are in force in a model's folder, and where each is written.

    A flag wins over exit_config.json, which wins over config.json, which wins over the default.

    Args:
        source: folder of the model, or its config.json.
        table: keys of the model's mode, from `elbert_base.keys.MODE_KEYS`.
        flags: values given as flags. An exit_config_path among them replaces that of config.json;
            other keys that decide no exit are left out.
        config: content of config.json, where it has been read already.
        trusted: whether the configuration's exit_config_path is the user's own; see
            `overriding_file`.

    Raises:
        UserError: a key is unknown or a value out of range; the message names the file or flag.
    """
    path = Path(source) if Path(source).is_file() else Path(source) / "config.json"
    folder = path.parent
    if config is None:
        config = read_json(path)
    if "exit_config_path" in flags.values:
        config = {**config, "exit_config_path": flags.values["exit_config_path"]}
        trusted = True
    layers = layer_count(config)
    defaults = {name: key.initial(layers) for name, key in table.exit_keys.items()}
    resolved = KeyValues.from_source(defaults, "default")

    values = exit_values(config, table, layers, place=path)
    resolved = resolved.overridden_by(KeyValues.from_source(values, path.name))

    file = None
    if "exit_config_path" in table.keys:
        file = overriding_file(config, folder, trusted)
    if file is not None:
        values = exit_values(read_overrides(file, table), table, layers, place=file)
        file_name = os.path.relpath(file, folder)
        resolved = resolved.overridden_by(KeyValues.from_source(values, file_name))

    for name, value in flags.values.items():
        if name == "exit_config_path":
            continue
        flag = flags.sources[name]
        values = exit_values({name: value}, table, layers, place=flag)
        resolved = resolved.overridden_by(KeyValues.from_source(values, flag))
    return resolved


def exit_values(
    values: Mapping[str, Any], table: KeyTable, layers: int | None, place: str | Path
) -> dict[str, Any]:
    """Select the exit keys that have a value, and check them.

    Args:
        values: any keys; None stands for no value.
        table: the keys of the model's mode.
        layers: the model's num_hidden_layers, where it is known.
        place: the file or flag that holds the values.

    Raises:
        UserError: a value out of range, with its place.
    """
    typed = {}
    for name in table.exit_keys:
        value = values.get(name)
        if value is None:
            continue
        try:
            typed[name] = checked(name, value, table.exit_keys, layers)
        except UserError as error:
            raise UserError(f"{place}: {error}") from error
    return typed


def layer_count(config: Mapping[str, Any]) -> int | None:
    """Return num_hidden_layers, or None where it is no number of layers.

    Loading the model refuses such a configuration.
    """
    layers = config.get("num_hidden_layers")
    return layers if isinstance(layers, int) and layers > 0 else None


def overriding_file(
    config: Mapping[str, Any], folder: str | Path, trusted: bool = False
) -> Path | None:
    """Return the folder's exit_config.json, or the file that `exit_config_path` names, if any.

    The path is relative to `folder`, the user's own to the current folder as well; a folder stands
    for the exit_config.json in it. A path to nothing is one warning, since published configurations
    carry their author's paths. A blank file overrides nothing, wherever it is: ELBERT's README asks
    for one at an absolute path.

    Args:
        config: the content of the folder's config.json.
        folder: the model's folder.
        trusted: whether the path is the user's own. It may then lead anywhere, and a path to
            nothing is an error.

    Raises:
        UserError: the file is outside `folder`, as a foreign config.json may not read any file; or
            a trusted path leads to nothing.
    """
    default_file = Path(folder) / EXIT_FILE
    name = config.get("exit_config_path")
    # Loading the model refuses a value that is not a string.
    is_stated = isinstance(name, str) and name != ""
    if not is_stated and not default_file.exists():
        return None
    path = named_file(folder, name, trusted) if is_stated else default_file
    if os.path.exists(path):  # unlike Path.exists, no error for a name that is too long
        if trusted or resolve_within(folder, path.absolute()):
            return path
        if is_stated and is_blank(path):
            return default_file if default_file.exists() else None
        raise UserError(
            f"exit_config_path {name if is_stated else EXIT_FILE} leads out of {folder}: copy the "
            "file there, and give its name by change_config.py --key exit_config_path"
        )
    if trusted:
        raise UserError(f"exit_config_path {path} does not exist")
    file = default_file if default_file.exists() else None
    logger.warning("exit_config_path %s does not exist: %s", path, file or "no overrides")
    return file


def named_file(folder: str | Path, name: str, trusted: bool = False) -> Path:
    """Return the path that an exit_config_path names; see `overriding_file`."""
    path = Path(folder) / name
    if trusted and not os.path.exists(path) and os.path.exists(name):
        path = Path(name)
    return path / EXIT_FILE if os.path.isdir(path) else path


def is_blank(path: Path) -> bool:
    """Tell whether a file overrides nothing; longer files are not read."""
    is_short = path.is_file() and path.stat().st_size <= BLANK_BYTES
    return is_short and read_regular_file(path).strip() in (b"", b"{}")


def warn_of_other_weights(
    folder: str | Path, weights_hash: Callable[[], str], name: str | None = None
) -> None:
    """Warn where the exit keys of a model were chosen, or fitted, for other weights.

    Args:
        folder: of the model.
        weights_hash: returns the SHA-256 of the model's weights; called where there is something to
            compare, since a large model takes a while.
        name: of the file that a flag names, in place of the folder's own.
    """
    stated = name or read_json(Path(folder) / "config.json").get("exit_config_path")
    path = Path(folder) / EXIT_FILE
    if isinstance(stated, str) and stated:
        path = named_file(folder, stated, trusted=name is not None)
    if not os.path.isfile(path):  # unlike Path.is_file, no error for a name that is too long
        return
    origin = read_exit_file(path).get("provenance")
    weights = origin.get("weights") if isinstance(origin, dict) else None
    if weights and weights != weights_hash():
        logger.warning(
            "%s was chosen for other weights than those in %s: choose anew, with sweep_exits.py "
            "--model_dir %s --pick max_drop=0.01",
            path,
            folder,
            folder,
        )


def read_overrides(path: Path, table: KeyTable) -> dict[str, Any]:
    """Read an exit_config.json; raises UserError for an unknown key."""
    values = read_exit_file(path)
    values.pop("provenance", None)  # a sweep writes there what the keys were chosen for
    for name in values.keys() - table.keys.keys() - table.ignored.keys():
        near = nearest_names(name, list(table.exit_keys))
        raise UserError(f"{path}: unknown key {name} = {values[name]!r}; {near}")
    return values


def read_exit_file(path: Path) -> dict[str, Any]:
    """Read the JSON object in an exit_config.json.

    A missing file and an empty one are an empty object.
    """
    if not path.exists() or not read_regular_file(path).strip():
        return {}
    return read_json(path)


def describe(setting: Setting) -> str:
    """Describe a rule's setting for messages and titles: "bias_1, exit_thres 0.3, cnt_thres 4".

    setting: the rule's name first, then the keys that it reads. Lists are left out.
    """
    shown = {key: value for key, value in setting.items() if not isinstance(value, list)}
    rule_key, *other_keys = shown
    parts = [shown[rule_key]]
    for key in other_keys:
        value = shown[key]
        parts.append(f"{key} {value}" if isinstance(value, str) else f"{key} {value:g}")
    return ", ".join(parts)
