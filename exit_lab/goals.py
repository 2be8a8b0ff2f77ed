"""What --pick may ask for: a limit to keep, or a guarantee. Loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from modeling.errors import UserError
from modeling.keys import float_key, nearest_names, parse_value


@dataclass(frozen=True)
class MaxCost:
    """The best metric at a computation cost of at most `limit`."""

    limit: float  # mean share of layers that run


@dataclass(frozen=True)
class MaxLatency:
    """The best metric where 95% of the examples are answered within a time."""

    limit_ms: float  # milliseconds, one text at a time


@dataclass(frozen=True)
class MaxDrop:
    """The least cost where the metric is at most `limit` below that of full depth."""

    limit: float  # in units of the metric


@dataclass(frozen=True)
class MaxRisk:
    """The least cost with a guarantee: P(the risk is above `risk`) is at most `delta`.

    The risk is the probability of an error that full depth does not make.
    """

    risk: float
    delta: float


Goal = MaxCost | MaxLatency | MaxDrop | MaxRisk

# The keys of --pick. `risk` and `delta` go together; each of the others stands alone.
GOAL_KEYS = {
    "max_cost": float_key(None, "computation cost", 0),
    "max_p95_ms": float_key(None, "latency of one text at a time", 0),
    "max_drop": float_key(None, "loss of the metric, of which 0.01 is one point", 0, 0.999),
    "risk": float_key(None, "probability of an error that full depth does not make", 1e-6, 0.999),
    "delta": float_key(None, "probability that the risk is higher", 1e-6, 0.999),
}


def parse_goal(items: Sequence[str]) -> Goal:
    """Parse the texts of --pick, e.g. `["max_cost=0.5"]` or `["risk=0.02", "delta=0.05"]`.

    Raises UserError for an unknown key, a value out of range, or keys that do not go together.
    """
    values = {}
    for item in items:
        key, _, text = item.partition("=")
        if key not in GOAL_KEYS:
            raise UserError(f"--pick {item}: {nearest_names(key, list(GOAL_KEYS))}")
        try:
            values[key] = parse_value(key, text, GOAL_KEYS)
        except UserError as error:
            raise UserError(f"--pick {item}: {error}") from error
    if values.keys() == {"max_cost"}:
        return MaxCost(values["max_cost"])
    if values.keys() == {"max_p95_ms"}:
        return MaxLatency(values["max_p95_ms"])
    if values.keys() == {"max_drop"}:
        return MaxDrop(values["max_drop"])
    if values.keys() == {"risk", "delta"}:
        return MaxRisk(values["risk"], values["delta"])
    raise UserError(
        f"--pick {' '.join(items)}: give max_cost=…, or max_drop=…, or max_p95_ms=…, or risk=… "
        "with delta=…"
    )
