"""The log of a training: a progress bar, lines of JSON, and the curves of trackers."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from runs.console import progress
from runs.trackers import log_scalars
from training.trainer import Trainer

Sums = dict[str, Tensor]  # what a report is made of, by name, summed over batches


def add_sums(total: Sums, sums: Sums) -> Sums:
    """Add the sums of one more batch to `total`, which is {} at first."""
    return {name: total.get(name, 0) + value for name, value in sums.items()}


def means_of_batches(sums: Sums) -> dict[str, float]:
    """Compute the means over the batches that were summed up, whose number is `batches`."""
    means = {name: (value / sums["batches"]).item() for name, value in sums.items()}
    del means["batches"]
    return means


def no_scalars(model: PreTrainedModel, output: Any) -> dict[str, float]:
    """Return nothing: what the curves get of a training that adds nothing to them."""
    return {}


class TrainingLog:
    """Progress bar, curves and JSON lines of a training run: the main process's work.

    It is a context manager, whose end closes the bar. The trackers stay open for what an evaluation
    finds afterwards; the session's end finishes them.

    Args:
        trainer: the run.
        total: optimiser steps of the whole training.
        sums_of: picks what of the model's output for a batch is summed up between two entries.
        means: computes what an entry says from these sums over all processes; by default their
            means over the batches. Where there are `tokens` among them, an entry also has the
            number of tokens per second.
        scalars: computes what the curves get besides, from the model and its last output.
    """

    def __init__(
        self,
        trainer: Trainer,
        total: int,
        sums_of: Callable[[Any], Sums],
        means: Callable[[Sums], dict[str, float]] = means_of_batches,
        scalars: Callable[[PreTrainedModel, Any], dict[str, float]] = no_scalars,
    ) -> None:
        self.trainer = trainer
        self.sums_of = sums_of
        self.means = means
        self.scalars = scalars
        is_main = trainer.accelerator.is_main_process
        self.bar = progress(
            desc="Training",
            unit="step",
            initial=trainer.state.step,
            total=total,
            disable=None if is_main else True,  # None: where stderr is no terminal
        )
        self.clock = time.monotonic()  # of the last entry
        self.losses: list[float] = []  # of the steps since then
        self.sums: Sums = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def step(self, loss: float, learning_rate: float, outputs: list[Any]) -> bool:
        """Count an optimiser step, and write an entry if it is due; return whether it was.

        outputs: the model's, for the batches of the step.
        """
        self.losses.append(loss)
        for output in outputs:
            sums = {"batches": torch.ones_like(output.loss), **self.sums_of(output)}
            self.sums = add_sums(self.sums, {name: x.detach() for name, x in sums.items()})
        postfix = {"loss": f"{loss:.4f}", "lr": f"{learning_rate:.2e}"}
        self.bar.set_postfix(postfix, refresh=False)
        self.bar.update()
        number = self.trainer.state.step
        every = self.trainer.training.logging_steps
        if every > 0 and number % every == 0:
            self.write_entry(learning_rate, outputs[-1])
            return True
        is_short_run = self.bar.total < 10 * every  # whose entries alone would make no curve
        if is_short_run:
            log_scalars(self.trainer.accelerator, {"step_loss": loss}, number)
        return False

    def write_entry(self, learning_rate: float, last_output: Any) -> None:
        """Write the means over the steps since the last entry."""
        entry = {"learning_rate": learning_rate, "loss": sum(self.losses) / len(self.losses)}
        sums = self.trainer.accelerator.reduce(self.sums, "sum")
        entry |= self.means(sums)
        if "tokens" in sums:
            now = time.monotonic()
            entry["tokens_per_second"] = round(sums["tokens"].sum().item() / (now - self.clock))
            self.clock = now
        self.write(entry, entry | self.scalars(self.trainer.state.model, last_output))
        self.losses = []
        self.sums = {}

    def write(self, line: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        """Print a JSON line, and add the scalars of this step to the curves."""
        number = self.trainer.state.step
        if self.trainer.accelerator.is_main_process:
            log_scalars(self.trainer.accelerator, scalars, number)
            self.bar.write(json.dumps({**line, "step": number}))
