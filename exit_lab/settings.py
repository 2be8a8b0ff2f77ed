"""The flags of sweep_exits.py; nothing here imports torch."""

from dataclasses import dataclass
from glob import glob
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from elbert_base.errors import UserError
from elbert_base.keys import float_key, nearest_names, parse_value
from runs.flags import AT_LEAST_0, AT_LEAST_1, SEED, Allowed, option
from runs.settings import DevSettings

PART = Allowed(low=0.01, high=0.99)


@dataclass(frozen=True, kw_only=True)
class LabSettings(DevSettings):
    """The models and their data."""

    model_dir: str = option("", "folder of a trained model")
    data_dir: str = option(".", "folder with the task's .tsv files")
    output_dir: str | None = option(None, "folder of the results; default: MODEL_DIR/sweep")
    batch_size: int = option(1, "batch size of the recording; 1 is exact to the bit", AT_LEAST_1)
    do_lower_case: bool = option(False, "lower-case the text, for uncased models")
    no_cuda: bool = option(False, "use the CPU only")
    seed: int = option(42, "random seed of the split and the bootstrap", SEED)


@dataclass(kw_only=True)
class SweepSettings:
    """The sweep and its files."""

    rules: list[str] | None = option(None, "exit rules to sweep; default: all", nargs="+")
    grid: list[str] = option([], "values, e.g. cnt_thres=1:N margin=0,0.1", metavar="KEY=VALUES")
    verify: int = option(0, "rerun K random settings with early exit", AT_LEAST_0, metavar="K")
    tables_only: bool = option(False, "write no figures and no explorer.html")
    dtype: str = option(
        "fp32",
        "number type; auto: bf16 where the processor has it",
        choices=("fp32", "bf16", "fp16", "auto"),
    )


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
    """Choice and comparison."""

    pick: list[str] | None = option(
        None,
        "choose a setting by max_cost, max_p95_ms, max_drop, or risk and delta",
        metavar="GOAL=VALUE",
        nargs="+",
    )
    compare: list[str] | None = option(
        None,
        "compare the rules at equal costs; with two models, these under their own rules. A "
        "pattern in quotes is the mean of its folders, as of seeds",
        metavar="MODEL",
        nargs="*",
    )
    calibration_fraction: float = option(0.5, "share of the dev set used for choosing", PART)

    def models(self) -> dict[str, list[Path]]:
        """Folders of each model of --compare, by its name or pattern."""
        return {x: sorted(map(Path, glob(x))) or [Path(x)] for x in self.compare or ()}

    def goal(self) -> dict[str, float]:
        """Goals of --pick, by name; raises UserError saying what goes together."""
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
                f"--pick {' '.join(self.pick or ())}: give max_cost=…, or max_drop=…, or "
                "max_p95_ms=…, or risk=… with delta=…"
            )
        return goal


class SweepRequest(NamedTuple):
    """All settings of sweep_exits.py, in the order of --help."""

    data: LabSettings
    sweep: SweepSettings
    choice: ChoiceSettings

    @property
    def folders(self) -> list[Path]:
        """The models' folders."""
        compared = [*chain(*self.choice.models().values())]
        return [Path(self.data.model_dir)] if self.data.model_dir else compared

    def check(self) -> None:
        """Raise UserError for flags that do not go together."""
        data, pick, models = self.data, self.choice.goal(), self.choice.models()
        more = data.model_dir or data.output_dir or pick
        if (len(models) != 2 or more) if models else not data.model_dir:
            raise UserError(
                "give --model_dir, the folder of a trained model; or --compare with two models, "
                "each a folder or a pattern in quotes, without --model_dir, --output_dir and --pick"
            )
        if "risk" in pick and "learnt" in (self.sweep.rules or ()):
            raise UserError(
                "--rules learnt fits the rule on the examples that choose, so --pick risk has no "
                "guarantee: fit it with max_drop on other examples first, then leave --rules out"
            )
        if "max_p95_ms" in pick and self.data.batch_size > 1:
            raise UserError(
                f"--batch_size {self.data.batch_size}: --pick max_p95_ms needs the times of one "
                "text at a time, so leave it out"
            )
