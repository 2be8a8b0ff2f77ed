"""Every rule and every threshold from one recorded pass: where each setting lets examples exit.

No rule is written here: the project's one rule code is called with all settings of a rule at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from evaluation.keys import Setting
from evaluation.modes.base import Mode
from exit_lab.grids import RuleGrid
from exit_lab.metrics import at_exit, chunks, metrics_at
from exit_lab.recording import Recording
from glue.tasks import Task, primary_metric
from modeling.errors import UserError
from modeling.rules import Tensors, scan

# In the place of a rule's name: everyone stops at one layer; each example at one of two layers, by
# chance; each at its first right layer; everyone at the last.
TRUNCATION, COIN, ORACLE, FULL_DEPTH = "truncation", "coin", "oracle", "full depth"
LARGEST_SWEEP = 500_000_000  # settings × examples: a byte each


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
        at the first of those with the least error.
        """
        error = np.abs(self.predictions.astype(float) - self.labels)
        error = error if self.task.is_regression else error > 0
        depths = range(1, self.num_layers + 1)
        first = [error[:depth].argmin(0) + 1 for depth in depths]
        return np.stack(first).astype(self.exit_layer.dtype)

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

    def p95_ms(self, exit_layer: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """95th percentile of the milliseconds to the examples' answers: (settings,)."""
        p95 = partial(np.percentile, q=95)
        return over_examples(1000 * self.seconds[:, rows], exit_layer[:, rows], p95)

    def measured(self, exit_layer: np.ndarray) -> dict[str, np.ndarray]:
        """What settings take: FLOPs ratio, and the recorded latency in ms, (settings,) each.

        Empty where it is not known.
        """
        found: dict[str, np.ndarray] = {}
        if self.flops is not None:
            found["flops_ratio"] = over_examples(self.flops, exit_layer, np.mean)
        if self.seconds is not None:
            found["latency_ms"] = over_examples(1000 * self.seconds, exit_layer, np.median)
            found["latency_p95_ms"] = self.p95_ms(exit_layer)
        return found

    def exits_per_layer(self, exit_layer: np.ndarray) -> np.ndarray:
        """How many examples exit after each layer: (settings, layers)."""
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


def sweep(mode: Mode, grids: Sequence[RuleGrid], recording: Recording, task: Task) -> Sweep:
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
        [scan_grid(mode, grid, recording.tensors, examples) for grid in grids]
    )
    settings = [
        {mode.rule_key: grid.rule, **combination}
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
        mode.rule_key,
        recording.seconds,
        recording.flops,
    )


def scan_grid(mode: Mode, grid: RuleGrid, tensors: Tensors, examples: int) -> np.ndarray:
    """Exit layers of a grid's settings, (settings, examples), a chunk of settings at a time."""
    setting, columns = {**grid.fixed, mode.rule_key: grid.rule}, grid.columns()
    pieces = []
    with one_thread():
        for rows in chunks(len(grid), examples):
            some = {key: column[rows] for key, column in columns.items()}
            exits = scan(mode.rule({**setting, **some}, tensors), tensors)
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


def scan_setting(mode: Mode, setting: Setting, recording: Recording) -> np.ndarray:
    """Exit layers of one setting, (1, examples)."""
    exits = scan(mode.rule(setting, recording.tensors), recording.tensors)
    return exits.numpy().astype(np.min_scalar_type(len(recording.predictions)))[None]
