"""Running a model whose examples stop, one by one or in batches, and recording all its layers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from evaluation.answering import Part, Rows, batches_of, collected, inputs_of
from evaluation.job import Job
from glue.features import Features
from modeling.albert import attention_mask_of
from modeling.depth import run_depths
from modeling.depth_batching import Answer, DepthBatcher


@dataclass(frozen=True)
class Record:
    """What early-exit inference answered, in input order.

    logits: (examples, num_labels), of the exit taken.
    exit_layer: (examples,), 1-based.
    seconds: (examples,), from the start of the example to its answer.
    """

    logits: torch.Tensor
    exit_layer: torch.Tensor
    seconds: torch.Tensor

    def details(self) -> dict[str, list[Any]]:
        """Columns of predictions.tsv."""
        return {"exit_layer": self.exit_layer.tolist()}


def run_early_exit(job: Job) -> Record:
    """Answer every example with early exit.

    Batch size 1, the reporting default, goes in input order and never pads; above it, `batch_size`
    slots are kept full by depth batching (an exported file gets neighbours in length). The answers
    are the same, also where exits are sampled: every example brings its own draw.
    """
    return Record(**collected(job, early_answers, "Evaluating"))


def early_answers(job: Job, features: Features) -> Iterator[Part]:
    """A `Record`'s entries of one example after the other, as they are answered."""
    run = by_batches if job.batch_size == 1 or job.file else depth_batched
    for answer in run(job, features):
        yield (
            [answer.row],
            {
                "logits": answer.logits[None],
                "exit_layer": torch.tensor([answer.exit_layer]),
                "seconds": torch.tensor([answer.seconds], dtype=torch.double),
            },
        )


def by_batches(job: Job, features: Features) -> Iterator[Answer]:
    """`batch_size` examples at a time, one alone without padding; `seconds` is the whole call."""
    run = job.file or job.model.exits
    for rows in batches_of(features, job.batch_size):
        batch = inputs_of(job, features, rows)
        start = time.perf_counter()
        out = run(**batch)
        exit_layers = out.exit_layer.tolist()  # waits for the device
        seconds = time.perf_counter() - start
        for row, answer, exit_layer in zip(rows, out.answer, exit_layers, strict=True):
            yield Answer(row, answer, exit_layer, seconds)


def depth_batched(job: Job, features: Features) -> Iterator[Answer]:
    """`batch_size` slots, kept full; in order of completion."""
    batcher = DepthBatcher(job.model, slots=job.batch_size, pad_token_id=job.pad_token_id)
    rows = range(len(features))
    texts = map(features.input_ids, rows), map(features.token_type_ids, rows)
    own = [features.inputs[name] for name in job.model.own_inputs if name in features.inputs]
    batcher.submit(zip(*texts, *own, strict=True))
    return batcher.answers()


def record_layers(job: Job, batch_size: int = 1) -> dict[str, torch.Tensor]:
    """What every layer says of every example, float32, and what else the mode's rules read.

    all_logits: (layers, examples, num_labels); seconds: (examples, layers), from the start of the
    batch to the layer's answer. Also what the mode records, (examples, layers) each, and its own
    inputs, (examples,) each.

    Goes through the depths as inference does, with the exit check after each, so that at batch
    size 1 the answers are those of an early-exit run to the last bit. Larger batches are faster
    and differ in that bit, which a setting exactly at a tie can show.
    """

    def layers(job: Job, features: Features) -> Iterator[Part]:
        return ((rows, layers_of(job, features, rows)) for rows in batches_of(features, batch_size))

    tensors = collected(job, layers, "All layers")
    tensors["all_logits"] = tensors["all_logits"].transpose(0, 1).contiguous()
    inputs = {name: torch.as_tensor(column) for name, column in job.features.inputs.items()}
    return tensors | inputs


def layers_of(job: Job, features: Features, rows: Rows) -> dict[str, torch.Tensor]:
    """All layers' answers to a batch, and the mode's own record: (batch, layers, …) each."""
    model, batch = job.model, inputs_of(job, features, rows)
    start = time.perf_counter()
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    mask = attention_mask_of(batch.get("attention_mask"))
    own = {name: batch[name] for name in model.own_inputs if name in batch}
    checks, seconds = [], []
    for step in run_depths(model, hidden, mask, own, leave=False):
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        checks.append(step.check)
        seconds.append(time.perf_counter() - start)
    recorded = {
        name: torch.stack([found(check.state) for check in checks], 1)
        for name, found in job.mode.recorded.items()
    }
    return {
        "all_logits": torch.stack([check.answer for check in checks], 1),
        "seconds": torch.tensor(seconds).repeat(len(rows), 1),
        **recorded,
    }
