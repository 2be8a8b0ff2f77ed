"""What a result says of where it comes from, and the removal of results of weights that are gone.

Every result keeps the hashes of its weights and data, the command line, all flags, the commit and
the versions. Nothing here imports torch.
"""

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from glue.tasks import TASKS
from modeling.errors import UserError
from modeling.exit_settings import read_exit_file
from modeling.loading.files import WEIGHT_FILES, read_json, resolve_within

logger = logging.getLogger(__name__)

ROOT = Path(__file__).parent.parent
LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "numpy")

# What is derived from a model's weights, in its folder and, of MNLI, in its second half's.
RESULTS = (
    *("eval_results.json", "eval_results.txt", "exits.png", "tokens.html", "tokens.png"),
    *("predictions.tsv", "predictions-*.tsv", "predictions.json", "predictions-*.json"),
    *("custom.tsv", "training.json", "sweep", "runs"),
    *(task.submission for task in TASKS.values()),
)
# Under my_out_dir: of all examples, and of those that exit at the layer.
STATISTICS = ("layers_all.csv", "layers_exit.csv")


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


def check_inputs(directory: str | Path, files: Mapping[str, str | None]) -> None:
    """Raise UserError for an input that a run in `directory` would remove or write over.

    files: paths by their flags.
    """
    for flag, file in files.items():
        path = Path(os.path.abspath(file or ""))
        if path.parent == Path(os.path.abspath(directory)) and any(map(path.match, RESULTS)):
            raise UserError(
                f"--{flag} {file} has the name of a result: a run in --output_dir {directory} "
                "would remove it or write over it; move it out of that folder, or rename it"
            )


def remove_results(directory: Path) -> None:
    """Remove what was derived from the weights in `directory`, which a training will replace.

    `exit_config.json` goes with its contents told, for it was chosen for these weights. A folder
    without weights keeps what it has.
    """
    if not any((directory / name).exists() for name in WEIGHT_FILES):
        return
    directory = Path(os.path.abspath(directory))  # "." has no name to put anything behind
    gone = remove(results_in(directory))
    config = directory / "config.json"
    if config.exists() and read_json(config).get("finetuning_task") == "mnli":
        gone += remove(results_in(directory.with_name(f"{directory.name}-MM")))
    if gone:
        names = ", ".join(sorted(path.name for path in gone))
        logger.info("Removed from %s, results of the weights before: %s", directory, names)
    path = directory / "exit_config.json"
    if path.is_file():
        chosen = read_exit_file(path)
        logger.warning("Removed %s: it was chosen for the weights before: %s", path, chosen)
        path.unlink()


def results_in(folder: Path) -> Iterable[Path]:
    """List the files and folders of results in the folder of a model."""
    for pattern in RESULTS:
        yield from folder.glob(pattern)
    if not (folder / "config.json").exists():
        return
    config = read_json(folder / "config.json")
    if statistics := resolve_within(
        folder, f"{config.get('my_out_dir')}/{config.get('model_name')}"
    ):
        for path in statistics.glob("*/*"):  # a folder may be a link to elsewhere
            if path.name in STATISTICS and resolve_within(folder, path.parent):
                yield path


def remove(paths: Iterable[Path]) -> list[Path]:
    """Delete files and whole folders; those that there were. UserError for what must stay."""
    there = [path for path in paths if path.exists()]
    for path in there:
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}") from error
    return there
