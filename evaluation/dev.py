"""The dev set while a training goes on: what the best model is chosen by, and its value."""

from dataclasses import dataclass

import torch

from evaluation.job import Job
from evaluation.modes.base import Mode, Tensors
from evaluation.results import labels_of, predictions_of
from glue.tasks import Task, compute_metrics, primary_metric
from modeling.errors import UserError
from modeling.keys import nearest_names
from training.logs import ProgressLog
from training.loop import Training

THRESHOLDS = torch.linspace(0, 1, 51)[:, None]  # (settings, 1)


@dataclass(frozen=True)
class Goal:
    """--metric_for_best_model: a metric of the last layer, or at a computation cost."""

    name: str
    cost: float | None = None

    @classmethod
    def of(cls, text: str | None, mode: Mode, task: Task) -> "Goal":
        """METRIC or METRIC@COST; raises UserError for others than the task and mode have."""
        name, at, cost = (text or primary_metric(task)).removeprefix("eval_").partition("@")
        flag, known = f"--metric_for_best_model {text}", list(compute_metrics(task, [0, 1], [0, 1]))
        if name not in known:
            raise UserError(f"{flag}: {nearest_names(name, known)}")
        if not at:
            return cls(name)
        mode.rules()
        try:
            value = float(cost)
        except ValueError as error:
            raise UserError(f"{flag}: {cost!r} is not a number") from error
        if not 0 < value <= 1:
            raise UserError(f"{flag}: a computation cost is above 0 and at most 1")
        return cls(name, value)

    def value(self, job: Job, recorded: Tensors) -> float:
        """The metric that `recorded`, all layers' answers, reaches."""
        predictions, labels = predictions_of(recorded["all_logits"]), labels_of(job.features)
        columns = torch.arange(len(labels))
        return max(
            compute_metrics(job.task, predictions[exits - 1, columns], labels)[self.name]
            for exits in self.exits(job, recorded)
        )

    def exits(self, job: Job, recorded: Tensors) -> torch.Tensor:
        """Where examples exit, (settings, examples): at the last layer, or by the configured rule
        with each threshold that costs at most `cost`. Where none does, at the layer that does."""
        layers, examples = recorded["all_logits"].shape[:2]
        if self.cost is None:
            return torch.full((1, examples), layers)
        setting = job.model.config.exit_keys()
        if "exit_thres" in setting:
            setting["exit_thres"] = THRESHOLDS
        exits = job.mode.rules().scan(setting, recorded).reshape(-1, examples)
        cheap = exits[exits.double().mean(1) <= self.cost * layers + 1e-9].unique(dim=0)
        layer = max(1, int(self.cost * layers + 1e-9))
        return cheap if len(cheap) else torch.full((1, examples), layer)


@dataclass(frozen=True)
class DevSet:
    """The dev set of a training, looked at now and then."""

    job: Job
    goal: Goal
    training: Training

    def look(self, step: int, log: ProgressLog) -> None:
        """Log the metrics at this step, and take note of a best model."""
        scalars, line, value = self.job.mode.dev_scalars(self.job, self.goal)
        log.scalars(scalars, step)
        log.line({**line, "step": step})
        self.training.note(value)
