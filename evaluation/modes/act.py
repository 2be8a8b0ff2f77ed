"""Adaptive Depth, `--model_type albert_act`: a learned halting probability stops each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.modes.base import Mode
from modeling.keys import KEY_TABLES

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from evaluation.job import Job, Place
    from evaluation.token_updates import UpdateRecord
    from modeling.export.loops import TokenLoop


class AdaptiveDepth(Mode):
    """A learned halting probability an update stops a token."""

    name, model_type, table = "albert_act", "albert_act", KEY_TABLES["albert_act"]
    compiles = False

    @property
    def model_class(self) -> type[PreTrainedModel]:
        from modeling.act.heads import AlbertActForSequenceClassification

        return AlbertActForSequenceClassification

    def load(self, *arguments: Any, **keywords: Any) -> tuple:
        from modeling.act.loading import load_act

        return load_act(*arguments, **keywords)

    def scalars(self, model: PreTrainedModel, out: ModelOutput) -> dict[str, float]:
        """Ponder cost, mean over the batch; updates, mean over its tokens."""
        updates, cost = out.updates, out.ponder_cost.mean()
        return {
            "ponder_cost": cost.item(),
            "mean_updates": (updates.sum() / (updates > 0).sum()).item(),
            "task_loss": (out.loss - model.config.tau * cost).item(),
        }

    def dev_scalars(self, job: Job) -> tuple[dict[str, float], dict[str, Any]]:
        """The main metric and the computation cost."""
        from evaluation.token_updates import summarise_updates
        from glue.tasks import primary_metric

        summary, name = summarise_updates(job, self.run(job)), primary_metric(job.task)
        values = {
            f"eval_{name}": summary["metrics"][name],
            "eval_computation_cost": summary["computation_cost"],
        }
        return values, values

    def export_loop(self, model: PreTrainedModel) -> TokenLoop:
        from modeling.export.loops import TokenLoop

        return TokenLoop(model)

    def run(self, job: Job) -> UpdateRecord:
        from evaluation.token_updates import run_adaptive

        return run_adaptive(job)

    def evaluate(self, job: Job, place: Place) -> dict[str, Any]:
        """How often tokens are updated, and at which cost."""
        from evaluation.processes import is_main
        from evaluation.results import write_results
        from evaluation.token_updates import draw_tokens, print_updates, summarise_updates

        fast, conditions = job.fast()
        record = self.run(fast)
        summary = summarise_updates(job, record) | conditions
        if is_main():
            write_results(place.results, summary, job.out_mode)
            draw_tokens(place.results, job, record)
            print_updates(summary, place.checkpoint)
        return summary
