"""What --hp_space adds to a search: configuration keys and flags, each with values or a range."""

import argparse
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from optuna import Trial
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from modeling.errors import UserError
from modeling.keys import keys_of, nearest_names
from runs.flags import Flag, flags_of, spellings
from runs.settings import ModeSettings, RunSettings, TrainingSettings

# What a study calls the three that every search varies.
USUAL_NAMES = {
    "learning_rate": "learning_rate",
    "per_gpu_train_batch_size": "batch_size",
    "num_train_epochs": "epochs",
}


@dataclass(frozen=True)
class Dimension:
    """A key or a flag that --hp_space varies.

    Attributes:
        distribution: what Optuna draws from.
        flag: the flag of run_glue.py that gets a value; "" for a key, which --set sets.
    """

    distribution: BaseDistribution
    flag: str

    @property
    def size(self) -> float:
        """Number of values; ∞ for a range without a step."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return len(distribution.choices)
        if isinstance(distribution, FloatDistribution) and distribution.step is None:
            return math.inf
        assert isinstance(distribution, (IntDistribution, FloatDistribution))
        return round((distribution.high - distribution.low) / (distribution.step or 1)) + 1

    def suggest(self, trial: Trial, name: str) -> Any:
        """Draw a value for a trial, under the dimension's name in the study."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return trial.suggest_categorical(name, distribution.choices)
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(
                name,
                distribution.low,
                distribution.high,
                step=distribution.step,
                log=distribution.log,
            )
        assert isinstance(distribution, FloatDistribution)
        return trial.suggest_float(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )


def parse_space(items: Sequence[str], mode: ModeSettings) -> dict[str, Dimension]:
    """Parse --hp_space, as `kl_penalty_factor=0.001:0.1:log`, by the names in the study.

    mode: of the runs, whose keys may be searched beside flags of the training.

    Raises UserError for a name that is neither, and for a value that it cannot have.
    """
    keys = keys_of(mode.model_type).keys
    flags = searchable_flags()
    space = {}
    for item in items:
        name, _, text = item.partition("=")
        try:
            if name in keys:
                read = key_reader(mode, name)
                dimension = Dimension(distribution_of(text, keys[name].kind, read), "")
            elif name in flags:
                flag = flags[name]
                name = USUAL_NAMES.get(flag.name, flag.name)
                distribution = distribution_of(text, kind_of(flag), flag_reader(flag))
                dimension = Dimension(distribution, f"--{flag.name}")
            else:
                raise UserError(nearest_names(name, [*keys, *flags]))
        except UserError as error:
            raise UserError(f"--hp_space {item}: {error}") from error
        if name in space:
            raise UserError(f"--hp_space {item}: {name} is there twice")
        space[name] = dimension
    return space


def searchable_flags() -> dict[str, Flag]:
    """Return the flags of a training that change its steps and have a value, by their spellings."""
    flags = {}
    for flag in [*flags_of(RunSettings), *flags_of(TrainingSettings)]:
        has_values = kind_of(flag) in (int, float) or "choices" in flag.argparse_options
        changes_steps = not flag.allowed.resuming or flag.name in USUAL_NAMES
        if has_values and changes_steps and flag.name != "seed":
            for spelling in spellings(flag.name):
                flags[spelling.removeprefix("--")] = flag
    return flags


def kind_of(flag: Flag) -> Any:
    """Return the type of a flag's value, where it has one."""
    kind: Any = flag.field.type
    return get_args(kind)[0] if isinstance(kind, types.UnionType) else kind


def key_reader(mode: ModeSettings, name: str) -> Callable[[str], Any]:
    """Make what reads a value of a key; it raises UserError for one that the key cannot have."""
    return lambda text: mode.parse_assignment("--set", f"{name}={text}").values[name]


def flag_reader(flag: Flag) -> Callable[[str], Any]:
    """Make what reads a value of a flag; it raises UserError for one that it cannot have."""
    read = flag.allowed.reader(kind_of(flag))
    choices = flag.argparse_options.get("choices")

    def checked(text: str) -> Any:
        try:
            value = read(text)
        except argparse.ArgumentTypeError as error:
            raise UserError(str(error)) from error
        if choices and value not in choices:
            raise UserError(f"{text}: allowed is {', '.join(choices)}")
        return value

    return checked


def distribution_of(text: str, kind: Any, read: Callable[[str], Any]) -> BaseDistribution:
    """Parse "A,B,C", "LOW:HIGH", "LOW:HIGH:log" or "LOW:HIGH:STEP".

    read: reads one value of type `kind`. Raises UserError for anything else.
    """
    if ":" not in text:
        return CategoricalDistribution(list(dict.fromkeys(map(read, text.split(",")))))
    low_text, high_text, *options = text.split(":")
    low, high = read(low_text), read(high_text)
    if kind not in (int, float) or len(options) > 1 or not low < high:
        raise UserError("expected A,B,C or, for numbers, LOW:HIGH, LOW:HIGH:log or LOW:HIGH:STEP")
    is_log = options == ["log"]
    if is_log and low <= 0:
        raise UserError("a logarithmic range must begin above 0")
    step = None
    if options and not is_log:
        step = step_of(options[0], low, high)
    if kind is int:
        return IntDistribution(int(low), int(high), log=is_log, step=int(step or 1))
    return FloatDistribution(low, high, log=is_log, step=step)


def step_of(text: str, low: float, high: float) -> float:
    """Read the step of a range; raises UserError unless it leads from one end to the other."""
    try:
        step = float(text)
        count = (high - low) / step
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"{text} is not a step between numbers") from error
    is_whole = isinstance(low, int) and not step.is_integer()
    if is_whole or count < 1 or abs(count - round(count)) > 1e-9:
        raise UserError(f"a step of {text} does not lead from {low:g} to {high:g}")
    return step
