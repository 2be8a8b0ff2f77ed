"""Print the tables of the comparison on twelve layers, from what is recorded so far.

    python -m experiments.twelve_layers.report
    python -m experiments.twelve_layers.report --task SST-2-8k --part dev
    python -m experiments.twelve_layers.report --chart docs/twelve_layers.png
    python -m experiments.twelve_layers.report --choose teaching --encoder minilm

protocol.md says what is compared. A table names the number of seeds that it rests on; what is not
recorded yet is left out and counted at the end (`trainings --list` names it). --chart draws
accuracy against cost on SST-2 instead.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from evaluation.sweep import Recording, scan_settings
from exit_lab.stopping import fit_stopping
from experiments.comparison.figures import Curve, Dot, Panel, draw_comparison
from experiments.comparison.intervals import Contrast, simultaneous
from experiments.twelve_layers.rows import ROWS
from experiments.twelve_layers.trainings import (
    CHOICES,
    LAYERS,
    RECIPES,
    REPORTING_SEEDS,
    Recipe,
    Run,
    choosing_runs,
    runs,
    words_file,
)
from glue.tables import read_records
from modeling import ElbertConfig
from modeling.errors import UserError
from modeling.files import read_json
from modeling.rules import exit_scores, layer_answers, normalised_entropy
from runs.console import markdown_table
from runs.files import as_json, write_text
from runs.processes import run_script

Measure = Callable[[np.ndarray, np.ndarray], float]  # of logits (examples, classes) and labels
STOPPING = "optimal_stopping"
EXITS: dict[str, dict[str, Any]] = {
    "exits": {},
    "exits without self-distillation": {"is_self_taught": False},
}
COSTS = (0.2, 0.25, 0.3, 0.33, 0.4, 0.5, 0.6)
GAIN_COSTS = (0.25, 0.33, 0.5)  # at which gains over other depths and by self-distillation are told
RIVAL_COSTS = (0.33, 0.4, 0.5, 0.6)  # at which the gain over two ordinary networks is told
CURVE_COSTS = np.arange(0.16, 1.0, 0.02)  # of the figure
DEPTHS = sorted({run.depth for run in runs() if run.depth}, reverse=True)  # of ordinary networks
# After which layers there is an exit.
EXIT_STEPS = {"every layer": 1, "every second": 2, "every third": 3}
# What `benchmarks/one_text.py` printed, and wrote by round; docs/appendix.md has the commands.
TIMES = Path(__file__).parent / "times.csv"
ROUNDS = {
    "AVX2": "milliseconds_avx2.csv",
    "AVX-512": "milliseconds_avx512.csv",
    "AMX": "milliseconds_amx.csv",
}
FORMS = ("PyTorch", "ONNX, int8")
COMPARED_TIMES = {"a third": ("exits, cost 0.33", (6,)), "a quarter": ("exits, cost 0.25", (4, 3))}
MOST_EXCESS = 0.02  # of the cost obtained over the cost aimed at; see protocol.md
TOKENS = 25  # of a whole sentence of SST-2 on average; the shares hardly depend on it
SHAPES = {
    "shared": {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 3072},
    "mpnet": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
}


def config_of(encoder: str, layers: int) -> ElbertConfig:
    """Make the configuration of a network of so many of an encoder's layers."""
    shape: dict[str, Any] = {
        **SHAPES[encoder],
        "embedding_size": SHAPES[encoder]["hidden_size"],
        "num_hidden_layers": layers,
        "num_hidden_groups": layers,
        "use_out_pooler": False,
        "num_exit_layers": 0,
        "cnt_thres": 1,
    }
    return ElbertConfig(**shape)


def ordinary_cost(encoder: str, layers: int) -> float:
    """Return the operations of an ordinary network, as a share of that of all layers."""
    full = config_of(encoder, LAYERS[encoder]).full_depth_flops(TOKENS)
    return config_of(encoder, layers).full_depth_flops(TOKENS) / full


def exit_costs(encoder: str, step: int = 1) -> np.ndarray:
    """Return the operations up to each layer, checks included, as such a share: (layers,).

    step: 2 where every second layer has an exit.
    """
    config = config_of(encoder, LAYERS[encoder])
    config.exit_layers = list(range(step, LAYERS[encoder] + 1, step))
    operations = [config.early_exit_flops(TOKENS, n + 1) for n in range(LAYERS[encoder])]
    return np.array(operations) / config.full_depth_flops(TOKENS)


@dataclass(frozen=True)
class Answers:
    """What is recorded of a run.

    Attributes:
        logits: (layers, examples, classes) float32; of an ordinary network one layer.
        labels: (examples,).
    """

    logits: np.ndarray
    labels: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """Whether each layer's answer is right: (layers, examples)."""
        return self.logits.argmax(-1) == self.labels

    def at_every(self, step: int) -> "Answers":
        """Return the answers of every second layer, for a step of 2; the others are never sure."""
        layer = np.arange(1, len(self.logits) + 1)
        has_exit = (layer % step == 0)[:, None, None]
        return Answers(np.where(has_exit, self.logits, 0), self.labels)

    @property
    def entropy(self) -> np.ndarray:
        """Normalised entropy of each layer's answer: (layers, examples)."""
        return normalised_entropy(exit_scores(torch.from_numpy(self.logits))).numpy()


def load(run: Run) -> Answers | None:
    """Load the recorded answers of a run; None where there are none yet."""
    return load_file_of(run.recording) if run.is_recorded else None


def load_file_of(path: Path) -> Answers:
    """Load the answers that a file has."""
    tensors = load_file(path)
    return Answers(tensors["all_logits"].astype(np.float32), tensors["labels"])


@dataclass(frozen=True)
class Outcome:
    """What a method answers to the rows of a part.

    Attributes:
        logits: (examples, classes).
        cost: the mean cost that was obtained.
    """

    logits: np.ndarray
    cost: float


def by_entropy(entropy: np.ndarray, threshold: float) -> np.ndarray:
    """Find each example's exit, its index: (examples,) of (layers, examples)."""
    exits = entropy < threshold
    exits[-1] = True
    return exits.argmax(0)


def threshold_for(entropy: np.ndarray, costs: np.ndarray, target: float) -> float:
    """Find the threshold whose mean cost is nearest to `target`.

    Args:
        entropy: (layers, examples), of the rows that choose.
        costs: (layers,), of an exit at each.
    """
    candidates = np.unique(np.quantile(entropy, np.linspace(0, 1, 1001)))
    means = [costs[by_entropy(entropy, threshold)].mean() for threshold in candidates]
    return float(candidates[np.abs(np.array(means) - target).argmin()])


def at_threshold(
    logits: np.ndarray, entropy: np.ndarray, costs: np.ndarray, threshold: float
) -> Outcome:
    """Apply a threshold to some rows: logits (layers, examples, classes)."""
    exits = by_entropy(entropy, threshold)
    return Outcome(logits[exits, np.arange(len(exits))], float(costs[exits].mean()))


def at_cost(
    answers: Answers, costs: np.ndarray, choosing: slice, rows: slice, target: float
) -> Outcome:
    """Choose a threshold for a cost on the rows that choose, and apply it to others.

    costs: (layers,), of an exit at each.
    """
    entropy = answers.entropy
    threshold = threshold_for(entropy[:, choosing], costs, target)
    return at_threshold(answers.logits[:, rows], entropy[:, rows], costs, threshold)


def by_stopping(answers: Answers, costs: np.ndarray, choosing: slice) -> Callable[..., Outcome]:
    """Fit the rule `optimal_stopping` to the rows that choose.

    Returns a function of rows and a target, whose price is the one with the nearest cost on the
    rows that choose.
    """
    layers, examples, classes = answers.logits.shape
    tensors = {"all_logits": torch.from_numpy(answers.logits)}
    recording = Recording(tensors, answers.labels, np.repeat(costs[:, None], examples, axis=1))
    shape: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_hidden_groups": layers,
        "num_labels": classes,
        "cnt_thres": 1,
    }
    config = ElbertConfig(**shape)
    config = fit_stopping(config, recording, np.arange(examples)[choosing])
    settings = [{"exit_price": float(price)} for price in np.geomspace(0.002, 3, 300)]
    exits = scan_settings(config, "optimal_stopping", settings, tensors).astype(int) - 1
    mean_costs = costs[exits[:, choosing]].mean(1)
    final = layer_answers(config.exit_rule(thres_name="optimal_stopping"), tensors).numpy()

    def outcome(rows: slice, target: float) -> Outcome:
        best = exits[np.abs(mean_costs - target).argmin(), rows]
        logits = final[:, rows][best, np.arange(len(best))]
        return Outcome(logits, float(costs[best].mean()))

    return outcome


def behind_words(
    words: Answers, exits: Answers, costs: np.ndarray, choosing: slice, rows: slice, target: float
) -> Outcome:
    """Let a bag of words answer what it is sure of, at no cost, and exits the others.

    How many the bag answers is chosen on the rows that choose, as the thresholds are.
    """
    bag_entropy = words.entropy[0]
    all_costs = np.concatenate([[0.0], costs])
    logits = np.concatenate([words.logits, exits.logits])
    labels = exits.labels[choosing]
    best = (-1.0, Outcome(logits[-1, rows], 1.0))
    for share in np.linspace(0, 0.9, 19):
        is_sure = bag_entropy < np.quantile(bag_entropy[choosing], share)
        entropy = np.concatenate([np.where(is_sure, -1.0, 2.0)[None], exits.entropy])
        threshold = max(0.0, threshold_for(entropy[:, choosing], all_costs, target))
        tried = at_threshold(logits[:, choosing], entropy[:, choosing], all_costs, threshold)
        score = accuracy(tried.logits, labels)
        if score > best[0] and tried.cost <= target + MOST_EXCESS:
            outcome = at_threshold(logits[:, rows], entropy[:, rows], all_costs, threshold)
            best = (score, outcome)
    return best[1]


def cascade_at_cost(
    networks: Sequence[tuple[float, Answers]],
    choosing: slice,
    rows: slice,
    target: float,
    measure: Measure,
) -> Outcome | None:
    """Find the best cascade of two ordinary networks at a cost; None where none is so cheap.

    The second network runs, from its first layer, where the first one's entropy is above a
    threshold. Pair and threshold are chosen on the choosing rows.

    networks: of one seed, each with its cost, by rising cost.
    """
    best_score = -np.inf
    best = None
    for (first_cost, first), (second_cost, second) in combinations(networks, 2):
        if first_cost > target:
            continue
        costs = np.array([first_cost, first_cost + second_cost])
        pair = Answers(np.concatenate([first.logits, second.logits]), first.labels)
        on_choosing = at_cost(pair, costs, choosing, choosing, target)
        score = measure(on_choosing.logits, pair.labels[choosing])
        if score > best_score:
            best_score = score
            best = at_cost(pair, costs, choosing, rows, target)
    return best


# Shares of the examples, at random, and the network that answers each share.
Mixture = list[tuple[float, Answers]]


def best_mixture(
    networks: Sequence[tuple[float, Answers]], choosing: slice, target: float, measure: Measure
) -> tuple[Mixture, float] | None:
    """Find the best two ordinary networks to share the examples at random, and their mean cost.

    Two networks whose mean cost is `target`, or one that costs at most as much, are chosen on the
    choosing rows. Returns None where every network costs more.

    networks: of one seed, each with its cost, by rising cost.
    """
    tried: list[tuple[Mixture, float]] = [
        ([(1.0, answers)], cost) for cost, answers in networks if cost <= target
    ]
    for (cost, first), (other_cost, second) in combinations(networks, 2):
        if cost <= target < other_cost:
            share = (target - cost) / (other_cost - cost)
            tried.append(([(1 - share, first), (share, second)], target))

    def score(mixture: Mixture) -> float:
        return sum(
            share * measure(answers.logits[-1, choosing], answers.labels[choosing])
            for share, answers in mixture
        )

    return max(tried, key=lambda option: score(option[0]), default=None)


# The tables.

NAMES = {
    "mpnet": "MPNet, twelve layers",
    "minilm": "MiniLM, six layers",
    "shared": "one shared layer of MiniLM, six times",
}
DATA_ROWS = {"SST-2": "34,380 rows", "SST-2-8k": "8,000 rows"}
DATA = {task: f"{rows} of SST-2" for task, rows in DATA_ROWS.items()}


def percent(value: float) -> str:
    """Write a percentage; a half is rounded up wherever its digits come from."""
    return f"{value + 1e-9:.1f}"


def seeds(found: Sized) -> str:
    """Write the number of seeds that a row rests on."""
    return "1 seed" if len(found) == 1 else f"{len(found)} seeds"


# Of a seed and a cost: how right each reporting row is answered, (examples,), and its own cost.
Method = Callable[[int, float], tuple[np.ndarray, float]]


def of_all_seeds(method: Method, target: float) -> tuple[np.ndarray, float]:
    """Return how right a method's answers are, (seeds, examples), and its mean cost."""
    by_seed = [method(seed, target) for seed in REPORTING_SEEDS]
    right = np.array([right for right, _ in by_seed], float)
    return right, float(np.mean([cost for _, cost in by_seed]))


class Table:
    """Everything that one task's tables need: the recorded answers of every network and seed."""

    def __init__(self, task: str, part: str, encoder: str = "mpnet") -> None:
        self.task = task
        self.part = part
        self.encoder = encoder
        self.rows = ROWS[task].slices[part]

    def answers(self, depth: int, **options: Any) -> dict[int, Answers]:
        """Return what is recorded of a network, by seed."""
        found = {}
        for seed in REPORTING_SEEDS:
            answers = load(Run(self.task, depth, seed, encoder=self.encoder, **options))
            if answers is not None:
                found[seed] = answers
        return found

    @property
    def measure(self) -> Measure:
        """The task's metric."""
        return METRICS.get(self.task, accuracy)

    @property
    def title(self) -> str:
        """Name of the section: the network, the data, and the rows that report."""
        rows = f"{self.rows.stop - self.rows.start:,} {self.part} rows"
        return f"{NAMES[self.encoder]}, {DATA.get(self.task, self.task)}: {rows}"

    @property
    def choosing(self) -> slice:
        """The rows that choose."""
        return ROWS[self.task].slices["choosing"]

    def score(self, logits: np.ndarray, labels: np.ndarray) -> float:
        """Return the metric of answers to the reporting rows, in percent."""
        return 100 * self.measure(logits, labels[self.rows])

    def metric(self, answers: Answers) -> np.ndarray:
        """Return the task's metric of each layer, in percent: (layers,)."""
        return np.array([self.score(x[self.rows], answers.labels) for x in answers.logits])

    def by_layer(self) -> str:
        """Write the table of exits by layer, and of ordinary networks of these depths."""
        depths = range(1, LAYERS[self.encoder] + 1)
        lines = []
        for name, options in EXITS.items():
            found = self.answers(0, **options)
            if found:
                values = np.mean([self.metric(answers) for answers in found.values()], axis=0)
                lines.append([f"{name} ({seeds(found)})", *map(percent, values)])
        for name, options in (("fixed depth", {}), ("fixed depth, distilled", {"is_taught": True})):
            cells = []
            for depth in depths:
                found = self.answers(depth, **options)
                means = [self.metric(answers)[-1] for answers in found.values()]
                cells.append(f"{percent(float(np.mean(means)))} ({len(means)})" if means else "")
            lines.append([name, *cells])
        return markdown_table(("layers", *map(str, depths)), lines)

    def at_costs(self) -> str:
        """Write the table of the task's metric at equal computation."""
        lines = []
        costs = exit_costs(self.encoder)
        for kind, options in EXITS.items():
            found = self.answers(0, **options)
            is_value = any(answers.logits.shape[-1] == 1 for answers in found.values())
            rules: dict[str, list[Callable[[float], Outcome]]] = {"entropy": [], STOPPING: []}
            for answers in found.values():
                stop = by_stopping(answers, costs, self.choosing)
                rules[STOPPING].append(partial(stop, self.rows))
                rules["entropy"].append(partial(at_cost, answers, costs, self.choosing, self.rows))
            if is_value:  # no entropy of a single number
                del rules["entropy"]
            for rule, outcomes in rules.items():
                lines += self.line(f"{kind}: {rule}", outcomes, found)
        words = words_file(self.task)
        if words.exists():
            bag = load_file_of(words)
            found = self.answers(0)
            if self.measure is accuracy:
                outcomes = [
                    partial(behind_words, bag, answers, costs, self.choosing, self.rows)
                    for answers in found.values()
                ]
                lines += self.line("exits behind a bag of words: entropy", outcomes, found)
            score = self.score(bag.logits[0, self.rows], bag.labels)
            lines.append(["bag of words, without a network", *[percent(score)] * len(COSTS)])
        for name, options in (("", {}), (", distilled", {"is_taught": True})):
            lines += self.lines_of_ordinary(name, options)
        labels = answers_labels(self)
        if labels is not None and labels.dtype.kind == "i":
            # The class that is most frequent where settings are chosen.
            counts = np.bincount(labels[self.choosing])
            logits = np.eye(len(counts))[np.full(len(labels[self.rows]), counts.argmax())]
            score = self.score(logits, labels)
            lines.append(["commonest class", *[percent(score)] * len(COSTS)])
        return markdown_table((f"{self.metric_name}, at a cost of", *map(str, COSTS)), lines)

    @property
    def metric_name(self) -> str:
        """What the tables call the task's metric."""
        names = {"CoLA": "Matthews' correlation", "MRPC": "F1", "STS-B": "mean correlation"}
        return f"{names.get(self.task, 'accuracy')}, %"

    def line(
        self,
        name: str,
        outcomes: Sequence[Callable[[float], Outcome]],
        found: dict[int, Answers],
        least: float = 0.0,
    ) -> list[list[str]]:
        """Write a method's line: the mean over seeds at each cost, with the cost obtained.

        outcomes: of each seed of `found`, by the cost aimed at. least: the method's lowest cost,
        below which there is nothing.
        """
        cells = []
        for target in COSTS if outcomes else ():
            if target < least:
                cells.append("")
                continue
            by_seed = [outcome(target) for outcome in outcomes]
            scores = []
            for outcome, answers in zip(by_seed, found.values(), strict=True):
                scores.append(self.score(outcome.logits, answers.labels))
            cost = np.mean([outcome.cost for outcome in by_seed])
            cells.append(f"{percent(float(np.mean(scores)))} (at {cost:.2f})")
        return [[f"{name} ({seeds(found)})", *cells]] if cells else []

    def networks(self, seed: int, **options: Any) -> list[tuple[float, Answers]]:
        """Return a seed's ordinary networks, each with its cost, by rising cost.

        options: of all but the one of all layers, which may be their teacher.
        """
        networks = []
        for depth in reversed(DEPTHS):
            if depth > LAYERS[self.encoder]:
                continue
            is_teacher = depth == LAYERS[self.encoder]
            answers = self.answers(depth, **{} if is_teacher else options).get(seed)
            if answers is not None:
                networks.append((ordinary_cost(self.encoder, depth), answers))
        return networks

    def lines_of_ordinary(self, name: str, options: dict[str, Any]) -> list[list[str]]:
        """Write the rows of two ordinary networks at random, and of the best cascade of two."""
        mixtures = []
        cascades = []
        for seed in REPORTING_SEEDS:
            networks = self.networks(seed, **options)
            if len(networks) < 2:
                continue
            mixtures.append([self.mixture_score(networks, target) for target in COSTS])
            if networks[0][1].logits.shape[-1] > 1:
                cascades.append([self.cascade_score(networks, target) for target in COSTS])
        lines = []
        for row, values in (("random mix of two{}", mixtures), ("best cascade of two{}", cascades)):
            if values:
                cells = [percent(x) if np.isfinite(x) else "" for x in np.mean(values, axis=0)]
                lines.append([f"{row.format(name)} ({seeds(values)})", *cells])
        return lines

    def mixture_score(self, networks: Sequence[tuple[float, Answers]], target: float) -> float:
        """Return the mean metric of one seed's networks that share the rows at random, or NaN."""
        found = best_mixture(networks, self.choosing, target, self.measure)
        if found is None:
            return np.nan
        best, _ = found
        return sum(share * float(self.metric(answers)[-1]) for share, answers in best)

    def cascade_score(self, networks: Sequence[tuple[float, Answers]], target: float) -> float:
        """Return the metric of the best cascade of one seed's networks; NaN where there is none."""
        outcome = cascade_at_cost(networks, self.choosing, self.rows, target, self.measure)
        return np.nan if outcome is None else self.score(outcome.logits, networks[0][1].labels)

    def with_fewer_exits(self) -> str:
        """Write the table of the same exits where some are left out, and so are their checks.

        At a cost below that of the first exit that is kept, there is nothing.
        """
        found = self.answers(0)
        if not found:
            return "Fewer exits are told once exits are recorded."
        lines = []
        for name, step in EXIT_STEPS.items():
            costs = exit_costs(self.encoder, step)
            outcomes = [
                partial(at_cost, answers.at_every(step), costs, self.choosing, self.rows)
                for answers in found.values()
            ]
            lines += self.line(name, outcomes, found, least=costs[step - 1])
        titles = (
            f"{self.metric_name}, by layers that have an exit, at a cost of",
            *map(str, COSTS),
        )
        return markdown_table(titles, lines)

    def hypotheses(self) -> str:
        """Write the three hypotheses of the protocol, with simultaneous intervals and verdicts."""
        exits = self.answers(0)
        contrasts: list[Contrast] = []
        lines: list[list[str]] = []
        for name, target, depth, options, _ in HYPOTHESES:
            costs = exit_costs(self.encoder)
            results = {
                seed: at_cost(answers, costs, self.choosing, self.rows, target)
                for seed, answers in exits.items()
            }
            if results and np.mean([x.cost for x in results.values()]) > target + MOST_EXCESS:
                deeper = [other for other in DEPTHS if other > depth]
                depth = min(deeper, default=depth)
                name = f"{name}; the cost is exceeded: judged against {depth} layers"
            others = self.answers(depth, **options if depth < LAYERS[self.encoder] else {})
            if not set(REPORTING_SEEDS) <= results.keys() & others.keys():
                return "The hypotheses are judged together, once all seeds of all are recorded."
            of_exits = []
            of_others = []
            for seed in REPORTING_SEEDS:
                labels = exits[seed].labels[self.rows]
                of_exits.append(results[seed].logits.argmax(-1) == labels)
                of_others.append(others[seed].right[-1, self.rows])
            contrasts.append([np.array(of_exits, float) - np.array(of_others, float)])
            cost = np.mean([result.cost for result in results.values()])
            other_cost = ordinary_cost(self.encoder, depth)
            exits_text = f"{percent(100 * float(np.mean(of_exits)))} at {cost:.2f}"
            other_text = f"{percent(100 * float(np.mean(of_others)))} at {other_cost:.2f}"
            lines.append([name, exits_text, other_text])
        bounds = [bound for _, _, _, _, bound in HYPOTHESES]
        for line, bound, estimate in zip(lines, bounds, simultaneous(contrasts), strict=True):
            verdict = "undecided"
            if 100 * estimate.low > bound:
                verdict = "holds"
            elif 100 * estimate.high < bound:
                verdict = "refuted"
            line += [estimate.difference_text(), verdict]
        titles = ("accuracy, % at a cost", "exits", "fixed depth", "difference [95%]", "verdict")
        return markdown_table(titles, lines)

    def gains_by_teaching(self) -> str:
        """Write what self-distillation adds at equal costs, with simultaneous intervals."""
        by_name = {name: self.answers(0, **options) for name, options in EXITS.items()}
        if not all(set(REPORTING_SEEDS) <= found.keys() for found in by_name.values()):
            return "What self-distillation adds is told once all seeds of both are recorded."
        return self.differences(
            {name: partial(self.exits_at_cost, found) for name, found in by_name.items()},
            GAIN_COSTS,
        )

    def gains_over_depths(self) -> str:
        """Write what exits gain over all layers, a half, a third and a quarter, if it is trained.

        Returns a table for each rule.
        """
        exits = self.answers(0)
        layers = LAYERS[self.encoder]
        depths = [layers // part for part in (1, 2, 3, 4) if layers // part in DEPTHS]
        networks = {depth: self.answers(depth) for depth in depths}
        if not all(set(REPORTING_SEEDS) <= found.keys() for found in (exits, *networks.values())):
            return "What exits gain over fewer layers is told once all seeds of all are recorded."

        def fixed(depth: int, seed: int, target: float) -> tuple[np.ndarray, float]:
            right = networks[depth][seed].right[-1, self.rows]
            return right, ordinary_cost(self.encoder, depth)

        others: dict[str, Method] = {f"{depth} layers": partial(fixed, depth) for depth in networks}
        by_rule: dict[str, Method] = {
            "exits: entropy": partial(self.exits_at_cost, exits),
            f"exits: {STOPPING}": self.stopping(exits),
        }
        rows = f"{DATA_ROWS.get(self.task, self.task)}, "
        tables = [
            self.differences({name: rule} | others, GAIN_COSTS, row_name=rows, shows_others=False)
            for name, rule in by_rule.items()
        ]
        return "\n\n".join(tables)

    def with_times(self) -> str:
        """Write the accuracy of networks and exits, by optimal stopping, beside TIMES."""
        _, records = read_records(TIMES)
        lines = []
        for _, record in records:
            found = self.answers(int(record["depth"]))
            if not set(REPORTING_SEEDS) <= found.keys():
                return "Times are told once all seeds of all are recorded."
            if record["cost"]:
                right, _ = of_all_seeds(self.stopping(found), float(record["cost"]))
            else:  # all layers run
                right = np.array([answers.right[-1, self.rows] for answers in found.values()])
            mean_score = percent(100 * float(right.mean()))
            lines.append([record["contender"], mean_score, record["mean_ms"], record["p95_ms"]])
        return markdown_table(("MPNet, SST-2", "accuracy, %", "mean ms", "p95 ms"), lines)

    def gains_over_two(self) -> str:
        """Write what exits gain over two ordinary networks at equal costs, likewise."""
        methods = self.methods()
        if not methods:
            return "What exits gain over two networks is told once all seeds of both are recorded."
        cheapest = max(self.networks(seed)[0][0] for seed in REPORTING_SEEDS)
        return self.differences(methods, [target for target in RIVAL_COSTS if target >= cheapest])

    def methods(self) -> dict[str, Method]:
        """Return exits, the best cascade and the random mix of two ordinary networks, by name.

        Nothing where not all seeds of all are recorded.
        """
        exits = self.answers(0)
        networks = {seed: self.networks(seed) for seed in REPORTING_SEEDS}
        if not set(REPORTING_SEEDS) <= exits.keys() or min(map(len, networks.values())) < 2:
            return {}

        def cascade(seed: int, target: float) -> tuple[np.ndarray, float]:
            found = cascade_at_cost(networks[seed], self.choosing, self.rows, target, self.measure)
            if found is None:
                raise ValueError(f"no network has a cost of at most {target}")
            return self.right(found, exits[seed]), found.cost

        def mixture(seed: int, target: float) -> tuple[np.ndarray, float]:
            found = best_mixture(networks[seed], self.choosing, target, self.measure)
            if found is None:
                raise ValueError(f"no network has a cost of at most {target}")
            best, cost = found
            right = [share * answers.right[-1, self.rows] for share, answers in best]
            return np.sum(right, axis=0), cost

        return {
            "exits": partial(self.exits_at_cost, exits),
            "best cascade of two": cascade,
            "random mix of two": mixture,
        }

    def panel(self) -> Panel:
        """Return what the figure shows: exits, two ordinary networks, and each ordinary network.

        Raises UserError where not all seeds of all are recorded.
        """
        methods = self.methods()
        if not methods:
            raise UserError(f"{self.title}: not all seeds are recorded, so there is no figure yet")
        dots = {}
        for depth in DEPTHS:
            found = self.answers(depth)
            if found.keys() >= set(REPORTING_SEEDS):
                accuracy = np.mean([self.metric(answers)[-1] for answers in found.values()])
                dots[depth] = Dot(ordinary_cost(self.encoder, depth), float(accuracy))
        cheapest = min(dot.cost for dot in dots.values())
        curves = {}
        by_rule = {
            f"exits: {STOPPING}": self.stopping(self.answers(0)),
            "exits: entropy": methods.pop("exits"),
        }
        for name, method in (by_rule | methods).items():
            least = 0.0 if name in by_rule else cheapest
            costs = []
            accuracies = []
            for target in CURVE_COSTS[least <= CURVE_COSTS]:
                right, cost = of_all_seeds(method, target)
                costs.append(cost)
                accuracies.append(100 * right.mean(1))
            curves[name] = Curve(np.array(costs), np.array(accuracies))
        return Panel(curves, dots)

    def exits_at_cost(
        self, found: dict[int, Answers], seed: int, target: float
    ) -> tuple[np.ndarray, float]:
        """Return which examples a seed's exits answer right at a cost, and the cost obtained."""
        outcome = at_cost(found[seed], exit_costs(self.encoder), self.choosing, self.rows, target)
        return self.right(outcome, found[seed]), outcome.cost

    def stopping(self, found: dict[int, Answers]) -> Method:
        """Return what answers as `exits_at_cost` does, by the rule `optimal_stopping`."""
        costs = exit_costs(self.encoder)
        stops = {seed: by_stopping(x, costs, self.choosing) for seed, x in found.items()}

        def at_target(seed: int, target: float) -> tuple[np.ndarray, float]:
            outcome = stops[seed](self.rows, target)
            return self.right(outcome, found[seed]), outcome.cost

        return at_target

    def right(self, outcome: Outcome, answers: Answers) -> np.ndarray:
        """Return which reporting rows are answered right; `answers` has their labels."""
        return outcome.logits.argmax(-1) == answers.labels[self.rows]

    def differences(
        self,
        methods: dict[str, Method],
        targets: Sequence[float],
        row_name: str = "",
        shows_others: bool = True,
    ) -> str:
        """Tabulate methods at equal costs, and how much better the first is than each other one.

        All intervals of the table hold at once.

        Args:
            row_name: what stands before each row's cost.
            shows_others: whether the other methods' accuracies have columns, too. Those of fixed
                depth are the same at every cost.
        """
        first, *others = methods
        shown = list(methods) if shows_others else [first]
        contrasts: list[Contrast] = []
        lines: list[list[str]] = []
        for target in targets:
            right_of = {}  # (seeds, examples)
            line = [f"{row_name}{target}"]
            for name, method in methods.items():
                right_of[name], cost = of_all_seeds(method, target)
                if name in shown:
                    line.append(f"{percent(100 * right_of[name].mean())} at {cost:.2f}")
            contrasts += [[right_of[first] - right_of[other]] for other in others]
            lines.append(line)
        estimates = iter(simultaneous(contrasts, others * len(targets)))
        for line in lines:
            line += [next(estimates).difference_text() for _ in others]
        titles = ("accuracy, % at a cost of", *shown)
        return markdown_table((*titles, *(f"− {other}" for other in others)), lines)


# Of the protocol: contrast, cost of the exits, depth and options of the other network, bound.
HYPOTHESES = (
    ("exits at 0.25 are at most a point below six layers", 0.25, 6, {}, -1.0),
    ("exits at 0.33 are better than four layers, distilled", 0.33, 4, {"is_taught": True}, 0.0),
    ("exits at 0.50 are at most a point below twelve layers", 0.50, 12, {}, -1.0),
)


def time_ratios() -> str:
    """Write the exits' time over that of fewer layers: the median over rounds, and its range."""
    columns = {}
    for form in FORMS:
        for processor, name in ROUNDS.items():
            _, records = read_records(Path(__file__).parent / name)
            rounds: dict[str, list[float]] = defaultdict(list)
            for _, record in records:
                if record["form"] == form:
                    rounds[record["contender"]].append(float(record["seconds_a_text"]))
            if rounds:
                columns[f"{form}, {processor}"] = rounds
    lines = []
    for share, (exits, depths) in COMPARED_TIMES.items():
        for depth in depths:
            cells = []
            for rounds in columns.values():
                ratios = np.divide(rounds[exits], rounds[f"fixed depth, {depth} layers"])
                lowest, highest = ratios.min(), ratios.max()
                cells.append(f"{np.median(ratios):.2f} ({lowest:.2f}–{highest:.2f})")
            lines.append([f"exits at {share}, over {depth} layers", *cells])
    return markdown_table(("mean time", *columns), lines)


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of right answers; logits (examples, classes)."""
    return float((logits.argmax(-1) == labels).mean())


def mean_correlation(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of Pearson's and Spearman's correlations; logits (examples, 1)."""
    values = logits[:, 0]
    return float((pearsonr(values, labels)[0] + spearmanr(values, labels)[0]) / 2)


METRICS: dict[str, Measure] = {
    "CoLA": lambda logits, labels: float(matthews_corrcoef(labels, logits.argmax(-1))),
    "MRPC": lambda logits, labels: float(f1_score(labels, logits.argmax(-1))),
    "STS-B": mean_correlation,
}


def answers_labels(table: Table) -> np.ndarray | None:
    """Return the labels of a task, from any recording of it."""
    for depth in (0, *DEPTHS):
        for answers in table.answers(depth).values():
            return answers.labels
    return None


# The choice of recipes.


def choose_recipes(encoder: str, choice: str) -> dict[str, Any]:
    """Choose the recipes of an encoder's exits and ordinary networks, on the choosing rows alone.

    choice: one of CHOICES; "teaching" is of exits alone.

    A recipe of exits has the mean accuracy at the costs of the three hypotheses, with thresholds
    from the same rows; one of ordinary networks that of two depths. Of equal ones the first wins.

    Raises UserError where a run is not recorded yet.
    """
    by_recipe: dict[tuple[str, Recipe], list[float]] = {}
    missing = []
    for run in choosing_runs(encoder, choice):
        answers = load(run)
        if answers is None:
            missing.append(run.name)
            continue
        kind = "ordinary" if run.depth else "exits"
        by_recipe.setdefault((kind, run.recipe), []).append(choosing_score(run, answers))
    chosen = {}
    for kind in dict.fromkeys(kind for kind, _ in by_recipe):
        scores = {recipe: x for (of, recipe), x in by_recipe.items() if of == kind}
        best = max(scores, key=lambda recipe: np.mean(scores[recipe]))
        for recipe, by_seed in scores.items():
            seeds_of_it = ", ".join(f"{score:.2f}" for score in by_seed)
            mark = " <" if recipe == best else ""
            print(f"{encoder}, {kind}, {np.mean(by_seed):.2f} ({seeds_of_it}): {recipe}{mark}")
        chosen[kind] = asdict(best)
    if missing:
        raise UserError(
            f"{len(missing)} runs that choose are not recorded, such as {missing[0]}: give "
            f"python -m experiments.twelve_layers.trainings --choosing {choice} first"
        )
    return chosen


def choosing_score(run: Run, answers: Answers) -> float:
    """Return what a run is chosen by, in percent, on the choosing rows."""
    rows = ROWS[run.task].slices["choosing"]
    labels = answers.labels[rows]
    if run.depth:
        return 100 * accuracy(answers.logits[-1, rows], labels)
    costs = exit_costs(run.encoder)
    scores = []
    for _, target, *_ in HYPOTHESES:
        outcome = at_cost(answers, costs, rows, rows, target)
        scores.append(accuracy(outcome.logits, labels))
    return 100 * float(np.mean(scores))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=tuple(ROWS), help="one task; default: all")
    parser.add_argument("--part", choices=("reporting", "dev"), default="reporting")
    parser.add_argument("--encoder", choices=tuple(LAYERS), default="mpnet")
    parser.add_argument("--chart", type=Path, help="draw accuracy against cost into this file")
    parser.add_argument(
        "--choose",
        choices=CHOICES,
        help=f"write a part of {RECIPES.name} from the runs that choose",
    )
    args = parser.parse_args()
    if args.choose:
        encoder = "minilm" if args.encoder == "shared" else args.encoder
        chosen = read_json(RECIPES) if RECIPES.exists() else {}
        chosen[encoder] = chosen.get(encoder, {}) | choose_recipes(encoder, args.choose)
        write_text(RECIPES, as_json(chosen))
        print(f"chosen: {RECIPES}")
        return
    slices = {task: rows.slices[args.part] for task, rows in ROWS.items()}
    with_rows = [task for task, rows in slices.items() if rows.stop > rows.start]
    if args.task and args.task not in with_rows:
        others = ", ".join(with_rows)
        raise UserError(f"--part {args.part}: {args.task} has no such rows; {others} have")
    if args.chart:
        tasks = [args.task] if args.task else list(DATA)
        panels = {DATA[task]: Table(task, args.part, args.encoder).panel() for task in tasks}
        draw_comparison(panels, args.chart, f"{LAYERS[args.encoder]} layers")
        return
    for task in [args.task] if args.task else with_rows:
        table = Table(task, args.part, args.encoder)
        if answers_labels(table) is None:
            continue
        print(f"## {table.title}\n\n{table.by_layer()}\n")
        print(f"{table.at_costs()}\n")
        if task.startswith("SST-2") and args.encoder == "mpnet":
            print(f"{table.hypotheses()}\n")
        if task == "SST-2" and args.encoder == "mpnet" and args.part == "reporting":
            print(f"{table.with_times()}\n")
            print(f"{time_ratios()}\n")
        if table.measure is accuracy:
            print(f"{table.with_fewer_exits()}\n")
            print(f"{table.gains_by_teaching()}\n")
            print(f"{table.gains_over_depths()}\n")
            print(f"{table.gains_over_two()}\n")
    are_recorded = [run.is_recorded for run in runs()]
    print(f"Recorded: {sum(are_recorded)} of {len(are_recorded)} runs")


if __name__ == "__main__":
    run_script(main)
