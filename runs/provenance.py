"""Where a result comes from: the hashes of its weights and data, the command line, all flags, the
commit and the versions. No torch here."""

import argparse
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.files import read_json
from runs.flags import as_dict, expand_config_file, parse
from runs.processes import ROOT

logger = logging.getLogger(__name__)

# Flags of a training that later commands with its model take from there. Where a flag of one set
# is given, those of another are not wanted.
GLUE, FILES = {"task_name", "data_dir"}, {"validation_file", "test_file"}
COLUMNS = {"text_column_names", "label_column_name", "label_separator"}
KEPT = {"model_type", "model_name_or_path", "max_seq_length", "do_lower_case"}
KEPT |= GLUE | FILES | COLUMNS
LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy")


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from; JSON files have it under `provenance`."""

    command: str  # the command line
    flags: Mapping[str, Any]  # all of them, with their values
    commit: str | None  # of the project; None outside a checkout
    versions: Mapping[str, str]  # of Python and the libraries
    weights: str = ""  # SHA-256 of the model's weights; "" where there are none
    data: str = ""  # fingerprint of the data

    def as_json(self) -> dict[str, Any]:
        """Give the fields by name, without hashes of what there is not."""
        values = asdict(self)
        hashes = {name: values.pop(name) for name in ("weights", "data")}
        return {**{name: value for name, value in hashes.items() if value}, **values}


def provenance(flags: Mapping[str, Any], weights: str = "", data: str = "") -> Provenance:
    """Say where a result of this process comes from; weights, data: see `Provenance`."""
    return Provenance(
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        flags={name: str(x) if isinstance(x, Path) else x for name, x in flags.items()},
        commit=commit(),
        versions={"python": sys.version.split()[0], **{x: version(x) for x in LIBRARIES}},
        weights=weights,
        data=data,
    )


def provenance_in(path: Path) -> dict[str, Any]:
    """Read where a run's JSON file says it comes from; {} where it says nothing that is whole."""
    with suppress(UserError):
        if isinstance(written := read_json(path).get("provenance"), dict):
            return written
    return {}


def training_flags(folder: str | Path) -> dict[str, Any]:
    """Read the flags that the model in `folder` was trained with; {} where no file says them."""
    with suppress(UserError, KeyError, TypeError):
        return dict(read_json(Path(folder, "training.json"))["provenance"]["flags"])
    return {}


def parse_beside(classes: Sequence[type], description: str, *folder_flags: str) -> tuple[Any, ...]:
    """Read the command line, as `parse`, of a command with a trained model: flags of `KEPT` that it
    leaves out are those of the training. One line says which, and in what others differ.

    folder_flags: the flag that names the folder, and one that may where that holds no model.
    """
    argv = expand_config_file(sys.argv[1:])
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in folder_flags:
        finder.add_argument(flag, nargs="*", default=[])
    folders = chain.from_iterable(vars(finder.parse_known_args(argv)[0]).values())
    folder = next((x for x in folders if os.path.exists(os.path.join(x, "config.json"))), "")
    found = training_flags(folder) if folder else {}
    given = {text.partition("=")[0].removeprefix("--") for text in argv}
    own = {entry.name for kind in classes for entry in fields(kind)}
    more = left_out({name: found[name] for name in KEPT & own & found.keys()}, given)
    if found and folder_flags[0].removeprefix("--") not in given:
        more.append(f"{folder_flags[0]}={folder}")
    parsed = parse(classes, description, [*more, *argv])
    now, said = as_dict(*parsed), [f"taken from it: {shlex.join(more)}"] if more else []
    for name in sorted(KEPT & given & found.keys() - {"model_name_or_path"}):
        if str(now[name]) != str(found[name]):
            said.append(f"--{name} was {found[name]} there, is {now[name]}")
    if said and os.environ.get("RANK", "0") == "0":
        print(f"{folder}/training.json: {'; '.join(said)}", flush=True)
    return parsed


def left_out(found: Mapping[str, Any], given: Collection[str]) -> list[str]:
    """List those flags of a training that a command without them takes from it: files that are
    still there, and nothing beside another task or other files."""
    unwanted = set(given)
    for one, others in ((FILES, GLUE), ({"task_name"}, FILES | COLUMNS)):
        unwanted |= others if one.intersection(given) else set()
    flags = []
    for name in sorted(found.keys() - unwanted):
        value = found[name]
        if value and (name not in FILES | {"data_dir"} or os.path.exists(str(value))):
            flags.append(f"--{name}" if value is True else f"--{name}={value}")
    return flags


@cache
def commit() -> str | None:
    """Name the project's commit, "-dirty" where files differ; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if (ROOT / ".git").exists():
        with suppress(OSError, subprocess.CalledProcessError):
            options = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
            return subprocess.run(command, **options).stdout.strip()
    return None
