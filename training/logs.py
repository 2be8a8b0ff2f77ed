"""What a training run shows while it goes on."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from modeling.pretraining import Sums, add_sums
from training.loop import Step, Training

logger = logging.getLogger(__name__)

Log = TypeVar("Log", bound="ProgressLog")


class ProgressLog:
    """Progress bar, TensorBoard and JSON lines of a training run: the main process's work.

    every: steps between two entries; 0 for none.
    """

    def __init__(self, training: Training, every: int, total: int) -> None:
        self.every, self.main = every, training.accelerator.is_main_process
        self.bar = tqdm(
            initial=training.position.step,
            total=total,
            desc="Training",
            unit="step",
            disable=not self.main,
        )
        self.runs = Path(training.run.output_dir) / "runs"
        self.writer: SummaryWriter | None = None

    def __enter__(self: Log) -> Log:
        self.hook = threading.excepthook
        # A thread of TensorBoard's writes; what it meets, its next call raises in this one.
        threading.excepthook = lambda of: issubclass(of.exc_type, OSError) or self.hook(of)
        with self.without_if_full():
            self.writer = SummaryWriter(str(self.runs)) if self.main else None
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.writer:
            with self.without_if_full():
                self.writer.close()
        threading.excepthook = self.hook

    def advance(self, step: Step) -> bool:
        """Show that a step was taken; returns whether an entry is due."""
        self.bar.update()
        self.bar.set_postfix(loss=f"{step.loss:.4f}", lr=f"{step.learning_rate:.2e}")
        return self.every > 0 and step.number % self.every == 0

    def scalars(self, values: dict[str, float], step: int) -> None:
        """To TensorBoard."""
        with self.without_if_full():
            for name, value in values.items() if self.writer else ():
                self.writer.add_scalar(name, value, step)

    @contextmanager
    def without_if_full(self) -> Iterator[None]:
        """Where TensorBoard cannot write, the training goes on without it."""
        try:
            yield
        except OSError as error:
            logger.warning("%s: %s; training goes on without", self.runs, error)
            self.writer = None

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
