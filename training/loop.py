"""The training loop of all scripts. It can stop at any step, and go on as if it never had.

`Training.steps` is the loop: batches in, optimiser steps out. `Training.backward` is one forward
and backward pass. `Training.kept` writes checkpoints on the way, and the model at the end:

    training = Training(accelerator, learner, run, save_steps, identity)
    training.begin(checkpoint)
    for step in training.kept(training.steps(batches, total)):
        log.step(step)

run_glue.py (`evaluation/glue_run.py`), run_pretraining.py (`training/pretraining.py`) and
share_layers.py (`training/layer_sharing.py`) say what the batches, the optimiser and the log are.
"""

import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from tqdm import tqdm
from transformers.utils import SAFE_WEIGHTS_NAME, ModelOutput

from modeling.errors import UserError
from modeling.loading.files import read_json
from training.best import Best
from training.checkpoints import (
    FINISHED,
    Learner,
    begin_training,
    checkpoint_step,
    find_checkpoint,
    finish_training,
    is_finished,
    latest_checkpoint,
    load_checkpoint,
    prune,
    read_state,
    save_checkpoint,
    save_model,
)
from training.optimizer import clipped_parameters
from training.provenance import provenance, remove_results
from training.saved_state import alike
from training.settings import RunSettings, as_dict, entries
from training.stopping import StopRequest
from utils.files import write_json

logger = logging.getLogger(__name__)


def check_loss(loss: float, step: int, learning_rate: float, output_dir: str | Path) -> None:
    """Raise UserError for a loss that is not finite, naming the step and the last checkpoint."""
    if math.isfinite(loss):
        return
    kept = latest_checkpoint(output_dir)
    raise UserError(
        f"the loss is {loss} at step {step} (learning rate {learning_rate:.3g}); training stopped. "
        + (f"The last good checkpoint is {kept}. " if kept else "No checkpoint was due yet. ")
        + "Lower --learning_rate, add --warmup_steps, or train without --fp16"
    )


class Batch(NamedTuple):
    """What one process takes of a global batch."""

    inputs: dict[str, torch.Tensor]
    share: float  # of the global batch's examples that are here; the shares sum to 1


class Step(NamedTuple):
    """An optimiser step that was taken."""

    number: int  # counts from 1
    loss: float  # mean over the global batches of this step
    learning_rate: float
    outs: list[ModelOutput]  # the model's answers to this step's batches, of this process


@dataclass
class Position:
    """Where a training stands: steps done, and the batch of the epoch that comes next."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Identity:
    """What tells a run from others: a checkpoint keeps it, and only the same run goes on from it.

    arguments: the values of all flags. Those in `free` may change, for they alter no step.
    batch_size: examples of a batch, over all processes.
    data: hash of the training data.
    """

    arguments: dict[str, Any]
    free: frozenset[str]
    batch_size: int
    data: str

    @classmethod
    def of(cls, settings: Sequence[Any], batch_size: int, data: str = "") -> "Identity":
        """That of a run with these dataclasses of settings, as far as it is known yet."""
        free = frozenset(name for name, _, allowed in entries(*settings) if allowed.resuming)
        return cls(as_dict(*settings), free, batch_size, data)

    def state(self) -> dict[str, Any]:
        """What is kept of it, as JSON has it."""
        return {"arguments": self.arguments, "batch_size": self.batch_size, "data": self.data}

    def changes(self, state: dict[str, Any]) -> list[str]:
        """What of the flags is not as in `state`."""
        old = {**state["arguments"], "train batch size": state.get("batch_size")}
        new = {**self.arguments, "train batch size": self.batch_size}
        return [
            f"{key} was {old.get(key)!r}, is {new[key]!r}"
            for key in new
            if key not in self.free and old.get(key) != new[key]
        ]

    def check(self, checkpoint: Path, state: dict[str, Any]) -> None:
        """Raise UserError where `state`, that of `checkpoint`, is of another run."""
        changed = self.changes(state)
        if not changed and state.get("data") != self.data:
            changed = ["the training examples or their tokens are others"]
        if changed:
            raise UserError(
                f"{checkpoint} is of another run: {'; '.join(changed)}. Give the flags of its "
                "training, or train anew with --overwrite_output_dir"
            )


def left_to_train(settings: Any, batch_size: int) -> tuple[bool, Path | None]:
    """Whether a run has anything left to train, and the checkpoint that it goes on from, if any.

    settings: a NamedTuple of dataclasses, of which `run` is a RunSettings. batch_size: over all
    processes. Raises UserError for a training that is finished, but was one of other flags.
    """
    run, flags = settings.run, Identity.of(settings, batch_size)
    output_dir, wanted = Path(run.output_dir), run.resume_from_checkpoint
    if wanted is None:
        return True, None
    there = (output_dir / SAFE_WEIGHTS_NAME).exists()
    if wanted == "latest" and is_finished(output_dir) and there:
        finished = output_dir / FINISHED
        record = read_json(finished) if finished.exists() else {}
        if finished.exists() and not alike(record, {"arguments": {}}):
            raise UserError(
                f"{finished} does not say what was trained: to train with these flags, give "
                "--overwrite_output_dir without --resume_from_checkpoint"
            )
        if record and (changed := flags.changes(record)):
            raise UserError(
                f"training in {output_dir} is finished, and was of other flags: "
                f"{'; '.join(changed)}. To train with these, choose another --output_dir, or give "
                "--overwrite_output_dir without --resume_from_checkpoint; to evaluate what is "
                "there, leave out --do_train"
            )
        logger.info("Training in %s is finished: nothing to resume", output_dir)
        return False, None
    checkpoint = find_checkpoint(output_dir, wanted)
    if checkpoint is None:
        logger.info("No checkpoint in %s yet: training from its beginning", output_dir)
    return True, checkpoint


@dataclass
class Training:
    """One run of an optimiser over batches: stoppable at any step, and resumed to the last bit.

    All chance in a step (dropout) comes from a generator that is seeded anew with (seed, step,
    batch, process), so that no generator's state has to outlive a process.

    save_steps: write a checkpoint every so many; 0 or less: none.
    """

    accelerator: Accelerator
    learner: Learner
    run: RunSettings
    save_steps: int
    identity: Identity
    position: Position = field(default_factory=Position)
    best: Best = field(default_factory=Best)

    def __post_init__(self) -> None:
        self.began, self.seconds_before = time.monotonic(), 0.0
        self.schedule = self.learner.schedule
        self.clipped = clipped_parameters(self.learner.optimizer)
        self.wrapped, self.prepared = self.accelerator.prepare(
            self.learner.objective or self.learner.model, self.learner.optimizer
        )

    def steps(self, batches: Callable[[int, int], Iterable[Batch]], total: int) -> Iterator[Step]:
        """Go on to optimiser step `total`, yielding each step when it is done.

        Args:
            batches: called with an epoch and the number of its first batch; gives the batches from
                there to the epoch's end.

        Raises UserError for a loss that is not finite.
        """
        position, losses, outs = self.position, [], []
        while position.step < total and not self.best.enough:
            for batch in batches(position.epoch, position.batch):
                seed_all(
                    self.run.seed, position.step, position.batch, self.accelerator.process_index
                )
                out, loss = self.backward(batch)
                losses.append(loss)
                outs.append(out)
                position.batch += 1
                if not self.accelerator.sync_gradients:
                    continue
                rate = self.schedule.get_last_lr()[0]
                self.schedule.step()
                position.step += 1
                yield Step(position.step, sum(losses) / len(losses), rate, outs)
                losses, outs = [], []
                if position.step == total or self.best.enough:
                    return
            position.epoch, position.batch = position.epoch + 1, 0

    def backward(self, batch: Batch) -> tuple[ModelOutput, float]:
        """Gradients of one batch and, when enough are gathered, the optimiser's step.

        The loss is that of the global batch: each process's mean counts by its share.
        """
        self.wrapped.train()
        with self.accelerator.accumulate(self.wrapped):
            out = self.wrapped(**batch.inputs)
            # DDP divides by the number of processes; with one, this factor is 1.
            weighted = out.loss * (batch.share * self.accelerator.num_processes)
            loss = self.accelerator.reduce(weighted.detach(), "mean").item()
            rate = self.schedule.get_last_lr()[0]
            check_loss(loss, self.position.step + 1, rate, self.run.output_dir)
            self.accelerator.backward(weighted)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.clipped, self.run.max_grad_norm)
            self.prepared.step()
            self.prepared.zero_grad()
        return out, loss

    def begin(self, checkpoint: Path | None) -> None:
        """Go on from `checkpoint` where there is one, and mark `output_dir` as being trained."""
        if checkpoint:
            self.resume(checkpoint)
        if self.accelerator.is_main_process:
            directory = self.run.output_dir
            if checkpoint is None:
                remove_results(Path(directory))
            begin_training(directory, self.identity.state(), resumed=checkpoint is not None)
            # For which a killed run had no time:
            prune(directory, self.run.save_total_limit)

    def kept(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Pass the steps on, and keep what they make on disk, in `output_dir`.

        Writes checkpoints when they are due, and when a signal asks to stop; at the end, the model,
        which a signal then waits for.
        """
        directory, every = self.run.output_dir, self.save_steps
        with StopRequest() as stop:
            for step in steps:
                yield step
                if every > 0 and step.number % every == 0:
                    self.save()
                if number := stop.agreed(self.accelerator):
                    self.save()
                    self.stop(number, f"checkpoint-{self.position.step}")
            if self.accelerator.is_main_process:
                self.best.restore(Path(directory), self.learner)
                save_model(directory, self.learner.model, self.learner.tokenizer)
                write_json(Path(directory) / "training.json", self.report())
                finish_training(directory)
                self.tell_the_end()
            if number := stop.agreed(self.accelerator):
                self.stop(number, "the trained model")
        self.accelerator.wait_for_everyone()

    def note(self, value: float) -> None:
        """Take note of a dev metric now: the model of the best may be the one that is kept."""
        better = self.best.note(self.position.step, value)
        if better and self.best.keep and self.accelerator.is_main_process:
            self.best.save(Path(self.run.output_dir), self.learner)

    def report(self) -> dict[str, Any]:
        """What training.json says: how far and how long the run went, and where it comes from."""
        about = provenance(self.identity.arguments, data=self.identity.data)
        best = {"best": self.best.state()} if self.best.step else {}
        return {"steps": self.position.step, "seconds": self.seconds, **best, "provenance": about}

    def tell_the_end(self) -> None:
        """How long it took, and where the model lies."""
        steps, best = self.position.step, self.best
        if best.enough:
            logger.info("Stopped early: no better dev metric in %d evaluations", best.since)
        if best.keep and best.step:
            logger.info("The model is that of step %d, dev metric %.4f", best.step, best.value)
        seconds = tqdm.format_interval(self.seconds)
        logger.info("Trained %d steps in %s; model: %s", steps, seconds, self.run.output_dir)

    @property
    def seconds(self) -> float:
        """Of training so far, over all the times that the run went on."""
        return self.seconds_before + time.monotonic() - self.began

    def stop(self, number: int, saved: str) -> None:
        """End the process, as the signal of that number asks, and say what is `saved`."""
        if self.accelerator.is_main_process:
            print(
                f"{signal.Signals(number).name}: stopped after step {self.position.step}; {saved} "
                f"is in {self.run.output_dir}. Go on with the same command and "
                "--resume_from_checkpoint latest",
                file=sys.stderr,
            )
        sys.exit(128 + number)

    def save(self) -> None:
        """Write `checkpoint-STEP`; the main process's work."""
        if self.accelerator.is_main_process:
            directory = Path(self.run.output_dir)
            checkpoint = directory / f"checkpoint-{self.position.step}"
            save_checkpoint(checkpoint, self.learner, self.state())
            prune(directory, self.run.save_total_limit)

    def state(self) -> dict[str, Any]:
        """All of the run but weights and optimiser, as JSON has it."""
        return {
            "position": asdict(self.position),
            "seconds": self.seconds,
            "best": self.best.state(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.accelerator.scaler and self.accelerator.scaler.state_dict(),
            **self.identity.state(),
        }

    def resume(self, checkpoint: Path) -> None:
        """Take up the run that wrote `checkpoint`.

        Raises UserError when the flags or the data are not those of that run.
        """
        state = read_state(checkpoint)
        expected = self.state()
        for name in ("position", "schedule", "scaler", "arguments"):
            if not alike(state.get(name), {} if name == "arguments" else expected[name]):
                raise UserError(f"{checkpoint} is not a checkpoint of this script: its {name}")
        position = state["position"]
        named = checkpoint_step(checkpoint) in (-1, position["step"])
        known = position.keys() == vars(self.position).keys()
        if not (named and known and all(0 <= value < 2**31 for value in position.values())):
            raise UserError(f"{checkpoint} was not written by a training: its position {position}")
        seconds = state.get("seconds")
        if not isinstance(seconds, float) or not 0 <= seconds < math.inf:
            raise UserError(f"{checkpoint} was not written by a training: its seconds {seconds}")
        self.identity.check(checkpoint, state)
        load_checkpoint(checkpoint, self.learner)
        if self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.position = Position(**position)
        self.best.resume(checkpoint, state.get("best"))
        self.seconds_before = seconds
        logger.info("Resumed from %s at step %d", checkpoint, self.position.step)


def seed_all(*numbers: int) -> None:
    """Seed PyTorch's generators of every device from several numbers."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))
