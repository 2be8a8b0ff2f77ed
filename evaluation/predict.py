"""The answers to a data set: batches in, tensors out. Processes share the examples and gather."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, distributed

from glue.features import Features, collate, sorted_batches
from modeling.depth import EarlyExitModel, iter_layers
from modeling.depth_batching import DepthBatcher
from modeling.encoder import attention_mask_of
from modeling.errors import UserError
from modeling.graphs import inference_copy, rounded_length
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
    """Answer every example by `run`, in inference mode: with packed weights, or graphs on a GPU.

    run: how the mode runs over a data set (`Mode.run`), or another way to go through it. Each of
    several processes answers every n-th example, and gets the answers of all.
    """
    rank, process_count = processes()
    shard = job.features.take(slice(rank, None, process_count))
    predictions = Predictions()
    job = replace(job, model=inference_copy(job.model.eval(), job.compile))
    if job.model.device.type != "cpu" and job.file is None:
        warm_up(job, shard, run)
    start = time.perf_counter()
    hides_bar = True if rank > 0 else None  # None: where stderr is no terminal
    with (
        torch.inference_mode(),
        progress(desc=title, total=len(shard), unit="example", disable=hides_bar) as bar,
    ):
        for rows, values in run(job, shard):
            predictions.put(rows, values, len(shard))
            bar.update(len(rows))
    graphs = getattr(job.model, "graphs", None)
    if graphs is not None:
        graphs.forget()  # a GPU's memory is free again, for a training to go on
    if process_count > 1:
        shards = gather_object([dict(predictions)])  # in the order of the processes
        predictions = Predictions()
        for shard_rank, answers in enumerate(shards):
            places = slice(shard_rank, None, process_count)
            predictions.put(places, answers, len(job.features))
    predictions.wall_seconds = time.perf_counter() - start
    return predictions


def warm_up(job: Job, features: Features, run: Run) -> None:
    """Answer some examples of every length, so that no measured answer waits for a start-up.

    With its first calls a GPU's libraries load their code, and graphs are captured.
    """
    rows = warm_up_rows(features.lengths.tolist(), job.batch_size, job.config)
    with torch.inference_mode():
        for _ in run(job, features.take(rows)):
            pass


def warm_up_rows(lengths: Sequence[int], batch_size: int, config: Any) -> list[int]:
    """Choose a batch of examples of every length to which graphs round up."""
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rounded = rounded_length(length, config.max_position_embeddings)
        by_length.setdefault(rounded, []).append(row)
    return [row for rows in by_length.values() for row in rows[:batch_size]]


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

    all_logits: (layers, examples, num_labels), 0 at a layer without an exit; seconds: (examples,
    layers), from the start of the batch to the layer's answer; the model's signals (`LayerOutput`),
    (examples, layers) each; and the model's own inputs, (examples,) each.

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
    hidden = model.first_states(batch["input_ids"], batch["token_type_ids"])
    mask = attention_mask_of(batch.get("attention_mask"))
    own_inputs = {name: batch[name] for name in model.config.own_inputs if name in batch}
    outputs: list[dict[str, Tensor]] = []  # of each layer
    seconds = []
    for step in iter_layers(model, hidden, mask, own_inputs, allow_exit=False):
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        # Copies, since a step's tensors hold until the next one.
        seen = step.decision.seen
        layer = {"all_logits": seen.logits.clone()}
        for name, signal in seen.signals.items():
            layer[name] = signal.clone()
        outputs.append(layer)
        seconds.append(time.perf_counter() - start)
    recorded = {}
    for name, of_last_layer in outputs[-1].items():
        nothing = torch.zeros_like(of_last_layer)  # a layer without an exit has no signals
        recorded[name] = torch.stack([layer.get(name, nothing) for layer in outputs], 1)
    recorded["seconds"] = torch.tensor(seconds).repeat(len(rows), 1)
    return recorded
