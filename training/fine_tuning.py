"""Fine-tuning's part of a training: its steps, optimiser, batches and log."""

from collections.abc import Iterator, Sequence

import torch
from accelerate.utils import send_to_device
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from glue.features import Features, collate, epoch_batches
from training.checkpoints import Learner
from training.fine_tuning_settings import TrainingSettings
from training.logs import ProgressLog
from training.loop import Batch, Step, Training
from training.optimizer import as_lamb, make_optimizer, make_schedule


def total_steps(how: TrainingSettings, examples: int, batch_size: int) -> int:
    """Optimiser steps, for batches of `batch_size` examples over all processes."""
    if how.max_steps > 0:
        return how.max_steps
    batches = -(-examples // batch_size)
    return max(1, int(batches * how.num_train_epochs) // how.gradient_accumulation_steps)


def make_learner(
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
    schedule = make_schedule(optimizer, how.warmup_steps, steps)
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


def my_batches(training: Training, features: Features, epoch: int, first: int) -> Iterator[Batch]:
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

    def step(self, step: Step) -> bool:
        """After an optimiser step; returns whether a logging step was due."""
        self.losses.append(step.loss)
        if not self.advance(step):
            return False
        mean = sum(self.losses) / len(self.losses)
        values = {"learning_rate": step.learning_rate, "loss": mean}
        self.losses = []
        self.scalars(values, step.number)
        self.line({**values, "step": step.number})
        return True
