"""Running an adaptive-depth model over a data set: answers, updates of every token, and time."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from evaluation.figures import save_figure
from evaluation.running import (
    append_results,
    gathered,
    labels_of,
    latency_of,
    my_part,
    predictions_of,
    print_summary,
    processes,
    to_device,
)
from evaluation.token_pictures import TokenExample, tokens_figure, tokens_html
from glue.features import Features, collate, sorted_batches
from glue.files import write_json, write_text
from glue.tasks import Task, compute_metrics, label_text
from modeling import AlbertActForSequenceClassification
from modeling.cpu_packing import packed_weights
from modeling.flops import adaptive_flops

PICTURED = 20  # examples in tokens.html and tokens.png


class UpdateRecord(NamedTuple):
    """What an adaptive-depth model answered, in input order."""

    logits: torch.Tensor  # (examples, num_labels)
    updates: torch.Tensor  # (examples, length of the longest) int16, 0 on padding
    seconds: torch.Tensor  # (examples,), of the call that answered the example

    def details(self) -> dict[str, list[str]]:
        """Columns of predictions.tsv."""
        means = self.updates.sum(1) / (self.updates > 0).sum(1)
        return {"mean_updates": [f"{mean:.4f}" for mean in means.tolist()]}


def run_adaptive(
    model: AlbertActForSequenceClassification,
    features: Features,
    batch_size: int,
    pad_token_id: int,
) -> UpdateRecord:
    """Answer every example; processes take examples in turn, all get all answers.

    Batch size 1, the reporting default, goes in input order and never pads; larger batches hold
    neighbours in length. The answers are the same.
    """
    count, longest = len(features.input_ids), max(features.lengths)
    features = my_part(features)
    mine = len(features.input_ids)
    logits = torch.empty(mine, model.config.num_labels)
    updates = torch.zeros(mine, longest, dtype=torch.int16)
    seconds = torch.empty(mine, dtype=torch.double)
    model.eval()
    batches = list(batches_of(features, batch_size))
    with packed_weights(model):
        for rows in tqdm(batches, desc="Evaluating", unit="batch", disable=processes()[0] > 0):
            batch = to_device(collate(features, rows, pad_token_id), model.device)
            batch.pop("labels", None)
            start = time.perf_counter()
            out = model(**batch)
            logits[rows] = out.logits.float().cpu()  # waits for the device
            seconds[rows] = time.perf_counter() - start
            updates[rows, : out.updates.shape[-1]] = out.updates[:, 0, 0].short().cpu()
    return UpdateRecord(*(gathered(tensor, count) for tensor in (logits, updates, seconds)))


def batches_of(features: Features, batch_size: int) -> Iterator[list[int]]:
    if batch_size == 1:
        return ([row] for row in range(len(features.input_ids)))
    return sorted_batches(features.lengths, batch_size)


def updates_by_class(
    features: Features, updates: torch.Tensor, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Mean updates of [CLS], of [SEP], and of all other tokens."""
    names = {tokenizer.cls_token_id: "[CLS]", tokenizer.sep_token_id: "[SEP]"}
    found: dict[str, list[int]] = {"[CLS]": [], "[SEP]": [], "others": []}
    for ids, counts in zip(features.input_ids, updates.tolist(), strict=True):
        for token, number in zip(ids, counts, strict=False):  # padding comes last
            found[names.get(token, "others")].append(number)
    return {name: float(np.mean(numbers)) for name, numbers in found.items() if numbers}


def summarise_updates(
    model: AlbertActForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    features: Features,
    record: UpdateRecord,
) -> dict[str, Any]:
    """Metrics, updates over their maximum, updates per token class, FLOPs ratio and latency.

    The computation cost is the mean number of updates of a token over the maximum.
    """
    config = model.config
    maximum, lengths = config.num_hidden_layers, features.lengths
    per_text = record.updates.sum(1).tolist()
    spent = [adaptive_flops(config, n, u) for n, u in zip(lengths, per_text, strict=True)]
    full = [adaptive_flops(config, n, n * maximum) for n in lengths]
    mean = sum(per_text) / sum(lengths)
    return {
        "task": task.name,
        "examples": len(features.labels),
        "metrics": compute_metrics(task, predictions_of(record.logits), labels_of(features)),
        "computation_cost": mean / maximum,
        "mean_updates": mean,
        "maximum_updates": maximum,
        "updates_per_token_class": updates_by_class(features, record.updates, tokenizer),
        "tokens_per_updates": np.bincount(
            record.updates[record.updates > 0].numpy(), minlength=maximum + 1
        )[1:].tolist(),
        "flops_ratio": sum(spent) / sum(full),
        "latency_ms": latency_of(record.seconds),
        "rule": config.exit_keys(),
    }


def print_updates(summary: dict[str, Any], prefix: str = "") -> None:
    """The closing lines, in the form of those of early exit."""
    by_class = summary["updates_per_token_class"].items()
    print_summary(
        summary,
        prefix,
        [
            f"mean updates = {summary['mean_updates']:.2f} of {summary['maximum_updates']}",
            *(f"mean updates of {name} = {mean:.2f}" for name, mean in by_class),
        ],
    )


def token_examples(
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    features: Features,
    record: UpdateRecord,
    maximum: int,
) -> list[TokenExample]:
    """The first examples, as tokens.html shows them."""
    answers = predictions_of(record.logits)
    return [
        TokenExample(
            tokenizer.convert_ids_to_tokens(ids),
            record.updates[row, : len(ids)].tolist(),
            maximum,
            label_text(task, answers[row]),
            label_text(task, features.labels[row]),
        )
        for row, ids in enumerate(features.input_ids[:PICTURED])
    ]


def write_update_reports(
    directory: Path, summary: dict[str, Any], pictured: Sequence[TokenExample], out_mode: str
) -> None:
    """eval_results.txt and .json, tokens.html and tokens.png."""
    append_results(directory / "eval_results.txt", summary, out_mode)
    write_json(directory / "eval_results.json", summary)
    write_text(directory / "tokens.html", tokens_html(pictured))
    save_figure(tokens_figure(pictured), directory / "tokens.png")
