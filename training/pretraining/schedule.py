"""The published schedule of pre-training: most steps with short examples, the rest with long ones.

Source: ALBERT (Lan et al. 2020), as Simoulin and Crabbé (2021) ran it.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from modeling.errors import UserError
from training.pretraining.settings import PretrainingSchedule

# The published learning rate at length 512, as a share of that at length 128.
LONG_RATE = 2.75e-4 / 1.76e-3


class Phase(NamedTuple):
    """A part of the training with its own length of examples and its own learning rate."""

    steps: int
    max_seq_length: int
    batch_size: int  # examples of a batch, over all processes
    accumulation: int  # batches of a step
    rate: float  # peak learning rate as a share of --learning_rate
    warmup_steps: int


def phases_of(training: PretrainingSchedule, max_seq_length: int, processes: int) -> list[Phase]:
    """Make the published two phases; one of no steps is left out.

    Long examples come in batches of about as many pieces, and in steps of as many examples.

    max_seq_length: that of short examples. Raises UserError for batches that are too small to hold
    a long example for each process.
    """
    long_length = training.long_seq_length
    batch_size = training.per_gpu_train_batch_size * processes
    long_batch_size = batch_size * max_seq_length // long_length
    long_steps = round(training.max_steps * training.long_fraction)
    if long_steps and long_batch_size < processes:
        raise UserError(
            f"--per_gpu_train_batch_size {training.per_gpu_train_batch_size} is less than one "
            f"example of {long_length} tokens: allowed is at least "
            f"{ceil(long_length / max_seq_length)}, or --long_fraction 0"
        )
    examples_of_a_step = batch_size * training.gradient_accumulation_steps
    short_phase = Phase(
        steps=training.max_steps - long_steps,
        max_seq_length=max_seq_length,
        batch_size=batch_size,
        accumulation=training.gradient_accumulation_steps,
        rate=1.0,
        warmup_steps=training.warmup_steps,
    )
    long_phase = Phase(
        steps=long_steps,
        max_seq_length=long_length,
        batch_size=long_batch_size,
        accumulation=ceil(examples_of_a_step / max(1, long_batch_size)),
        rate=LONG_RATE,
        warmup_steps=int(training.warmup_steps * training.long_fraction),
    )
    return [phase for phase in (short_phase, long_phase) if phase.steps > 0]


def rate_at(phases: Sequence[Phase], step: int) -> float:
    """Return the share of --learning_rate at `step`, counted from 0 over all phases.

    Each phase has a warm-up from 0 to its own rate, and then a linear decay to 0.
    """
    for phase in phases:
        if step < phase.steps:
            break
        step -= phase.steps
    if step < phase.warmup_steps:
        return phase.rate * step / phase.warmup_steps
    remaining = (phase.steps - step) / max(1, phase.steps - phase.warmup_steps)
    return phase.rate * max(0.0, remaining)
