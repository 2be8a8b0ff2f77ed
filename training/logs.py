"""What a training run shows while it goes on."""

import json
from pathlib import Path
from typing import Any, TypeVar

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from modeling.pretraining import Sums, add_sums
from training.loop import Step, Training

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
        runs = Path(training.run.output_dir) / "runs"
        self.writer = SummaryWriter(str(runs)) if self.main else None

    def __enter__(self: Log) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.writer:
            self.writer.close()

    def advance(self, step: Step) -> bool:
        """Show that a step was taken; returns whether an entry is due."""
        self.bar.update()
        self.bar.set_postfix(loss=f"{step.loss:.4f}", lr=f"{step.learning_rate:.2e}")
        return self.every > 0 and step.number % self.every == 0

    def scalars(self, values: dict[str, float], step: int) -> None:
        """To TensorBoard."""
        for name, value in values.items() if self.writer else ():
            self.writer.add_scalar(name, value, step)

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
