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
from torch import Tensor
from torch.nn import functional as F

from evaluation.measures import labels_of, metrics_of, predictions_of
from evaluation.metric import MetricAtCost
from evaluation.modes.base import DevEvaluation, Mode
from evaluation.predict import Batches, Predictions, answers_in_batches, is_main, run_all
from evaluation.report import Report, ReportFile
from evaluation.summary import DepthSummary, summarise
from glue.features import Features
from glue.submission import label_text
from modeling.act.heads import AlbertActForSequenceClassification
from modeling.errors import UserError
from modeling.export.loops import TokenLoop
from modeling.loading.tokenizers import WORD_START
from runs.job import Job

PAGE_TEMPLATE = Path(__file__).parent / "tokens_template.html"
EXAMPLES_ON_PAGE = 100


@dataclass(frozen=True)
class UpdateSummary(DepthSummary):
    """How often tokens are updated. The cost is the mean number of updates over the maximum."""

    mean_updates: float
    maximum_updates: int
    updates_per_token_class: dict[str, float]  # means, of [CLS], [SEP] and the others
    tokens_per_updates: list[int]  # how many tokens had 1, 2, … updates

    def as_json(self) -> dict[str, Any]:
        return {
            "computation_cost": self.computation_cost,
            "mean_updates": self.mean_updates,
            "maximum_updates": self.maximum_updates,
            "updates_per_token_class": self.updates_per_token_class,
            "tokens_per_updates": self.tokens_per_updates,
            "flops_ratio": self.flops_ratio,
        }

    def lines(self) -> list[str]:
        """Write lines for the console."""
        lines = [f"mean updates = {self.mean_updates:.2f} of {self.maximum_updates}"]
        for name, mean in self.updates_per_token_class.items():
            lines.append(f"mean updates of {name} = {mean:.2f}")
        return lines


class AdaptiveDepth(Mode):
    """Adaptive Depth: tokens are updated until a learned halting probability stops them."""

    runs = AlbertActForSequenceClassification

    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Return ponder cost, mean over the batch; updates, mean over its tokens; task loss."""
        ponder_cost = out.ponder_cost.mean()
        tokens = (out.updates > 0).sum()  # padding is never updated
        return {
            "ponder_cost": ponder_cost.item(),
            "mean_updates": (out.updates.sum() / tokens).item(),
            "task_loss": (out.loss - model.config.tau * ponder_cost).item(),
        }

    def evaluate_dev(self, job: Job, metric: MetricAtCost) -> DevEvaluation:
        """Measure the metrics and the computation cost."""
        predictions = run_all(job, self.run)
        metrics = metrics_of(job.task, predictions["logits"], labels_of(job.features))
        main_metric = job.task.primary_metric
        values = {
            f"eval_{main_metric}": metrics[main_metric],
            "eval_computation_cost": update_summary(job, predictions).computation_cost,
        }
        return DevEvaluation(scalars=values, line=values, value=metrics[metric.name])

    def export_loop(self, model: Any, layer_logits: bool = False) -> TokenLoop:
        if layer_logits:
            raise UserError(
                "--layer_logits: a model with adaptive depth has one answer, after the last "
                "update; leave the flag out"
            )
        return TokenLoop(model)

    def run(self, job: Job, features: Features) -> Batches:
        """Answer batches of neighbours in length, by the model or an ONNX file."""
        longest = int(job.features.lengths.max())  # over the examples of all processes
        updates = partial(token_updates, longest=longest)
        return answers_in_batches(job, features, job.file or job.model, updates)

    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        updates = predictions["updates"]
        means = updates.sum(1) / (updates > 0).sum(1)  # over the tokens of each example
        return {"mean_updates": [f"{mean:.4f}" for mean in means.tolist()]}

    def evaluate(
        self,
        job: Job,
        folder: Path,
        trained: Path,
        dtype: str,
        full_depth: bool = True,
        statistics_dir: Path | None = None,
        groups: Sequence[str] | None = None,
    ) -> Report:
        """Report how often tokens are updated, and the cost; see `Mode.evaluate`.

        There are no layers to record, and no statistics of them.
        """
        fast_job = job.in_type(dtype)
        predictions = run_all(fast_job, self.run)
        depth = update_summary(fast_job, predictions)
        summary = summarise(fast_job, predictions, depth, self.latency_means(fast_job))
        if not is_main():
            return Report(summary)
        page = tokens_page(job, predictions, depth)
        return Report(
            summary,
            depth.lines(),
            files=[ReportFile(folder / "tokens.html", page, owner=folder)],
        )


def token_updates(out: Any, longest: int) -> dict[str, Tensor]:
    """Return each token's updates of a batch, (batch, longest), 0 on padding."""
    # (batch, 1, 1, length) from a model, (batch, length) from a file.
    updates = out.updates.reshape(len(out.logits), -1).short()
    return {"updates": F.pad(updates, (0, longest - updates.shape[1])).cpu()}


def update_summary(job: Job, predictions: Predictions) -> UpdateSummary:
    """Summarise how often tokens are updated."""
    config = job.config
    lengths = job.features.lengths
    maximum = config.num_hidden_layers
    updates = predictions["updates"]  # (examples, length of the longest)
    updates_per_example = updates.sum(1).tolist()
    flops = sum(map(config.adaptive_flops, lengths.tolist(), updates_per_example))
    full_flops = sum(config.adaptive_flops(length, length * maximum) for length in lengths.tolist())
    mean_updates = sum(updates_per_example) / int(lengths.sum())
    # All tokens, example after example.
    is_real = torch.arange(updates.shape[1]) < torch.as_tensor(lengths)[:, None]
    token_counts = updates[is_real]
    ids = np.concatenate(job.features.input_ids)
    is_cls = ids == job.tokenizer.cls_token_id
    is_sep = ids == job.tokenizer.sep_token_id
    means = {}
    for name, members in (("[CLS]", is_cls), ("[SEP]", is_sep), ("others", ~(is_cls | is_sep))):
        if members.any():
            means[name] = float(token_counts.numpy()[members].mean())
    return UpdateSummary(
        computation_cost=mean_updates / maximum,
        flops_ratio=flops / full_flops,
        mean_updates=mean_updates,
        maximum_updates=maximum,
        updates_per_token_class=means,
        tokens_per_updates=token_counts.bincount(minlength=maximum + 1)[1:].tolist(),
    )


def tokens_page(job: Job, predictions: Predictions, depth: UpdateSummary) -> str:
    """Make tokens.html: the first texts as the model read them, tokens coloured by their updates.

    The page needs no other file. Colours go from the lowest to the highest number of updates that
    any token has.
    """
    answers = predictions_of(predictions["logits"])
    labels = labels_of(job.features)
    sections = []
    for row, ids in enumerate(job.features.input_ids[:EXAMPLES_ON_PAGE]):
        section = token_section(
            tokens=job.tokenizer.convert_ids_to_tokens(ids.tolist()),
            updates=predictions["updates"][row, : len(ids)].tolist(),
            maximum=depth.maximum_updates,
            answer=label_text(job.task, answers[row]),
            label=label_text(job.task, labels[row]),
        )
        sections.append(section)
    numbers = 1 + np.flatnonzero(depth.tokens_per_updates)  # of updates that some token has
    template = Template(PAGE_TEMPLATE.read_text("utf-8"))
    return template.substitute(low=numbers[0], high=numbers[-1], examples="\n".join(sections))


def token_section(
    tokens: Sequence[str], updates: Sequence[float], maximum: int, answer: str, label: str
) -> str:
    """Format an example as HTML: a heading with its answer and cost; each token over its updates.

    tokens: as the tokenizer spells them. updates: of each token, at most `maximum`.
    """
    spans = []
    for token, count in zip(tokens, updates, strict=True):
        text = token.removeprefix(WORD_START)
        begins_word = text != token or token.startswith("[")  # [CLS] and the like
        word = ' class="word"' if begins_word else ""
        spans.append(
            f'<span{word} style="--n:{count:g}" title="{count:g} of {maximum} updates">'
            f"{html.escape(text or token)}<small>{count:g}</small></span>"
        )
    heading = html.escape(
        f"answer: {answer}, label: {label}; {np.mean(updates):.1f} of {maximum} updates a token"
    )
    return f"<section>\n<h2>{heading}</h2>\n<div>{''.join(spans)}</div>\n</section>"
