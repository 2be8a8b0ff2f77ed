"""Answering a whole data set: processes take examples in turn, all get all answers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import distributed

from evaluation.job import Job
from glue.features import Features, collate, sorted_batches
from modeling.cpu_packing import packed_weights
from utils.console import progress

Rows = Sequence[int] | np.ndarray
Part = tuple[Rows, dict[str, torch.Tensor]]  # rows, and (rows, …) tensors of them by name


def processes() -> tuple[int, int]:
    """This process's number and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def is_main() -> bool:
    """Are reports and progress bars this process's work?"""
    return processes()[0] == 0


def collected(
    job: Job, answer: Callable[[Job, Features], Iterable[Part]], title: str
) -> dict[str, torch.Tensor]:
    """All that `answer` says of the job's examples, in input order: (examples, …) by name."""
    first, n = processes()
    features = job.features.take(slice(first, None, n))
    tensors: dict[str, torch.Tensor] = {}
    bar = progress(desc=title, total=len(features), unit="example", disable=not is_main())
    with packed_weights(job.model.eval()), bar:
        for rows, values in answer(job, features):
            for name, part in values.items():
                if name not in tensors:
                    tensors[name] = part.new_empty(len(features), *part.shape[1:], device="cpu")
                tensors[name][rows] = part.cpu()
            bar.update(len(rows))
    return gathered(tensors, len(job.features))


def gathered(tensors: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """The entries of all `count` examples, from each process's, which are every n-th."""
    _, n = processes()
    if n == 1:
        return tensors
    parts: list[Any] = [None] * n
    distributed.all_gather_object(parts, tensors)
    whole = {name: t.new_empty(count, *t.shape[1:]) for name, t in parts[0].items()}
    for first, part in enumerate(parts):
        for name, tensor in part.items():
            whole[name][first::n] = tensor
    return whole


def inputs_of(job: Job, features: Features, rows: Rows) -> dict[str, torch.Tensor]:
    """A padded batch on the model's device, without labels."""
    batch = collate(features, rows, job.pad_token_id)
    batch.pop("labels", None)
    return send_to_device(batch, job.model.device)


def batches_of(features: Features, batch_size: int) -> Iterator[Rows]:
    """Rows of every batch: in input order at batch size 1, else neighbours in length."""
    if batch_size == 1:
        return ([row] for row in range(len(features)))
    return sorted_batches(features.lengths, batch_size)
