"""AdamW and LAMB in the published parameter groups, and schedules of the learning rate."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, get_scheduler

from elbert.recipes import parameter_groups
from runs.settings import Schedule


def make_optimizer(model: PreTrainedModel, training: Schedule) -> torch.optim.Optimizer:
    """Make AdamW or LAMB over a model's parameters, in the published groups.

    Biases and layer norms have no weight decay. The groups with learning rates of their own come
    behind the others.

    LAMB is the published one (You et al. 2020, version 3, and ALBERT's): decay is a part of the
    update whose norm the trust ratio takes, moments are not corrected for their bias, no norm is
    limited, and what does not decay has no trust ratio: else no halting bias could change its sign.

    training: has the optimiser's name, the peak learning rate of parameters that have no rate of
    their own, the weight decay, and ε, which is added to the root of the second moment.
    """
    learning_rate = training.learning_rate
    groups = parameter_groups(model, learning_rate, training.weight_decay)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=learning_rate, eps=training.adam_epsilon, fused=True)
    from pytorch_optimizer import Lamb  # a hundred optimisers: seconds to import

    for group in groups:
        group["adam"] = not group["decays"]  # the library's word for: without a trust ratio
    optimizer = Lamb(
        groups,
        lr=learning_rate,
        eps=training.adam_epsilon,
        weight_decouple=False,
        adam_debias=True,  # the library's word for leaving the correction out
    )
    optimizer.clamp = math.inf
    return optimizer


def make_schedule(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int, kind: str = "linear"
) -> LambdaLR:
    """Make HF's schedule of the name `kind`, in optimiser steps, for all but constant rates.

    linear: warm-up from 0, then decay to 0 at `total_steps`.
    """
    hf_schedule = get_scheduler(kind, optimizer, warmup_steps, total_steps)
    factor_at = hf_schedule.lr_lambdas[0]
    groups = optimizer.param_groups
    for group in groups:
        # HF's schedule has begun already: with the factor of step 0. Ours begins from peak rates.
        group["lr"] = group.pop("initial_lr")

    # Plain functions: of other callables a checkpoint would keep the state.
    def scheduled(step: int) -> float:
        return factor_at(step)

    def constant(step: int) -> float:
        return 1.0

    return LambdaLR(optimizer, [constant if group["constant"] else scheduled for group in groups])


def clipped_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """List the parameters whose gradients are clipped: all but W, as published."""
    parameters = []
    for group in optimizer.param_groups:
        if not group["constant"]:
            parameters.extend(group["params"])
    return parameters
