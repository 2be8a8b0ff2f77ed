"""Every rule and every threshold from one recorded pass: grids, sweeps and frontiers.

No rule is written here: a model type's `RuleSet` calls the project's one rule code with all
settings of a rule at once.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from exit_lab.metrics import chunks, metrics_at
from exit_lab.recording import Recording
from glue.tasks import Task, primary_metric
from modeling import ExitRule, HaltingRule, UserError, scan_halting
from modeling.elbert.exits import scan
from modeling.keys import EXIT_KEYS, PONDER_EXIT_KEYS, Key, checked, nearest_names

Setting = dict[str, Any]  # keys of an exit_config.json: the rule's name and what it reads
Tensors = Mapping[str, torch.Tensor]  # of a recording

DEFAULT_GRID = {
    "exit_thres": "0:1:0.02",
    "cnt_thres": "1:N",
    "margin": "0,0.05,0.1",
    "range_tmp": "0.05,0.1,0.2",
}
# Predicted values have the labels' scale, not that of probabilities.
REGRESSION_GRID = {**DEFAULT_GRID, "range_tmp": "0.05:1:0.05"}
LARGEST_SWEEP = 500_000_000  # settings × examples: a byte each


class RuleSet(NamedTuple):
    """What decides the exits of one type of model."""

    name_key: str  # the key that holds the rule's name
    keys: Mapping[str, Key]
    reads: Callable[[bool], Mapping[str, tuple[str, ...]]]  # is it regression? rule -> its keys
    eager_when_low: tuple[str, ...]  # keys whose low values exit early; for others high ones do
    scan: Callable[[Setting, Tensors], torch.Tensor]  # setting, recording -> exit layers
    window: Callable[[Setting, Tensors], torch.Tensor]  # -> layers of the window at each exit
    recorded_as: Setting  # exit keys under which every layer shows its own answer
    unswept: Mapping[str, str]  # rules without exits, and why


def elbert_reads(regression: bool) -> dict[str, tuple[str, ...]]:
    """Which keys each rule reads; a predicted value has no entropy and no class that leads."""
    if regression:
        window = ("cnt_thres", "range_tmp")
        return {
            "entropy": (),
            "logits": (),
            "max_prob": (),
            **dict.fromkeys(("bias_1", "bias_2", "bias_3"), window),
            "patience": ("exit_thres", "cnt_thres"),
        }
    window = ("exit_thres", "cnt_thres", "margin")
    return {
        **dict.fromkeys(("entropy", "logits", "max_prob"), ("exit_thres",)),
        **dict.fromkeys(("bias_1", "bias_2"), window),
        "bias_3": (*window, "range_tmp"),
        "patience": ("cnt_thres",),
    }


def elbert_scan(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Exit layers (settings, examples), or (examples,) for plain numbers."""
    return scan(ExitRule(**setting), tensors["all_logits"])


def elbert_window(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """How many layers the window spans that ended each example's pass, 0 where none did.

    (examples,). Asked of the rule itself: with its entropy test off, and one more layer, so that a
    window that holds at the last layer differs from one that never holds.
    """
    logits, rule = tensors["all_logits"], setting["thres_name"]
    exits = elbert_scan(setting, tensors)
    if not rule.startswith("bias") and rule != "patience":
        return torch.zeros_like(exits)
    alone = setting if rule == "patience" else {**setting, "exit_thres": 0.0}
    by_window = elbert_scan(alone, {"all_logits": torch.cat((logits, logits[-1:]))})
    span = setting["cnt_thres"] + (rule == "patience")  # patience compares with the layer before
    return torch.where(by_window == exits, span, 0)


def ponder_reads(regression: bool) -> dict[str, tuple[str, ...]]:
    """Which keys each criterion reads; λ is learned for classes and values alike."""
    return {"threshold": ("exit_thres",), "sample": ()}


def ponder_scan(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Exit layers (settings, examples), or (examples,) for plain numbers."""
    recorded = (tensors[name] for name in ("all_logits", "halt_probabilities", "draws"))
    return scan_halting(HaltingRule(**setting), *recorded)[1]


def no_window(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """A halting probability looks at one layer: no exit has a window, (examples,) of 0."""
    return torch.zeros(tensors["all_logits"].shape[1], dtype=torch.long)


RULE_SETS = {
    "elbert": RuleSet(
        "thres_name",
        EXIT_KEYS,
        elbert_reads,
        ("cnt_thres", "margin"),
        elbert_scan,
        elbert_window,
        {},
        {},
    ),
    "ponder_albert": RuleSet(
        "exit_criteria",
        PONDER_EXIT_KEYS,
        ponder_reads,
        ("exit_thres",),
        ponder_scan,
        no_window,
        {"exit_criteria": "threshold"},
        {"expectation": "it mixes the answers of all layers, so every example goes to the last"},
    ),
}


# Grids.


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

    def columns(self) -> dict[str, torch.Tensor]:
        """Each key's value in each setting: (settings, 1), whole numbers as int64."""
        combinations = self.combinations()
        return {
            key: torch.tensor([combination[key] for combination in combinations])[:, None]
            for key in self.values
        }

    def position(self, choice: Sequence[int]) -> int:
        """Number of the setting that takes entry choice[i] of key i."""
        lengths = [len(values) for values in self.values.values()]
        return int(np.ravel_multi_index(choice, lengths)) if lengths else 0


def parse_values(key: str, text: str, num_layers: int, keys: Mapping[str, Key]) -> tuple:
    """The values that `text` lists for `key`, in its order.

    "0.1,0.3" is a list, "0:1:0.02" a range with both ends, "1:N" one in steps of 1 up to the
    number of layers. Raises UserError for an unknown key, a value that the key cannot have, and
    an empty range.
    """
    if key not in keys or keys[key].kind not in (int, float):
        known = [name for name, entry in keys.items() if entry.kind in (int, float)]
        raise UserError(f"grid {key}={text}: {nearest_names(key, known)}")
    values: list[float] = []
    for piece in text.split(","):
        values += expand(key, piece, num_layers)
    try:
        values = [checked(key, value, keys) for value in values]
    except UserError as error:
        raise UserError(f"grid {key}={text}: {error}") from error
    too_long = key == "cnt_thres" and max(values) > num_layers
    if too_long:
        raise UserError(f"grid {key}={text}: allowed is 1 to num_hidden_layers = {num_layers}")
    return tuple(values)


def expand(key: str, piece: str, num_layers: int) -> list[float]:
    """Numbers of "0.3", "1:N" or "0:1:0.02"."""
    try:
        numbers = [float(num_layers if part == "N" else part) for part in piece.split(":")]
        if len(numbers) == 1:
            return numbers
        start, stop, step = numbers if len(numbers) == 3 else [*numbers, 1.0]
        count = math.floor((stop - start) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise UserError(
            f"grid {key}={piece}: expected a number, FROM:TO, or FROM:TO:STEP"
        ) from error
    if not 0 < count <= 100_000:
        raise UserError(f"grid {key}={piece}: {'an empty' if count < 1 else 'too large a'} range")
    return [round(start + i * step, 10) for i in range(count)]


def make_grids(
    rule_set: RuleSet,
    rules: Sequence[str],
    texts: Mapping[str, str],
    num_layers: int,
    regression: bool,
    fixed: Setting | None = None,
) -> tuple[RuleGrid, ...]:
    """A grid a rule, from each key's values as text (see `parse_values`); defaults fill in.

    Raises UserError for an unknown rule as well.
    """
    reads = rule_set.reads(regression)
    for rule in rules:
        if rule in rule_set.unswept:
            raise UserError(f"rule {rule} has nothing to sweep: {rule_set.unswept[rule]}")
        if rule not in reads:
            raise UserError(f"rule {rule}: {nearest_names(rule, list(reads))}")
    default = REGRESSION_GRID if regression else DEFAULT_GRID
    texts = {**{key: text for key, text in default.items() if key in rule_set.keys}, **texts}
    values = {
        key: tuple(sorted(set(parse_values(key, text, num_layers, rule_set.keys))))
        for key, text in texts.items()
    }
    return tuple(
        RuleGrid(rule, {key: values[key] for key in reads[rule]}, fixed or {}) for rule in rules
    )


# Sweeps.


@dataclass(frozen=True)
class Sweep:
    """Where every setting of every rule lets every example exit."""

    task: Task
    grids: tuple[RuleGrid, ...]
    settings: list[Setting]  # the rule's name and the keys that it reads
    exit_layer: np.ndarray  # (settings, examples) uint8, 1-based
    predictions: np.ndarray  # (layers, examples)
    labels: np.ndarray  # (examples,)
    name_key: str = "thres_name"

    @property
    def num_layers(self) -> int:
        return len(self.predictions)

    @cached_property
    def truncations(self) -> np.ndarray:
        """Exit layers of stopping everybody at layer 1, 2, ..., N: (layers, examples)."""
        layers = np.arange(1, self.num_layers + 1, dtype=self.exit_layer.dtype)
        return np.repeat(layers[:, None], len(self.labels), 1)

    def of_rule(self, rule: str) -> slice:
        """The settings of one rule."""
        start = 0
        for grid in self.grids:
            if grid.rule == rule:
                return slice(start, start + len(grid))
            start += len(grid)
        raise KeyError(rule)

    def metrics(
        self,
        exit_layer: np.ndarray,
        rows: np.ndarray | slice = slice(None),
        weights: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """The task's metrics of exits (settings, examples) on some examples; see `metrics_at`."""
        predictions, labels = self.predictions[:, rows], self.labels[rows]
        return metrics_at(self.task, predictions, labels, exit_layer[:, rows], weights)

    def main_metric(
        self,
        exit_layer: np.ndarray,
        rows: np.ndarray | slice = slice(None),
        weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """The metric that curves and choices go by: (settings,) or (settings, draws)."""
        return self.metrics(exit_layer, rows, weights)[primary_metric(self.task)]

    def cost(self, exit_layer: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Computation cost, mean exit layer over the number of layers: (settings,)."""
        return exit_layer[:, rows].mean(1, dtype=float) / self.num_layers

    def exits_per_layer(self, exit_layer: np.ndarray) -> np.ndarray:
        """How many examples exit after each layer: (settings, layers)."""
        layers = range(1, self.num_layers + 1)
        return np.stack([(exit_layer == layer).sum(1) for layer in layers], 1)


def sweep(rule_set: RuleSet, grids: Sequence[RuleGrid], recording: Recording, task: Task) -> Sweep:
    """Scan the recording with every setting of `grids`.

    Memory is a byte for each setting and example, and one chunk of settings at work. Raises
    UserError for a grid that needs more than LARGEST_SWEEP of these bytes.
    """
    examples, count = len(recording.labels), sum(len(grid) for grid in grids)
    if count * examples > LARGEST_SWEEP:
        raise UserError(
            f"{count} settings × {examples} examples are too many; make --grid coarser, or give "
            "fewer --rules"
        )
    exit_layer = np.concatenate(
        [scan_grid(rule_set, grid, recording.tensors, examples) for grid in grids]
    )
    settings = [
        {rule_set.name_key: grid.rule, **combination}
        for grid in grids
        for combination in grid.combinations()
    ]
    return Sweep(
        task,
        tuple(grids),
        settings,
        exit_layer,
        recording.predictions,
        recording.labels,
        rule_set.name_key,
    )


def scan_grid(rule_set: RuleSet, grid: RuleGrid, tensors: Tensors, examples: int) -> np.ndarray:
    """Exit layers of a grid's settings, (settings, examples), a chunk of settings at a time."""
    setting, columns = {**grid.fixed, rule_set.name_key: grid.rule}, grid.columns()
    pieces = []
    with one_thread():
        for rows in chunks(len(grid), examples):
            some = {key: column[rows] for key, column in columns.items()}
            exits = rule_set.scan({**setting, **some}, tensors)
            pieces.append(exits.reshape(-1, examples).numpy())
    layers = len(tensors["all_logits"])
    return np.concatenate([piece.astype(np.min_scalar_type(layers)) for piece in pieces])


@contextmanager
def one_thread() -> Iterator[None]:
    """A scan is many small steps: on a busy machine, waiting for threads costs more than they do.

    Measured beside other jobs on 2 cores: 0.8 s for a thousand settings, 9 s with two threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def scan_setting(rule_set: RuleSet, setting: Setting, recording: Recording) -> np.ndarray:
    """Exit layers of one setting, (1, examples)."""
    exits = rule_set.scan(setting, recording.tensors)
    return exits.numpy().astype(np.min_scalar_type(len(recording.predictions)))[None]


# Tables and frontiers.


def table(swept: Sweep) -> list[dict[str, Any]]:
    """A row a setting: rule, its keys, every metric, cost, exits per layer."""
    exits = swept.exits_per_layer(swept.exit_layer)
    metrics = swept.metrics(swept.exit_layer)
    costs = swept.cost(swept.exit_layer)
    keys = list(dict.fromkeys(key for grid in swept.grids for key in grid.values))
    rows = []
    for i, setting in enumerate(swept.settings):
        row = {"rule": setting[swept.name_key], **{key: setting.get(key, "") for key in keys}}
        row |= {name: float(values[i]) for name, values in metrics.items()}
        row["compute_ratio"] = float(costs[i])
        row["exit_sample_ratio"] = 1 - int(exits[i, -1]) / len(swept.labels)
        row |= {f"exits_{n}": int(count) for n, count in enumerate(exits[i], start=1)}
        rows.append(row)
    return rows


def frontier(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """The settings that no other beats: none is as good on both cost and metric, better on one.

    (settings,), (settings,) -> their numbers in order of cost; of equal ones the first.
    """
    order = np.lexsort((np.arange(len(cost)), -metric, cost))
    best_before = np.maximum.accumulate(np.r_[-np.inf, metric[order][:-1]])
    return order[metric[order] > best_before]


def frontier_table(rows: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """The rows of `table` on the frontier; `settings` counts those with the same point."""
    cost, value = (np.array([row[name] for row in rows]) for name in ("compute_ratio", metric))
    return [
        {**rows[i], "settings": int(((cost == cost[i]) & (value == value[i])).sum())}
        for i in frontier(cost, value)
    ]


def describe(setting: Setting, name_key: str = "thres_name") -> str:
    """ "bias_1, exit_thres 0.3, cnt_thres 4": for messages and titles."""
    keys = [f"{key} {value:g}" for key, value in setting.items() if key != name_key]
    return ", ".join([setting[name_key], *keys])


def nearest_setting(swept: Sweep, setting: Setting, exit_layer: np.ndarray) -> int:
    """Number of the swept setting that stands for `setting`, whose exits are (1, examples).

    The setting itself where the grid has it, else the one that agrees on most exits, if possible
    of the same rule.
    """
    if setting in swept.settings:
        return swept.settings.index(setting)
    rule = setting[swept.name_key]
    known = any(grid.rule == rule for grid in swept.grids)
    own = swept.of_rule(rule) if known else slice(0, None)
    return own.start + int((swept.exit_layer[own] == exit_layer).sum(1).argmax())
