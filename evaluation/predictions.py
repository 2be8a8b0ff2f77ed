"""The answers to a data set: batches in, tensors out; processes share the examples and gather."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


class Predictions(dict[str, torch.Tensor]):
    """The answers to a data set in input order, (examples, …) tensors on the CPU by name.

    Of every mode: logits, (examples, num_labels), of the exit taken; seconds, (examples,), from the
    start of an example to its answer. Of modes whose examples exit: exit_layer, 1-based. Of
    Adaptive Depth: updates, (examples, length of the longest), 0 on padding.

    features: the examples that are answered here; wall_seconds: of all examples, start to end.
    """

    def __init__(self, features: Features | None = None, **tensors: torch.Tensor) -> None:
        super().__init__(tensors)
        self.features, self.wall_seconds = features, 0.0

    def batches(self, batch_size: int) -> Iterator[Rows]:
        """Rows of every batch: in input order at batch size 1, else neighbours in length."""
        if batch_size == 1:
            return ([row] for row in range(len(self.features)))
        return sorted_batches(self.features.lengths, batch_size)

    def add(self, rows: Rows, **values: Any) -> None:
        """Put a batch's values, (rows, …) each, in their places."""
        for name, value in values.items():
            tensor = torch.as_tensor(value)
            if name not in self:
                shape = len(self.features), *tensor.shape[1:]
                self[name] = tensor.new_empty(shape, device="cpu")
            self[name][rows] = tensor.cpu()
        self.bar.update(len(rows))

    def gather(self, count: int) -> None:
        """Get the entries of all `count` examples from all processes, each of which has every
        n-th."""
        n = processes()[1]
        if n == 1:
            return
        shards: list[Any] = [None] * n
        distributed.all_gather_object(shards, dict(self))
        self.update({name: t.new_empty(count, *t.shape[1:]) for name, t in shards[0].items()})
        for first, shard in enumerate(shards):
            for name, tensor in shard.items():
                self[name][first::n] = tensor


@contextmanager
def sharded(job: Job, title: str = "Evaluating") -> Iterator[Predictions]:
    """Predictions that this process fills with its share of the job's answers; gathered at the end.

    Inside, the model is in inference mode with packed weights, and a bar shows the progress.
    """
    start, (rank, n) = time.perf_counter(), processes()
    predictions = Predictions(job.features.take(slice(rank, None, n)))
    total = len(predictions.features)
    bar = progress(desc=title, total=total, unit="example", disable=not is_main())
    with packed_weights(job.model.eval()), bar:
        predictions.bar = bar
        yield predictions
    predictions.gather(len(job.features))
    predictions.wall_seconds = time.perf_counter() - start


def processes() -> tuple[int, int]:
    """This process's number and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def is_main() -> bool:
    """Are reports and progress bars this process's work?"""
    return processes()[0] == 0


def inputs_of(job: Job, features: Features, rows: Rows) -> dict[str, torch.Tensor]:
    """A padded batch on the model's device, without labels."""
    batch = collate(features, rows, job.tokenizer.pad_token_id)
    batch.pop("labels", None)
    return send_to_device(batch, job.model.device)
