"""Experiment trackers of a training, by accelerate's classes: flags, curves and final metrics."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, TensorBoardTracker

from modeling.errors import UserError, in_one_line
from modeling.files import resolve_within
from runs.folder import RunFolder
from runs.provenance import without_password
from runs.settings import EMISSIONS_FILE

logger = logging.getLogger(__name__)

NO_TENSORFLOW = "tensorboard.compat.notf"

FILE_TRACKERS = ("tensorboard", "codecarbon")  # which write into the training's folder
PROJECT = "elbert"  # where no variable names another one


class Tracker:
    """A tracker of accelerate's that costs a training nothing where it fails: a warning tells it.

    Args:
        name: accelerate's name of the tracker.
        tracker: accelerate's.
    """

    def __init__(self, name: str, tracker: GeneralTracker) -> None:
        self.name = name
        self.tracker = tracker
        self.has_failed = False
        self.idle_until = 0.0  # by time.monotonic

    def start(self, configuration: Mapping[str, Any]) -> None:
        """Begin a run with this configuration; UserError where the tracker refuses."""
        is_started = False
        try:
            self.tracker.start()
            is_started = True
            self.tracker.store_init_configuration(dict(configuration))
        except Exception as error:  # the services' errors have no base of their own
            if is_started:
                self.attempt(self.tracker.finish)
            raise UserError(
                f"--report_to {self.name}: {in_one_line(error)}; --report_to none trains without it"
            ) from error

    def log(self, scalars: Mapping[str, float], step: int | None) -> None:
        """Add scalars to the curves; the first failure is told.

        After a failure nothing is added for ten times as long as it took, so that a service that
        does not answer holds up a training by a tenth at most.

        step: None for final metrics, which are added in any case.
        """
        begin = time.monotonic()
        if step is not None and begin < self.idle_until:
            return
        is_added = self.attempt(partial(self.tracker.log, dict(scalars), step))
        if not is_added:
            end = time.monotonic()
            self.idle_until = end + 10 * (end - begin)

    def finish(self) -> None:
        """End the run."""
        self.attempt(self.tracker.finish)

    def attempt(self, action: Callable[[], Any]) -> bool:
        """Call a method of the tracker; return whether it succeeded."""
        try:
            action()
            return True
        except Exception as error:  # as in `start`
            if not self.has_failed:
                logger.warning("--report_to %s: %s", self.name, in_one_line(error))
            self.has_failed = True
            return False


def start_trackers(
    accelerator: Accelerator, directory: Path, names: Iterable[str], flags: Mapping[str, Any]
) -> None:
    """Begin a run of each tracker, with the training's flags as its configuration.

    Args:
        accelerator: gets the trackers, each a `Tracker`.
        directory: of the training; its name is the run's.
        names: trackers, by accelerate's names.
        flags: of the training.

    Raises UserError for a tracker that does not start.
    """
    configuration = {name: plain_value(value) for name, value in flags.items()}
    for name in names:
        tracker = Tracker(name, make_tracker(name, directory))
        tracker.start(configuration)
        accelerator.trackers.append(tracker)
        if name == "tensorboard":
            list_tensorboards_files(directory)


def log_scalars(accelerator: Accelerator, scalars: Mapping[str, float], step: int | None) -> None:
    """Add scalars to the curves of all trackers, which the main process alone has."""
    for tracker in accelerator.trackers:
        tracker.log(scalars, step)


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


def make_tracker(name: str, directory: Path) -> GeneralTracker:
    """Make a tracker that reports to a service, or to files of its own library."""
    run_name = os.path.basename(os.path.abspath(directory))
    if name == "tensorboard":
        # TensorBoard's own switch: no TensorFlow, whose errors are no OSErrors and which is slow.
        sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
        return TensorBoardTracker("runs", directory)
    if name == "codecarbon":
        return CarbonTracker(directory)
    tracker_class: Any = LOGGER_TYPE_TO_CLASS[name]
    if name == "mlflow":  # which reads MLFLOW_EXPERIMENT_NAME itself
        return tracker_class(PROJECT, run_name=run_name)
    if name == "comet_ml":
        return tracker_class(os.environ.get("COMET_PROJECT_NAME", PROJECT))
    variable = f"{name.upper()}_PROJECT"  # WANDB_PROJECT, TRACKIO_PROJECT
    return tracker_class(os.environ.get(variable, PROJECT), name=run_name)


def check_file_trackers(directory: Path, names: Iterable[str]) -> None:
    """Raise UserError where trackers in FILE_TRACKERS would not start.

    TensorBoard's folder `runs` may be no file, and no link out of `directory`.
    """
    runs = directory / "runs"
    if "tensorboard" in names:
        if not resolve_within(directory, "runs"):
            raise UserError(f"{runs} is a link that leads out of {directory}: remove it")
        if runs.exists() and not runs.is_dir():
            raise UserError(f"{runs} is a file, where --report_to tensorboard needs a folder")
    if "codecarbon" in names:
        try:
            import codecarbon  # noqa: F401
        except Exception as error:  # whatever its own imports raise
            raise UserError(f"--report_to codecarbon: {in_one_line(error)}") from error


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
