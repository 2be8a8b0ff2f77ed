"""Where a result comes from: the hashes of its weights and data, the command line, all flags, the
commit and the versions. Loads no torch."""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.files import read_json
from runs.flags import fits
from runs.processes import ROOT
from runs.settings import GROUPS

TASK_FLAGS = frozenset({"task_name", "data_dir"})  # of a task of GLUE
COLUMN_FLAGS = frozenset(  # of a task of the user's own
    {
        "text_column_names",
        "label_column_name",
        "label_separator",
        "task_type",
        "drop_incomplete_rows",
    }
)

HASHES = ("weights", "tokenizer", "configuration", "data")
# What a file that is sent or exported says of its origin: no command line, and no flags with paths.
PUBLIC_FIELDS = (*HASHES, "commit", "versions")
PASSWORD = r"(\w+://[^/\s:@]*:)[^/\s@]+@"  # in a URL: scheme://user:password@host
STATE = "training_state.json"  # of a checkpoint
LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy")


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from; JSON files have it under `provenance`."""

    command: str  # the command line
    flags: Mapping[str, Any]  # all of them, with their values
    commit: str | None  # of the project; None outside a checkout
    versions: Mapping[str, str]  # of Python and the libraries
    weights: str = ""  # SHA-256 of the model's weights; "" where there are none
    tokenizer: str = ""  # SHA-256 of the tokenizer's files
    configuration: str = ""  # SHA-256 of config.json without the exit keys
    data: str = ""  # fingerprint of the data; "" where there are none

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name, the hashes first, without those that are ""."""
        values = asdict(self)
        hashes = {}
        for name in HASHES:
            text = values.pop(name)
            if text:
                hashes[name] = text
        return {**hashes, **values}

    def for_others(self) -> dict[str, Any]:
        """Return what may leave this machine: the fields of `as_json` in PUBLIC_FIELDS."""
        return {name: value for name, value in self.as_json().items() if name in PUBLIC_FIELDS}


def without_password(value: Any) -> Any:
    """Return a flag's value, or each text of a list, with *** for the passwords in URLs."""
    if isinstance(value, list | tuple):
        return [without_password(part) for part in value]
    return re.sub(PASSWORD, r"\1***@", value) if isinstance(value, str) else value


def provenance(
    flags: Mapping[str, Any], model_hashes: Mapping[str, str] = {}, data: str = ""
) -> Provenance:
    """Describe where a result of this process comes from.

    Args:
        flags: all flags of the command.
        model_hashes: of the model's weights, tokenizer and configuration, by these names.
        data: fingerprint of the data.
    """
    script = Path(sys.argv[0]).name
    versions = {"python": sys.version.split()[0]}
    for library in LIBRARIES:
        versions[library] = version(library)
    return Provenance(
        command=shlex.join(without_password([script, *sys.argv[1:]])),
        flags={
            name: str(value) if isinstance(value, Path) else without_password(value)
            for name, value in flags.items()
        },
        commit=commit(),
        versions=versions,
        weights=model_hashes.get("weights", ""),
        tokenizer=model_hashes.get("tokenizer", ""),
        configuration=model_hashes.get("configuration", ""),
        data=data,
    )


@cache
def commit() -> str | None:
    """Return the project's commit, with "-dirty" where files differ; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or a folder that git does not trust
        return None
    return ended.stdout.strip()


def provenance_in(path: Path) -> dict[str, Any]:
    """Read the `provenance` in a run's JSON file; {} where there is none that can be read."""
    with suppress(UserError):
        content = read_json(path).get("provenance")
        if isinstance(content, dict):
            return content
    return {}


def training_file(model_dir: str | Path) -> Path:
    """Return the file that tells how a model was trained; a checkpoint has one of its own."""
    file = Path(model_dir, "training.json")
    checkpoint_file = Path(model_dir, STATE)
    return checkpoint_file if checkpoint_file.exists() and not file.exists() else file


def training_flags(model_dir: str | Path) -> dict[str, Any]:
    """Read the flags that a model, or a checkpoint, was trained with, by name.

    Returns {} where no file says them. Raises UserError for a value that its flag cannot have.
    """
    file = training_file(model_dir)
    flags = provenance_in(file).get("flags")
    if not isinstance(flags, dict):
        return {}
    for group in GROUPS:
        for entry in fields(group):
            value = flags.get(entry.name)
            if not fits(value, entry.type):
                raise UserError(
                    f"{file}: {entry.name} is {value!r:.80}, which no training writes: correct "
                    "the file, or move it away and give the flags of the training"
                )
    # Older trainings on own files could name an idle task of GLUE, and those of GLUE idle columns.
    if flags.get("train_file"):
        idle_flags = TASK_FLAGS
    elif flags.get("task_name"):
        idle_flags = COLUMN_FLAGS
    else:
        return flags
    return {name: value for name, value in flags.items() if name not in idle_flags}
