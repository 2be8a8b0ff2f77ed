"""A run's --output_dir: how far its training is, whether a run may write there, and which results
belong to its model. Loads no torch."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import Timeout

from glue.tasks import TASKS, evaluation_tasks
from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE
from modeling.files import read_json, resolve_within
from runs.files import lock_file, locked, put_aside
from runs.folder import RunFolder
from runs.provenance import STATE
from runs.settings import RunSettings

logger = logging.getLogger(__name__)

IN_PROGRESS = "training_in_progress.json"  # what is trained; at the end it is renamed to
FINISHED = "training_finished.json"
CHECKPOINT = "checkpoint-"  # begins the name of a checkpoint's folder; its step follows
SWEEP = "sweep"  # what is locked while a sweep is written into the folder
TRAINING = "training"  # what is locked while a run trains into the folder


# How far a training is.


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """List the checkpoints of a run, in order of their steps."""
    checkpoints = []
    for path in Path(output_dir).glob(f"{CHECKPOINT}*"):
        has_step = step_text(path).isdecimal()  # a user's copy has another name
        is_of_a_run = (path / STATE).exists() or bool(RunFolder(path).read_list())
        if has_step and is_of_a_run and (path / "config.json").exists():
            checkpoints.append(path)
    return sorted(checkpoints, key=lambda path: int(step_text(path)))


def step_text(checkpoint: Path) -> str:
    """Return what stands behind "checkpoint-" in a folder's name."""
    return checkpoint.name.removeprefix(CHECKPOINT)


def latest_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the checkpoint with the most steps; None where there is none."""
    checkpoints = checkpoints_of(output_dir)
    return checkpoints[-1] if checkpoints else None


def is_finished(output_dir: str | Path) -> bool:
    """Tell whether `output_dir` holds a model whose training came to its end."""
    directory = Path(output_dir)
    return (directory / "config.json").exists() and not (directory / IN_PROGRESS).exists()


def check_finished(output_dir: str | Path, script: str = "the command") -> None:
    """Raise UserError unless `output_dir` holds a model whose training came to its end.

    script: what trains such a model, for the error.
    """
    if is_finished(output_dir):
        return
    if not (Path(output_dir) / IN_PROGRESS).exists():
        raise UserError(f"no trained model in {output_dir}; run {script} with --do_train first")
    checkpoint = latest_checkpoint(output_dir)
    if checkpoint:
        advice = (
            "go on with its command and --resume_from_checkpoint latest, or evaluate its last "
            f"checkpoint with --output_dir {checkpoint}"
        )
    else:
        advice = "train again with --overwrite_output_dir"
    raise UserError(f"training in {output_dir} did not finish; {advice}")


# Whether a run may write there.


def check_output_dir(run: RunSettings, writes: bool) -> None:
    """Make --output_dir if there is none.

    writes: whether the run writes a model. If so, it raises UserError for a folder with files that
    the flags do not give up; if not, for one without a trained model.
    """
    directory = Path(run.output_dir)
    if writes:
        may_hold_files = run.overwrite_output_dir or run.resume_from_checkpoint
        if not may_hold_files and has_files(directory):
            raise UserError(
                f"--output_dir {directory} exists and is not empty; add --resume_from_checkpoint "
                "to continue its training, --overwrite_output_dir to start it anew, or choose "
                "another"
            )
    else:
        check_finished(directory)
    directory.mkdir(parents=True, exist_ok=True)


def has_files(directory: Path) -> bool:
    """Tell whether a folder is there and holds anything but the lock of a training."""
    if not os.path.isdir(directory):  # Path.is_dir raises for a name that is too long
        return False
    lock = lock_file(directory / TRAINING)
    return any(path.name != lock.name for path in directory.iterdir())


@contextmanager
def locked_for_training(output_dir: str | Path) -> Iterator[None]:
    """Keep a folder to one training; raise UserError where another one holds it."""
    with kept_to_one(output_dir, TRAINING, "training a model in it"):
        yield


@contextmanager
def locked_for_sweep(folders: Iterable[Path]) -> Iterator[None]:
    """Keep folders of results to one sweep; raise UserError where another one holds one of them."""
    with ExitStack() as stack:
        for folder in sorted({folder.resolve() for folder in folders}):
            stack.enter_context(kept_to_one(folder, SWEEP, "writing a sweep into it"))
        yield


@contextmanager
def kept_to_one(output_dir: str | Path, kind: str, work: str) -> Iterator[None]:
    """Keep a folder to one run of a kind; raise UserError where another one holds it.

    work: what the other one is doing, for the error.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(Path(output_dir, kind), timeout=0))
        except Timeout as error:
            raise UserError(
                f"--output_dir {output_dir}: another run is {work}; wait until it ends, stop it, "
                "or choose another"
            ) from error
        yield


# The results of its model.


def results_folder(model_dir: Path, suffix: str) -> Path:
    """Return the folder of an evaluation's results: that of the model, or one beside it.

    suffix: is added to the folder's name, for the second half of a task (see `evaluation_tasks`).
    """
    # "." has no name to add to.
    return Path(os.path.abspath(model_dir) + suffix)


def statistics_folder(model_dir: Path, my_out_dir: str, model_name: str, task: str) -> Path:
    """Make and return the folder my_out_dir/model_name/task in the model's folder.

    Where that cannot be made, it is stat_out/task, or the model's folder itself: a published
    config.json has its author's path in my_out_dir.
    """
    for name in (Path(my_out_dir, model_name), Path("stat_out")):
        folder = model_dir / name / task
        if resolve_within(model_dir, folder.absolute()) is None:  # a foreign config.json or link
            reason = f"leads out of {model_dir}"
        else:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return folder
            except OSError as error:
                reason = str(error.strerror)
        logger.warning(
            "my_out_dir %s: %s; instead: stat_out in the model's folder, or --statistics_dir "
            "FOLDER",
            name,
            reason,
        )
    return model_dir


def remove_results(model_dir: Path) -> None:
    """Remove what was derived from the weights in a folder, which a training will replace.

    exit_config.json, which was chosen for these weights, is put aside.
    """
    exit_file = results_folder(model_dir, "") / EXIT_FILE
    if exit_file.is_file():  # first, since --pick has put it on the list of results
        put_aside(exit_file, "was chosen for the weights before")
    for folder in folders_of_results(model_dir):
        removed = RunFolder(folder).remove()
        if resolve_within(folder, "sweep"):
            removed += RunFolder(folder / "sweep").remove()
        if removed:
            logger.info(
                "Removed from %s, results of the weights before: %s", folder, sorted(removed)
            )


def folders_of_results(model_dir: Path) -> list[Path]:
    """List the folders that evaluations of a model write into; MNLI, with two dev sets, has two."""
    config_file = model_dir / "config.json"
    task_name = read_json(config_file).get("finetuning_task") if config_file.exists() else None
    suffixes = [""]
    if isinstance(task_name, str) and task_name in TASKS:  # the user's own have other names
        suffixes = [suffix for _, suffix in evaluation_tasks(TASKS[task_name])]
    return [results_folder(model_dir, suffix) for suffix in suffixes]
