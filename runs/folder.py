"""A run's folder: what it holds, and which of its results are still true. Loads no torch."""

import logging
import os
from pathlib import Path

from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE
from elbert_base.files import WEIGHT_FILES, file_hash, read_json, resolve_within, weight_file
from runs.files import RunFolder, put_aside
from runs.settings import RunSettings

logger = logging.getLogger(__name__)

IN_PROGRESS = "training_in_progress.json"  # what is trained; renamed at the end to
FINISHED = "training_finished.json"
STATE = "training_state.json"  # of a checkpoint
LOCK = ".training.lock"  # `runs.start.lock_output_dir`, while a run trains into the folder


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """List the checkpoints of a run, in order of their steps."""
    named = [x for x in Path(output_dir).glob("checkpoint-*") if x.name[11:].isdecimal()]
    of_runs = [x for x in named if (x / STATE).exists() or RunFolder(x).read_list()]
    whole = [path for path in of_runs if (path / "config.json").exists()]
    return sorted(whole, key=lambda path: int(path.name[11:]))


def latest_checkpoint(output_dir: str | Path) -> Path | None:
    return (checkpoints_of(output_dir) or [None])[-1]


def is_finished(output_dir: str | Path) -> bool:
    """Tell whether `output_dir` holds a model whose training came to its end."""
    directory = Path(output_dir)
    return (directory / "config.json").exists() and not (directory / IN_PROGRESS).exists()


def check_finished(output_dir: str | Path, script: str = "the command") -> None:
    """Raise UserError unless `output_dir` holds a model whose training came to its end."""
    if is_finished(output_dir):
        return
    if not (Path(output_dir) / IN_PROGRESS).exists():
        raise UserError(f"no trained model in {output_dir}; run {script} with --do_train first")
    advice = "train again with --overwrite_output_dir"
    if kept := latest_checkpoint(output_dir):
        advice = "go on with its command and --resume_from_checkpoint latest, or evaluate its last "
        advice += f"checkpoint with --output_dir {kept}"
    raise UserError(f"training in {output_dir} did not finish; {advice}")


def check_output_dir(run: RunSettings, writes: bool) -> None:
    """Make --output_dir for what a training `writes`; without, look for its trained model."""
    directory = Path(run.output_dir)
    if not writes:
        check_finished(directory)
    welcome = not writes or run.overwrite_output_dir or run.resume_from_checkpoint
    there = os.path.isdir(directory)  # pathlib's raises for a long name
    if not welcome and there and any(path.name != LOCK for path in directory.iterdir()):
        raise UserError(
            f"--output_dir {directory} exists and is not empty; add --resume_from_checkpoint to go "
            "on with its training, --overwrite_output_dir to begin it anew, or choose another"
        )
    directory.mkdir(parents=True, exist_ok=True)


def results_folder(model: Path, suffix: str) -> Path:
    """Folder of an evaluation's results: that of the trained model, with `suffix` for the
    second half of a task."""
    # As text: "." has no name to add to.
    return Path(os.path.abspath(model) + suffix)


def statistics_folder(model: Path, my_out_dir: str, model_name: str, task: str) -> Path:
    """Make and return the folder my_out_dir/model_name/task in the model's folder.

    If it cannot be made, it is stat_out/task, or the model's folder itself.
    """
    for name in (Path(my_out_dir, model_name), Path("stat_out")):
        folder = model / name / task
        try:
            if resolve_within(model, folder.absolute()) is None:  # a foreign config.json or link
                raise OSError(None, f"leads out of {model}")
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        except OSError as error:
            used = "stat_out in the model's folder, or --statistics_dir FOLDER"
            logger.warning("my_out_dir %s: %s; instead: %s", name, error.strerror, used)
    return model


def remove_results(directory: Path) -> None:
    """Remove what was derived from the weights in `directory`, which a training will replace; put
    aside `exit_config.json`, which was chosen for these weights."""
    directory = Path(os.path.abspath(directory))  # "." has no name to put anything behind
    folders = [directory]
    config = directory / "config.json"
    if config.exists() and read_json(config).get("finetuning_task") == "mnli":
        folders.append(directory.with_name(f"{directory.name}-MM"))
    for folder in folders:
        removed = RunFolder(folder).remove()
        if resolve_within(folder, "sweep"):
            removed += RunFolder(folder / "sweep").remove()
        if removed:
            names = sorted(removed)
            logger.info("Removed from %s, results of the weights before: %s", folder, names)
    if (directory / EXIT_FILE).is_file():
        put_aside(directory / EXIT_FILE, "was chosen for the weights before")


class UsedFiles:
    """What a result is computed from: a model's weights and exit rule, and files of data.

    It is made before they are read; `check` is called before the result is written.
    weights: the hash of the weights.
    """

    def __init__(self, folder: str | Path, *data: str | Path) -> None:
        self.folder, self.data = Path(folder), [*map(Path, data)]
        self.hashes = self.now()
        self.weights = self.hashes[weight_file(folder)]

    def now(self) -> dict[Path, str]:
        """Return the hash of each file; of a data set in a folder, of all its files."""
        rule = [self.folder / "config.json", self.folder / "exit_config.json"]
        named = read_json(rule[0]).get("exit_config_path") if rule[0].is_file() else None
        if isinstance(named, str):  # a folder stands for the file in it
            inside = (resolve_within(self.folder, x) for x in (named, f"{named}/exit_config.json"))
            rule += filter(None, inside)
        data = [x for path in self.data for x in (path.rglob("*") if path.is_dir() else [path])]
        weights = [self.folder / name for name in WEIGHT_FILES]
        files = dict.fromkeys((*weights, *rule, *data))
        return {path: file_hash(path) for path in files if path.is_file()}

    def check(self) -> None:
        """Raise UserError for a file that was changed, made or removed since."""
        now = self.now()
        changed = [x for x in self.hashes | now if self.hashes.get(x) != now.get(x)]
        if changed:
            raise UserError(
                f"{changed[0]} was changed while this command used it, so nothing was written; "
                "give the command again when that has ended"
            )
