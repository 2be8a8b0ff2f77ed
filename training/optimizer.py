"""AdamW and LAMB in the published parameter groups, and schedules of the learning rate."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, get_scheduler

from runs.settings import Schedule

# Parameters with a learning rate of their own: how their names begin, and the key of the model's
# configuration that holds the rate. Without a value there, they learn at everybody's rate.
OWN_RATES = {
    "exit_weights": "w_lr",  # W, which weighs the losses of ELBERT's exits
    "ponder.": "lambda_lr",  # the halting head of a ponder model
}
EXITS = "albert.encoder.exit_out_"  # poolers and classifiers, which learn at `exit_lr_factor`
CONSTANT = "exit_weights"  # whose rate follows no schedule, and whose gradients are not clipped
NOT_DECAYED = ("bias", "LayerNorm.weight", "layer_norm.weight", "exit_weights")  # ends of names


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


def parameter_groups(
    model: PreTrainedModel, learning_rate: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Sort a model's parameters into groups of one learning rate and one weight decay.

    The first two groups have `learning_rate`: with decay, and without. Besides what the optimiser
    reads, a group says whether it `decays`, and whether its rate is `constant`.
    """
    # By the beginning of their names that `OWN_RATES` has, if any, and whether they decay. The
    # order of the groups is that of the state in a checkpoint.
    members: dict[tuple[str, bool], list[nn.Parameter]] = {("", True): [], ("", False): []}
    for name, parameter in model.named_parameters():
        prefix = own_rate_prefix(name, model.config)
        decays = not name.endswith(NOT_DECAYED)
        members.setdefault((prefix, decays), []).append(parameter)
    groups = []
    for (prefix, decays), parameters in members.items():
        rate = learning_rate_of(prefix, model.config, learning_rate)
        groups.append(
            {
                "params": parameters,
                "weight_decay": weight_decay if decays else 0.0,
                "decays": decays,
                "lr": rate,
                "constant": prefix == CONSTANT,
            }
        )
    return groups


def own_rate_prefix(name: str, config: object) -> str:
    """Find how the name of a parameter with a learning rate of its own begins; "" without one."""
    for prefix, key in OWN_RATES.items():
        if name.startswith(prefix) and getattr(config, key, None) is not None:
            return prefix
    if name.startswith(EXITS) and getattr(config, "exit_lr_factor", 1.0) != 1:
        return EXITS
    return ""


def learning_rate_of(prefix: str, config: Any, learning_rate: float) -> float:
    """Return the learning rate of the parameters that `own_rate_prefix` sorts under `prefix`."""
    if not prefix:
        return learning_rate
    if prefix == EXITS:
        return learning_rate * config.exit_lr_factor
    return getattr(config, OWN_RATES[prefix])


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
