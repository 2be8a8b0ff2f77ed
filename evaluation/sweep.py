"""The sweep: from exit settings to exits, metrics and the frontier, on recorded answers.

All layers' answers are recorded once (`record_layers`). `sweep` finds where each setting of each
rule lets each example exit. `Sweep` turns exits into metrics and costs, and `frontier` finds the
settings that no other beats. sweep_exits.py, the metric at a computation cost, reports and
experiments all use this code.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch

from evaluation.exit_metrics import at_exit, metrics_at
from evaluation.frontier import frontier
from evaluation.measures import predictions_of
from glue.metrics import chunks
from glue.tasks import Task
from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.exit_settings import Setting
from modeling.keys import nearest_names
from modeling.rules import Tensors, layer_answers, scan

# In the place of a rule's name: everyone stops at one layer; each example at one of two layers, by
# chance; each at its first right layer; everyone at the last.
BASELINES = ("truncation", "random exits", "oracle", "full depth")
TRUNCATION, RANDOM_MIXTURE, ORACLE, FULL_DEPTH = BASELINES
Rows = np.ndarray | slice  # numbers of examples
Grid = dict[str, tuple[float, ...]]  # the values that each exit key takes
Grids = dict[str, Grid]  # of each rule
ALL = slice(None)


@dataclass(frozen=True)
class Recording:
    """All that a sweep reads of a model and a data set."""

    tensors: dict[str, torch.Tensor]  # as `record_layers` returns them
    labels: np.ndarray  # (examples,)
    flops: np.ndarray | None = None  # (layers, examples), as shares of the mean full depth

    @property
    def predictions(self) -> np.ndarray:
        """Class ids, or values, of every layer: (layers, examples)."""
        return predictions_of(self.tensors["all_logits"], multi_label=self.labels.ndim > 1)


def flops_of(config: EarlyExitConfig, lengths: np.ndarray) -> np.ndarray:
    """Compute the FLOPs of an exit at each layer, as shares of the mean full depth.

    lengths: tokens of each example, (examples,). Returns (layers, examples).
    """
    distinct_lengths, column = np.unique(np.asarray(lengths), return_inverse=True)
    token_counts = distinct_lengths.tolist()
    by_layer = []
    for layer in range(1, config.num_hidden_layers + 1):
        by_layer.append([config.early_exit_flops(length, layer) for length in token_counts])
    full_depth = [config.full_depth_flops(length) for length in token_counts]
    mean_full_depth = np.array(full_depth, dtype=float)[column].mean()
    return np.array(by_layer, dtype=float)[:, column] / mean_full_depth


# The settings of each rule that a sweep tries.


def sweepable(config: EarlyExitConfig) -> list[str]:
    """List the rules that a sweep tries by default: those under which examples can exit early."""
    rules = {name: config.exit_rule(**{config.rule_key: name}) for name in config.exit_rules()}
    return [name for name, rule in rules.items() if not rule.never_exits]


def make_grids(
    config: EarlyExitConfig, rule_names: Sequence[str], grid_texts: Mapping[str, str]
) -> Grids:
    """Make the grid of each rule: the values to try of every exit key that it reads.

    A key without a text has its own grid; a key that has none either keeps its configured value.

    Args:
        grid_texts: values of keys, as `EarlyExitConfig.grid` reads them.

    Raises:
        UserError: an unknown rule, or one under which nothing exits early; a key that none of the
            rules reads; a value that a key cannot have.
    """
    rules = config.exit_rules()
    for name in rule_names:
        if name not in rules:
            raise UserError(f"rule {name}: {nearest_names(name, list(rules))}")
        if rules[name].never_exits:
            raise UserError(f"rule {name} has nothing to sweep: {rules[name].never_exits}")
    values = {}
    for key, entry in config.table.exit_keys.items():
        if key in grid_texts or entry.grid:
            values[key] = tuple(sorted(set(config.grid(key, grid_texts.get(key)))))
    for key, text in grid_texts.items():
        config.grid(key, text)  # raises for what is no exit key
        readers = [name for name, rule in rules.items() if key in rule.reads]
        if not set(readers).intersection(rule_names):
            raise UserError(
                f"grid {key}={text}: {', '.join(rule_names)} read no {key}; rules that do: "
                f"{', '.join(readers) or 'none'}"
            )
    grids = {}
    for name in rule_names:
        keys_read = rules[name].reads
        grids[name] = {key: values[key] for key in values if key in keys_read}
    return grids


@dataclass(frozen=True)
class Sweep:
    """Exit layers of every example under every setting of every rule.

    The methods compute for any exits (settings, examples), 1-based: those of the sweep, of some of
    its settings, or of a baseline.
    """

    task: Task
    config: EarlyExitConfig  # whose exit keys hold where a setting has none
    grids: Grids
    settings: list[Setting]  # the rule's name and a value of each key that varies, the last fastest
    exit_layer: np.ndarray  # (settings, examples) uint8, 1-based
    predictions: np.ndarray  # (layers, examples)
    labels: np.ndarray  # (examples,)
    seconds: np.ndarray | None = None  # (layers, examples), from a text's start to the answer
    flops: np.ndarray | None = None  # (layers, examples), of a `Recording`
    # The last layer's as it was trained, (examples,), where `predictions` are recalibrated.
    trained_answers: np.ndarray | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.predictions)

    @property
    def full_depth_answers(self) -> np.ndarray:
        """Answers of the last layer as it was trained: (examples,)."""
        return self.predictions[-1] if self.trained_answers is None else self.trained_answers

    @cached_property
    def truncations(self) -> np.ndarray:
        """Exit layers of stopping everybody at layer 1, 2, ..., N: (layers, examples).

        At a layer without an exit: at the exit before, or the first one.
        """
        layers = np.array(self.config.newest_exits(), dtype=self.exit_layer.dtype)
        return np.repeat(layers[:, None], len(self.labels), axis=1)

    @cached_property
    def oracle(self) -> np.ndarray:
        """Exit layers of an oracle that knows layers 1 to 1, 2, ..., N: (layers, examples).

        Each example exits at the first of these that is right, or else at layer 1; in regression,
        at the first of those with the least error, of several labels with the fewest wrong ones.
        """
        error = np.abs(self.predictions.astype(float) - self.labels)
        if self.task.multi_label:
            error = error.sum(-1)  # number of wrong labels
        elif not self.task.is_regression:
            error = error > 0
        error = error.astype(float)
        without_exit = np.setdiff1d(np.arange(self.num_layers), np.array(self.config.exits) - 1)
        error[without_exit] = np.inf
        first_best = [error[:depth].argmin(0) + 1 for depth in self.config.newest_exits()]
        return np.stack(first_best).astype(self.exit_layer.dtype)

    def of_rule(self, rule: str) -> slice:
        """Return where the settings of one rule stand among all settings."""
        rule_key = self.config.rule_key
        numbers = [i for i, setting in enumerate(self.settings) if setting[rule_key] == rule]
        return slice(numbers[0], numbers[-1] + 1)

    def exits_of(self, method: str) -> np.ndarray:
        """Return exit layers under a rule's settings, or of a baseline by layer.

        (settings, examples), or (layers, examples); of full depth (1, examples).
        """
        if method not in BASELINES:
            return self.exit_layer[self.of_rule(method)]
        if method == ORACLE:
            return self.oracle
        if method == FULL_DEPTH:
            return self.truncations[-1:]
        return self.truncations  # of which a random mixture takes two

    def metrics(
        self, exit_layer: np.ndarray, rows: Rows = ALL, weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Compute the task's metrics on some examples, by name; see `metrics_at`.

        exit_layer: (settings, examples). weights: (resamples, rows), how often each example counts.
        Returns (settings,), or (settings, resamples).
        """
        return metrics_at(
            self.task,
            predictions=self.predictions[:, rows],
            labels=self.labels[rows],
            exit_layer=exit_layer[:, rows],
            weights=weights,
        )

    def main_metric(
        self, exit_layer: np.ndarray, rows: Rows = ALL, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute the metric that curves and choices go by; see `metrics`."""
        return self.metrics(exit_layer, rows, weights)[self.task.primary_metric]

    def full_depth_metrics(
        self, rows: Rows = ALL, weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Compute the task's metrics of the last layer as it was trained: (1,), or (1, resamples).

        See `metrics`. A recalibration must not hide what it loses.
        """
        trained = replace(self, predictions=self.full_depth_answers[None])
        first_layer = np.ones((1, len(self.labels)), dtype=self.exit_layer.dtype)
        return trained.metrics(first_layer, rows, weights)

    def cost(self, exit_layer: np.ndarray, rows: Rows = ALL) -> np.ndarray:
        """Compute the computation cost, mean exit layer over the number of layers: (settings,)."""
        return exit_layer[:, rows].mean(1, dtype=float) / self.num_layers

    def p95_ms(self, exit_layer: np.ndarray, rows: Rows = ALL) -> np.ndarray:
        """Compute the 95th percentile of the milliseconds to the examples' answers: (settings,)."""
        if self.seconds is None:
            raise ValueError("the recording has no times")
        milliseconds = 1000 * self.seconds[:, rows]
        return over_examples(milliseconds, exit_layer[:, rows], partial(np.percentile, q=95))

    def columns(self, exit_layer: np.ndarray) -> dict[str, np.ndarray]:
        """Compute all results of settings, (settings,) each, by their column in sweep.csv.

        They are every metric, the computation cost, the share of examples that exit early and,
        where the recording says so, the FLOPs ratio and the latency.
        """
        results = self.metrics(exit_layer)
        results["compute_ratio"] = self.cost(exit_layer)
        if self.flops is not None:
            results["flops_ratio"] = over_examples(self.flops, exit_layer, np.mean)
        if self.seconds is not None:
            milliseconds = 1000 * self.seconds
            results["latency_ms"] = over_examples(milliseconds, exit_layer, np.median)
            results["latency_p95_ms"] = self.p95_ms(exit_layer)
        results["exit_sample_ratio"] = 1 - (exit_layer == self.num_layers).mean(1)
        return results

    def exits_per_layer(self, exit_layer: np.ndarray) -> np.ndarray:
        """Count the examples that exit after each layer: (settings, layers)."""
        layers = range(1, self.num_layers + 1)
        return np.stack([(exit_layer == layer).sum(1) for layer in layers], axis=1)


def over_examples(
    by_layer: np.ndarray, exit_layer: np.ndarray, statistic: Callable[..., np.ndarray]
) -> np.ndarray:
    """Compute a statistic over the examples, of numbers at each setting's exits: (settings,).

    by_layer: (layers, examples). exit_layer: (settings, examples).
    """
    settings, examples = exit_layer.shape
    pieces = [
        statistic(at_exit(by_layer, exit_layer[numbers]), axis=1)
        for numbers in chunks(settings, examples)
    ]
    return np.concatenate(pieces)


def sweep(config: EarlyExitConfig, grids: Grids, recording: Recording, task: Task) -> Sweep:
    """Scan the recording with every setting of `grids`; a byte for each setting and example."""
    settings: list[Setting] = []
    exits = []
    for rule, grid in grids.items():
        combinations = itertools.product(*grid.values())
        values = [dict(zip(grid, numbers, strict=True)) for numbers in combinations]
        exits.append(scan_settings(config, rule, values, recording.tensors))
        settings.extend({config.rule_key: rule, **setting} for setting in values)
    seconds = recording.tensors.get("seconds")
    return Sweep(
        task=task,
        config=config,
        grids=grids,
        settings=settings,
        exit_layer=np.concatenate(exits),
        predictions=exit_predictions(config, recording),
        labels=recording.labels,
        seconds=None if seconds is None else seconds.T.numpy(),
        flops=recording.flops,
        trained_answers=recording.predictions[-1],
    )


def exit_predictions(config: EarlyExitConfig, recording: Recording) -> np.ndarray:
    """Return class ids, or values, of an exit at every layer: (layers, examples).

    They are the recorded ones, unless the configuration recalibrates them. A layer without an exit
    has those of the exit before.
    """
    is_recalibrated = bool(config.exit_keys().get("exit_calibration"))
    if not is_recalibrated and len(config.exits) == config.num_hidden_layers:
        return recording.predictions
    answers = layer_answers(config.exit_rule(), recording.tensors)
    return predictions_of(answers, multi_label=recording.labels.ndim > 1)


def scan_settings(
    config: EarlyExitConfig, rule: str, settings: Sequence[Setting], tensors: Tensors
) -> np.ndarray:
    """Find the exit layers under settings of one rule: (settings, examples), 1-based.

    Args:
        config: its exit keys hold where a setting has none.
        settings: numbers of the same exit keys each.
        tensors: as `scan` reads them.
    """
    layers, examples = tensors["all_logits"].shape[:2]
    number_type = np.min_scalar_type(layers)
    pieces = []
    # A scan is many small steps: on a busy machine, waiting for threads costs more than they do.
    # Measured beside other jobs on 2 cores: 0.8 s for a thousand settings, 9 s with two threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for numbers in chunks(len(settings), examples):
            some_settings = settings[numbers]
            keys = stack_settings(some_settings)
            exits = scan(config.exit_rule(**{config.rule_key: rule}, **keys), tensors)
            # (examples,) where no key has an effect: all settings have the same exits.
            exits = exits.expand(len(some_settings), examples)
            pieces.append(exits.numpy().astype(number_type))
    finally:
        torch.set_num_threads(threads)
    return np.concatenate(pieces)


def stack_settings(settings: Sequence[Setting]) -> dict[str, torch.Tensor]:
    """Make a tensor (settings, 1) of each key's values, as rules read many settings at once."""
    return {
        key: torch.tensor([setting[key] for setting in settings])[:, None] for key in settings[0]
    }


def first_grid(config: EarlyExitConfig) -> Grids:
    """Make a grid of the configured rule's first key that has one; its other keys stay as set."""
    rule = config.exit_keys()[config.rule_key]
    grid: Grid = {}
    for key in config.keys_read():
        if config.table.exit_keys[key].grid:
            grid[key] = config.grid(key)
            break
    return {rule: grid}


def configured_frontier(
    config: EarlyExitConfig, recording: Recording, task: Task
) -> dict[str, list[list[float]]]:
    """Find the Pareto-optimal points of the configured rule over the grid of its first key.

    By metric: [computation cost, metric], by rising cost.
    """
    swept = sweep(config, first_grid(config), recording, task)
    # A rule may answer otherwise than its layers do: `expectation` mixes their answers.
    answers = layer_answers(config.exit_rule(), recording.tensors)
    swept = replace(swept, predictions=predictions_of(answers, task.multi_label))
    exits = np.unique(swept.exit_layer, axis=0)  # many settings may have the same exits
    costs = swept.cost(exits)
    points = {}
    for name, values in swept.metrics(exits).items():
        best = frontier(costs, values)
        points[name] = [[float(costs[i]), float(values[i])] for i in best]
    return points
