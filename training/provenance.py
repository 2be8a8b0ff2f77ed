"""Where a result comes from: the hashes of its weights and data, the command line, all flags, the
commit and the versions. No torch here."""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE
from modeling.loading.files import read_json, resolve_within
from utils.files import put_aside, read_list, remove
from utils.processes import ROOT

logger = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy")


def provenance(flags: Mapping[str, Any], **hashes: str) -> dict[str, Any]:
    """Say where a result comes from; hashes: SHA-256 of `weights` and `data`."""
    return {
        **hashes,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "flags": {k: str(v) if isinstance(v, Path) else v for k, v in flags.items()},
        "commit": commit(),
        "versions": {"python": sys.version.split()[0], **{x: version(x) for x in LIBRARIES}},
    }


def provenance_in(path: Path) -> dict[str, Any]:
    """Read where a run's JSON file says it comes from; {} where it says nothing that is whole."""
    with suppress(UserError):
        if isinstance(found := read_json(path).get("provenance"), dict):
            return found
    return {}


@cache
def commit() -> str | None:
    """Name the project's commit, "-dirty" where files differ; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if (ROOT / ".git").exists():
        with suppress(OSError, subprocess.CalledProcessError):
            options = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
            return subprocess.run(command, **options).stdout.strip()
    return None


def check_inputs(directory: str | Path, files: Mapping[str, str | None]) -> None:
    """Raise UserError for an input, a path by its flag, that a run in `directory` wrote, and the
    next one would remove or write over."""
    known = read_list(Path(directory))
    for flag, file in files.items():
        if file and os.path.relpath(file, directory) in known:
            raise UserError(
                f"--{flag} {file} is a result: a run in --output_dir {directory} would remove it "
                "or write over it; move it out of that folder, or rename it"
            )


def remove_results(directory: Path) -> None:
    """Remove what was derived from the weights in `directory`, which a training will replace; put
    aside `exit_config.json`, which was chosen for these weights."""
    directory = Path(os.path.abspath(directory))  # "." has no name to put anything behind
    folders = [directory]
    config = directory / "config.json"
    if config.exists() and read_json(config).get("finetuning_task") == "mnli":
        folders.append(directory.with_name(f"{directory.name}-MM"))
    for folder in folders:
        sweep = remove(folder / "sweep") if resolve_within(folder, "sweep") else []
        if gone := [*remove(folder), *sweep]:
            logger.info("Removed from %s, results of the weights before: %s", folder, sorted(gone))
    if (directory / EXIT_FILE).is_file():
        put_aside(directory / EXIT_FILE, "was chosen for the weights before")
