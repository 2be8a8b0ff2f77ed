"""AdamW and LAMB in the published parameter groups, and schedules of the learning rate."""

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, get_scheduler


def make_optimizer(model: PreTrainedModel, flags: Any) -> torch.optim.Optimizer:
    """AdamW or LAMB in the published groups: with decay, and without (biases, layer norms).

    flags: of a training, with learning_rate, weight_decay, adam_epsilon and optimizer.
    Behind these, groups with a learning rate of their own: W, the weights of ELBERT's losses, at
    `config.w_lr` without decay, which stays constant and is not clipped; and a ponder model's
    halting head at `config.lambda_lr`, where the configuration has one.

    LAMB is the published one (You et al. 2020, version 3, and ALBERT's): decay is a part of the
    update whose norm the trust ratio takes, moments are not corrected for their bias, no norm is
    limited, and what does not decay has no trust ratio: else no halting bias could change its sign.
    """
    own = {"exit_weights": "w_lr"}
    if getattr(model.config, "lambda_lr", None) is not None:
        own["ponder."] = "lambda_lr"
    plain = ("bias", "LayerNorm.weight", "layer_norm.weight", "exit_weights")
    parameters = {("", True): [], ("", False): []}
    for name, parameter in model.named_parameters():
        prefix = next((p for p in own if name.startswith(p)), "")
        parameters.setdefault((prefix, not name.endswith(plain)), []).append(parameter)
    groups = [
        {
            "params": found,
            "weight_decay": flags.weight_decay if decays else 0.0,
            "decays": decays,
            "lr": getattr(model.config, own[prefix]) if prefix else flags.learning_rate,
            "constant": prefix == "exit_weights",
        }
        for (prefix, decays), found in parameters.items()
    ]
    if flags.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=flags.learning_rate, eps=flags.adam_epsilon, fused=True)
    from pytorch_optimizer import Lamb  # a hundred optimisers: seconds to import

    groups = [{**group, "adam": not group["decays"]} for group in groups]
    # adam_debias: the library's word for leaving the correction out
    options = {"eps": flags.adam_epsilon, "weight_decouple": False, "adam_debias": True}
    optimizer = Lamb(groups, lr=flags.learning_rate, **options)
    optimizer.clamp = math.inf
    return optimizer


def make_schedule(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int, kind: str = "linear"
) -> LambdaLR:
    """HF's schedule of that name (linear: warm-up, then decay to 0 at `total_steps`); W's learning
    rate stays constant."""
    usual = get_scheduler(kind, optimizer, warmup_steps, total_steps).lr_lambdas[0]
    groups = optimizer.param_groups
    for group in groups:
        group["lr"] = group.pop("initial_lr")

    # Plain functions: of other callables a checkpoint would keep the state.
    def scheduled(step: int) -> float:
        return usual(step)

    def constant(step: int) -> float:
        return 1.0

    return LambdaLR(optimizer, [constant if group["constant"] else scheduled for group in groups])


def clipped_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """List the parameters that gradient clipping sees: all but W, as published."""
    return [p for group in optimizer.param_groups if not group["constant"] for p in group["params"]]
