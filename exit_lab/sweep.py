"""One recorded pass at full depth, and where every setting of every rule lets each example exit."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from evaluation.job import Job
from evaluation.predictions import Predictions, is_main, record_layers
from evaluation.results import labels_of, predictions_of
from glue.metrics import at_exit, chunks, concave_hull, frontier, metrics_at
from glue.tables import as_csv
from glue.tasks import Task
from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.exit_settings import Setting
from modeling.keys import nearest_names
from modeling.rules import Tensors, scan
from utils.files import fingerprint, write_file, write_text

# In the place of a rule's name: everyone stops at one layer; each example at one of two layers, by
# chance; each at its first right layer; everyone at the last.
BASELINES = ("truncation", "coin", "oracle", "full depth")
TRUNCATION, COIN, ORACLE, FULL_DEPTH = BASELINES
RECORDING = "all_logits.safetensors"

# Keys of a config.json that change no answer; nor do the keys of the exit rule.
IDLE_KEYS = {"exit_config_path", "my_out_dir", "_name_or_path"}
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


def load_or_record(folder: Path, job: Job) -> Recording:
    """The recording kept in a folder if it is of this model and data, else a new one, kept there.

    Says in one line which. Processes share the recording's work; what follows is the main one's.
    Raises UserError when the examples have no labels, or an answer is not finite.
    """
    path, weights = folder / RECORDING, job.origin["provenance"]["weights"]
    labels, idle = labels_of(job.features), IDLE_KEYS | job.model.config.exit_keys().keys()
    config = {k: v for k, v in sorted(job.model.config.to_dict().items()) if k not in idle}
    known = fingerprint(config, job.batch_size, weights, job.features.digest())
    tensors, problem = read_recording(path, known)
    (problem,) = broadcast_object_list([problem])  # the main process's: disks may differ
    if problem:
        tensors = record_anew(job, f"{path} {problem}")
    job.check_unchanged()
    if problem and is_main():
        kept = save({**tensors, "labels": torch.from_numpy(labels)}, {"fingerprint": known})
        write_file(path, lambda file: file.write(kept), listed_in=folder)
    elif is_main():
        print(f"{path} reused: its weights and data are these")
    left_out = {"labels", "seconds"} if job.batch_size > 1 else {"labels"}  # times of a batch
    tensors = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    return Recording(tensors, labels, flops_of(job))


def record_anew(job: Job, why: str) -> Predictions:
    """Record every layer's answers to the examples; UserError for an answer that is not finite."""
    if is_main():
        print(f"{why}: recording {len(job.features)} examples at full depth")
    tensors = record_layers(job, job.batch_size)
    finite = tensors["all_logits"].isfinite()
    if not finite.all():
        layer = int((~finite).flatten(1).any(1).nonzero()[0]) + 1
        raise UserError(f"the answers of layer {layer} are not finite; train the model again")
    return tensors


def read_recording(path: Path, known: str) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors kept at `path` under a fingerprint; otherwise none, and why."""
    if not path.exists():
        return {}, "does not exist yet"
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("fingerprint") != known:
                return {}, "is of other weights or data"
            return {name: file.get_tensor(name) for name in file.keys()}, ""  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}, "is damaged"


def flops_of(job: Job) -> np.ndarray:
    """FLOPs of an exit at each layer, as shares of the mean full depth: (layers, examples)."""
    config = job.model.config
    lengths, row = np.unique(np.asarray(job.features.lengths), return_inverse=True)
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


# As rows: every setting, the frontier that no other setting beats, and the baselines.


def write_tables(swept: Sweep, output: Path) -> None:
    """Write sweep.csv, with truncation's rows last, and frontier.csv, with all baselines'."""
    rows, layers = rows_of(swept), rows_of(swept, TRUNCATION)
    metric = swept.task.primary_metric
    best = best_rows(rows, metric)
    baselines = best_rows(layers, metric)
    for name in (COIN, ORACLE):
        baselines += best_rows(rows_of(swept, name), metric, concave_hull)
    write_text(output / "sweep.csv", as_csv([*rows, *layers]), listed_in=output)
    write_text(output / "frontier.csv", as_csv([*best, *baselines]), listed_in=output)
    print(f"{len(rows)} settings: {output / 'sweep.csv'}; {len(best)} on the frontier")


def rows_of(swept: Sweep, baseline: str = "") -> list[dict[str, Any]]:
    """A row a setting: rule, its keys, every metric, cost, exits per layer.

    Of a baseline a row for each layer at which everyone stops, by any rule or none; of the oracle
    for each that is the last it may look at.
    """
    heads = [{**setting, "rule": setting[swept.config.rule_key]} for setting in swept.settings]
    exit_layer = swept.exit_layer
    if baseline:
        heads = [{"rule": baseline, "layer": n + 1} for n in range(swept.num_layers)]
        exit_layer = swept.exits_of(baseline)
    keys = dict.fromkeys(itertools.chain(*swept.grids.values()))
    columns = {name: values.tolist() for name, values in swept.columns(exit_layer).items()}
    exits = swept.exits_per_layer(exit_layer).tolist()
    rows = []
    for i, head in enumerate(heads):
        row = {key: head.get(key, "") for key in ("rule", *keys, "layer")}
        row |= {name: values[i] for name, values in columns.items()}
        rows.append(row | {f"exits_{n}": count for n, count in enumerate(exits[i], start=1)})
    return rows


def best_rows(
    rows: Sequence[dict[str, Any]],
    metric: str,
    best: Callable[[np.ndarray, np.ndarray], np.ndarray] = frontier,
) -> list[dict[str, Any]]:
    """The rows on the frontier, or on the hull; `settings` counts those with the same point."""
    cost, value = (np.array([row[name] for row in rows]) for name in ("compute_ratio", metric))
    return [
        {**rows[i], "settings": int(((cost == cost[i]) & (value == value[i])).sum())}
        for i in best(cost, value)
    ]
