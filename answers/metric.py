"""The metric that chooses a model: `acc`, or at a computation cost, `acc@0.5`."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from elbert_base.errors import UserError
from elbert_base.keys import nearest_names
from glue.metrics import compute_metrics
from glue.tasks import Task


@dataclass(frozen=True)
class MetricAtCost:
    """A metric, or the best of it that is reached at a computation cost of at most `cost`."""

    name: str
    cost: float | None = None

    @classmethod
    def parse(cls, text: str | None, task: Task, flag: str) -> Self:
        """Parse what `flag` names, by default the task's main metric; UserError for others."""
        name, at, cost = (text or task.primary_metric).removeprefix("eval_").partition("@")
        known = list(compute_metrics(task, [0, 1], [0, 1]))
        if name not in known:
            raise UserError(f"{flag} {text}: {nearest_names(name, known)}")
        limit = None
        if at:
            limit = float(cost) if re.fullmatch(r"[0-9]*\.?[0-9]+", cost) else 0
            if not 0 < limit <= 1:
                raise UserError(f"{flag} {text}: a computation cost is above 0 and at most 1")
        return cls(name, limit)

    def __str__(self) -> str:
        return self.name if self.cost is None else f"{self.name}@{self.cost:g}"

    def best(self, points: Iterable[Sequence[float]]) -> float | None:
        """Find the best metric within the cost, of (cost, metric); None if there is none."""
        limit = math.inf if self.cost is None else self.cost
        return max((value for cost, value in points if cost <= limit + 1e-9), default=None)
