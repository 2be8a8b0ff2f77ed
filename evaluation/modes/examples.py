"""What the modes share whose whole examples stop: they run, report and record alike."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from evaluation.early_exit import record_layers, run_early_exit
from evaluation.exit_reports import (
    against_all_layers,
    draw_exits,
    print_results,
    summarise,
    write_statistics,
)
from evaluation.job import Job, ResultPaths
from evaluation.modes.base import Mode
from evaluation.predictions import Predictions, is_main
from evaluation.results import layer_curve, print_written, write_results
from glue.tasks import primary_metric
from modeling.export.loops import DepthLoop
from modeling.rules import NeverExits
from training.provenance import STATISTICS, remove
from utils.files import run_all_then_raise

if TYPE_CHECKING:
    from evaluation.dev import SelectionMetric


class ExampleMode(Mode):
    """A mode whose model implements `modeling.depth`'s protocol and whose rules can be swept."""

    in_slots = True

    def dev_scalars(
        self, job: Job, goal: SelectionMetric
    ) -> tuple[dict[str, float], dict[str, Any], float]:
        """The main metric of every layer."""
        name, recorded = f"eval_{primary_metric(job.task)}", record_layers(job, job.batch_size)
        curve = layer_curve(job, recorded["all_logits"])
        scalars = {f"{name}/layer_{i}": value for i, value in enumerate(curve, 1)}
        return scalars, {f"{name}_per_layer": curve}, goal.value(job, recorded)

    def export_loop(self, model: PreTrainedModel, layer_logits: bool = False) -> DepthLoop:
        return DepthLoop(model, model.config.exit_rule().inputs, layer_logits)

    run = staticmethod(run_early_exit)

    def details(self, predictions: Predictions) -> dict[str, list[int]]:
        return {"exit_layer": predictions["exit_layer"].tolist()}

    def record(self, job: Job) -> dict[str, torch.Tensor]:
        return record_layers(job, job.batch_size, NeverExits())

    def evaluate(self, job: Job, paths: ResultPaths) -> dict[str, Any]:
        """Where examples leave, at which cost, and what every layer would answer."""
        recorded = None if job.skip_full_depth else record_layers(job, batch_size=32)
        fast = job.for_inference()
        predictions = self.run(fast)
        summary = summarise(fast, predictions)
        if recorded:
            summary |= against_all_layers(job, predictions, recorded)
        if is_main():
            statistics = paths.statistics(job.model.config, job.task)
            picture = paths.results / "exits.png"
            steps = [partial(write_results, paths.results, summary, job.out_mode)]
            if recorded:
                all_logits = recorded["all_logits"]
                steps.append(partial(write_statistics, statistics, job, predictions, all_logits))
                steps.append(partial(draw_exits, picture, job, predictions, recorded))
            else:  # of an earlier evaluation, perhaps under another rule
                remove([picture, *(statistics / name for name in STATISTICS)])
            print_written(
                run_all_then_raise(*steps, partial(print_results, summary, paths.checkpoint))
            )
        return summary
