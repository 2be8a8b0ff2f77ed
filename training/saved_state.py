"""What a checkpoint keeps beside the weights, as tensors and JSON; and whether it can be true.

A checkpoint may be damaged, foreign or made by hand, with checksums that agree: what a training
could not have written is refused, before a step is taken from it.
"""

import json
import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW and of LAMB
MOVING = ("lr", "step")  # what changes in an optimiser's groups as it goes


def alike(found: Any, expected: Any) -> bool:
    """Has a value read from JSON the types of `expected`, with all of its keys?"""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            key in found and alike(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list | tuple):
        same = isinstance(found, list) and len(found) == len(expected)
        return same and all(map(alike, found, expected))
    if isinstance(expected, float):
        return type(found) in (int, float)
    return type(found) is type(expected)


def split_optimizer(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimiser's state as tensors by name, `PARAMETER.KEY`, and JSON for the rest."""
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for parameter, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{parameter}.{key}"] = value.contiguous()
            else:
                scalars.setdefault(str(parameter), {})[key] = value
    return tensors, {"param_groups": state["param_groups"], "scalars": scalars}


def join_optimizer(tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `split_optimizer`."""
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        parameter, key = name.split(".", 1)
        state.setdefault(int(parameter), {})[key] = tensor
    for parameter, values in rest["scalars"].items():
        state.setdefault(int(parameter), {}).update(values)
    return {"state": state, "param_groups": rest["param_groups"]}


def check_optimizer(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError unless `state` could be one of this optimiser's."""
    own = optimizer.state_dict()["param_groups"]
    if not alike(state["param_groups"], own) or steady(state["param_groups"]) != steady(own):
        raise ValueError("its optimiser's groups have other settings")
    if not state["state"]:
        raise ValueError("it holds no optimiser's state")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, values in state["state"].items():
        if number not in range(len(parameters)):
            raise ValueError(f"it has a state of parameter {number} of {len(parameters)}")
        check_moments(f"parameter {number}", values, parameters[number].shape)


def steady(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An optimiser's groups as JSON has them, without what changes in training."""
    kept = [{key: v for key, v in group.items() if key not in MOVING} for group in groups]
    return json.loads(json.dumps(kept))


def check_moments(name: str, values: dict[str, Any], shape: torch.Size) -> None:
    for key in MOMENTS:
        if not isinstance(values.get(key), torch.Tensor) or values[key].shape != shape:
            raise ValueError(f"{key} of {name} is not of shape {tuple(shape)}")
    for key, value in values.items():
        tensor = torch.as_tensor(value)
        if not tensor.isfinite().all() or (key in ("exp_avg_sq", "step") and tensor.min() < 0):
            raise ValueError(f"{key} of {name} holds numbers that no training gives")


def check_schedule(
    found: dict[str, Any], schedule: LambdaLR, step: int, groups: list[dict[str, Any]]
) -> None:
    """Raise ValueError unless `found` and the optimiser's `groups` are as the schedule has them
    after so many steps."""
    own = schedule.state_dict()
    pairs = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    rates = [base * share(step) for base, share in pairs]
    expected = {
        **own,
        "last_epoch": step,
        "_step_count": step + 1,
        "_last_lr": rates,
    }
    if found != json.loads(json.dumps(expected)):
        changed = [key for key in {**found, **expected} if found.get(key) != expected.get(key)]
        raise ValueError(f"its schedule is not this run's after {step} steps: {', '.join(changed)}")
    if [group["lr"] for group in groups] != rates or not all(map(math.isfinite, rates)):
        raise ValueError("its optimiser's learning rates are not its schedule's")
