"""The answers to a data set: batches in, tensors out; processes share the examples and gather."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import distributed

from evaluation.job import Job
from glue.features import Features, collate, sorted_batches
from modeling.albert import attention_mask_of
from modeling.cpu_packing import packed_weights
from modeling.depth import iter_layers
from modeling.depth_batching import DepthBatcher
from modeling.errors import UserError
from modeling.rules import LayerOutput
from utils.console import progress

Rows = Sequence[int] | np.ndarray | slice
Batches = Iterator[tuple[Rows, dict[str, Any]]]  # numbers of examples, and (rows, …) of each value


class Predictions(dict[str, torch.Tensor]):
    """The answers to a data set in input order, (examples, …) tensors on the CPU by name.

    Of every mode: logits, (examples, num_labels), of the exit taken; seconds, from the start of an
    example to its answer. Of modes whose examples exit: exit_layer, 1-based. Of Adaptive Depth:
    updates, (examples, length of the longest), 0 on padding.
    """

    wall_seconds = 0.0  # for all of them

    def put(self, rows: Rows, values: Mapping[str, Any], count: int) -> None:
        """Put a batch's values, (rows, …) each, in their places among `count`.

        Raises UserError for NaN and infinity, which would pass for an answer.
        """
        for name, value in values.items():
            tensor = torch.as_tensor(value)
            if not tensor.isfinite().all():
                raise UserError(
                    f"the model's {name} are NaN or infinite: its weights are too large for this "
                    "precision; evaluate with --dtype fp32, or train again with a lower "
                    "--learning_rate"
                )
            if name not in self:
                self[name] = tensor.new_empty(count, *tensor.shape[1:], device="cpu")
            self[name][rows] = tensor.cpu()


def run_all(
    job: Job, run: Callable[[Job, Features], Batches] | None = None, title: str = "Evaluating"
) -> Predictions:
    """Answer every example, each exiting as the configuration says, or gather what `run` answers.

    Batch size 1 never pads. Above it, examples that exit go through `batch_size` slots, kept full
    by depth batching; where tokens halt, and for an exported file, a batch holds neighbours in
    length. The answers are the same, also where exits are sampled: every example has its own draw.
    Each process answers every n-th example, in inference mode with packed weights.
    """
    in_slots = job.batch_size > 1 and job.mode.depth_batched and not job.file
    run = run or (answers_in_slots if in_slots else answers_in_batches)
    start, (rank, n) = time.perf_counter(), processes()
    own, predictions = job.features.take(slice(rank, None, n)), Predictions()
    options = {"desc": title, "total": len(own), "unit": "example"}
    with packed_weights(job.model.eval()), progress(**options, disable=rank > 0 or None) as bar:
        for rows, values in run(job, own):
            predictions.put(rows, values, len(own))
            bar.update(len(rows))
    if n > 1:
        shards, predictions = gather_object([dict(predictions)]), Predictions()
        for first, shard in enumerate(shards):
            predictions.put(slice(first, None, n), shard, len(job.features))
    predictions.wall_seconds = time.perf_counter() - start
    return predictions


def processes() -> tuple[int, int]:
    """This process's number and how many there are."""
    known = distributed.is_initialized()
    return (distributed.get_rank(), distributed.get_world_size()) if known else (0, 1)


def is_main() -> bool:
    """Tell whether reports and progress bars are this process's work."""
    return processes()[0] == 0


def inputs_of(job: Job, features: Features, rows: Rows) -> dict[str, torch.Tensor]:
    """A padded batch on the model's device, without labels."""
    batch = collate(features, rows, job.tokenizer.pad_token_id)
    batch.pop("labels", None)
    return {name: tensor.to(job.model.device) for name, tensor in batch.items()}


def answers_in_batches(job: Job, features: Features) -> Batches:
    mode, longest = job.mode, int(job.features.lengths.max())
    model: Any = job.model
    run = job.file or (model.exit_early if mode.depth_batched else model)
    for rows in sorted_batches(features.lengths, job.batch_size):
        batch = inputs_of(job, features, rows)
        start = time.perf_counter()
        out = run(**batch)
        values = {"logits": out.logits.float().cpu(), **mode.other_outputs(out, longest)}
        seconds = torch.full((len(rows),), time.perf_counter() - start, dtype=torch.double)
        yield rows, {**values, "seconds": seconds}


def answers_in_slots(job: Job, features: Features) -> Batches:
    """Answers of depth batching, in order of completion."""
    model, texts = job.model, (features.input_ids, features.token_type_ids)
    batcher = DepthBatcher(model, slots=job.batch_size, pad_token_id=job.tokenizer.pad_token_id)
    own = [features.inputs[name] for name in model.own_inputs if name in features.inputs]
    batcher.submit(zip(*texts, *own, strict=True))
    for answer in batcher.answers():
        seconds = torch.tensor([answer.seconds], dtype=torch.double)
        values = {"logits": answer.logits[None], "exit_layer": [answer.exit_layer]}
        yield [answer.row], {**values, "seconds": seconds}


def record_layers(job: Job, batch_size: int = 1) -> Predictions:
    """Record what every layer says of every example, float32, and what else the mode's rules read.

    all_logits: (layers, examples, num_labels); seconds: (examples, layers), from the start of the
    batch to the layer's answer; what else the model's `LayerOutput` has, (examples, layers) each;
    and the model's own inputs, (examples,) each.

    Goes through the depths as inference does, with the exit check after each, so that at batch
    size 1 the answers are those of an early-exit run to the last bit. Larger batches are faster
    and differ in that bit, which a setting exactly at a tie can show.
    """
    predictions = run_all(replace(job, batch_size=batch_size), all_layers, "All layers")
    predictions["all_logits"] = predictions["all_logits"].transpose(0, 1).contiguous()
    predictions |= {name: torch.as_tensor(column) for name, column in job.features.inputs.items()}
    return predictions


def all_layers(job: Job, features: Features) -> Batches:
    for rows in sorted_batches(features.lengths, job.batch_size):
        yield rows, layers_of(job, features, rows)


def layers_of(job: Job, features: Features, rows: Rows) -> dict[str, torch.Tensor]:
    """All layers' answers to a batch: (batch, layers, …) each."""
    model: Any = job.model
    batch = inputs_of(job, features, rows)
    start = time.perf_counter()
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    mask = attention_mask_of(batch.get("attention_mask"))
    own = {name: batch[name] for name in model.own_inputs if name in batch}
    outputs, seconds = [], []
    for _, decision, _ in iter_layers(model, hidden, mask, own, allow_exit=False):
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        outputs.append(decision.seen)
        seconds.append(time.perf_counter() - start)
    names = ("all_logits", *LayerOutput._fields[1:])
    recorded = {
        name: torch.stack(values, 1)
        for name, values in zip(names, zip(*outputs, strict=True), strict=True)
        if values[0] is not None
    }
    return recorded | {"seconds": torch.tensor(seconds).repeat(len(rows), 1)}
