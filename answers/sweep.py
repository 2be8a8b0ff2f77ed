"""The sweep: from exit settings to exits, metrics and the frontier, on recorded answers.

All layers' answers are recorded once (`record_layers`). `sweep` finds where each setting of each
rule lets each example exit. `Sweep` turns exits into metrics and costs, and `frontier` finds the
settings that no other beats.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from answers.report import predictions_of
from elbert.configuration import EarlyExitConfig
from elbert.rules import Tensors, scan
from elbert_base.errors import UserError
from elbert_base.exit_settings import Setting
from elbert_base.keys import nearest_names
from glue.metrics import at_exit, chunks, frontier, metrics_at
from glue.tasks import Task

# In the place of a rule's name: everyone stops at one layer; each example at one of two layers, by
# chance; each at its first right layer; everyone at the last.
BASELINES = ("truncation", "coin", "oracle", "full depth")
TRUNCATION, RANDOM_MIXTURE, ORACLE, FULL_DEPTH = BASELINES
Rows = np.ndarray | slice  # numbers of examples
Grids = dict[str, dict[str, tuple[float, ...]]]  # by rule, the values that each of its keys takes
ALL = slice(None)


@dataclass(frozen=True)
class Recording:
    """All that a sweep reads of a model and a data set."""

    tensors: dict[str, torch.Tensor]  # as `record_layers` gives them
    labels: np.ndarray  # (examples,)
    flops: np.ndarray | None = None  # (layers, examples), as shares of the mean full depth

    @property
    def predictions(self) -> np.ndarray:
        """Class ids, or values, of every layer: (layers, examples)."""
        return predictions_of(self.tensors["all_logits"], self.labels.ndim > 1)


def flops_of(config: EarlyExitConfig, lengths: np.ndarray) -> np.ndarray:
    """FLOPs of an exit at each layer, as shares of the mean full depth: (layers, examples).

    lengths: tokens of each example, (examples,).
    """
    lengths, row = np.unique(np.asarray(lengths), return_inverse=True)
    depths = range(1, config.num_hidden_layers + 1)
    spent = [[config.early_exit_flops(n, depth) for n in lengths.tolist()] for depth in depths]
    full = np.array([config.full_depth_flops(n) for n in lengths.tolist()], dtype=float)
    return np.array(spent, dtype=float)[:, row] / full[row].mean()


# The settings of each rule that a sweep tries.


def sweepable(config: EarlyExitConfig) -> list[str]:
    """The rules that a sweep tries unless it is told which."""
    names = config.exit_rules()
    return [x for x in names if not config.exit_rule(**{config.rule_key: x}).never_exits]


def make_grids(config: EarlyExitConfig, names: Sequence[str], texts: Mapping[str, str]) -> Grids:
    """Every rule's values to try, from each key's as text; the keys' own grids fill in.

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
    return {
        name: {key: values[key] for key in values if key in rules[name].reads} for name in names
    }


@dataclass(frozen=True)
class Sweep:
    """Exit layers of every example under every setting of every rule."""

    task: Task
    config: EarlyExitConfig  # whose exit keys hold where a setting has none
    grids: Grids
    settings: list[Setting]  # the rule's name and a value of each key that varies, the last fastest
    exit_layer: np.ndarray  # (settings, examples) uint8, 1-based
    predictions: np.ndarray  # (layers, examples)
    labels: np.ndarray  # (examples,)
    seconds: np.ndarray | None = None  # (layers, examples), from a text's start to the answer
    flops: np.ndarray | None = None  # (layers, examples), of a `Recording`

    @property
    def num_layers(self) -> int:
        return len(self.predictions)

    @cached_property
    def truncations(self) -> np.ndarray:
        """Exit layers of stopping everybody at layer 1, 2, ..., N: (layers, examples)."""
        layers = np.arange(1, self.num_layers + 1, dtype=self.exit_layer.dtype)
        return np.repeat(layers[:, None], len(self.labels), 1)

    @cached_property
    def oracle(self) -> np.ndarray:
        """Exit layers of an oracle that knows layers 1 to 1, 2, ..., N: (layers, examples).

        Each example exits at the first of these that is right, or else at layer 1; in regression,
        at the first of those with the least error, of several labels with the fewest wrong ones.
        """
        error = np.abs(self.predictions.astype(float) - self.labels)
        if self.task.multi_label:
            error = error.sum(-1)
        elif not self.task.is_regression:
            error = error > 0
        depths = range(1, self.num_layers + 1)
        first = [error[:depth].argmin(0) + 1 for depth in depths]
        return np.stack(first).astype(self.exit_layer.dtype)

    def of_rule(self, rule: str) -> slice:
        """The settings of one rule."""
        own = [i for i, one in enumerate(self.settings) if one[self.config.rule_key] == rule]
        return slice(own[0], own[-1] + 1)

    def exits_of(self, method: str) -> np.ndarray:
        """Exit layers under a rule's settings, or of a baseline by layer: (settings, examples)."""
        if method not in BASELINES:
            return self.exit_layer[self.of_rule(method)]
        exits = self.oracle if method == ORACLE else self.truncations
        return exits[-1:] if method == FULL_DEPTH else exits

    def metrics(
        self, exit_layer: np.ndarray, rows: Rows = ALL, weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """The task's metrics of exits (settings, examples) on some examples; see `metrics_at`."""
        predictions, labels = self.predictions[:, rows], self.labels[rows]
        return metrics_at(self.task, predictions, labels, exit_layer[:, rows], weights)

    def main_metric(
        self, exit_layer: np.ndarray, rows: Rows = ALL, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """The metric that curves and choices go by: (settings,) or (settings, resamples)."""
        return self.metrics(exit_layer, rows, weights)[self.task.primary_metric]

    def cost(self, exit_layer: np.ndarray, rows: Rows = ALL) -> np.ndarray:
        """Computation cost, mean exit layer over the number of layers: (settings,)."""
        return exit_layer[:, rows].mean(1, dtype=float) / self.num_layers

    def p95_ms(self, exit_layer: np.ndarray, rows: Rows = ALL) -> np.ndarray:
        """95th percentile of the milliseconds to the examples' answers: (settings,)."""
        if self.seconds is None:
            raise ValueError("the recording has no times")
        p95 = partial(np.percentile, q=95)
        return over_examples(1000 * self.seconds[:, rows], exit_layer[:, rows], p95)

    def columns(self, exit_layer: np.ndarray) -> dict[str, np.ndarray]:
        """Results of settings, (settings,) each: every metric, cost, and where they are known
        FLOPs ratio and the recorded latency in ms."""
        found = {**self.metrics(exit_layer), "compute_ratio": self.cost(exit_layer)}
        if self.flops is not None:
            found["flops_ratio"] = over_examples(self.flops, exit_layer, np.mean)
        if self.seconds is not None:
            found["latency_ms"] = over_examples(1000 * self.seconds, exit_layer, np.median)
            found["latency_p95_ms"] = self.p95_ms(exit_layer)
        found["exit_sample_ratio"] = 1 - (exit_layer == self.num_layers).mean(1)
        return found

    def exits_per_layer(self, exit_layer: np.ndarray) -> np.ndarray:
        """Number of examples that exit after each layer: (settings, layers)."""
        layers = range(1, self.num_layers + 1)
        return np.stack([(exit_layer == layer).sum(1) for layer in layers], 1)


def over_examples(
    by_layer: np.ndarray, exit_layer: np.ndarray, statistic: Callable[..., np.ndarray]
) -> np.ndarray:
    """A statistic over the examples, of (layers, examples) numbers at each setting's exits."""
    pieces = [
        statistic(at_exit(by_layer, exit_layer[rows]), axis=1)
        for rows in chunks(len(exit_layer), exit_layer.shape[1])
    ]
    return np.concatenate(pieces)


def sweep(config: EarlyExitConfig, grids: Grids, recording: Recording, task: Task) -> Sweep:
    """Scan the recording with every setting of `grids`; a byte for each setting and example."""
    settings, exits = [], []
    for rule, values in grids.items():
        own = [dict(zip(values, some, strict=True)) for some in itertools.product(*values.values())]
        exits += scan_settings(config, rule, own, recording.tensors)
        settings += [{config.rule_key: rule, **one} for one in own]
    seconds = recording.tensors.get("seconds")
    return Sweep(
        task,
        config,
        grids,
        settings,
        np.concatenate(exits),
        recording.predictions,
        recording.labels,
        None if seconds is None else seconds.T.numpy(),
        recording.flops,
    )


def scan_settings(
    config: EarlyExitConfig, rule: str, settings: Sequence[Setting], tensors: Tensors
) -> list[np.ndarray]:
    """Exit layers under settings of one rule, in pieces of (settings, examples)."""
    layers, examples = tensors["all_logits"].shape[:2]
    pieces, threads = [], torch.get_num_threads()
    # A scan is many small steps: on a busy machine, waiting for threads costs more than they do.
    # Measured beside other jobs on 2 cores: 0.8 s for a thousand settings, 9 s with two threads.
    torch.set_num_threads(1)
    try:
        for rows in chunks(len(settings), examples):
            some = settings[rows]
            keys = {key: torch.tensor([one[key] for one in some])[:, None] for key in some[0]}
            exits = scan(config.exit_rule(**{config.rule_key: rule}, **keys), tensors)
            pieces.append(exits.reshape(-1, examples).numpy().astype(np.min_scalar_type(layers)))
    finally:
        torch.set_num_threads(threads)
    return pieces


def first_grid(config: EarlyExitConfig) -> Grids:
    """Give the configured rule the grid of the first key that it reads, the others as they are."""
    rule = config.exit_keys()[config.rule_key]
    keys = [name for name in config.keys_read() if config.table.exit_keys[name].grid][:1]
    return {rule: {name: config.grid(name) for name in keys}}


def configured_frontier(
    config: EarlyExitConfig, recording: Recording, task: Task
) -> dict[str, list[list[float]]]:
    """Find the Pareto-optimal points of the configured rule over the grid of its first key.

    By metric: [computation cost, metric], by rising cost.
    """
    swept = sweep(config, first_grid(config), recording, task)
    exits = np.unique(swept.exit_layer, axis=0)  # many settings may have the same exits
    costs = swept.cost(exits)
    return {
        name: [[float(costs[i]), float(values[i])] for i in frontier(costs, values)]
        for name, values in swept.metrics(exits).items()
    }
