"""Running an adaptive-depth model over a data set: answers, updates of every token, and time."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from evaluation.early_exit import batches_of, inputs_of
from evaluation.figures import save_figure
from evaluation.job import Job
from evaluation.processes import gathered, is_main, my_part
from evaluation.results import labels_of, latency_of, predictions_of, print_summary
from evaluation.token_pictures import TokenExample, tokens_figure, tokens_html
from glue.features import Features
from glue.files import write_text
from glue.tasks import compute_metrics, label_text
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


def run_adaptive(job: Job) -> UpdateRecord:
    """Answer every example; processes take examples in turn, all get all answers.

    Batch size 1, the reporting default, goes in input order and never pads; larger batches hold
    neighbours in length. The answers are the same.
    """
    features, model = my_part(job.features), job.model.eval()
    count, longest = len(features), int(job.features.lengths.max())
    logits = torch.empty(count, model.config.num_labels)
    updates = torch.zeros(count, longest, dtype=torch.int16)
    seconds = torch.empty(count, dtype=torch.double)
    with packed_weights(model):
        batches = list(batches_of(features, job.batch_size))
        for rows in tqdm(batches, desc="Evaluating", unit="batch", disable=not is_main()):
            batch = inputs_of(job, features, rows)
            start = time.perf_counter()
            out = job.runner(**batch)
            logits[rows] = out.logits.float().cpu()  # waits for the device
            seconds[rows] = time.perf_counter() - start
            counts = out.updates.reshape(len(rows), -1)  # a file's are (batch, length)
            updates[rows, : counts.shape[1]] = counts.short().cpu()
    return UpdateRecord(*(gathered(t, len(job.features)) for t in (logits, updates, seconds)))


def updates_by_class(
    features: Features, updates: torch.Tensor, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Mean updates of [CLS], of [SEP], and of all other tokens."""
    real = torch.arange(updates.shape[1]) < torch.as_tensor(features.lengths)[:, None]
    counts, ids = updates[real].numpy(), features.tokens  # (tokens,), text after text
    cls, sep = ids == tokenizer.cls_token_id, ids == tokenizer.sep_token_id
    found = {"[CLS]": cls, "[SEP]": sep, "others": ~(cls | sep)}
    return {name: float(counts[chosen].mean()) for name, chosen in found.items() if chosen.any()}


def summarise_updates(job: Job, record: UpdateRecord) -> dict[str, Any]:
    """Metrics, updates over their maximum, updates per token class, FLOPs ratio and latency.

    The computation cost is the mean number of updates of a token over the maximum.
    """
    config, labels = job.model.config, labels_of(job.features)
    maximum, lengths = config.num_hidden_layers, job.features.lengths.tolist()
    per_text = record.updates.sum(1).tolist()
    spent = [adaptive_flops(config, n, u) for n, u in zip(lengths, per_text, strict=True)]
    full = [adaptive_flops(config, n, n * maximum) for n in lengths]
    mean = sum(per_text) / sum(lengths)
    return {
        "task": job.task.name,
        "examples": len(labels),
        "metrics": compute_metrics(job.task, predictions_of(record.logits), labels),
        "computation_cost": mean / maximum,
        "mean_updates": mean,
        "maximum_updates": maximum,
        "updates_per_token_class": updates_by_class(job.features, record.updates, job.tokenizer),
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


def token_examples(job: Job, record: UpdateRecord) -> list[TokenExample]:
    """The first examples, as tokens.html shows them."""
    answers, labels = predictions_of(record.logits), labels_of(job.features)
    shown = min(PICTURED, len(labels))
    return [
        TokenExample(
            job.tokenizer.convert_ids_to_tokens(ids),
            record.updates[row, : len(ids)].tolist(),
            job.model.config.num_hidden_layers,
            label_text(job.task, answers[row]),
            label_text(job.task, labels[row]),
        )
        for row, ids in enumerate(map(job.features.input_ids, range(shown)))
    ]


def draw_tokens(directory: Path, job: Job, record: UpdateRecord) -> None:
    """tokens.html and tokens.png."""
    pictured = token_examples(job, record)
    write_text(directory / "tokens.html", tokens_html(pictured))
    save_figure(tokens_figure(pictured), directory / "tokens.png")
