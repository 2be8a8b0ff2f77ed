"""What a result says of where it comes from, and the removal of results of weights that are gone.

Every result keeps the hashes of its weights and data, the command line, all flags, the commit and
the versions. Nothing here imports torch.
"""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glue.tasks import TASKS
from modeling.errors import UserError
from modeling.loading.files import read_json, resolve_within
from training.written import note, put_aside, read_list, remove

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy")

# Written by --do_predict.
ANSWERS = ("predictions*.tsv", "predictions*.json", *(x.submission for x in TASKS.values()))
ANSWERS += ("custom.tsv",)
# What stands in a model's folder beside results.
MODEL = "config.json *.lock generation_config.json model*.safetensors* pytorch_model.bin *token* .*"
MODEL += " spiece.model vocab.txt exit_config.json* training_*.json checkpoint-*"


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
    try:
        found = read_json(path).get("provenance")
    except UserError:
        return {}
    return found if isinstance(found, dict) else {}


@cache
def commit() -> str | None:
    """Name the project's commit, "-dirty" where files differ; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def check_inputs(
    directory: str | Path, files: Mapping[str, str | None], written: Collection[str] = ANSWERS
) -> None:
    """Raise UserError for an input that a run in `directory` would remove or write over.

    files: paths by their flags. written: names of its results.
    """
    folder = Path(os.path.abspath(directory))
    for flag, file in files.items():
        path = Path(os.path.abspath(file or ""))
        named = path.parent == folder and any(map(path.match, written))
        if named or os.path.relpath(path, folder) in read_list(folder):
            raise UserError(
                f"--{flag} {file} has the name of a result: a run in --output_dir {directory} "
                "would remove it or write over it; move it out of that folder, or rename it"
            )


def remove_results(directory: Path) -> None:
    """Remove what was derived from the weights in `directory`, which a training will replace.

    Of a folder of an earlier version, without a list, that is what says where it comes from. What
    stays is named. `exit_config.json`, chosen for these weights, is put aside.
    """
    directory = Path(os.path.abspath(directory))  # "." has no name to put anything behind
    folders = [directory]
    config = directory / "config.json"
    if config.exists() and read_json(config).get("finetuning_task") == "mnli":
        folders.append(directory.with_name(f"{directory.name}-MM"))
    for folder in folders:
        certain = [folder / x for x in ("eval_results.json", "training.json")]
        note(folder, (x for x in certain if not read_list(folder) and provenance_in(x)))
        sweep = remove(folder / "sweep") if resolve_within(folder, "sweep") else []
        if gone := [*remove(folder), *sweep]:
            logger.info("Removed from %s, results of the weights before: %s", folder, sorted(gone))
        others = [x.name for x in folder.glob("*") if not any(map(x.match, MODEL.split()))]
        if others:
            logger.info("Not of a run, and left in %s: %s", folder, ", ".join(sorted(others)))
    if (chosen := directory / "exit_config.json").is_file():
        put_aside(chosen, "was chosen for the weights before")
