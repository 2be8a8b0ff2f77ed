"""What the training scripts share: optimiser, schedule, and a loop that can stop and go on."""

import hashlib
import json
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput
from transformers.utils import logging as hf_logging

from modeling.errors import UserError
from modeling.memory import keep_freed_memory
from training.checkpoints import (
    alike,
    begin_training,
    finish_training,
    latest_checkpoint,
    load_checkpoint,
    prune,
    read_state,
    save_checkpoint,
    save_model,
)

logger = logging.getLogger(__name__)


def make_optimizer(
    model: PreTrainedModel, learning_rate: float, weight_decay: float, adam_epsilon: float
) -> torch.optim.AdamW:
    """AdamW in the published groups: with decay, and without (biases, layer norms).

    Parts with a learning rate of their own have groups of their own behind these: W, the weights of
    ELBERT's losses, at `config.w_lr` without decay, which stays constant and is not clipped; and a
    ponder model's halting head at `config.lambda_lr`, where the configuration has one.
    """
    own = {"exit_weights": "w_lr"}
    if getattr(model.config, "lambda_lr", None) is not None:
        own["ponder."] = "lambda_lr"
    plain = ("bias", "LayerNorm.weight", "layer_norm.weight", "exit_weights")
    groups = {("", True): [], ("", False): []}
    for name, parameter in model.named_parameters():
        prefix = next((p for p in own if name.startswith(p)), "")
        groups.setdefault((prefix, not name.endswith(plain)), []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "weight_decay": weight_decay if decays else 0.0,
                "decays": decays,
                "lr": getattr(model.config, own[prefix]) if prefix else learning_rate,
                "constant": prefix == "exit_weights",
            }
            for (prefix, decays), parameters in groups.items()
        ],
        lr=learning_rate,
        eps=adam_epsilon,
    )


@torch.no_grad()
def start_at_mean(model: PreTrainedModel, scores: Sequence[float]) -> None:
    """Let new regression heads begin with the answer `mean(scores)`.

    Otherwise the first steps all push towards it, which saturates the pooler's tanh and leaves
    little of what tells examples apart. A head that was trained before has another bias than 0.
    """
    for name, module in model.named_modules():
        head = "classifier" in name and isinstance(module, torch.nn.Linear)
        if head and module.out_features == 1 and module.bias == 0:
            module.bias.fill_(sum(scores) / len(scores))


def make_schedule(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int
) -> LambdaLR:
    """Linear warm-up, then linear decay to 0 at `total_steps`; W's learning rate stays constant."""

    def linear(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    groups = optimizer.param_groups
    return LambdaLR(optimizer, [(lambda _: 1.0) if g["constant"] else linear for g in groups])


def clipped_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """The parameters that gradient clipping sees: all but W, as published."""
    return [p for group in optimizer.param_groups if not group["constant"] for p in group["params"]]


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


# Flags that may change between a run and its continuation: none of them alters a step. Batch sizes
# are compared as a whole, over all processes; data by its fingerprint.
FREE_ARGUMENTS = frozenset(
    """cache_dir config_name data_dir do_eval do_predict do_train dtype eval_all_checkpoints
    eval_file evaluate_during_training local_rank logging_steps max_eval_samples
    model_name_or_path no_cuda out_mode output_dir overwrite_cache overwrite_output_dir
    per_gpu_eval_batch_size per_gpu_train_batch_size resume_from_checkpoint save_steps
    save_total_limit test_file tokenizer_name train_file train_files train_tokenizer
    validation_file vocab_size""".split()
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


@dataclass
class Training:
    """One run of an optimiser over batches: stoppable at any step, and resumed to the last bit.

    All chance in a step (dropout) comes from a generator that is seeded anew with (seed, step,
    batch, process), so that no generator's state has to outlive a process.

    arguments: the script's flags, kept in every checkpoint and compared when resuming.
    data: fingerprint of the training data, compared likewise.
    objective: what gives a batch its loss, when that is not the model itself.
    """

    accelerator: Accelerator
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    arguments: dict[str, Any]
    data: str
    max_grad_norm: float
    objective: torch.nn.Module | None = None
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        self.clipped = clipped_parameters(self.optimizer)
        self.wrapped, self.prepared = self.accelerator.prepare(
            self.objective or self.model, self.optimizer
        )

    def steps(self, batches: Callable[[int, int], Iterable[Batch]], total: int) -> Iterator[Step]:
        """Go on to optimiser step `total`, yielding each step when it is done.

        Args:
            batches: called with an epoch and the number of its first batch; gives the batches from
                there to the epoch's end.

        Raises UserError for a loss that is not finite.
        """
        position, losses, outs = self.position, [], []
        while position.step < total:
            for batch in batches(position.epoch, position.batch):
                seed_all(self.seed, position.step, position.batch, self.accelerator.process_index)
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
                if position.step == total:
                    return
            position.epoch, position.batch = position.epoch + 1, 0

    @property
    def seed(self) -> int:
        return self.arguments["seed"]

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
            check_loss(loss, self.position.step + 1, rate, self.arguments["output_dir"])
            self.accelerator.backward(weighted)
            if self.accelerator.sync_gradients:
                self.accelerator.clip_grad_norm_(self.clipped, self.max_grad_norm)
            self.prepared.step()
            self.prepared.zero_grad()
        return out, loss

    def begin(self, checkpoint: Path | None) -> None:
        """Go on from `checkpoint` where there is one, and mark `output_dir` as being trained."""
        if checkpoint:
            self.resume(checkpoint)
        if self.accelerator.is_main_process:
            directory = self.arguments["output_dir"]
            begin_training(directory, self.arguments, resumed=checkpoint is not None)
            # For which a killed run had no time:
            prune(directory, self.arguments["save_total_limit"])

    def kept(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Pass the steps on, and keep what they make on disk, in `output_dir`.

        Writes checkpoints when they are due, and when a signal asks to stop; at the end, the model.
        """
        directory, every = self.arguments["output_dir"], self.arguments["save_steps"]
        with StopRequest() as stop:
            for step in steps:
                yield step
                if every > 0 and step.number % every == 0:
                    self.save()
                stop.grant(self)
        if self.accelerator.is_main_process:
            save_model(directory, self.model, self.tokenizer)
            finish_training(directory)
        self.accelerator.wait_for_everyone()

    def save(self) -> None:
        """Write `checkpoint-STEP`; the main process's work."""
        if self.accelerator.is_main_process:
            save_checkpoint(
                self.arguments["output_dir"],
                self.position.step,
                self.model,
                self.tokenizer,
                self.optimizer,
                self.state(),
                self.arguments["save_total_limit"],
            )

    def state(self) -> dict[str, Any]:
        """All of the run but weights and optimiser, as JSON has it."""
        return {
            "position": asdict(self.position),
            "schedule": self.schedule.state_dict(),
            "scaler": self.accelerator.scaler and self.accelerator.scaler.state_dict(),
            "arguments": self.arguments,
            "batch_size": self.batch_size,
            "data": self.data,
        }

    @property
    def batch_size(self) -> int:
        """Examples of a batch, over all processes."""
        return self.arguments["per_gpu_train_batch_size"] * self.accelerator.num_processes

    def resume(self, checkpoint: Path) -> None:
        """Take up the run that wrote `checkpoint`.

        Raises UserError when the flags or the data are not those of that run.
        """
        state = read_state(checkpoint)
        expected = self.state()
        for name in ("position", "schedule", "scaler", "arguments"):
            if not alike(state.get(name), {} if name == "arguments" else expected[name]):
                raise UserError(f"{checkpoint} is not a checkpoint of this script: its {name}")
        self.check_same_run(checkpoint, state)
        load_checkpoint(checkpoint, self.model, self.optimizer)
        self.schedule.load_state_dict(state["schedule"])
        if self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.position = Position(**state["position"])
        logger.info("Resumed from %s at step %d", checkpoint, self.position.step)

    def check_same_run(self, checkpoint: Path, state: dict[str, Any]) -> None:
        old = {**state["arguments"], "train batch size": state.get("batch_size")}
        new = {**self.arguments, "train batch size": self.batch_size}
        changed = [
            f"{key} was {old.get(key)!r}, is {new[key]!r}"
            for key in new
            if key not in FREE_ARGUMENTS and old.get(key) != new[key]
        ]
        if not changed and state.get("data") != self.data:
            changed = ["the training examples or their tokens are others"]
        if changed:
            raise UserError(
                f"{checkpoint} is of another run: {'; '.join(changed)}. Give the flags of its "
                "training, or train anew with --overwrite_output_dir"
            )


def seed_all(*numbers: int) -> None:
    """Seed PyTorch's generators of every device from several numbers."""
    torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))


def fingerprint(*columns: Sequence[Any]) -> str:
    """SHA-256 of training data, given by its columns."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(repr(column).encode())
    return digest.hexdigest()


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
        runs = Path(training.arguments["output_dir"]) / "runs"
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


def start_script(accelerator: Accelerator, seed: int) -> None:
    """What every training script begins with.

    The main process's messages go to stdout, freed memory is kept, and there is a seed.
    """
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s -   %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        level=logging.INFO if accelerator.is_main_process else logging.WARNING,
        stream=sys.stdout,
    )
    logging.getLogger("filelock").setLevel(logging.WARNING)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    keep_freed_memory()
    set_seed(seed)


class StopRequest:
    """SIGTERM, Ctrl-C and a closed terminal as a wish, granted after the step at hand.

    A second signal acts at once.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "StopRequest":
        nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # a terminal may well close
        wanted = [number for number in self.SIGNALS if number != signal.SIGHUP or not nohup]
        self.old = {number: signal.signal(number, self.note) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.restore()

    def restore(self) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def grant(self, training: Training) -> None:
        """Save a checkpoint and end the process, when any process was asked to stop."""
        number, accelerator = self.received or 0, training.accelerator
        if accelerator.num_processes > 1:
            asked = torch.tensor([number], device=accelerator.device)
            number = int(accelerator.gather(asked).max())
        if not number:
            return
        training.save()
        if accelerator.is_main_process:
            step, where = training.position.step, training.arguments["output_dir"]
            print(
                f"{signal.Signals(number).name}: stopped after step {step}; checkpoint-{step} is "
                f"in {where}. Go on with the same command and --resume_from_checkpoint latest",
                file=sys.stderr,
            )
        sys.exit(128 + number)
