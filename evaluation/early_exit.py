"""Running a model whose examples stop, one by one or in batches, and recording all its layers."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from evaluation.job import Job
from evaluation.processes import gathered, is_main, my_part, to_device
from glue.features import Features, collate, sorted_batches
from modeling.albert import attention_mask_of
from modeling.cpu_packing import packed_weights
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
    """Answer every example with early exit; processes take examples in turn, all get all answers.

    Batch size 1, the reporting default, goes in input order and never pads; above it, `batch_size`
    slots are kept full by depth batching (an exported file gets neighbours in length). The answers
    are the same, also where exits are sampled: every example brings its own draw.
    """
    features, model = my_part(job.features), job.model.eval()
    count = len(features)
    logits = torch.empty(count, model.config.num_labels)
    exit_layer = torch.empty(count, dtype=torch.long)
    seconds = torch.empty(count, dtype=torch.double)
    run = by_batches if job.batch_size == 1 or job.file else depth_batched
    with packed_weights(model):
        answers = run(job, features)
        for answer in tqdm(answers, "Evaluating", count, unit="example", disable=not is_main()):
            logits[answer.row] = answer.logits
            exit_layer[answer.row] = answer.exit_layer
            seconds[answer.row] = answer.seconds
    return Record(*(gathered(t, len(job.features)) for t in (logits, exit_layer, seconds)))


def by_batches(job: Job, features: Features) -> Iterator[Answer]:
    """`batch_size` examples at a time, one alone without padding; `seconds` is the whole call."""
    for rows in batches_of(features, job.batch_size):
        batch = inputs_of(job, features, rows)
        start = time.perf_counter()
        out = job.runner(**batch)
        exit_layers = out.exit_layer.tolist()  # waits for the device
        seconds = time.perf_counter() - start
        for row, answer, exit_layer in zip(rows, out.answer.cpu(), exit_layers, strict=True):
            yield Answer(row, answer, exit_layer, seconds)


def depth_batched(job: Job, features: Features) -> Iterator[Answer]:
    """`batch_size` slots, kept full; in order of completion."""
    batcher = DepthBatcher(job.model, slots=job.batch_size, pad_token_id=job.pad_token_id)
    rows = range(len(features))
    columns = [map(features.input_ids, rows), map(features.token_type_ids, rows)]
    if features.draws is not None:
        columns.append(features.draws)
    batcher.submit(zip(*columns, strict=True))
    return batcher.answers()


def inputs_of(job: Job, features: Features, rows: list[int]) -> dict[str, torch.Tensor]:
    """A padded batch on the model's device, without labels."""
    batch = to_device(collate(features, rows, job.pad_token_id), job.model.device)
    batch.pop("labels", None)
    return batch


def record_layers(job: Job, batch_size: int = 1) -> dict[str, torch.Tensor]:
    """What every layer says of every example, float32, and what else the mode's rules read.

    all_logits: (layers, examples, num_labels). Of a ponder model also halt_probabilities
    (examples, layers) and draws (examples,).

    Goes through the depths as inference does, with the exit check after each, so that at batch
    size 1 the answers are those of an early-exit run to the last bit. Larger batches are faster
    and differ in that bit, which a setting exactly at a tie can show. Processes take examples in
    turn; all get all answers.
    """
    features = my_part(job.features)
    tensors: dict[str, torch.Tensor] = {}
    with packed_weights(job.model.eval()):
        batches = list(batches_of(features, batch_size))
        for rows in tqdm(batches, desc="All layers", unit="batch", disable=not is_main()):
            for name, values in layers_of(job, features, rows).items():
                shape = (len(features), *values.shape[1:])
                tensors.setdefault(name, torch.empty(shape))[rows] = values.cpu()
    whole = {name: gathered(t, len(job.features)) for name, t in tensors.items()}
    by_layer = {name: t.transpose(0, 1).contiguous() for name, t in whole.items()}
    return dict(job.mode.recorded(by_layer, job.features))


def layers_of(job: Job, features: Features, rows: list[int]) -> dict[str, torch.Tensor]:
    """All layers' answers to a batch, and the mode's own record: (batch, layers, …) each."""
    model, batch = job.model, inputs_of(job, features, rows)
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    mask = attention_mask_of(batch.get("attention_mask"))
    layers: dict[str, list[torch.Tensor]] = {}
    for step in run_depths(model, hidden, mask, batch.get("draws"), leave=False):
        answer, state = step.check.answer, step.check.state
        for name, tensor in {"all_logits": answer, **job.mode.record_layer(state)}.items():
            layers.setdefault(name, []).append(tensor)
    return {name: torch.stack(found, 1) for name, found in layers.items()}


def batches_of(features: Features, batch_size: int) -> Iterator[list[int]]:
    """Rows of every batch: in input order at batch size 1, else neighbours in length."""
    if batch_size == 1:
        return ([row] for row in range(len(features)))
    return sorted_batches(features.lengths, batch_size)
