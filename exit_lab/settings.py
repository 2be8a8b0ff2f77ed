"""The flags of sweep_exits.py. Loads no torch."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from exit_lab.goals import Goal, MaxLatency, MaxRisk, parse_goal
from modeling.errors import UserError
from runs.flags import AT_LEAST_0, AT_LEAST_1, SEED, Allowed, option
from runs.settings import DevSettings
from runs.trained_flags import folders_of, name_and_folder

PART = Allowed(low=0.01, high=0.99)
LEARNT = "learnt"
OPTIMAL_STOPPING = "optimal_stopping"
# The exit rules that a sweep fits to recorded answers where --rules names them.
FITTED_RULES = (LEARNT, OPTIMAL_STOPPING)
FIGURE_FORMATS = (".png", ".pdf", ".svg")


@dataclass(frozen=True, kw_only=True)
class LabSettings(DevSettings):
    """The models and their data."""

    model_dir: str = option("", "folder of a trained model")
    data_dir: str = option(".", "folder with the task's .tsv files")
    output_dir: str | None = option(
        None,
        "folder of the results; default: MODEL_DIR/sweep, or none for models that are compared",
    )
    batch_size: int = option(
        1, "batch size of the recorded run; with 1, answers are exact to the bit", AT_LEAST_1
    )
    do_lower_case: bool = option(False, "lower-case the texts, as uncased models expect")
    no_cuda: bool = option(False, "use the CPU only")
    seed: int = option(42, "random seed of the split and the bootstrap", SEED)


@dataclass(kw_only=True)
class SweepSettings:
    """The sweep and its files."""

    rules: list[str] | None = option(
        None, "exit rules to sweep; default: all that need no fit", nargs="+"
    )
    grid: list[str] = option(
        [], "values of exit keys to try, e.g. cnt_thres=1:N margin=0,0.1", metavar="KEY=VALUES"
    )
    verify: int = option(
        0,
        "number of random settings to run with early exit, to check the sweep",
        AT_LEAST_0,
        metavar="K",
    )
    tables_only: bool = option(False, "write no figures and no explorer.html")
    dtype: str = option(
        "fp32",
        "number type of the model; auto: bf16 where the processor has instructions for it",
        choices=("fp32", "bf16", "fp16", "auto"),
    )
    torch_compile: bool = option(
        False,
        "on a GPU, compile the layer pass by torch.compile before it is captured as a graph: "
        "seconds for every shape of a batch, and a faster answer",
    )

    @property
    def fitted_rules(self) -> list[str]:
        """List the rules that are fitted before they are swept."""
        return [rule for rule in FITTED_RULES if rule in (self.rules or ())]

    @property
    def refitted_keys(self) -> set[str]:
        """Name the exit keys that the fits of these rules replace."""
        keys = set()
        if OPTIMAL_STOPPING in self.fitted_rules:
            keys |= {"stopping_thresholds", "exit_calibration"}
        if LEARNT in self.fitted_rules:
            keys.add("learnt_weights")
        return keys


@dataclass(kw_only=True)
class ChoiceSettings:
    """Choice and comparison."""

    pick: list[str] | None = option(
        None,
        "goal by which a setting is chosen and saved: max_drop, max_cost, max_p95_ms, or risk and "
        "delta",
        metavar="GOAL=VALUE",
        nargs="+",
    )
    compare: list[str] | None = option(
        None,
        "models to compare, each with its own rule or with those of --rules; without models, "
        "compare the rules at equal costs. A pattern in quotes stands for the mean of its folders, "
        "such as seeds; NAME=MODEL gives the name in tables and figures",
        metavar="MODEL",
        nargs="*",
    )
    figure: Path | None = option(
        None, "file for the figure of the sweep or the comparison: .png, .pdf or .svg"
    )
    calibration_fraction: float = option(
        0.5, "share of the dev set that chooses; the rest reports", PART
    )

    def models(self) -> dict[str, list[Path]]:
        """List the folders of each model of --compare, by its name, which may be its pattern.

        Raises UserError for a pattern that no folder matches, and for two models of one name.
        """
        models = {}
        for text in self.compare or ():
            name, _ = name_and_folder(text)
            if name in models:
                raise UserError(f"--compare: two models are called {name}")
            models[name] = [Path(folder) for folder in folders_of(text)]
        return models

    def goal(self) -> Goal | None:
        """Parse --pick, if it is given; see `parse_goal` for what it raises."""
        return parse_goal(self.pick) if self.pick else None


class SweepRequest(NamedTuple):
    """All settings of sweep_exits.py, in the order of --help."""

    data: LabSettings
    sweep: SweepSettings
    choice: ChoiceSettings

    @property
    def folders(self) -> list[Path]:
        """Folders of all models: that of --model_dir, or those of --compare."""
        if self.data.model_dir:
            return [Path(self.data.model_dir)]
        return list(chain.from_iterable(self.choice.models().values()))

    def check(self) -> None:
        """Raise UserError for flags that do not go together."""
        goal = self.choice.goal()
        self.check_models(goal)
        self.check_figure()
        if isinstance(goal, MaxRisk) and self.sweep.fitted_rules:
            raise UserError(
                f"--rules {' '.join(self.sweep.fitted_rules)} fits the rule on the examples that "
                "choose, so --pick risk has no guarantee: fit it with --pick max_drop first, then "
                "give --pick risk with other rows (--validation_file), without --rules"
            )
        if isinstance(goal, MaxLatency) and self.data.batch_size > 1:
            raise UserError(
                f"--batch_size {self.data.batch_size}: --pick max_p95_ms needs the times of single "
                "examples, so leave --batch_size out"
            )

    def check_models(self, goal: Goal | None) -> None:
        """Raise UserError unless the flags name one model to sweep, or models to compare."""
        if self.choice.models():
            is_clear = not (self.data.model_dir or self.sweep.verify or goal)
        else:
            is_clear = bool(self.data.model_dir)
        if not is_clear:
            raise UserError(
                "give --model_dir, the folder of a trained model; or --compare with models, each a "
                "folder or a pattern in quotes, without --model_dir, --pick and --verify"
            )

    def check_figure(self) -> None:
        """Raise UserError for a figure in an unknown format, or in a sweep without figures."""
        figure = self.choice.figure
        if figure and figure.suffix not in FIGURE_FORMATS:
            raise UserError(f"--figure {figure}: its name ends in {', '.join(FIGURE_FORMATS)}")
        if figure and self.sweep.tables_only:
            raise UserError(f"--figure {figure}: leave out --tables_only")
