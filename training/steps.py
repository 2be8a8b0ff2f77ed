"""Fine-tuning's part of a training: its steps, optimiser, batches, log, and what is best."""

import math
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from accelerate.utils import send_to_device
from transformers import PreTrainedTokenizerBase as Tokenizer

from elbert.albert import AlbertPreTrainedModel
from elbert_base.errors import UserError
from elbert_base.keys import LARGEST
from glue.features import Features, collate, epoch_batches
from glue.tasks import Task, parse_number
from runs.settings import TrainingSettings
from training.checkpoints import Best, TrainState
from training.optimizer import make_optimizer, make_schedule
from training.trainer import Batch, Trainer


def total_steps(flags: TrainingSettings, examples: int, processes: int) -> int:
    """Optimiser steps on so many examples: at least one, but none in no epochs."""
    if flags.max_steps > 0 or not flags.num_train_epochs:
        return max(0, flags.max_steps)
    batches = -(-examples // (flags.per_gpu_train_batch_size * processes))
    return max(1, int(batches * flags.num_train_epochs) // flags.gradient_accumulation_steps)


def task_state(
    flags: TrainingSettings,
    model: AlbertPreTrainedModel,
    tokenizer: Tokenizer,
    steps: int,
    scores: Sequence[float],
) -> TrainState:
    """Make what a training of `steps` changes: the model with its new heads, optimiser, schedule.

    scores: the training labels of a regression, else empty.
    """
    for name, module in model.named_modules() if scores else ():
        # A new head answers the mean: steps towards it would saturate the pooler's tanh.
        is_head = "classifier" in name and isinstance(module, torch.nn.Linear)
        if is_head and module.out_features == 1 and module.bias == 0:
            torch.nn.init.constant_(module.bias, sum(scores) / len(scores))
    if flags.train_exits_only:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(model.new_parts))
    optimizer = make_optimizer(model, flags)
    warmup_steps = flags.warmup_steps or math.ceil(steps * (flags.warmup_ratio or 0))
    schedule = make_schedule(optimizer, warmup_steps, steps, flags.lr_scheduler_type or "linear")
    best = Best(flags.early_stopping_patience, bool(flags.load_best_model_at_end))
    return TrainState(model, tokenizer, optimizer, schedule, best=best)


def class_weights(given: Sequence[str], task: Task, labels: np.ndarray) -> dict[str, float]:
    """Read --class_weights: of each class its weight in the loss; {} where none are given.

    `balanced` is scikit-learn's, examples / (classes · examples of the class); of several labels,
    the examples without a label for each one with it. labels: of the training, (examples,) class
    ids, −100 for none, or (examples, labels) of 0 and 1.
    """
    names = task.labels
    if given and task.is_regression:
        raise UserError("--class_weights: the labels are scores, and have no classes")
    if [*given] == ["balanced"]:
        from sklearn.utils.class_weight import compute_class_weight

        known = labels[labels >= 0] if labels.ndim == 1 else np.nonzero(labels)[1]
        if missing := [name for i, name in enumerate(names) if i not in known]:
            raise UserError(f"--class_weights balanced: no training example is {missing[0]!r}")
        found = compute_class_weight("balanced", classes=np.arange(len(names)), y=known)
        if task.multi_label:
            found = 1 / labels.mean(0) - 1
        return dict(zip(names, found.tolist(), strict=True))
    numbers = [parse_number(text) or 0.0 for text in given]
    are_positive = all(0 < number < LARGEST for number in numbers)
    if given and (len(numbers) != len(names) or not are_positive):
        raise UserError(
            f"--class_weights {' '.join(given)}: allowed is balanced, or a positive number for "
            f"each of the classes {', '.join(names[:20])}"
        )
    return dict(zip(names, numbers, strict=False))


def task_batches(trainer: Trainer, features: Features, epoch: int, first: int) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on."""
    accelerator = trainer.accelerator
    pad = trainer.state.tokenizer.pad_token_id
    size = trainer.fingerprint["batch_size"]
    batches = epoch_batches(features.lengths, size, trainer.run.seed, epoch)
    for rows in batches[first:]:
        mine = rows[accelerator.process_index :: accelerator.num_processes]
        # Every process takes part in a step: one without rows of its own repeats one, for nothing.
        inputs = collate(features, mine if len(mine) else rows[:1], pad)
        on_device = cast(dict[str, torch.Tensor], send_to_device(inputs, accelerator.device))
        yield Batch(on_device, len(mine) / len(rows))
