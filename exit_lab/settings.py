"""The flags of sweep_exits.py; nothing here imports torch."""

from dataclasses import dataclass
from typing import NamedTuple

from modeling.errors import UserError
from modeling.keys import float_key, nearest_names, parse_value
from training.settings import DevSettings
from utils.flags import AT_LEAST_0, AT_LEAST_1, SEED, Allowed, option

PART = Allowed(low=0.01, high=0.99)


@dataclass(frozen=True, kw_only=True)
class LabSettings(DevSettings):
    """Which models on which data."""

    model_dir: list[str] = option(..., "trained model; with --compare also several")
    data_dir: str = option(".", "folder with the task's .tsv files")
    output_dir: str | None = option(None, "where results go (default: MODEL_DIR/sweep)")
    batch_size: int = option(1, "of the recorded pass; 1 is exact to the bit", AT_LEAST_1)
    do_lower_case: bool = option(False, "for uncased models")
    no_cuda: bool = option(False, "stay on the CPU")
    seed: int = option(42, "of the split, the bootstrap and --verify", SEED)


@dataclass(kw_only=True)
class SweepSettings:
    """What is swept, and what is written."""

    rules: list[str] | None = option(None, "exit rules to sweep (default: all)", nargs="+")
    grid: list[str] = option([], "e.g. cnt_thres=1:N margin=0,0.1", metavar="KEY=VALUES")
    vary: str | None = option(
        None,
        "only this key, the rest as configured: writes eval_results.txt anew, a row for each value",
        metavar="KEY[=VALUES]",
    )
    verify: int = option(0, "rerun so many random settings for real", AT_LEAST_0, metavar="K")
    tables_only: bool = option(False, "no figures, no explorer.html")


# What --pick may ask for; risk and delta together, each of the others alone.
GOALS = {
    "max_cost": float_key(None, "computation cost", 0),
    "max_p95_ms": float_key(None, "latency of one text at a time", 0),
    "max_drop": float_key(None, "loss of the metric", 0),
    "risk": float_key(None, "probability of an error that full depth does not make", 1e-6, 0.999),
    "delta": float_key(None, "probability that the risk is higher", 1e-6, 0.999),
}


@dataclass(kw_only=True)
class ChoiceSettings:
    """What is chosen and compared."""

    pick: list[str] | None = option(
        None, "max_cost, max_p95_ms, max_drop, or risk and delta", metavar="GOAL=VALUE", nargs="+"
    )
    compare: bool = option(False, "table of the rules at equal costs")
    calibration_fraction: float = option(0.5, "of the dev set, to choose by", PART)

    def goal(self) -> dict[str, float]:
        """What --pick asks for, by name; raises UserError saying what goes together."""
        goal: dict[str, float] = {}
        for item in self.pick or []:
            key, _, text = item.partition("=")
            if key not in GOALS:
                raise UserError(f"--pick {item}: {nearest_names(key, list(GOALS))}")
            try:
                goal[key] = parse_value(key, text, GOALS)
            except UserError as error:
                raise UserError(f"--pick {item}: {error}") from error
        both = {"risk", "delta"}
        if goal.keys() != both and (len(goal) > 1 or goal.keys() & both):
            raise UserError(
                f"--pick {' '.join(self.pick)}: give max_cost=…, or max_drop=…, or max_p95_ms=…, "
                "or risk=… with delta=…"
            )
        return goal


class SweepRequest(NamedTuple):
    """All settings of sweep_exits.py, in the order of --help."""

    data: LabSettings
    sweep: SweepSettings
    choice: ChoiceSettings

    def check(self) -> None:
        """Raise UserError for flags that do not go together."""
        several, pick = len(self.data.model_dir) > 1, self.choice.goal()
        if several and (pick or self.sweep.vary):
            raise UserError("--pick and --vary take one --model_dir")
        if "max_p95_ms" in pick and self.data.batch_size > 1:
            raise UserError(
                f"--batch_size {self.data.batch_size}: --pick max_p95_ms needs the times of one "
                "text at a time, so leave it out"
            )
