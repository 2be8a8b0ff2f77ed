"""Grids: the settings of each rule that a sweep tries."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.keys import nearest_names


@dataclass(frozen=True)
class RuleGrid:
    """Settings of one rule: every combination of its keys' values, the last key fastest."""

    rule: str
    values: dict[str, tuple[float, ...]]

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    def combinations(self) -> list[dict[str, float]]:
        pairs = itertools.product(*self.values.values())
        return [dict(zip(self.values, pair, strict=True)) for pair in pairs]


def sweepable(config: EarlyExitConfig) -> list[str]:
    """The rules that a sweep tries unless it is told which."""
    return [name for name, rule in config.exit_rules().items() if not rule.never_exits]


def make_grids(
    config: EarlyExitConfig, names: Sequence[str], texts: Mapping[str, str]
) -> tuple[RuleGrid, ...]:
    """A grid a rule, from each key's values as text; the keys' own grids fill in.

    Raises UserError for an unknown rule, or one without exits, and for a key that none of them
    reads.
    """
    rules, values = config.exit_rules(), {}
    for name in names:
        if name not in rules:
            raise UserError(f"rule {name}: {nearest_names(name, list(rules))}")
        if rules[name].never_exits:
            raise UserError(f"rule {name} has nothing to sweep: {rules[name].never_exits}")
    for key, entry in config.table.exit_keys.items():
        if key in texts or entry.grid:
            values[key] = tuple(sorted({*config.grid(key, texts.get(key))}))
    for key in texts:
        config.grid(key, texts[key])  # raises for no key
        readers = [name for name, rule in rules.items() if key in rule.reads]
        if not {*readers} & {*names}:
            raise UserError(
                f"grid {key}={texts[key]}: {', '.join(names)} read no {key}; rules that do: "
                f"{', '.join(readers) or 'none'}"
            )
    return tuple(
        RuleGrid(name, {key: values[key] for key in values if key in rules[name].reads})
        for name in names
    )
