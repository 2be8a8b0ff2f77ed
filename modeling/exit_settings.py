"""Resolve which exit keys are in force, and where each value is written. Loads no torch.

A flag wins over the folder's exit_config.json, or over another file that `exit_config_path` names;
this file wins over config.json, and config.json over the default.
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UserError
from .files import is_in_hub_cache, read_json, read_regular_file, resolve_within
from .keys import KeyTable, checked, nearest_names

logger = logging.getLogger(__name__)

Setting = dict[str, Any]  # keys of an exit_config.json: the rule's name and what it reads
EXIT_FILE = "exit_config.json"
# What --pick writes beside the keys: what they were chosen for, what is guaranteed, and what the
# dev rows look like under them.
RECORDS = ("provenance", "guarantee", "reference")
# Most bytes of a file outside of a foreign model's folder that is read, whether it is blank.
BLANK_BYTES = 8
TRAINING_FILES = ("training.json", "training_state.json")  # of a trained model, of a checkpoint
RESULTS_FILE = "eval_results.json"  # of an evaluation


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

    def without(self, *names: str) -> "KeyValues":
        """Return these values without some of them, where they are there."""
        kept = [key for key in self.values if key not in names]
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
        table: keys of the model's mode, from `modeling.keys.MODE_KEYS`.
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
        is_inside = resolve_within(folder, file.absolute()) is not None
        file_name = os.path.relpath(file, folder) if is_inside else str(file)
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
    config: Mapping[str, Any],
    folder: str | Path,
    trusted: bool = False,
    is_users: bool = False,
) -> Path | None:
    """Return the folder's exit_config.json, or the file that `exit_config_path` names, if any.

    The path is relative to `folder`, a flag's to the current folder as well; a folder stands for
    the exit_config.json in it. A path to nothing is one warning, since published configurations
    carry their author's paths. The path may lead out of the folder where the user's own training
    wrote it (see `is_trained_here`). In any other folder a blank file outside overrides nothing,
    and is allowed: ELBERT's README asks for one at an absolute path.

    Args:
        config: the content of the folder's config.json.
        folder: the model's folder.
        trusted: whether a flag gives the path. It may then lead anywhere, and a path to nothing is
            an error.
        is_users: whether the folder is the user's own, such as that from which a training starts.

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
        is_own = trusted or is_users or resolve_within(folder, path.absolute())
        if is_own or is_trained_here(folder):
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


def file_named_at_training(
    config: Mapping[str, Any], folder: str | Path, trusted: bool
) -> Path | None:
    """Return the file that a training's starting configuration names, or a flag; None without any.

    The user edits this file between training and evaluation, as published. It may be anywhere,
    unless the configuration is from the hub.

    Args: see `overriding_file`. Raises UserError as it does.
    """
    if not config.get("exit_config_path"):
        return None
    file = overriding_file(config, folder, trusted, is_users=not is_in_hub_cache(folder))
    return file.absolute() if file and file.exists() else None


def place_of(folder: str | Path) -> dict[str, Any]:
    """Describe where a training wrote a model, for `is_trained_here`; the folder may be new."""
    place: dict[str, Any] = {"path": os.path.realpath(folder)}
    if os.path.isdir(folder):
        place["inode"] = os.stat(folder).st_ino
    return place


def is_trained_here(folder: str | Path) -> bool:
    """Tell whether a training wrote a model's folder in the place where it is.

    The path or the folder's inode must be as then, so a folder may be renamed. A folder from
    elsewhere has neither, whatever its files say.
    """
    here = place_of(folder)
    for name in TRAINING_FILES:
        with suppress(UserError):
            path = Path(folder) / name
            place = read_json(path).get("place") if path.is_file() else None
            if isinstance(place, dict) and any(place.get(key) == here[key] for key in here):
                return True
    return False


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


def warn_of_exit_file(
    folder: str | Path, weights_hash: Callable[[], str], name: str | None = None
) -> None:
    """Warn where exit keys of a model's folder have no effect, or are of other weights.

    Args:
        folder: of the model.
        weights_hash: returns the SHA-256 of the model's weights; called where there is something to
            compare, since a large model takes a while.
        name: of the file that a flag names, in place of the folder's own.
    """
    config = read_json(Path(folder) / "config.json")
    if name is not None:
        config = {**config, "exit_config_path": name}
    path = overriding_file(config, folder, trusted=name is not None)
    if name is None:
        warn_of_unread_file(folder, path)
    if path is None or not os.path.isfile(path):
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


def warn_of_unread_file(folder: str | Path, path: Path | None) -> None:
    """Warn of exit keys that a user may have edited in vain: those of another file than `path`.

    They are in the folder's own exit_config.json, or in the file that its training's starting
    configuration named.
    """
    candidates = [Path(folder) / EXIT_FILE]
    training_file = Path(folder) / TRAINING_FILES[0]
    if is_trained_here(folder) and training_file.is_file():
        named = read_json(training_file).get("exit_config_path")
        if isinstance(named, str):
            candidates.append(Path(named))
    for candidate in candidates:
        is_read = path is not None and os.path.realpath(candidate) == os.path.realpath(path)
        if os.path.isfile(candidate) and not is_blank(candidate) and not is_read:
            logger.warning(
                "%s is not read: the exit keys of %s are those of %s. To use it: change_config.py "
                "--model_dir %s --key exit_config_path --value %s",
                candidate,
                folder,
                path or "config.json",
                folder,
                candidate.absolute(),
            )


def read_overrides(path: Path, table: KeyTable) -> dict[str, Any]:
    """Read an exit_config.json; raises UserError for an unknown key."""
    values = {name: value for name, value in read_exit_file(path).items() if name not in RECORDS}
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
