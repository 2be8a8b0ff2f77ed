"""Adaptive Depth, `--model_type albert_act`: a learned halting probability stops each token."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from evaluation.job import Job
from evaluation.modes.base import Mode
from evaluation.predictions import Predictions, run_all
from evaluation.results import Report, labels_of, predictions_of, summary_of
from glue.tasks import label_text
from modeling.act.heads import AlbertActForSequenceClassification
from modeling.errors import UserError
from modeling.export.loops import TokenLoop
from modeling.loading.tokenizers import WORD_START
from training.fine_tuning import MetricAtCost
from utils.files import write_text

ON_PAGE = 100  # examples in tokens.html


class AdaptiveDepth(Mode):
    """A learned halting probability an update stops a token."""

    runs = AlbertActForSequenceClassification

    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Ponder cost, mean over the batch; updates, mean over its tokens."""
        updates, cost = out.updates, out.ponder_cost.mean()
        return {
            "ponder_cost": cost.item(),
            "mean_updates": (updates.sum() / (updates > 0).sum()).item(),
            "task_loss": (out.loss - model.config.tau * cost).item(),
        }

    def dev_scalars(
        self, job: Job, metric: MetricAtCost
    ) -> tuple[dict[str, float], dict[str, Any], float]:
        """The main metric and the computation cost."""
        summary, name = summarise_updates(job, run_all(job)), job.task.primary_metric
        values = {
            f"eval_{name}": summary["metrics"][name],
            "eval_computation_cost": summary["computation_cost"],
        }
        return values, values, summary["metrics"][metric.name]

    def export_loop(self, model: Any, layer_logits: bool = False) -> TokenLoop:
        if layer_logits:
            raise UserError(
                "--layer_logits: of Adaptive Depth there is one answer, after the last update; "
                "leave the flag out"
            )
        return TokenLoop(model)

    def other_outputs(self, out: Any, longest: int) -> dict[str, torch.Tensor]:
        updates = out.updates.reshape(len(out.logits), -1).short()  # a file's: (rows, length)
        return {"updates": F.pad(updates, (0, longest - updates.shape[1])).cpu()}

    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        updates = predictions["updates"]
        means = updates.sum(1) / (updates > 0).sum(1)
        return {"mean_updates": [f"{mean:.4f}" for mean in means.tolist()]}

    def evaluate(self, job: Job, folder: Path, trained: Path) -> Report:
        """Report how often tokens are updated, and the cost."""
        fast, page = job.for_inference(), folder / "tokens.html"
        predictions = run_all(fast)
        summary = summarise_updates(fast, predictions)
        by_class = summary["updates_per_token_class"].items()
        lines = [
            f"mean updates = {summary['mean_updates']:.2f} of {summary['maximum_updates']}",
            *(f"mean updates of {name} = {mean:.2f}" for name, mean in by_class),
        ]
        files = {page: partial(write_tokens, page, job, predictions, summary)}
        return Report(summary, lines, files)


def summarise_updates(job: Job, predictions: Predictions) -> dict[str, Any]:
    """Metrics, updates over their maximum, updates per token class, FLOPs ratio and latency.

    The computation cost is the mean number of updates of a token over the maximum.
    """
    config, lengths = job.model.config, job.features.lengths.tolist()
    maximum, updates = config.num_hidden_layers, predictions["updates"]
    per_text = updates.sum(1).tolist()
    spent = [config.adaptive_flops(n, u) for n, u in zip(lengths, per_text, strict=True)]
    full = [config.adaptive_flops(n, n * maximum) for n in lengths]
    mean = sum(per_text) / sum(lengths)
    real = torch.arange(updates.shape[1]) < torch.as_tensor(job.features.lengths)[:, None]
    counts, ids = updates[real], np.concatenate(job.features.input_ids)  # text after text
    cls, sep = ids == job.tokenizer.cls_token_id, ids == job.tokenizer.sep_token_id
    classes = {"[CLS]": cls, "[SEP]": sep, "others": ~(cls | sep)}
    return {
        **summary_of(job, predictions),
        "computation_cost": mean / maximum,
        "mean_updates": mean,
        "maximum_updates": maximum,
        "updates_per_token_class": {
            name: float(counts.numpy()[chosen].mean())
            for name, chosen in classes.items()
            if chosen.any()
        },
        "tokens_per_updates": counts.bincount(minlength=maximum + 1)[1:].tolist(),
        "flops_ratio": sum(spent) / sum(full),
    }


def write_tokens(page: Path, job: Job, predictions: Predictions, summary: dict[str, Any]) -> None:
    """Write tokens.html, which needs nothing else: the first texts as the model read them, each
    token coloured by its number of updates.

    Colours go from the lowest to the highest number that any token has.
    """
    answers, labels = predictions_of(predictions["logits"]), labels_of(job.features)
    maximum, sections = summary["maximum_updates"], []
    for row, ids in enumerate(job.features.input_ids[:ON_PAGE]):
        tokens = job.tokenizer.convert_ids_to_tokens(ids)
        updates = predictions["updates"][row, : len(ids)].tolist()
        texts = [label_text(job.task, found[row]) for found in (answers, labels)]
        sections.append(token_section(tokens, updates, maximum, texts))
    taken = np.flatnonzero([0, *summary["tokens_per_updates"]])
    template = Template((Path(__file__).parents[1] / "tokens_template.html").read_text("utf-8"))
    text = template.substitute(low=taken[0], high=taken[-1], examples="\n".join(sections))
    write_text(page, text, listed_in=page.parent)


def token_section(
    tokens: Sequence[str], updates: Sequence[float], maximum: int, texts: Sequence[str]
) -> str:
    """Format an example as HTML: a heading with its cost and `texts`, which are answer and label;
    each token over its updates."""
    spans = []
    for token, number in zip(tokens, updates, strict=True):
        text = token.removeprefix(WORD_START)
        word = ' class="word"' if text != token or token.startswith("[") else ""
        spans.append(
            f'<span{word} style="--n:{number:g}" title="{number:g} of {maximum} updates">'
            f"{html.escape(text or token)}<small>{number:g}</small></span>"
        )
    heading = html.escape(
        f"answer: {texts[0]}, label: {texts[1]}; "
        f"{np.mean(updates):.1f} of {maximum} updates a token"
    )
    return f"<section>\n<h2>{heading}</h2>\n<div>{''.join(spans)}</div>\n</section>"
