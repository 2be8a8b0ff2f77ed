"""Fine-tuning's part of a training: its steps, optimiser, batches, log, and what is best."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from accelerate.utils import send_to_device
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from glue.features import Features, collate, epoch_batches
from glue.tasks import Task, compute_metrics, primary_metric
from modeling.errors import UserError
from modeling.keys import nearest_names
from training.checkpoints import Best, TrainState
from training.fine_tuning_settings import TrainingSettings
from training.optimizer import as_lamb, make_optimizer, make_schedule
from training.trainer import Batch, ProgressLog, Step, Trainer


def total_steps(how: TrainingSettings, examples: int, batch_size: int) -> int:
    """Optimiser steps, for batches of `batch_size` examples over all processes: at least one, but
    none in no epochs."""
    if how.max_steps > 0:
        return how.max_steps
    if not how.num_train_epochs:
        return 0
    batches = -(-examples // batch_size)
    return max(1, int(batches * how.num_train_epochs) // how.gradient_accumulation_steps)


def task_state(
    how: TrainingSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    steps: int,
    scores: Sequence[float],
) -> TrainState:
    """Make optimiser and schedule of a training of so many `steps`.

    scores: the training set's, in a regression.
    """
    if scores:
        start_at_mean(model, scores)
    optimizer = make_optimizer(model, how.learning_rate, how.weight_decay, how.adam_epsilon)
    if how.optimizer == "lamb":
        optimizer = as_lamb(optimizer)
    if how.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    warmup_steps = how.warmup_steps or math.ceil(steps * (how.warmup_ratio or 0))
    schedule = make_schedule(optimizer, warmup_steps, steps, how.lr_scheduler_type or "linear")
    best = Best(how.early_stopping_patience, bool(how.load_best_model_at_end))
    return TrainState(model, tokenizer, optimizer, schedule, best=best)


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


def task_batches(trainer: Trainer, features: Features, epoch: int, first: int) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on."""
    accelerator, pad = trainer.accelerator, trainer.state.tokenizer.pad_token_id
    batch_size, seed = trainer.fingerprint.batch_size, trainer.run.seed
    for rows in epoch_batches(features.lengths, batch_size, seed, epoch)[first:]:
        mine = rows[accelerator.process_index :: accelerator.num_processes]
        # Every process takes part in a step: one without rows of its own repeats one, for nothing.
        inputs = collate(features, mine if len(mine) else rows[:1], pad)
        yield Batch(send_to_device(inputs, accelerator.device), len(mine) / len(rows))


class FineTuningLog(ProgressLog):
    """The published JSON lines: means since the last entry.

    parts_of: those of a batch's loss, by name. scalars_of: what else the trackers get of an entry.
    """

    def __init__(
        self,
        trainer: Trainer,
        every: int,
        total: int,
        parts_of: Callable[[ModelOutput], dict[str, torch.Tensor]],
        scalars_of: Callable[[PreTrainedModel, ModelOutput], dict[str, float]],
    ) -> None:
        super().__init__(trainer, every, total)
        self.parts_of, self.scalars_of = parts_of, scalars_of
        self.losses: list[float] = []
        self.parts: dict[str, list[torch.Tensor]] = {}  # of each batch in this process

    def step(self, step: Step) -> bool:
        """Count an optimiser step; whether its entry was due, which is then written."""
        self.losses.append(step.loss)
        for name, value in [pair for out in step.outs for pair in self.parts_of(out).items()]:
            self.parts.setdefault(name, []).append(value.detach())
        if not self.advance(step):
            return False
        mean = sum(self.losses) / len(self.losses)
        means = {name: torch.stack(part).mean().item() for name, part in self.parts.items()}
        self.entry({"learning_rate": step.learning_rate, "loss": mean, **means}, step.number)
        self.scalars(self.scalars_of(self.trainer.state.model, step.outs[-1]), step.number)
        self.losses, self.parts = [], {}
        return True


@dataclass(frozen=True)
class MetricAtCost:
    """A metric, or the best of it that is reached at a computation cost of at most `cost`."""

    name: str
    cost: float | None = None

    @classmethod
    def parse(cls, text: str | None, task: Task, flag: str) -> Self:
        """Parse what `flag` names, by default the task's main metric; UserError for others."""
        name, at, cost = (text or primary_metric(task)).removeprefix("eval_").partition("@")
        known = list(compute_metrics(task, [0, 1], [0, 1]))
        if name not in known:
            raise UserError(f"{flag} {text}: {nearest_names(name, known)}")
        try:
            limit = float(cost) if at else None
        except ValueError as error:
            raise UserError(f"{flag} {text}: {cost!r} is not a number") from error
        if limit is not None and not 0 < limit <= 1:
            raise UserError(f"{flag} {text}: a computation cost is above 0 and at most 1")
        return cls(name, limit)

    def __str__(self) -> str:
        return self.name if self.cost is None else f"{self.name}@{self.cost:g}"

    def best(self, points: Iterable[tuple[float, float]]) -> float | None:
        """Find the best metric within the cost, of (cost, metric); None if there is none."""
        return max((value for cost, value in points if cost <= self.cost + 1e-9), default=None)
