"""The metric that chooses a model: `acc`, or at a computation cost, `acc@0.5`."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from glue.metrics import metric_names
from glue.tasks import Task
from modeling.errors import UserError
from modeling.keys import nearest_names

TOLERANCE = 1e-9  # of a computation cost, which is a sum of shares


@dataclass(frozen=True)
class MetricAtCost:
    """A metric, or the best of it that is reached at a computation cost of at most `cost`."""

    name: str
    cost: float | None = None

    @classmethod
    def parse(cls, text: str | None, task: Task, flag: str) -> Self:
        """Parse METRIC or METRIC@COST, the value of `flag`; None is the task's main metric.

        Raises UserError for a metric that the task does not have, and for a cost that is not above
        0 and at most 1.
        """
        # transformers' names of metrics begin with eval_.
        metric = (text or task.primary_metric).removeprefix("eval_")
        name, at_sign, cost_text = metric.partition("@")
        known_names = metric_names(task)
        if name not in known_names:
            raise UserError(
                f"{flag} {text}: {nearest_names(name, known_names)}; --metric_name adds one of "
                "scikit-learn's scorers, or your own"
            )
        if not at_sign:
            return cls(name)
        is_number = re.fullmatch(r"[0-9]*\.?[0-9]+", cost_text)
        cost = float(cost_text) if is_number else 0.0
        if not 0 < cost <= 1:
            raise UserError(f"{flag} {text}: allowed is a computation cost above 0 and at most 1")
        return cls(name, cost)

    def __str__(self) -> str:
        return self.name if self.cost is None else f"{self.name}@{self.cost:g}"

    def best(self, points: Iterable[Sequence[float]]) -> float | None:
        """Find the best metric within the cost; None where no point is within it.

        points: (cost, metric) each.
        """
        limit = math.inf if self.cost is None else self.cost + TOLERANCE
        return max((metric for cost, metric in points if cost <= limit), default=None)
