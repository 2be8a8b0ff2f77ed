"""Experiment trackers of a training, by accelerate's classes: flags, curves and final metrics."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, TensorBoardTracker

from modeling.errors import UserError
from modeling.files import resolve_within
from runs.folder import RunFolder
from runs.provenance import without_password
from runs.settings import EMISSIONS_FILE

NO_TENSORFLOW = "tensorboard.compat.notf"

PROJECT = "elbert"  # where no variable names another one


def start_trackers(
    directory: Path, names: Sequence[str], flags: Mapping[str, Any]
) -> list[GeneralTracker]:
    """Begin a run of each tracker, with the training's flags as its configuration.

    Args:
        directory: of the training; its name is the run's.
        names: trackers, by accelerate's names.
        flags: of the training.
    """
    configuration = {name: plain_value(value) for name, value in flags.items()}
    trackers = []
    for name in names:
        if name == "tensorboard":
            tracker = start_tensorboard(directory)
        elif name == "codecarbon":
            tracker = CarbonTracker(directory)
            tracker.start()
        else:
            tracker = make_tracker(name, os.path.basename(os.path.abspath(directory)))
            tracker.start()
        tracker.store_init_configuration(configuration)
        trackers.append(tracker)
    if "tensorboard" in names:
        list_tensorboards_files(directory)
    return trackers


class CarbonTracker(GeneralTracker):
    """codecarbon's estimate of a run's emissions, in the file emissions.csv of its folder."""

    name = "codecarbon"
    requires_logging_directory = True
    tracker: Any = None  # codecarbon's own, once it is started

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def start(self) -> None:
        """Begin to measure."""
        from codecarbon import EmissionsTracker

        self.tracker = EmissionsTracker(
            project_name=PROJECT, output_dir=str(self.directory), log_level="error"
        )
        self.tracker.start()

    def finish(self) -> None:
        """Stop, and list the file among the run's own."""
        self.tracker.stop()
        RunFolder(self.directory).list_growing([self.directory / EMISSIONS_FILE])


def make_tracker(name: str, run_name: str) -> GeneralTracker:
    """Make a tracker that reports to a service, or to files of its own library."""
    tracker_class: Any = LOGGER_TYPE_TO_CLASS[name]
    if name == "mlflow":  # which reads MLFLOW_EXPERIMENT_NAME itself
        return tracker_class(PROJECT, run_name=run_name)
    if name == "comet_ml":
        return tracker_class(os.environ.get("COMET_PROJECT_NAME", PROJECT))
    variable = f"{name.upper()}_PROJECT"  # WANDB_PROJECT, TRACKIO_PROJECT
    return tracker_class(os.environ.get(variable, PROJECT), name=run_name)


def start_tensorboard(directory: Path) -> TensorBoardTracker:
    """Begin TensorBoard's files in the folder `runs`; UserError for a link out of `directory`."""
    # TensorBoard's own switch: no TensorFlow, whose errors are no OSErrors and which is slow.
    sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
    if not resolve_within(directory, "runs"):
        raise UserError(f"{directory / 'runs'} is a link that leads out of {directory}: remove it")
    tracker = TensorBoardTracker("runs", directory)
    tracker.start()
    return tracker


def list_tensorboards_files(directory: Path) -> None:
    """List what this process writes into `runs` among the run's own files."""
    runs = directory / "runs"
    events = runs.glob(f"**/events*.{os.getpid()}.*")
    RunFolder(directory).list_growing([*events, *runs.glob("*/hparams.yml")])


def plain_value(value: Any) -> bool | int | float | str | None:
    """Return a flag's value as trackers take it: no list, no path, no password of an address."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    return str(without_password(str(value)))
