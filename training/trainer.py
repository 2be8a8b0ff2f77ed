"""The training loop of all scripts, and its log. It can stop at any step, and resume exactly.

    trainer = Trainer(accelerator, state, run, save_steps, fingerprint)
    trainer.begin(checkpoint)
    trainer.fit(batches, total, log.step)
    trainer.finish()

run_glue.py (`evaluation/glue_run.py`), run_pretraining.py (`training/pretraining.py`) and
share_layers.py (`training/layer_sharing.py`) say what the batches, the optimiser and the log are.
"""

import json
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from tqdm import tqdm
from transformers.utils import ModelOutput

from modeling.errors import UserError
from modeling.pretraining import Sums, add_sums
from training.checkpoints import (
    BEST,
    RunFingerprint,
    TrainState,
    begin_training,
    finish_training,
    latest_checkpoint,
    load_best,
    load_checkpoint,
    prune,
    save_checkpoint,
    save_for_published_code,
    save_model,
)
from training.optimizer import clipped_parameters
from training.provenance import provenance, remove_results
from training.settings import RunSettings
from training.start import StopSignal
from utils.console import progress
from utils.files import write_json

logger = logging.getLogger(__name__)

NO_TENSORFLOW = "tensorboard.compat.notf"


class Batch(NamedTuple):
    """One process's share of a global batch."""

    inputs: dict[str, torch.Tensor]
    share: float  # of the global batch's examples that are here; the shares sum to 1


class Step(NamedTuple):
    """An optimiser step that was taken."""

    number: int  # counts from 1
    loss: float  # mean over the global batches of this step
    learning_rate: float
    outs: list[ModelOutput]  # the model's answers to this step's batches, of this process


@dataclass
class Trainer:
    """One run of an optimiser over batches: stoppable at any step, and resumed to the last bit.

    All chance in a step (dropout) comes from a generator that is seeded anew with (seed, step,
    batch, process), so that no generator's state has to outlive a process.

    save_steps: write a checkpoint every so many; 0 or less: none.
    """

    accelerator: Accelerator
    state: TrainState
    run: RunSettings
    save_steps: int
    fingerprint: RunFingerprint

    def __post_init__(self) -> None:
        self.clock = time.monotonic()
        self.clipped = clipped_parameters(self.state.optimizer)
        self.model, self.optimizer = self.accelerator.prepare(
            self.state.objective or self.state.model, self.state.optimizer
        )

    def begin(self, checkpoint: Path | None) -> None:
        """Go on from `checkpoint` where there is one, and mark `output_dir` as being trained."""
        if checkpoint:
            scaler = load_checkpoint(checkpoint, self.state, self.fingerprint)
            if self.accelerator.scaler:
                self.accelerator.scaler.load_state_dict(scaler)
            self.clock -= self.state.seconds
            logger.info("Resumed from %s at step %d", checkpoint, self.state.progress.step)
        if self.accelerator.is_main_process:
            directory = self.run.output_dir
            if checkpoint is None:
                remove_results(Path(directory))
            begin_training(directory, self.fingerprint.record(), resumed=checkpoint is not None)
            prune(directory, self.run.save_total_limit)  # what a killed run had no time for

    def fit(
        self,
        batches: Callable[[int, int], Iterable[Batch]],
        until: int,
        log: Callable[[Step], bool],
        evaluate: Callable[[int], float] | None = None,
    ) -> None:
        """Train to optimiser step `until`, or until the dev metric no longer gets better.

        Args:
            batches: called with an epoch and the number of its first batch; gives the batches from
                there to the epoch's end.
            log: called after every step; returns whether its entry was due.
            evaluate: the dev metric after this step, at every entry of the log; where a best model
                is looked for, after the last step, too.

        Raises UserError for a loss that is not finite.
        """
        accelerator, progress, losses, outs = self.accelerator, self.state.progress, [], []
        with StopSignal() as stop:
            while not self.is_over(until):
                for batch in batches(progress.epoch, progress.batch):
                    self.model.train()
                    self.seed_batch()
                    with accelerator.accumulate(self.model):
                        out = self.model(**batch.inputs)
                        losses.append(self.backward(out.loss, batch.share))
                        self.optimizer.step()  # where enough gradients are gathered
                        self.optimizer.zero_grad()
                    outs.append(out)
                    progress.batch += 1
                    if not accelerator.sync_gradients:
                        continue
                    due = log(self.count_step(losses, outs))
                    losses, outs = [], []
                    if evaluate and (due or (self.state.best.wanted and progress.step == until)):
                        self.update_best(evaluate(progress.step))
                    if self.save_steps > 0 and progress.step % self.save_steps == 0:
                        self.save()
                    if number := stop.on_any_rank(accelerator):
                        self.save()
                        self.exit(number, f"checkpoint-{progress.step}")
                    if self.is_over(until):
                        return
                progress.epoch, progress.batch = progress.epoch + 1, 0

    def is_over(self, until: int) -> bool:
        return self.state.progress.step >= until or self.state.best.should_stop

    def seed_batch(self) -> None:
        """Seed PyTorch's generators of every device for the next batch."""
        progress, rank = self.state.progress, self.accelerator.process_index
        numbers = (self.run.seed, progress.step, progress.batch, rank)
        seed = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed >> 1))

    def backward(self, loss: torch.Tensor, share: float) -> float:
        """Compute gradients, clipped when all are gathered; the loss of the global batch.

        Each process's mean counts by its share. Raises UserError for a loss that is not finite.
        """
        # DDP divides by the number of processes; with one, this factor is 1.
        weighted = loss * (share * self.accelerator.num_processes)
        mean = self.accelerator.reduce(weighted.detach(), "mean").item()
        if not math.isfinite(mean):
            raise UserError(self.diverged(mean))
        self.accelerator.backward(weighted)
        if self.accelerator.sync_gradients:
            self.accelerator.clip_grad_norm_(self.clipped, self.run.max_grad_norm)
        return mean

    def diverged(self, loss: float) -> str:
        """Say what to do about a loss that is not finite, at which step, and from where."""
        kept = latest_checkpoint(self.run.output_dir)
        step, rate = self.state.progress.step + 1, self.state.schedule.get_last_lr()[0]
        return (
            f"the loss is {loss} at step {step} (learning rate {rate:.3g}); training stopped. "
            + (f"The last good checkpoint is {kept}. " if kept else "No checkpoint was due yet. ")
            + "Lower --learning_rate, add --warmup_steps, or train without --fp16"
        )

    def count_step(self, losses: list[float], outs: list[ModelOutput]) -> Step:
        """Return the step that was taken; move on to the next, and to its learning rate."""
        rate = self.state.schedule.get_last_lr()[0]
        self.state.schedule.step()
        self.state.progress.step += 1
        return Step(self.state.progress.step, sum(losses) / len(losses), rate, outs)

    def update_best(self, value: float) -> None:
        """Count a dev metric of the model as it is; keep the model where it is the best so far."""
        better = self.state.best.update(self.state.progress.step, value)
        if better and self.state.best.keep and self.accelerator.is_main_process:
            save_model(Path(self.run.output_dir) / BEST, self.state.model, self.state.tokenizer)

    def save(self) -> None:
        """Write `checkpoint-STEP`; the main process's work."""
        if self.accelerator.is_main_process:
            checkpoint = Path(self.run.output_dir) / f"checkpoint-{self.state.progress.step}"
            scaler = self.accelerator.scaler and self.accelerator.scaler.state_dict()
            self.state.seconds = self.seconds
            save_checkpoint(checkpoint, self.state, scaler, self.fingerprint.record())
            prune(self.run.output_dir, self.run.save_total_limit)

    def exit(self, number: int, saved: str) -> None:
        """End the process as the signal of that number asks; say what is `saved`."""
        if self.accelerator.is_main_process:
            print(
                f"{signal.Signals(number).name}: stopped after step {self.state.progress.step}; "
                f"{saved} is in {self.run.output_dir}. Go on with the same command and "
                "--resume_from_checkpoint latest",
                file=sys.stderr,
            )
        sys.exit(128 + number)

    def finish(self, spiece: Path | None = None) -> None:
        """Write the trained model, then what is said of it; a signal waits for it.

        Nothing that a resumed run would need is removed before all of it stands. spiece: that of
        the starting model, where ELBERT's published code is to read the trained one.
        """
        directory = Path(self.run.output_dir)
        with StopSignal() as stop:
            if self.accelerator.is_main_process:
                load_best(directory, self.state)
                save_model(directory, self.state.model, self.state.tokenizer)
                if spiece:
                    save_for_published_code(directory, self.state.model, spiece)
                write_json(directory / "training.json", self.report())
                finish_training(directory, self.state.best.keep)
                self.log_summary()
            if number := stop.on_any_rank(self.accelerator):
                self.exit(number, "the trained model")
        self.accelerator.wait_for_everyone()

    @property
    def seconds(self) -> float:
        """Seconds that the training has taken so far, over all runs of it."""
        return time.monotonic() - self.clock

    def report(self) -> dict[str, Any]:
        """Write down how far and how long the run went, and where it comes from."""
        about = provenance(self.fingerprint.arguments, data=self.fingerprint.data)
        best = {"best": self.state.best.record()} if self.state.best.step else {}
        steps = self.state.progress.step
        return {"steps": steps, "seconds": self.seconds, **best, "provenance": about}

    def log_summary(self) -> None:
        """Log how long the training took, and where the model lies."""
        best, steps = self.state.best, self.state.progress.step
        if best.should_stop:
            logger.info("Stopped early: no better dev metric in %d evaluations", best.since)
        if best.keep and best.step:
            logger.info("The model is that of step %d, dev metric %.4f", best.step, best.value)
        seconds = tqdm.format_interval(self.seconds)
        logger.info("Trained %d steps in %s; model: %s", steps, seconds, self.run.output_dir)


# What it shows while it goes on.


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

    def __enter__(self) -> Self:
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
