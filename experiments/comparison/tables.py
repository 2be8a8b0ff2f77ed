"""The tables of docs/results.md and its appendix, and the rows of results/*.csv: one function each.

A *network* is a part of a file's name, a *title* what the pages call a method (`names.py`). Scores
are in percent, differences in percentage points.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.numpy import load_file

from answers.sweep import RANDOM_MIXTURE, scan_settings
from elbert.configuration import ElbertConfig
from exit_lab.choice import count_certified, losses
from exit_lab.estimates import Estimate
from experiments.comparison.intervals import (
    Contrast,
    cost_to_reach,
    difference,
    resampled_means,
    simultaneous,
)
from experiments.comparison.methods import Method, Methods, at_budgets, oracle_scores
from experiments.comparison.names import (
    ELBERT,
    ELBERT_COIN,
    ELBERT_TAUGHT,
    MINILM,
    MINILM_EQUAL,
    MINILM_TAUGHT,
    NETWORKS,
    PONDER_GRID,
    RULES,
    TRUNCATED,
    TRUNCATED_MINILM,
    TRUNCATED_MINILM_TAUGHT,
    cascade_name,
    method_name,
    mixture_name,
)
from experiments.comparison.recordings import (
    DEV,
    PHRASES,
    RECORDED,
    TASKS,
    Networks,
    list_recordings,
    load,
    load_rows,
    load_truncated,
    seeds,
)
from experiments.comparison.rules import all_settings
from runs.console import markdown_table

BUDGETS = (0.2, 0.3, 0.4, 0.5)  # columns of tables
WIDE_BUDGETS = np.arange(0.6, 1.21, 0.1)  # costs that every method has
FINE_BUDGETS = np.arange(0.15, 1.75, 0.01)

Cells = Mapping[tuple[str, str], str]  # by the titles of column and row
Key = TypeVar("Key", bound=Hashable)


def table(corner: str, columns: Sequence[str], cells: Cells) -> str:
    """Format cells as Markdown; a row for each title that has a cell."""
    titles = dict.fromkeys(row for _, row in cells)  # without repetitions, in order
    rows = [[title, *(cells.get((column, title), "–") for column in columns)] for title in titles]
    return markdown_table([corner, *columns], rows)


def estimate_all(contrasts: Mapping[Key, Contrast]) -> dict[Key, Estimate]:
    """Estimate contrasts simultaneously; the estimates have the contrasts' keys.

    A contrast with one network has no variance between seeds, so its limits are NaN.
    """
    several = {}
    estimates = {}
    for key, contrast in contrasts.items():
        if min(map(len, contrast)) > 1:
            several[key] = contrast
        mean = float(sum(table.mean() for table in contrast))
        estimates[key] = Estimate(mean, np.nan, np.nan)
    estimates.update(zip(several, simultaneous(list(several.values())), strict=True))
    return estimates


def gain_text(gain: Estimate) -> str:
    """Write a gain in points with its interval, if it has one."""
    if np.isnan(gain.low):
        return f"{100 * gain.value:+.1f}, one seed"
    return gain.difference_text()


def estimate_cells(contrasts: Mapping[tuple[str, str], Contrast]) -> dict[tuple[str, str], str]:
    """Estimate the contrasts of a table simultaneously, as text, by column and row.

    The contrasts of a row compare the same methods, at different costs.
    """
    rows = [row for _, row in contrasts]
    estimates = simultaneous(list(contrasts.values()), rows)
    texts = [estimate.difference_text() for estimate in estimates]
    return dict(zip(contrasts, texts, strict=True))


# At equal cost.

HEADLINES = (
    MINILM_TAUGHT,
    MINILM_EQUAL,
    MINILM,
    TRUNCATED_MINILM_TAUGHT,
    TRUNCATED_MINILM,
    cascade_name(TRUNCATED_MINILM_TAUGHT),
    cascade_name(TRUNCATED_MINILM),
    mixture_name(TRUNCATED_MINILM_TAUGHT),
    mixture_name(TRUNCATED_MINILM),
    ELBERT_TAUGHT,
    ELBERT,
)


def is_within(cost: np.ndarray, budget: float) -> bool:
    """Tell whether a method's mean cost, (seeds,), is within a budget; its cheapest may be more."""
    return bool(cost.mean() < budget + 0.01)


def at_equal_cost(methods: Methods, task: str) -> str:
    """Tabulate the scores of the headline methods at `BUDGETS`."""
    cells = {}
    for title in HEADLINES:
        if (task, title) not in methods:
            continue
        method = methods[task, title]
        results = at_budgets(method, BUDGETS)
        for budget, cost, score in zip(BUDGETS, results.cost, results.score, strict=True):
            if is_within(cost, budget):
                cells[str(budget), f"{title} ({len(method)})"] = f"{100 * score.mean():.1f}"
    return table(f"{task}: accuracy at a cost of (seeds)", [str(x) for x in BUDGETS], cells)


def least_costs(methods: Methods) -> str:
    """Tabulate the least cost that loses at most 1 or 2 points of the deepest ordinary MiniLM."""
    cells = {}
    columns = []
    for task, points in product(TASKS, (1, 2)):
        column = f"{task}, {points}"
        columns.append(column)
        deepest = [of_seed[-1] for of_seed in load_truncated(task, "untied-{depth}")]
        best = resampled_means(np.stack([answers.scores[0] for answers in deepest]))
        for title in (*HEADLINES, ELBERT_COIN):
            if (task, title) in methods:
                cost = cost_to_reach(methods[task, title], best - points / 100, FINE_BUDGETS)
                cells[column, title] = cost.text().replace("inf", "never")
    return table("cost to lose at most (points)", columns, cells)


# In pairs.

CLAIMS = [  # a method, and what it is compared with
    (MINILM_TAUGHT, mixture_name(TRUNCATED_MINILM_TAUGHT)),
    (MINILM_TAUGHT, cascade_name(TRUNCATED_MINILM_TAUGHT)),
    (MINILM_TAUGHT, mixture_name(TRUNCATED_MINILM)),
    (MINILM_TAUGHT, MINILM_EQUAL),
    (MINILM_TAUGHT, MINILM),
    (MINILM_EQUAL, MINILM),
    (MINILM_EQUAL, mixture_name(TRUNCATED_MINILM)),
    (MINILM_EQUAL, cascade_name(TRUNCATED_MINILM)),
    (MINILM_EQUAL, method_name(RANDOM_MIXTURE, "untied-exits-equal")),
    (ELBERT_TAUGHT, ELBERT),
    (ELBERT, mixture_name(TRUNCATED["shared-{depth}"])),
    (method_name("entropy", "pondernet-beta0.5"), ELBERT),
]
# PonderNet's networks had no dropout, and their best checkpoints were kept.
ELBERT_AS_PONDERNET = method_name("entropy", "still-exits-best")
HALTING_CLAIMS = [
    (method_name(rule, network), ELBERT_AS_PONDERNET)
    for rule, network in product(("halting", "entropy"), PONDER_GRID)
]
# Up to all six passes, as PonderNet halts late under most priors.
HALTING_BUDGETS = (0.4, 0.5, 0.7, 1.0, 1.3, 1.6)


def claims(
    methods: Methods,
    pairs: Sequence[tuple[str, str]] = CLAIMS,
    budgets: Sequence[float] = BUDGETS,
) -> str:
    """Tabulate the differences between methods that are set side by side, at these budgets."""
    contrasts = {}
    for task, (title, other_title) in product(TASKS, pairs):
        if (task, title) not in methods or (task, other_title) not in methods:
            continue
        results = at_budgets(methods[task, title], budgets)
        other = at_budgets(methods[task, other_title], budgets)
        for number, budget in enumerate(budgets):
            if is_within(results.cost[number], budget) and is_within(other.cost[number], budget):
                row = f"{task}: {title} − {other_title}"
                contrast = difference(results.score[number], other.score[number])
                contrasts[str(budget), row] = contrast
    cells = estimate_cells(contrasts)
    return table("difference in points at a cost of", [str(x) for x in budgets], cells)


# Over random exits.


def mean_over_budgets(method: Method) -> np.ndarray:
    """Return a method's scores at `WIDE_BUDGETS`, their mean: (seeds, examples)."""
    return at_budgets(method, WIDE_BUDGETS).score.mean(0)


def mean_oracle(networks: Networks, task: str, network: str) -> float:
    """Return the oracle's score at `WIDE_BUDGETS`, mean of these and of the seeds."""
    of_seeds = [oracle_scores(answers, WIDE_BUDGETS) for answers in networks[task, network]]
    return float(np.mean(of_seeds))


def overview(methods: Methods, networks: Networks) -> str:
    """Tabulate each method's gain over random exits of ELBERT's network at equal budgets."""
    coins = {task: mean_over_budgets(methods[task, ELBERT_COIN]) for task in TASKS}
    contrasts = {}
    for (task, title), method in methods.items():
        if title != ELBERT_COIN:
            contrasts[task, title] = difference(mean_over_budgets(method), coins[task])
    cells = {}
    for task, coin in coins.items():
        cells[task, "random exits themselves"] = f"{100 * coin.mean():.1f}"
    for key, gain in estimate_all(contrasts).items():
        cells[key] = gain_text(gain)
    for task, coin in coins.items():
        room = mean_oracle(networks, task, "shared-exits") - coin.mean()
        cells[task, "oracle"] = f"{100 * room:+.1f}"
    return table("gain over random exits of ELBERT's network, in points", TASKS, cells)


class Gain(NamedTuple):
    """What a rule gains over random exits of the same network, the coin.

    Scores are means over `WIDE_BUDGETS`.
    """

    task: str
    network: str
    rule: str
    coin: float  # its score
    room: float  # the oracle's score less the coin's
    gain: float
    low: float
    high: float
    efficiency: float  # gain / room


GAIN_COLUMNS = "task,network,rule,coin,oracle - coin,gain,low,high,efficiency"


def gains_by_network(methods: Methods, networks: Networks) -> list[Gain]:
    """Estimate what each rule gains on each network."""
    contrasts = {}
    coins = {}
    rooms = {}
    for task, network in networks:
        coin = mean_over_budgets(methods[task, method_name(RANDOM_MIXTURE, network)])
        coins[task, network] = float(coin.mean())
        rooms[task, network] = mean_oracle(networks, task, network) - float(coin.mean())
        for rule in RULES:
            key = (task, method_name(rule, network))
            if rule != RANDOM_MIXTURE and key in methods:
                contrast = difference(mean_over_budgets(methods[key]), coin)
                contrasts[task, network, rule] = contrast
    gains = []
    for (task, network, rule), estimate in estimate_all(contrasts).items():
        room = rooms[task, network]
        gain = Gain(
            task=task,
            network=network,
            rule=rule,
            coin=coins[task, network],
            room=room,
            gain=estimate.value,
            low=estimate.low,
            high=estimate.high,
            efficiency=estimate.value / room,
        )
        gains.append(gain)
    return gains


def gains_table(gains: Sequence[Gain]) -> str:
    """Tabulate the rules of each network below its random exits."""
    cells = {}
    for gain in gains:
        network = NETWORKS[gain.network]
        estimate = Estimate(gain.gain, gain.low, gain.high)
        cells[gain.task, f"{network}: random exits"] = f"{100 * gain.coin:.1f}"
        cells[gain.task, f"{network}: {RULES[gain.rule]}"] = gain_text(estimate)
    return table("gain over random exits of the same network, in points", TASKS, cells)


# Every layer.

FAMILIES = {"untied": "MiniLM", "rank32": "corrections of rank 32", "shared": "shared"}
TRAININGS = {  # of a family, and how its networks were trained
    "{family}-{depth}": "trained to this depth",
    "{family}-{depth}-taught": "trained to this depth, taught",
    "{family}-exits": "an exit after each",
    "{family}-exits-equal": "an exit after each, equal weights",
    "{family}-exits-taught": "an exit after each, taught",
}
DEPTHS = range(1, 7)


def layers_table() -> str:
    """Tabulate the score of every layer alone, and of networks trained to each depth.

    They are means over the seeds. The last two rows are costs.
    """
    cells = {}
    for task, family, training in product(TASKS, FAMILIES, TRAININGS):
        for depth in DEPTHS:
            network = training.format(family=family, depth=depth)
            scores = []
            for seed in seeds(task, network):
                by_layer = load(task, network, seed).scores.mean(1)
                # A network trained to one depth has the scores of its last layer alone.
                layer = min(len(by_layer), depth)
                scores.append(100 * by_layer[layer - 1])
            if scores:
                row = f"{task}: {FAMILIES[family]}, {TRAININGS[training]} ({len(scores)})"
                cells[str(depth), row] = f"{np.mean(scores):.1f}"
    for family in ("untied", "shared"):
        network = f"{family}-exits"
        first_seed = seeds("SST-2", network)[0]
        costs = load("SST-2", network, first_seed).cost.mean(1)
        for depth, cost in zip(DEPTHS, costs, strict=True):
            cells[str(depth), f"*cost of an exit on SST-2, {FAMILIES[family]}*"] = f"{cost:.2f}"
    return table("100 × score (seeds)", [str(depth) for depth in DEPTHS], cells)


class LayerScores(NamedTuple):
    """The scores of a recorded network."""

    recording: str
    last: float
    all_layers: str  # separated by spaces


LAYER_COLUMNS = "model,score,of every layer alone"


def layer_scores() -> list[LayerScores]:
    """Compute the score of every layer of every recorded network."""
    rows = []
    for task, network, seed in list_recordings():
        scores = load(task, network, seed).scores.mean(1)
        row = LayerScores(
            recording=f"{task}-{network}-{seed}",
            last=float(scores[-1]),
            all_layers=" ".join(f"{score:.4f}" for score in scores),
        )
        rows.append(row)
    return sorted(rows)


# What was tried.

CHOOSING = RECORDED / "choosing"  # answers to rows 8,001 to 13,000 of SST-2's training set
CHOOSING_SEEDS = (101, 102)
CHOICES = {  # networks, and their names in `CHOOSING`
    "exits at the encoder's rate": "exits-equal",
    "exits at 4 × the rate": "exits-equal-x4",
    "exits at 10 × the rate": "exits-equal-x10",
    "exits at 4 × the rate, poolers of width 64": "exits-equal-x4-w64",
    "exits at 10 × the rate, poolers of width 64": "exits-equal-x10-w64",
    "exits at 4 × the rate, without dropout": "exits-equal-x4-drop0",
    "exits at 4 × the rate, three epochs": "exits-equal-x4-epochs3",
    "exits at 4 × the rate, after layers 2, 4 and 6": "exits246-equal-x4",
    "ordinary networks": "{depth}",
    "ordinary networks, a new pooler at 4 × the rate": "{depth}-own-x4",
}


def choices_table() -> str:
    """Tabulate the accuracy of every layer of what was tried before a recipe was chosen."""
    labels = load_file(CHOOSING / "SST-2-rows.safetensors")["labels"]
    cells = {}
    for title, name in CHOICES.items():
        for depth in DEPTHS:
            accuracies = []
            for seed in CHOOSING_SEEDS:
                path = CHOOSING / f"SST-2-untied-{name.format(depth=depth)}-{seed}.safetensors"
                if not path.exists():
                    continue
                logits = load_file(path)["all_logits"]
                # Of a network with fewer answers than layers, each answers for as many layers.
                answers = len(logits)
                is_ordinary = answers == 1
                if is_ordinary or depth * answers % len(DEPTHS) == 0:
                    place = 0 if is_ordinary else depth * answers // len(DEPTHS) - 1
                    accuracies.append((logits[place].argmax(-1) == labels).mean())
            if accuracies:
                row = f"{title} ({len(accuracies)})"
                cells[str(depth), row] = f"{100 * np.mean(accuracies):.1f}"
    return table("accuracy on 5,000 phrases, % (seeds)", [str(depth) for depth in DEPTHS], cells)


# Learning rates.

RATE_COLUMNS = "training,accuracy on rows that do not report"


def learning_rates() -> list[tuple[str, float]]:
    """Compute the accuracy of the networks that compare learning rates, by recording.

    It is that of the last layer, on SST-2's phrases and on SICK's trial pairs.
    """
    sick = load_file(RECORDED / "SICK-elbert-42-dev.safetensors")
    labels_by_task = {"SST-2": load_rows("SST-2", PHRASES).labels, "SICK": sick["labels"]}
    rows = []
    for task, labels in labels_by_task.items():
        for path in sorted(RECORDED.glob(f"{task}-*-rate*")):
            logits = load_file(path)["all_logits"][-1, : len(labels)]
            accuracy = float((logits.argmax(-1) == labels).mean())
            rows.append((path.stem, accuracy))
    return rows


# Certified exits.


class Population(NamedTuple):
    """Recorded rows, from which calibration examples are drawn for one network."""

    title: str
    task: str
    network: str
    seed: int
    part: str


POPULATIONS = (
    Population("MiniLM, equal weights, SST-2's dev set", "SST-2", "untied-exits-equal", 1, DEV),
    Population("ELBERT, SST-2's dev set", "SST-2", "shared-exits", 1, DEV),
    Population("ELBERT, phrases of its training set", "SST-2", "shared-exits", 1, PHRASES),
    Population("ELBERT, SICK", "SICK", "elbert", 43, DEV),
)
CALIBRATION_SIZES = (100, 200, 400, 800, 2000)
DRAWS = 1000  # of calibration examples
RISK, ERROR_BUDGET = 0.02, 0.05  # α and δ of "Learn then Test"


class Certified(NamedTuple):
    """What certified thresholds cost and risk, for calibration examples drawn many times."""

    title: str
    examples: int
    broken: float  # share of the draws whose threshold has a risk above `RISK` on the dev set
    cost: float  # mean share of the layers that run on the dev set


CERTIFIED_COLUMNS = "task,examples,share of 1000 samples whose risk is above 0.02,cost"


class ThresholdExits(NamedTuple):
    """Exits under entropy thresholds, the deepest first: (thresholds, examples)."""

    exit_layer: np.ndarray  # 1-based
    losses: np.ndarray  # 1 where full depth is right and the exit wrong, else 0


def threshold_exits(task: str, network: str, seed: int, part: str) -> ThresholdExits:
    """Find the exits of a network's answers to a part of the rows, under each entropy threshold."""
    answers = load(task, network, seed, part)
    settings = all_settings(exit_thres=np.linspace(0, 1, 51).tolist())
    recorded = {"all_logits": torch.tensor(answers.logits)}
    exit_layer = scan_settings(ElbertConfig(), "entropy", settings, recorded)
    predictions = answers.logits.argmax(-1)
    return ThresholdExits(exit_layer, losses(predictions, answers.labels, exit_layer))


def certified_exits() -> list[Certified]:
    """Choose entropy thresholds by Learn then Test, many times, and measure them on the dev set.

    The recorded rows are the population that calibration examples are drawn from. Where these are
    the training set's phrases and the risk is that of the dev set's sentences, there is a shift.
    """
    generator = np.random.default_rng(3)
    rows = []
    for title, task, network, seed, part in POPULATIONS:
        on_dev = threshold_exits(task, network, seed, DEV)
        risk = on_dev.losses.mean(1)
        depth = on_dev.exit_layer.mean(1) / 6
        population = threshold_exits(task, network, seed, part).losses
        for size in CALIBRATION_SIZES:
            draws = generator.integers(population.shape[1], size=(DRAWS, size))
            certified = []  # how many thresholds each draw certifies
            for draw in draws:
                certified.append(count_certified(population[:, draw], RISK, ERROR_BUDGET))
            # With none certified there is the first: no example exits before the last layer.
            chosen = np.maximum(certified, 1) - 1
            row = Certified(
                title=title,
                examples=size,
                broken=float((risk[chosen] > RISK).mean()),
                cost=float(depth[chosen].mean()),
            )
            rows.append(row)
    return rows


def certified_table(rows: Sequence[Certified]) -> str:
    """Tabulate the costs by population and number of calibration examples."""
    cells = {(str(row.examples), row.title): f"{row.cost:.2f}" for row in rows}
    columns = [str(size) for size in CALIBRATION_SIZES]
    return table("share of layers that the certified threshold runs, by examples:", columns, cells)
