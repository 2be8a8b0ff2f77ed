"""The training loop of all scripts. It can stop at any step, and resume exactly.

run_glue.py (`training/fine_tune.py`), run_pretraining.py (`training/pretraining/run.py`) and
share_layers.py (`training/layer_sharing/run.py`) say what the batches, the optimiser and the log
are.
"""

import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_model
from torch import Tensor
from tqdm import tqdm
from transformers.utils import SAFE_WEIGHTS_NAME

from modeling.errors import UserError
from modeling.exit_settings import place_of
from runs.folder import RunFolder
from runs.output_dir import remove_results
from runs.processes import StopSignal
from runs.provenance import provenance
from runs.settings import RunSettings, Schedule
from runs.trackers import FILE_TRACKERS, check_file_trackers, start_trackers
from training import checkpoints
from training.checkpoints import BEST, RunFingerprint, TrainState
from training.model_folder import replace_directory, save_model, write_model
from training.optimizer import clipped_parameters

logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """One process's share of a global batch, which is that of all processes together."""

    inputs: dict[str, Tensor]  # of the model's forward
    share: float | Tensor  # factor of its loss in the global batch's, the sum over processes


class Trainer:
    """One run of an optimiser over batches: stoppable at any step, and resumed to the last bit.

    All chance in a step (dropout) comes from a generator that is seeded anew with (seed, step,
    batch, process), so that no generator's state has to outlive a process.

    Args:
        state: what is trained.
        run: says where to write, how to seed and how to clip.
        training: says when to save; the log reads when an entry is due.
        fingerprint: of the run, for its checkpoints.
        flags: all of the script's, for the provenance of the model.
        report: further fields of training.json.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        state: TrainState,
        *,
        run: RunSettings,
        training: Schedule,
        fingerprint: RunFingerprint,
        flags: Mapping[str, Any],
        report: Mapping[str, Any] = {},
    ) -> None:
        self.accelerator = accelerator
        self.state = state
        self.run = run
        self.training = training
        self.fingerprint = fingerprint
        self.flags = flags
        self.report = report
        # When the training began, as if the processes before this one had ended just now.
        self.clock = time.monotonic()
        self.directory = Path(run.output_dir)
        self.clipped = clipped_parameters(state.optimizer)
        if training.gradient_checkpointing:
            state.model.activation_checkpointing_enable()
        # What is called for the loss: a model, or an objective around it.
        self.model, self.optimizer = accelerator.prepare(
            state.objective or state.model, state.optimizer
        )

    def begin(self, checkpoint: Path | None) -> None:
        """Go on from `checkpoint` where there is one, and mark `output_dir` as being trained."""
        if checkpoint:
            scaler_state = checkpoints.load_checkpoint(checkpoint, self.state, self.fingerprint)
            if self.accelerator.scaler and scaler_state is not None:
                self.accelerator.scaler.load_state_dict(scaler_state)
            self.clock -= self.state.seconds
            logger.info("Resumed from %s at step %d", checkpoint, self.state.step)
        if self.accelerator.is_main_process:
            # Before a result is removed: a service may refuse.
            names = self.training.trackers
            check_file_trackers(self.directory, names)
            services = [name for name in names if name not in FILE_TRACKERS]
            start_trackers(self.accelerator, self.directory, services, self.flags)
            if checkpoint is None:
                if not self.run.overwrite_output_dir:
                    checkpoints.keep_users_files(self.directory)
                remove_results(self.directory)
            checkpoints.begin_training(
                self.directory, self.fingerprint, resumed=checkpoint is not None
            )
            # Those that a killed run had no time to remove.
            checkpoints.prune(self.directory, self.run.save_total_limit)
            of_files = [name for name in names if name in FILE_TRACKERS]
            start_trackers(self.accelerator, self.directory, of_files, self.flags)

    def fit(
        self,
        batches: Callable[[int, int], Iterable[Batch]],
        until: int,
        log: Callable[[float, float, list[Any]], bool],
        evaluate: Callable[[], float] | None = None,
        accumulation: int = 1,
    ) -> None:
        """Train to optimiser step `until`, or until the dev metric no longer gets better.

        An epoch's last step has the batches that are left over, so that every batch counts.

        Args:
            batches: makes this process's batches of an epoch, given the epoch's number and that of
                the first batch to make, both from 0.
            log: is called after every step with its loss, its learning rate and the model's outputs
                for its batches; returns whether an entry was due.
            evaluate: computes the dev metric. It is called at every entry of the log and, where the
                best model is kept, after the last step.
            accumulation: batches of a step, whose gradients are averaged.

        Raises UserError for a loss that is not finite. A signal to stop ends the process after the
        step at hand, with a checkpoint.
        """
        accelerator, state = self.accelerator, self.state
        save_steps = self.training.save_steps

        def is_over() -> bool:
            return state.step >= until or state.best.should_stop

        with StopSignal() as stop:
            while not is_over():
                epoch = iter(batches(state.epoch, state.batch))
                while step_batches := list(islice(epoch, accumulation)):
                    with state.scale.of_training(state.model):
                        losses, outputs = self.accumulate(step_batches)
                    loss = self.step_loss(losses)
                    learning_rate = float(state.schedule.get_last_lr()[0])
                    state.schedule.step()
                    state.step += 1
                    entry_is_due = log(loss, learning_rate, outputs)
                    if evaluate and (entry_is_due or self.decides_best(until)):
                        self.keep_if_best(evaluate())
                    if save_steps > 0 and state.step % save_steps == 0:
                        self.save()
                    signal_number = signal_on_any_rank(stop, accelerator)
                    if signal_number:
                        self.save()
                        self.end_process(signal_number, saved=f"checkpoint-{state.step}")
                    if is_over():
                        return
                state.epoch += 1
                state.batch = 0

    def accumulate(self, step_batches: list[Batch]) -> tuple[list[Tensor], list[Any]]:
        """Take an optimiser step with the mean gradient of some batches.

        Returns this process's losses of the batches, and the model's outputs.
        """
        losses, outputs = [], []
        for number, batch in enumerate(step_batches, start=1):
            self.model.train()
            self.seed_batch()
            # Processes exchange gradients once a step, with its last batch.
            is_last = number == len(step_batches)
            with nullcontext() if is_last else self.accelerator.no_sync(self.model):
                output = self.model(**batch.inputs)
                # DDP divides by the number of processes; with one, this factor is 1.
                loss = output.loss * (batch.share * self.accelerator.num_processes)
                self.accelerator.backward(loss / len(step_batches))
            losses.append(loss.detach())
            outputs.append(output)
            self.state.batch += 1
        self.accelerator.clip_grad_norm_(self.clipped, self.run.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses, outputs

    def seed_batch(self) -> None:
        """Seed PyTorch's generators of every device for the next batch."""
        state = self.state
        entropy = (self.run.seed, state.step, state.batch, self.accelerator.process_index)
        (seed,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        torch.manual_seed(int(seed >> 1))  # which takes 63 bits

    def step_loss(self, losses: list[Tensor]) -> float:
        """Compute the mean loss of a step's global batches from this process's parts of them.

        This is the one wait for the device in a step. Raises UserError for a loss that is not
        finite.
        """
        batch_losses = self.accelerator.reduce(torch.stack(losses), "mean").tolist()
        mean = sum(batch_losses) / len(batch_losses)
        if not math.isfinite(mean):
            latest = checkpoints.latest_checkpoint(self.directory)
            advice = "No checkpoint was due yet"
            if latest:
                advice = f"The last good checkpoint is {latest}"
            raise UserError(
                f"the loss is {mean} at step {self.state.step + 1} (learning rate "
                f"{self.state.schedule.get_last_lr()[0]:.3g}); training stopped. {advice}. Lower "
                "--learning_rate, add --warmup_steps, or train without --fp16"
            )
        return mean

    def decides_best(self, until: int) -> bool:
        """Tell whether the last step was taken of a training that looks for its best model."""
        best = self.state.best
        return self.state.step == until and (best.keep or best.patience is not None)

    def keep_if_best(self, metric: float) -> None:
        """Count an evaluation on the dev set; write the model where it is the best so far."""
        state = self.state
        is_better = state.best.update(state.step, metric)
        if is_better and state.best.keep and self.accelerator.is_main_process:
            replace_directory(
                self.directory / BEST,
                lambda folder: write_model(folder, state.model, state.tokenizer),
            )

    def save(self) -> None:
        """Write `checkpoint-STEP`; the main process's work."""
        if not self.accelerator.is_main_process:
            return
        state, scaler = self.state, self.accelerator.scaler
        state.seconds = time.monotonic() - self.clock
        checkpoints.save_checkpoint(
            self.directory / f"checkpoint-{state.step}",
            state,
            scaler.state_dict() if scaler else None,
            self.fingerprint,
            provenance(self.flags, data=self.fingerprint.data),
        )
        checkpoints.prune(self.directory, self.run.save_total_limit)

    def end_process(self, signal_number: int, saved: str) -> NoReturn:
        """End the process as a signal asks; say what is `saved`."""
        if self.accelerator.is_main_process:
            print(
                f"{signal.Signals(signal_number).name}: stopped after step {self.state.step}; "
                f"{saved} is in {self.directory}. Go on with the same command and "
                "--resume_from_checkpoint latest",
                file=sys.stderr,
            )
        sys.exit(128 + signal_number)  # as a shell reports it

    def finish(self, spiece: Path | None = None) -> None:
        """Write the trained model and training.json; a signal to stop waits for both.

        What a resumed run would need is removed last. spiece: see `save_model`.
        """
        with StopSignal() as stop:
            if self.accelerator.is_main_process:
                self.write_results(spiece)
            signal_number = signal_on_any_rank(stop, self.accelerator)
            if signal_number:
                self.end_process(signal_number, saved="the trained model")
        self.accelerator.wait_for_everyone()

    def write_results(self, spiece: Path | None) -> None:
        """Write the trained model, or the best one, and training.json."""
        state, best = self.state, self.state.best
        ends_with_best = best.keep and best.step > 0
        if ends_with_best:
            load_model(state.model, self.directory / BEST / SAFE_WEIGHTS_NAME)
        save_model(self.directory, state.model, state.tokenizer, spiece)
        seconds = time.monotonic() - self.clock
        report: dict[str, Any] = {"steps": state.step, "seconds": seconds, **self.report}
        report["place"] = place_of(self.directory)
        if best.step:
            report["best"] = best.state()
        report["provenance"] = provenance(self.flags, data=self.fingerprint.data).as_json()
        RunFolder(self.directory).write_json("training.json", report)
        checkpoints.finish_training(self.directory)
        if best.should_stop:
            logger.info("Stopped early: no better dev metric in %d evaluations", best.since)
        if ends_with_best:
            logger.info("The model is that of step %d, metric %.4f", best.step, best.value)
        duration = tqdm.format_interval(seconds)
        logger.info("Trained %d steps in %s; model: %s", state.step, duration, self.directory)


def signal_on_any_rank(stop: StopSignal, accelerator: Accelerator) -> int:
    """Return the number of a signal that any of the processes received; 0 for none."""
    number = stop.received or 0
    if accelerator.num_processes == 1:
        return number
    received = torch.tensor([number], device=accelerator.device)
    return int(accelerator.gather(received).max())
