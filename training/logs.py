"""What a training run shows while it goes on."""

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from modeling.pretraining import Sums, add_sums
from training.loop import Step, Training
from utils.console import progress

logger = logging.getLogger(__name__)

Log = TypeVar("Log", bound="ProgressLog")

NO_TENSORFLOW = "tensorboard.compat.notf"


def started(name: str, training: Training) -> GeneralTracker:
    """accelerate's tracker of that name, ready to log; TensorBoard's files go to `runs`."""
    # TensorBoard's own switch: no TensorFlow, whose errors are no OSErrors and which loads slowly.
    sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
    kind, directory = LOGGER_TYPE_TO_CLASS[name], training.run.output_dir
    where = {"logging_dir": directory} if kind.requires_logging_directory else {}
    tracker = kind("runs" if name == "tensorboard" else Path(directory).name, **where)
    tracker.start()
    if name != "tensorboard":  # which would put them into a run of their own
        tracker.store_init_configuration(training.identity.arguments)
    return tracker


class ProgressLog:
    """Progress bar, trackers and JSON lines of a training run: the main process's work.

    every: steps between two entries; 0 for none.
    """

    def __init__(self, training: Training, every: int, total: int) -> None:
        self.every, self.main = every, training.accelerator.is_main_process
        self.bar = progress(
            initial=training.position.step,
            total=total,
            desc="Training",
            unit="step",
            disable=not self.main,
        )
        self.training = training
        self.trackers: list[GeneralTracker] = []

    def __enter__(self: Log) -> Log:
        self.hook = threading.excepthook
        # A thread of TensorBoard's writes; what it meets, its next call raises in this one.
        threading.excepthook = lambda of: issubclass(of.exc_type, OSError) or self.hook(of)
        with self.without_if_full():
            names = self.training.run.trackers if self.main else []
            self.trackers = [started(name, self.training) for name in names]
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        with self.without_if_full():
            for tracker in self.trackers:
                tracker.finish()
        threading.excepthook = self.hook

    def advance(self, step: Step) -> bool:
        """Show that a step was taken; returns whether an entry is due."""
        now = {"loss": f"{step.loss:.4f}", "lr": f"{step.learning_rate:.2e}"}
        self.bar.set_postfix(now, refresh=False)
        self.bar.update()
        return self.every > 0 and step.number % self.every == 0

    def scalars(self, values: dict[str, float], step: int) -> None:
        """To the trackers."""
        with self.without_if_full():
            for tracker in self.trackers:
                tracker.log(values, step)

    @contextmanager
    def without_if_full(self) -> Iterator[None]:
        """Where a tracker cannot write, the training goes on without."""
        try:
            yield
        except OSError as error:
            where = self.training.run.output_dir
            logger.warning("%s/runs: %s; training goes on without", where, error)
            self.trackers = []

    def line(self, values: dict[str, Any]) -> None:
        """One JSON line on the console."""
        if self.main:
            self.bar.write(json.dumps(values))


class MeansLog(ProgressLog):
    """An objective's means since the last entry, from the `sums` in its outputs."""

    def __init__(self, training: Training, every: int, total: int) -> None:
        super().__init__(training, every, total)
        self.accelerator, self.objective = training.accelerator, training.learner.objective
        self.sums: Sums = {}

    def means(self, sums: Sums, step: Step) -> dict[str, float]:
        """What is reported, by its name; TensorBoard's names have no brackets."""
        raise NotImplementedError

    def step(self, step: Step) -> None:
        """After an optimiser step; writes an entry when one is due."""
        for out in step.outs:
            self.sums = add_sums(self.sums, out.sums)
        if not self.advance(step):
            return
        sums, self.sums = self.accelerator.reduce(self.sums, "sum"), {}
        values = {**self.means(sums, step), "learning_rate": step.learning_rate}
        self.scalars(values, step.number)
        self.line({**values, "step": step.number})
