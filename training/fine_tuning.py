"""Fine-tuning's part of a training: its steps, optimiser, batches and log."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from accelerate.utils import send_to_device
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from glue.features import Features, collate, epoch_batches
from training.checkpoints import Learner
from training.fine_tuning_settings import TrainingSettings
from training.logs import ProgressLog
from training.loop import Batch, Step, Training
from training.optimizer import as_lamb, make_optimizer, make_schedule


def total_steps(how: TrainingSettings, examples: int, batch_size: int) -> int:
    """Optimiser steps, for batches of `batch_size` examples over all processes: at least one, but
    none in no epochs."""
    if how.max_steps > 0:
        return how.max_steps
    if not how.num_train_epochs:
        return 0
    batches = -(-examples // batch_size)
    return max(1, int(batches * how.num_train_epochs) // how.gradient_accumulation_steps)


def task_learner(
    how: TrainingSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    steps: int,
    scores: Sequence[float],
) -> Learner:
    """steps: of the whole training. scores: the training set's, in a regression."""
    if scores:
        start_at_mean(model, scores)
    optimizer = make_optimizer(model, how.learning_rate, how.weight_decay, how.adam_epsilon)
    if how.optimizer == "lamb":
        optimizer = as_lamb(optimizer)
    if how.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    warmup_steps = how.warmup_steps or math.ceil(steps * (how.warmup_ratio or 0))
    schedule = make_schedule(optimizer, warmup_steps, steps, how.lr_scheduler_type or "linear")
    return Learner(model, tokenizer, optimizer, schedule)


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


def task_batches(training: Training, features: Features, epoch: int, first: int) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on."""
    accelerator, pad = training.accelerator, training.learner.tokenizer.pad_token_id
    batch_size, seed = training.identity.batch_size, training.run.seed
    for rows in epoch_batches(features.lengths, batch_size, seed, epoch)[first:]:
        mine = rows[accelerator.process_index :: accelerator.num_processes]
        # Every process takes part in a step: one without rows of its own repeats one, for nothing.
        inputs = collate(features, mine if len(mine) else rows[:1], pad)
        yield Batch(send_to_device(inputs, accelerator.device), len(mine) / len(rows))


class FineTuningLog(ProgressLog):
    """The published JSON lines."""

    def __init__(self, training: Training, every: int, total: int) -> None:
        super().__init__(training, every, total)
        self.losses: list[float] = []  # since the last logging step
        self.parts: dict[str, list[torch.Tensor]] = {}  # the same, of each batch in this process

    def step(self, step: Step, parts: Callable[[ModelOutput], dict[str, torch.Tensor]]) -> bool:
        """After an optimiser step; returns whether a logging step was due.

        parts: of a batch's loss. What is logged are means since the last logging step.
        """
        self.losses.append(step.loss)
        for name, value in [pair for out in step.outs for pair in parts(out).items()]:
            self.parts.setdefault(name, []).append(value.detach())
        if not self.advance(step):
            return False
        mean = sum(self.losses) / len(self.losses)
        means = {name: torch.stack(part).mean().item() for name, part in self.parts.items()}
        values = {"learning_rate": step.learning_rate, "loss": mean, **means}
        self.losses, self.parts = [], {}
        self.scalars(values, step.number)
        self.line({**values, "step": step.number})
        return True
