"""A data set shared among processes: each takes examples in turn, all get all answers."""

from typing import Any

import torch
from torch import distributed

from glue.features import Features


def processes() -> tuple[int, int]:
    """This process's number and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def is_main() -> bool:
    """Are reports and progress bars this process's work?"""
    return processes()[0] == 0


def my_part(features: Features) -> Features:
    """Every n-th example, of n processes, beginning with this process's number."""
    first, n = processes()
    return features.take(slice(first, None, n))


def gathered(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """All `count` examples' entries in input order, from those of each process's `my_part`."""
    _, n = processes()
    if n == 1:
        return tensor
    parts: list[Any] = [None] * n
    distributed.all_gather_object(parts, tensor)
    whole = tensor.new_empty(count, *tensor.shape[1:])
    for first, part in enumerate(parts):
        whole[first::n] = part
    return whole


def to_device(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}
