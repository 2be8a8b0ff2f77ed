"""The dev set while a training goes on: what the best model is chosen by, and its value."""

from dataclasses import dataclass

from evaluation.exit_reports import rule_frontier
from evaluation.job import Job
from evaluation.modes.base import Mode
from evaluation.results import metrics_of
from glue.tasks import Task
from modeling.rules import Tensors
from training.logs import ProgressLog
from training.metric_at_cost import MetricAtCost


@dataclass(frozen=True)
class SelectionMetric(MetricAtCost):
    """--metric_for_best_model: a metric of the last layer, or at a computation cost."""

    @classmethod
    def of(cls, text: str | None, mode: Mode, task: Task) -> "SelectionMetric":
        """METRIC or METRIC@COST; raises UserError for others than the task and mode have."""
        goal = cls.parse(text, task, "--metric_for_best_model")
        if goal.cost is not None:
            mode.rules(regression=False)  # raises for a mode that has one cost only
        return goal

    def value(self, job: Job, recorded: Tensors) -> float:
        """The metric that `recorded`, all layers' answers, reaches: the last layer's; at a cost,
        the configured rule's, or where that is never so cheap, that of the layer that is."""
        layers = layer = len(recorded["all_logits"])
        if self.cost is not None:
            best = self.best(rule_frontier(job, recorded)[self.name])
            if best is not None:
                return best
            layer = max(1, int(self.cost * layers + 1e-9))
        return metrics_of(job, recorded["all_logits"][layer - 1])[self.name]


def evaluate_and_log(job: Job, goal: SelectionMetric, log: ProgressLog, step: int) -> float:
    """Log the dev set's metrics at this step; the one that the best model is chosen by."""
    scalars, line, value = job.mode.dev_scalars(job, goal)
    log.scalars(scalars, step)
    log.print_json({**line, "step": step})
    return value
