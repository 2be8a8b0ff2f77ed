"""Grids: the settings of each rule that a sweep tries."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluation.modes.base import Mode
from modeling.errors import UserError
from modeling.exit_settings import Setting
from modeling.keys import Key, checked, nearest_names

# Predicted values have the labels' scale, not that of probabilities.
REGRESSION_GRID = {"range_tmp": "0.05:1:0.05,1.2:5:0.2"}


@dataclass(frozen=True)
class RuleGrid:
    """Settings of one rule: every combination of its keys' values, the last key fastest."""

    rule: str
    values: dict[str, tuple[float, ...]]
    fixed: Setting = field(default_factory=dict)  # keys that are the same in all settings

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    def combinations(self) -> list[dict[str, float]]:
        pairs = itertools.product(*self.values.values())
        return [dict(zip(self.values, pair, strict=True)) for pair in pairs]


def parse_values(key: str, text: str, num_layers: int, keys: Mapping[str, Key]) -> tuple:
    """The values that `text` lists for `key`, in its order; UserError for what it cannot have.

    "0.1,0.3" is a list, "0:1:0.02" a range with both ends, "1:N" goes to the number of layers.
    """
    if key not in keys or keys[key].kind not in (int, float):
        known = [name for name, entry in keys.items() if entry.kind in (int, float)]
        raise UserError(f"grid {key}={text}: {nearest_names(key, known)}")
    try:
        values = [value for piece in text.split(",") for value in expand(piece, num_layers)]
        return tuple(checked(key, value, keys, num_layers) for value in values)
    except UserError as error:
        raise UserError(f"grid {key}={text}: {error}") from error


def expand(piece: str, num_layers: int) -> list[float]:
    """Numbers of "0.3", "1:N" or "0:1:0.02"."""
    try:
        numbers = [float(num_layers if part == "N" else part) for part in piece.split(":")]
        if len(numbers) == 1:
            return numbers
        start, stop, step = numbers if len(numbers) == 3 else [*numbers, 1.0]
        count = math.floor((stop - start) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise UserError("expected a number, FROM:TO, or FROM:TO:STEP") from error
    if not 0 < count <= 100_000:
        raise UserError(f"{'an empty' if count < 1 else 'too large a'} range")
    return [round(start + i * step, 10) for i in range(count)]


def make_grids(
    mode: Mode,
    names: Sequence[str],
    texts: Mapping[str, str],
    num_layers: int,
    regression: bool,
    fixed: Setting | None = None,
) -> tuple[RuleGrid, ...]:
    """A grid a rule, from each key's values as text (see `parse_values`); defaults fill in.

    fixed: keys that are the same in all settings. Raises UserError for an unknown rule as well.
    """
    rules, keys = mode.rules(regression), mode.table.exit_keys
    for name in names:
        if name not in rules:
            raise UserError(f"rule {name}: {nearest_names(name, list(rules))}")
        if rules[name].never_exits:
            raise UserError(f"rule {name} has nothing to sweep: {rules[name].never_exits}")
    special = REGRESSION_GRID if regression else {}
    default = {name: special.get(name, key.grid) for name, key in keys.items() if key.grid}
    texts = {**default, **texts}
    values = {
        key: tuple(sorted(set(parse_values(key, text, num_layers, keys))))
        for key, text in texts.items()
    }
    grids = []
    for name in names:
        reads = rules[name].reads
        if unknown := [key for key in reads if key not in values]:
            raise UserError(
                f"rule {name} reads {unknown[0]!r}: `reads` may name {', '.join(values)}, as a "
                "tuple of texts"
            )
        grids.append(RuleGrid(name, {key: values[key] for key in reads}, fixed or {}))
    return tuple(grids)
