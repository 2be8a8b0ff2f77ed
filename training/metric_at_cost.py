"""METRIC or METRIC@COST, as flags name what the best model is chosen by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from glue.tasks import Task, compute_metrics, primary_metric
from modeling.errors import UserError
from modeling.keys import nearest_names


@dataclass(frozen=True)
class MetricAtCost:
    """A metric, or the best of it that is reached at a computation cost of at most `cost`."""

    name: str
    cost: float | None = None

    @classmethod
    def parse(cls, text: str | None, task: Task, flag: str) -> Self:
        """Parse what `flag` names, by default the task's main metric; UserError for others."""
        name, at, cost = (text or primary_metric(task)).removeprefix("eval_").partition("@")
        known = list(compute_metrics(task, [0, 1], [0, 1]))
        if name not in known:
            raise UserError(f"{flag} {text}: {nearest_names(name, known)}")
        try:
            limit = float(cost) if at else None
        except ValueError as error:
            raise UserError(f"{flag} {text}: {cost!r} is not a number") from error
        if limit is not None and not 0 < limit <= 1:
            raise UserError(f"{flag} {text}: a computation cost is above 0 and at most 1")
        return cls(name, limit)

    def __str__(self) -> str:
        return self.name if self.cost is None else f"{self.name}@{self.cost:g}"

    def best(self, points: Iterable[tuple[float, float]]) -> float | None:
        """Find the best metric within the cost, of (cost, metric); None if there is none."""
        return max((value for cost, value in points if cost <= self.cost + 1e-9), default=None)
