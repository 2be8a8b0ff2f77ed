"""The training loop of all scripts, and its log. It can stop at any step, and resume exactly.

run_glue.py (`training/fine_tune.py`), run_pretraining.py (`training/pretraining/run.py`) and
share_layers.py (`training/layer_sharing.py`) say what the batches, the optimiser and the log are.
"""

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import TensorBoardTracker
from safetensors.torch import load_model
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from elbert_base.errors import UserError
from elbert_base.files import resolve_within
from runs.console import progress
from runs.files import RunFolder
from runs.flags import as_dict
from runs.folder import remove_results
from runs.processes import StopSignal
from runs.provenance import provenance
from runs.settings import ScriptSettings
from training import checkpoints
from training.checkpoints import BEST, TrainState, save_model
from training.optimizer import clipped_parameters

logger = logging.getLogger(__name__)

NO_TENSORFLOW = "tensorboard.compat.notf"


Sums = dict[str, torch.Tensor]  # by name, of what a report is made of


class Batch(NamedTuple):
    """One process's share of a global batch."""

    inputs: dict[str, torch.Tensor]
    share: float | torch.Tensor  # of the global batch's examples; the processes' sum to 1


class Trainer:
    """One run of an optimiser over batches: stoppable at any step, and resumed to the last bit.

    All chance in a step (dropout) comes from a generator that is seeded anew with (seed, step,
    batch, process), so that no generator's state has to outlive a process.

    settings: all of the script's. data: fingerprint of the training data. about: more for
    training.json.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        state: TrainState,
        settings: ScriptSettings,
        data: str,
        about: Mapping[str, Any] = {},
    ) -> None:
        self.accelerator, self.state, self.settings = accelerator, state, settings
        self.run, self.about = settings.run, about
        self.clock = time.monotonic()
        self.directory = Path(self.run.output_dir)
        count, config = accelerator.num_processes, state.model.config
        self.fingerprint = checkpoints.run_fingerprint(settings, count, data, config)
        self.clipped = clipped_parameters(state.optimizer)
        model = state.objective or state.model
        self.model, self.optimizer = accelerator.prepare(model, state.optimizer)

    def begin(self, checkpoint: Path | None) -> None:
        """Go on from `checkpoint` where there is one, and mark `output_dir` as being trained."""
        if checkpoint:
            scaler = checkpoints.load_checkpoint(checkpoint, self.state, self.fingerprint)
            if self.accelerator.scaler and scaler is not None:
                self.accelerator.scaler.load_state_dict(scaler)
            self.clock -= self.state.seconds
            logger.info("Resumed from %s at step %d", checkpoint, self.state.step)
        if self.accelerator.is_main_process:
            if checkpoint is None:
                remove_results(self.directory)
            checkpoints.begin_training(self.directory, self.fingerprint, checkpoint is not None)
            # What a killed run had no time for.
            checkpoints.prune(self.directory, self.run.save_total_limit)

    def fit(
        self,
        batches: Callable[[int, int], Iterable[Batch]],
        until: int,
        log: Callable[[float, float, list[Any]], bool],
        evaluate: Callable[[], float] | None = None,
    ) -> None:
        """Train to optimiser step `until`, or until the dev metric no longer gets better.

        batches: of an epoch, from the number of its first batch on.
        log: called after every step; returns whether its entry was due.
        evaluate: the dev metric, at every entry and, for a best model, after the last step.
        """
        accelerator, state, best = self.accelerator, self.state, self.state.best
        every = self.settings.training.save_steps
        losses, outs = [], []

        def is_over() -> bool:
            return state.step >= until or best.should_stop

        with StopSignal() as stop:
            while not is_over():
                for batch in batches(state.epoch, state.batch):
                    self.model.train()
                    self.seed_batch()
                    with accelerator.accumulate(self.model):
                        out = self.model(**batch.inputs)
                        losses.append(self.backward(out.loss, batch.share))
                        self.optimizer.step()  # where enough gradients are gathered
                        self.optimizer.zero_grad()
                    outs.append(out)
                    state.batch += 1
                    if not accelerator.sync_gradients:
                        continue
                    rate = float(state.schedule.get_last_lr()[0])
                    loss = self.step_loss(losses)
                    state.schedule.step()
                    state.step += 1
                    due = log(loss, rate, outs)
                    losses, outs = [], []
                    last = state.step == until and (best.keep or best.patience)
                    if evaluate and (due or last):
                        better = best.update(state.step, evaluate())
                        if better and best.keep and accelerator.is_main_process:
                            save_model(self.directory / BEST, state.model, state.tokenizer, True)
                    if every > 0 and state.step % every == 0:
                        self.save()
                    if number := self.signal_received(stop):
                        self.save()
                        self.exit(number, f"checkpoint-{state.step}")
                    if is_over():
                        return
                state.epoch += 1
                state.batch = 0

    def seed_batch(self) -> None:
        """Seed PyTorch's generators of every device for the next batch."""
        of_batch = self.state.step, self.state.batch, self.accelerator.process_index
        seed = np.random.SeedSequence((self.run.seed, *of_batch)).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed >> 1))

    def backward(self, loss: torch.Tensor, share: float | torch.Tensor) -> torch.Tensor:
        """Compute gradients, clipped when all are gathered; the loss, weighted by `share`."""
        # DDP divides by the number of processes; with one, this factor is 1.
        weighted = loss * (share * self.accelerator.num_processes)
        self.accelerator.backward(weighted)
        if self.accelerator.sync_gradients:
            self.accelerator.clip_grad_norm_(self.clipped, self.run.max_grad_norm)
        return weighted.detach()

    def step_loss(self, losses: list[torch.Tensor]) -> float:
        """Mean loss of a step's global batches, whose losses on this process these are.

        The one wait for the device in a step. Raises UserError for a loss that is not finite.
        """
        parts = self.accelerator.reduce(torch.stack(losses), "mean").tolist()
        mean = sum(parts) / len(parts)
        if not math.isfinite(mean):
            kept = checkpoints.latest_checkpoint(self.directory)
            where = f"The last good checkpoint is {kept}" if kept else "No checkpoint was due yet"
            raise UserError(
                f"the loss is {mean} at step {self.state.step + 1} (learning rate "
                f"{self.state.schedule.get_last_lr()[0]:.3g}); training stopped. {where}. Lower "
                "--learning_rate, add --warmup_steps, or train without --fp16"
            )
        return mean

    def signal_received(self, stop: StopSignal) -> int:
        """Return the number of a signal that any of the processes received; 0 for none."""
        number = stop.received or 0
        if self.accelerator.num_processes == 1:
            return number
        received = torch.tensor([number], device=self.accelerator.device)
        return int(self.accelerator.gather(received).max())

    def save(self) -> None:
        """Write `checkpoint-STEP`; the main process's work."""
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler.state_dict() if self.accelerator.scaler else None
            self.state.seconds = time.monotonic() - self.clock
            checkpoint = self.directory / f"checkpoint-{self.state.step}"
            checkpoints.save_checkpoint(checkpoint, self.state, scaler, self.fingerprint)
            checkpoints.prune(self.directory, self.run.save_total_limit)

    def exit(self, number: int, saved: str) -> None:
        """End the process as the signal of that number asks; say what is `saved`."""
        if self.accelerator.is_main_process:
            print(
                f"{signal.Signals(number).name}: stopped after step {self.state.step}; {saved} is "
                f"in {self.directory}. Go on with the same command and "
                "--resume_from_checkpoint latest",
                file=sys.stderr,
            )
        sys.exit(128 + number)

    def finish(self, spiece: Path | None = None) -> None:
        """Write the trained model, then what is said of it; a signal waits for it. What a resumed
        run would need is removed last. spiece: see `save_model`."""
        state, best = self.state, self.state.best
        with StopSignal() as stop:
            if self.accelerator.is_main_process:
                if best.keep and best.step:
                    load_model(state.model, self.directory / BEST / SAFE_WEIGHTS_NAME)
                save_model(self.directory, state.model, state.tokenizer, False, spiece)
                seconds = time.monotonic() - self.clock
                report: dict[str, Any] = {"steps": state.step, "seconds": seconds, **self.about}
                if best.step:
                    report["best"] = best.state()
                flags = as_dict(*self.settings)
                origin = provenance(flags, data=self.fingerprint["data"])
                report["provenance"] = origin.as_json()
                RunFolder(self.directory).write_json("training.json", report)
                checkpoints.finish_training(self.directory)
                if best.should_stop:
                    logger.info("Stopped early: no better dev metric in %d evaluations", best.since)
                if best.keep and best.step:
                    logger.info("The model is that of step %d, metric %.4f", best.step, best.value)
                took = tqdm.format_interval(seconds)
                logger.info("Trained %d steps in %s; model: %s", state.step, took, self.directory)
            if number := self.signal_received(stop):
                self.exit(number, "the trained model")
        self.accelerator.wait_for_everyone()


def start_curves(directory: Path) -> TensorBoardTracker:
    """Begin TensorBoard's files in `runs`."""
    # TensorBoard's own switch: no TensorFlow, whose errors are no OSErrors and which is slow.
    sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))
    if not resolve_within(directory, "runs"):
        raise UserError(f"{directory / 'runs'} is a link that leads out of {directory}: remove it")
    curves = TensorBoardTracker("runs", directory)
    curves.start()
    events = (directory / "runs").glob(f"**/events*.{os.getpid()}.*")
    RunFolder(directory).list_growing(events)
    return curves


def add_sums(total: Sums, sums: Sums) -> Sums:
    """Add the sums of one more batch to `total`, which is {} at first."""
    return {name: total.get(name, 0) + value for name, value in sums.items()}


def means_of_batches(sums: Sums) -> dict[str, float]:
    """Compute the means over the batches that were summed up."""
    return {name: (x / sums["batches"]).item() for name, x in sums.items() if name != "batches"}


class TrainingLog:
    """Progress bar, curves and JSON lines of a training run: the main process's work.

    sums_of: what of a batch's output is summed up between two entries, over all processes.
    means: what an entry tells of these sums, by default their means over the `batches`; of `tokens`
    by itself.
    scalars: what the curves get besides, of the model and its last output.
    """

    def __init__(
        self,
        trainer: Trainer,
        total: int,
        sums_of: Callable[[Any], Sums],
        means: Callable[[Sums], dict[str, float]] = means_of_batches,
        scalars: Callable[[PreTrainedModel, Any], dict[str, float]] = lambda *_: {},
    ) -> None:
        self.trainer = trainer
        self.sums_of = sums_of
        self.means = means
        self.scalars = scalars
        self.main = trainer.accelerator.is_main_process
        self.bar = progress(
            desc="Training",
            unit="step",
            initial=trainer.state.step,
            total=total,
            disable=None if self.main else True,
        )
        self.curves = start_curves(trainer.directory) if self.main else None
        self.clock = time.monotonic()  # of the last entry
        self.losses: list[float] = []
        self.sums: Sums = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.curves:
            self.curves.finish()

    def step(self, loss: float, learning_rate: float, outs: list[Any]) -> bool:
        """Count an optimiser step; whether its entry was due, which is then written."""
        self.losses.append(loss)
        for out in outs:
            sums = {"batches": torch.ones_like(out.loss), **self.sums_of(out)}
            self.sums = add_sums(self.sums, {name: x.detach() for name, x in sums.items()})
        postfix = {"loss": f"{loss:.4f}", "lr": f"{learning_rate:.2e}"}
        self.bar.set_postfix(postfix, refresh=False)
        self.bar.update()
        every = self.trainer.settings.training.logging_steps
        if every <= 0 or self.trainer.state.step % every:
            if self.curves and self.bar.total < 10 * every:
                self.curves.log({"step_loss": loss}, self.trainer.state.step)
            return False
        mean = sum(self.losses) / len(self.losses)
        sums = self.trainer.accelerator.reduce(self.sums, "sum")
        line = {"learning_rate": learning_rate, "loss": mean, **self.means(sums)}
        if "tokens" in sums:
            now = time.monotonic()
            seconds = now - self.clock
            self.clock = now
            line["tokens_per_second"] = round(sums["tokens"].sum().item() / seconds)
        self.write(line, line | self.scalars(self.trainer.state.model, outs[-1]))
        self.losses, self.sums = [], {}
        return True

    def write(self, line: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        """Print a JSON line, and add the scalars of this step to the curves."""
        number = self.trainer.state.step
        if self.curves:
            self.curves.log(dict(scalars), number)
            self.bar.write(json.dumps({**line, "step": number}))
