"""Adaptive Depth, `--model_type albert_act`: a learned halting probability stops each token."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from answers.metric import MetricAtCost
from answers.predict import Batches, Predictions, answers_in_batches, run_all
from answers.report import DepthSummary, Report, labels_of, metrics_of, predictions_of, summarise
from elbert.act.heads import AlbertActForSequenceClassification
from elbert.export.loops import TokenLoop
from elbert.loading.tokenizers import WORD_START
from elbert_base.errors import UserError
from glue.features import Features
from glue.tasks import label_text
from modes.base import DevEvaluation, Mode
from runs.files import RunFolder
from runs.job import Job

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

    def evaluate_dev(self, job: Job, metric: MetricAtCost) -> DevEvaluation:
        """Measure the metrics and the computation cost."""
        predictions = run_all(job, self.run)
        metrics = metrics_of(job.task, predictions["logits"], labels_of(job.features))
        name = job.task.primary_metric
        values = {
            f"eval_{name}": metrics[name],
            "eval_computation_cost": update_summary(job, predictions).computation_cost,
        }
        return DevEvaluation(values, values, metrics[metric.name])

    def export_loop(self, model: Any, layer_logits: bool = False) -> TokenLoop:
        if layer_logits:
            raise UserError(
                "--layer_logits: of Adaptive Depth there is one answer, after the last update; "
                "leave the flag out"
            )
        return TokenLoop(model)

    def run(self, job: Job, features: Features) -> Batches:
        """Answer batches of neighbours in length, by the model or an exported file."""
        longest = int(job.features.lengths.max())  # over the examples of all processes
        updates = partial(token_updates, longest=longest)
        return answers_in_batches(job, features, job.file or job.model, updates)

    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        updates = predictions["updates"]
        means = updates.sum(1) / (updates > 0).sum(1)
        return {"mean_updates": [f"{mean:.4f}" for mean in means.tolist()]}

    def evaluate(
        self,
        job: Job,
        folder: Path,
        trained: Path,
        dtype: str,
        full_depth: bool = True,
        statistics_dir: Path | None = None,
    ) -> Report:
        """Report how often tokens are updated, and the cost; see `Mode.evaluate`."""
        fast, page = job.in_type(dtype), folder / "tokens.html"
        predictions = run_all(fast, self.run)
        depth = update_summary(fast, predictions)
        summary = summarise(fast, predictions, depth, self.latency_means(fast))
        files = {page: partial(write_tokens, page, job, predictions, depth)}
        return Report(summary, depth.lines(), files)


def token_updates(out: Any, longest: int) -> dict[str, torch.Tensor]:
    """Return each token's updates of a batch, (batch, longest), 0 on padding."""
    updates = out.updates.reshape(len(out.logits), -1).short()  # a file's: (rows, length)
    return {"updates": F.pad(updates, (0, longest - updates.shape[1])).cpu()}


@dataclass(frozen=True)
class UpdateSummary(DepthSummary):
    """How often tokens are updated. The cost is the mean number of updates over the maximum."""

    mean_updates: float
    maximum_updates: int
    updates_per_token_class: dict[str, float]  # means, of [CLS], [SEP] and the others
    tokens_per_updates: list[int]  # how many tokens had 1, 2, … updates

    def lines(self) -> list[str]:
        """Write lines for the console."""
        lines = [f"mean updates = {self.mean_updates:.2f} of {self.maximum_updates}"]
        for name, mean in self.updates_per_token_class.items():
            lines.append(f"mean updates of {name} = {mean:.2f}")
        return lines


def update_summary(job: Job, predictions: Predictions) -> UpdateSummary:
    """Summarise how often tokens are updated."""
    config, lengths = job.model.config, job.features.lengths
    maximum, updates = config.num_hidden_layers, predictions["updates"]
    per_text = updates.sum(1).tolist()
    used = sum(map(config.adaptive_flops, lengths.tolist(), per_text))
    full = sum(config.adaptive_flops(n, n * maximum) for n in lengths.tolist())
    mean = sum(per_text) / int(lengths.sum())
    is_real = torch.arange(updates.shape[1]) < torch.as_tensor(lengths)[:, None]
    counts = updates[is_real]  # of all tokens, text after text
    ids = np.concatenate(job.features.input_ids)
    is_cls, is_sep = ids == job.tokenizer.cls_token_id, ids == job.tokenizer.sep_token_id
    token_classes = {"[CLS]": is_cls, "[SEP]": is_sep, "others": ~(is_cls | is_sep)}
    return UpdateSummary(
        computation_cost=mean / maximum,
        flops_ratio=used / full,
        mean_updates=mean,
        maximum_updates=maximum,
        updates_per_token_class={
            name: float(counts.numpy()[members].mean())
            for name, members in token_classes.items()
            if members.any()
        },
        tokens_per_updates=counts.bincount(minlength=maximum + 1)[1:].tolist(),
    )


def write_tokens(page: Path, job: Job, predictions: Predictions, depth: UpdateSummary) -> None:
    """Write tokens.html, which needs nothing else: the first texts as the model read them, each
    token coloured by its number of updates.

    Colours go from the lowest to the highest number that any token has.
    """
    answers, labels = predictions_of(predictions["logits"]), labels_of(job.features)
    maximum, sections = depth.maximum_updates, []
    for row, ids in enumerate(job.features.input_ids[:ON_PAGE]):
        tokens = job.tokenizer.convert_ids_to_tokens(ids.tolist())
        updates = predictions["updates"][row, : len(ids)].tolist()
        texts = [label_text(job.task, found[row]) for found in (answers, labels)]
        sections.append(token_section(tokens, updates, maximum, texts))
    taken = np.flatnonzero([0, *depth.tokens_per_updates])
    template = Template((Path(__file__).parent / "tokens_template.html").read_text("utf-8"))
    text = template.substitute(low=taken[0], high=taken[-1], examples="\n".join(sections))
    RunFolder(page.parent).write_text(page.name, text)


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
