"""What a run wrote, and where it comes from. No torch here.

A list in a run's folder has the names of its files, with size and SHA-256. Only what is on it, and
unchanged since, is ever removed or written over; links are not followed. Every result keeps the
hashes of its weights and data, the command line, all flags, the commit and the versions.
"""

import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from glue.tasks import TASKS
from modeling.errors import UserError
from modeling.loading.files import read_json, resolve_within
from utils.files import file_fingerprint, write_json, write_text

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy")

# Written by --do_predict.
ANSWERS = "predictions*.tsv predictions*.json custom.tsv".split()
ANSWERS += [task.submission for task in TASKS.values()]
# What stands in a model's folder beside results.
MODEL = "config.json *.lock generation_config.json model*.safetensors* pytorch_model.bin *token* .*"
MODEL += " spiece.model vocab.txt exit_config.json* training_*.json checkpoint-*"

CHECKSUMS = "checksums.json"  # the list of a checkpoint: all of its files
LIST = "written.json"  # that of a model's or a sweep's folder: results, also in folders within


def read_list(folder: Path, listed: str = LIST) -> dict[str, Any]:
    """Read a list; {} where there is none that can be read."""
    with suppress(UserError):
        if (folder / listed).is_file():
            return read_json(folder / listed)
    return {}


def note(folder: Path, paths: Iterable[Path]) -> None:
    """Put files that a run wrote on the list of `folder`, those outside of it left out."""
    inside = [x for x in paths if x.is_file() and resolve_within(folder, os.path.abspath(x))]
    if inside:
        names = {os.path.relpath(path, folder): file_fingerprint(path) for path in inside}
        write_json(folder / LIST, read_list(folder) | names)


def is_own(folder: Path, name: str, known: dict[str, Any]) -> bool:
    """Tell whether file `name` is in `folder`, no link, and as the list `known` says."""
    path = folder / name
    if not os.path.isfile(path) or path.is_symlink() or not resolve_within(folder, name):
        return False
    with suppress(OSError):  # not readable
        return known.get(name) == file_fingerprint(path)
    return False


def put_aside(path: Path, why: str) -> None:
    """Rename a file to NAME.1 (.2, …), and say so."""
    old = next(x for n in count(1) if not os.path.lexists(x := Path(f"{path}.{n}")))
    try:
        path.rename(old)
    except OSError as error:
        raise UserError(f"cannot rename {path} to {old}: {error.strerror}") from error
    logger.warning("%s %s: it is now %s", path, why, old)


def make_room(folder: Path, paths: Iterable[Path]) -> None:
    """Put aside what stands where a run is about to write, unless it is on the list, unchanged."""
    known = read_list(folder)
    for path in paths:
        name = os.path.relpath(path, folder)
        inside = resolve_within(folder, os.path.abspath(path.parent)) and os.path.lexists(path)
        if inside and not path.is_dir() and not is_own(folder, name, known):
            put_aside(path, "has the name of a result that is written now")


def write_result(path: Path, value: Any) -> None:
    """Write a text, or a value as JSON, and put it on its folder's list; see `make_room`."""
    make_room(path.parent, [path])
    write_text(path, value) if isinstance(value, str) else write_json(path, value)
    note(path.parent, [path])


def remove(folder: Path, names: Iterable[str] | None = None, listed: str = LIST) -> list[str]:
    """Delete a run's own files in `folder`, or those of these `names`, and folders that are empty
    then; return what was deleted. Raises UserError for what cannot be."""
    known = read_list(folder, listed)
    gone = []
    # A checkpoint without its configuration does not pass for one: that goes first.
    for name in sorted(known if names is None else names, key=lambda x: x != "config.json"):
        if is_own(folder, name, known):
            try:
                (folder / name).unlink()
            except OSError as error:
                raise UserError(f"cannot remove {folder / name}: {error.strerror}") from error
            gone.append(name)
            with suppress(OSError):  # not empty
                for parent in list(Path(name).parents)[:-1]:
                    (folder / parent).rmdir()
    if names is None and known:
        (folder / listed).unlink()
        with suppress(OSError):
            folder.rmdir()
    return gone


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


def check_inputs(
    directory: str | Path, files: Mapping[str, str | None], written: Collection[str] = ANSWERS
) -> None:
    """Raise UserError for an input, a path by its flag, that a run in `directory` would remove or
    write over. written: names of its results."""
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
    """Remove what was derived from the weights in `directory`, which a training will replace; name
    what stays, and put aside `exit_config.json`, which was chosen for these weights."""
    directory = Path(os.path.abspath(directory))  # "." has no name to put anything behind
    folders = [directory]
    config = directory / "config.json"
    if config.exists() and read_json(config).get("finetuning_task") == "mnli":
        folders.append(directory.with_name(f"{directory.name}-MM"))
    for folder in folders:
        sweep = remove(folder / "sweep") if resolve_within(folder, "sweep") else []
        if gone := [*remove(folder), *sweep]:
            logger.info("Removed from %s, results of the weights before: %s", folder, sorted(gone))
        others = [x.name for x in folder.glob("*") if not any(map(x.match, MODEL.split()))]
        if others:
            logger.info("Not of a run, and left in %s: %s", folder, ", ".join(sorted(others)))
    if (chosen := directory / "exit_config.json").is_file():
        put_aside(chosen, "was chosen for the weights before")
