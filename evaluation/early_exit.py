"""Running a model whose examples exit, one by one or in batches, and recording all its layers."""

import time

import torch

from evaluation.job import Job
from evaluation.predictions import Predictions, Rows, inputs_of, sharded
from glue.features import Features
from modeling.albert import attention_mask_of
from modeling.depth import iter_layers
from modeling.depth_batching import DepthBatcher
from modeling.rules import ExitRule


def run_early_exit(job: Job) -> Predictions:
    """Answer every example with early exit: logits, exit_layer and seconds.

    Batch size 1, the reporting default, goes in input order and never pads; above it, `batch_size`
    slots are kept full by depth batching (an exported file gets neighbours in length). The answers
    are the same, also where exits are sampled: every example brings its own draw.
    """
    run = job.file or job.model.exits
    with sharded(job) as predictions:
        if job.batch_size > 1 and not job.file:
            answer_in_slots(job, predictions)
            return predictions
        for rows in predictions.batches(job.batch_size):
            batch = inputs_of(job, predictions.features, rows)
            start = time.perf_counter()
            out = run(**batch)
            exit_layer = out.exit_layer.cpu()  # waits for the device
            seconds = torch.full((len(rows),), time.perf_counter() - start, dtype=torch.double)
            predictions.add(rows, logits=out.answer, exit_layer=exit_layer, seconds=seconds)
    return predictions


def answer_in_slots(job: Job, predictions: Predictions) -> None:
    """Add the answers of depth batching, in order of completion."""
    model, features = job.model, predictions.features
    batcher = DepthBatcher(model, slots=job.batch_size, pad_token_id=job.tokenizer.pad_token_id)
    rows = range(len(features))
    texts = map(features.input_ids, rows), map(features.token_type_ids, rows)
    own = [features.inputs[name] for name in model.own_inputs if name in features.inputs]
    batcher.submit(zip(*texts, *own, strict=True))
    for answer in batcher.answers():
        seconds = torch.tensor([answer.seconds], dtype=torch.double)
        values = {"logits": answer.logits[None], "exit_layer": [answer.exit_layer]}
        predictions.add([answer.row], **values, seconds=seconds)


def record_layers(job: Job, batch_size: int = 1, rule: ExitRule | None = None) -> Predictions:
    """Record what every layer says of every example, float32, and what else the mode's rules read.

    all_logits: (layers, examples, num_labels), what an exit would answer under `rule`, by default
    the configured one; seconds: (examples, layers), from the start of the batch to the layer's
    answer; halt_probabilities, (examples, layers), of a model that has them; and the model's own
    inputs, (examples,) each.

    Goes through the depths as inference does, with the exit check after each, so that at batch
    size 1 the answers are those of an early-exit run to the last bit. Larger batches are faster
    and differ in that bit, which a setting exactly at a tie can show.
    """
    with sharded(job, "All layers") as predictions:
        for rows in predictions.batches(batch_size):
            predictions.add(rows, **layers_of(job, predictions.features, rows, rule))
    predictions["all_logits"] = predictions["all_logits"].transpose(0, 1).contiguous()
    for name, column in job.features.inputs.items():
        predictions[name] = torch.as_tensor(column)
    return predictions


def layers_of(
    job: Job, features: Features, rows: Rows, rule: ExitRule | None
) -> dict[str, torch.Tensor]:
    """All layers' answers to a batch, and λ where there is one: (batch, layers, …) each."""
    model, batch = job.model, inputs_of(job, features, rows)
    start = time.perf_counter()
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    mask = attention_mask_of(batch.get("attention_mask"))
    own = {name: batch[name] for name in model.own_inputs if name in batch}
    decisions, seconds = [], []
    for _, decision, _ in iter_layers(model, hidden, mask, own, allow_exit=False, rule=rule):
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        decisions.append(decision)
        seconds.append(time.perf_counter() - start)
    recorded = {
        "all_logits": torch.stack([decision.answer for decision in decisions], 1),
        "seconds": torch.tensor(seconds).repeat(len(rows), 1),
    }
    if decisions[0].seen.halt_probability is not None:
        halts = [decision.seen.halt_probability for decision in decisions]
        recorded["halt_probabilities"] = torch.stack(halts, 1)
    return recorded
