"""The answers to a data set: batches in, tensors out. Processes share the examples and gather."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, distributed

from elbert.albert import attention_mask_of
from elbert.cpu_packing import packed_copy
from elbert.depth import EarlyExitModel, iter_layers
from elbert.depth_batching import DepthBatcher
from elbert_base.errors import UserError
from glue.features import Features, collate, sorted_batches
from runs.console import progress
from runs.job import Job

Rows = Sequence[int] | np.ndarray  # numbers of examples
Batches = Iterator[tuple[Rows, Mapping[str, Any]]]  # numbers of examples, (rows, …) of each value
Run = Callable[[Job, Features], Batches]  # answers some of a job's examples


class Predictions(dict[str, Tensor]):
    """The answers to a data set in input order, (examples, …) tensors on the CPU by name.

    Of every mode: logits, (examples, num_labels), of the exit taken; seconds, from the start of an
    example to its answer. Of modes whose examples exit: exit_layer, 1-based. Of Adaptive Depth:
    updates, (examples, length of the longest), 0 on padding.
    """

    wall_seconds = 0.0  # for all of them

    def put(self, rows: Rows | slice, values: Mapping[str, Any], count: int) -> None:
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


def run_all(job: Job, run: Run, title: str = "Evaluating") -> Predictions:
    """Answer every example by `run`, in inference mode, with packed weights.

    run: how the mode runs over a data set (`Mode.run`), or another way to go through it. Each of
    several processes answers every n-th example, and gets the answers of all.
    """
    start = time.perf_counter()
    rank, process_count = processes()
    shard = job.features.take(slice(rank, None, process_count))
    predictions = Predictions()
    packed_job = replace(job, model=packed_copy(job.model.eval()))
    hides_bar = True if rank > 0 else None  # None: where stderr is no terminal
    with (
        torch.inference_mode(),
        progress(desc=title, total=len(shard), unit="example", disable=hides_bar) as bar,
    ):
        for rows, values in run(packed_job, shard):
            predictions.put(rows, values, len(shard))
            bar.update(len(rows))
    if process_count > 1:
        shards = gather_object([dict(predictions)])  # in the order of the processes
        predictions = Predictions()
        for shard_rank, answers in enumerate(shards):
            places = slice(shard_rank, None, process_count)
            predictions.put(places, answers, len(job.features))
    predictions.wall_seconds = time.perf_counter() - start
    return predictions


def processes() -> tuple[int, int]:
    """Return this process's number, and how many there are."""
    if distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def is_main() -> bool:
    """Tell whether reports and progress bars are this process's work."""
    rank, _ = processes()
    return rank == 0


def batch_inputs(job: Job, features: Features, rows: Rows) -> dict[str, Tensor]:
    """Make a padded batch on the model's device, without labels."""
    batch = collate(features, rows, job.tokenizer.pad_token_id)
    batch.pop("labels", None)
    return {name: tensor.to(job.model.device) for name, tensor in batch.items()}


def answers_in_batches(
    job: Job,
    features: Features,
    model: Callable[..., Any],
    depth_values: Callable[[Any], Mapping[str, Tensor]],
) -> Batches:
    """Answer batches of neighbours in length; batch size 1 never pads.

    Args:
        model: is called with a batch's inputs; its output has `logits`, (batch, num_labels).
        depth_values: picks what an output says of how deep its examples went, (batch, …) by name.
    """
    for rows in sorted_batches(features.lengths, job.batch_size):
        batch = batch_inputs(job, features, rows)
        start = time.perf_counter()
        out = model(**batch)
        logits = out.logits.float().cpu()  # waits for the device, so it belongs to the time
        seconds = torch.full((len(rows),), time.perf_counter() - start, dtype=torch.double)
        yield rows, {"logits": logits, **depth_values(out), "seconds": seconds}


def early_exit_model(job: Job) -> EarlyExitModel:
    """Return the model of a job whose examples exit."""
    # A job has a model of any mode. The functions below are for those modes whose examples exit.
    return cast(EarlyExitModel, job.model)


def answers_in_slots(job: Job, features: Features) -> Batches:
    """Answer by depth batching, with `batch_size` slots: in order of completion."""
    model = early_exit_model(job)
    batcher = DepthBatcher(model, slots=job.batch_size, pad_token_id=job.tokenizer.pad_token_id)
    own_inputs = [
        features.inputs[name] for name in model.config.own_inputs if name in features.inputs
    ]
    batcher.submit(zip(features.input_ids, features.token_type_ids, *own_inputs, strict=True))
    for answer in batcher.answers():
        yield (
            [answer.row],
            {
                "logits": answer.logits[None],
                "exit_layer": [answer.exit_layer],
                "seconds": torch.tensor([answer.seconds], dtype=torch.double),
            },
        )


def record_layers(job: Job, batch_size: int = 1) -> Predictions:
    """Record what every layer says of every example, float32, and what else the mode's rules read.

    all_logits: (layers, examples, num_labels); seconds: (examples, layers), from the start of the
    batch to the layer's answer; the model's signals (`LayerOutput`), (examples, layers) each; and
    the model's own inputs, (examples,) each.

    Goes through the depths as inference does, with the exit check after each, so that at batch
    size 1 the answers are those of an early-exit run to the last bit. Larger batches are faster
    and differ in that bit, which a setting exactly at a tie can show.
    """
    recorded = run_all(replace(job, batch_size=batch_size), all_layers, title="All layers")
    recorded["all_logits"] = recorded["all_logits"].transpose(0, 1).contiguous()
    for name, column in job.features.inputs.items():
        recorded[name] = torch.as_tensor(column)
    return recorded


def all_layers(job: Job, features: Features) -> Batches:
    """Run every example through all layers."""
    for rows in sorted_batches(features.lengths, job.batch_size):
        yield rows, layers_of_batch(job, features, rows)


def layers_of_batch(job: Job, features: Features, rows: Rows) -> dict[str, Tensor]:
    """Run a batch through all layers, and return what they say: (batch, layers, …) each."""
    model = early_exit_model(job)
    batch = batch_inputs(job, features, rows)
    start = time.perf_counter()
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    mask = attention_mask_of(batch.get("attention_mask"))
    own_inputs = {name: batch[name] for name in model.config.own_inputs if name in batch}
    outputs = []
    seconds = []
    for step in iter_layers(model, hidden, mask, own_inputs, allow_exit=False):
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        outputs.append(step.decision.seen)
        seconds.append(time.perf_counter() - start)
    recorded = {"all_logits": torch.stack([seen.logits for seen in outputs], 1)}
    for name in outputs[0].signals:
        recorded[name] = torch.stack([seen.signals[name] for seen in outputs], 1)
    recorded["seconds"] = torch.tensor(seconds).repeat(len(rows), 1)
    return recorded
