"""What a training run shows while it goes on."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from modeling.errors import UserError
from modeling.pretraining import Sums, add_sums
from training.trainer import Step, Trainer
from utils.console import progress

Log = TypeVar("Log", bound="ProgressLog")

NO_TENSORFLOW = "tensorboard.compat.notf"


def start_tracker(name: str, trainer: Trainer) -> GeneralTracker:
    """accelerate's tracker of that name, ready to log; TensorBoard's files go to `runs`."""
    # TensorBoard's own switch: no TensorFlow, whose errors are no OSErrors and which loads slowly.
    sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
    kind, directory = LOGGER_TYPE_TO_CLASS[name], trainer.run.output_dir
    where = {"logging_dir": directory} if kind.requires_logging_directory else {}
    tracker = kind("runs" if name == "tensorboard" else Path(directory).name, **where)
    try:
        tracker.start()
    except OSError as error:
        raise UserError(f"--report_to {name}: cannot write to {directory}: {error}") from error
    if name != "tensorboard":  # which would put them into a run of their own
        tracker.store_init_configuration(trainer.fingerprint.arguments)
    return tracker


class ProgressLog:
    """Progress bar, trackers and JSON lines of a training run: the main process's work.

    every: steps between two entries; 0 for none.
    """

    def __init__(self, trainer: Trainer, every: int, total: int) -> None:
        self.trainer, self.every = trainer, every
        self.main = trainer.accelerator.is_main_process
        self.trackers: list[GeneralTracker] = []
        self.bar = progress(
            initial=trainer.state.progress.step,
            total=total,
            desc="Training",
            unit="step",
            disable=not self.main,
        )

    def __enter__(self: Log) -> Log:
        if self.main:
            self.trackers = [start_tracker(x, self.trainer) for x in self.trainer.run.trackers]
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        for tracker in self.trackers:
            tracker.finish()

    def advance(self, step: Step) -> bool:
        """Show that a step was taken; whether an entry is due."""
        now = {"loss": f"{step.loss:.4f}", "lr": f"{step.learning_rate:.2e}"}
        self.bar.set_postfix(now, refresh=False)
        self.bar.update()
        return self.every > 0 and step.number % self.every == 0

    def scalars(self, values: dict[str, float], step: int) -> None:
        """Send values to the trackers."""
        for tracker in self.trackers:
            tracker.log(values, step)

    def print_json(self, values: dict[str, Any]) -> None:
        """Print one JSON line."""
        if self.main:
            self.bar.write(json.dumps(values))

    def entry(self, values: dict[str, float], step: int) -> None:
        """Send values to the trackers and to the console."""
        self.scalars(values, step)
        self.print_json({**values, "step": step})


class MeansLog(ProgressLog):
    """An objective's means since the last entry, from the `sums` in its outputs.

    means: of these sums, by the names that are reported; TensorBoard's have no brackets.
    """

    def __init__(
        self,
        trainer: Trainer,
        every: int,
        total: int,
        means: Callable[[Sums, Step], dict[str, float]],
    ) -> None:
        super().__init__(trainer, every, total)
        self.means, self.sums = means, {}

    def step(self, step: Step) -> bool:
        """Count an optimiser step; whether its entry was due, which is then written."""
        for out in step.outs:
            self.sums = add_sums(self.sums, out.sums)
        if not self.advance(step):
            return False
        sums, self.sums = self.trainer.accelerator.reduce(self.sums, "sum"), {}
        values = {**self.means(sums, step), "learning_rate": step.learning_rate}
        self.entry(values, step.number)
        return True
