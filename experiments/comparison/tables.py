"""The tables of results/tables.md, and the rows of results/*.csv: one function each.

A *network* is a part of a file's name, a *title* what the pages call a method (`names.py`). Scores
are in percent, differences in percentage points.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.numpy import load_file

from evaluation.sweep import RANDOM_MIXTURE, scan_settings
from exit_lab.choice import count_certified, losses
from exit_lab.estimates import Estimate
from experiments.comparison.intervals import Contrast, difference, simultaneous
from experiments.comparison.methods import Method, Methods, at_budgets, oracle_scores
from experiments.comparison.names import (
    ELBERT_AS_PONDERNET,
    ELBERT_RANDOM_EXITS,
    NETWORKS,
    PONDER_GRID,
    RULES,
    method_name,
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
)
from experiments.comparison.rules import all_settings
from modeling.configuration import ElbertConfig
from runs.console import markdown_table

BUDGETS = (0.2, 0.3, 0.4, 0.5)  # columns of tables
WIDE_BUDGETS = np.arange(0.6, 1.21, 0.1)  # costs that every method has

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


def is_within(cost: np.ndarray, budget: float) -> bool:
    """Tell whether a method's mean cost, (seeds,), is within a budget; its cheapest may be more."""
    return bool(cost.mean() < budget + 0.01)


# PonderNet's halting.

HALTING_CLAIMS = [  # a method, and what it is compared with
    (method_name(rule, network), ELBERT_AS_PONDERNET)
    for rule, network in product(("halting", "entropy"), PONDER_GRID)
]
# Up to all six passes, as PonderNet halts late under most priors.
HALTING_BUDGETS = (0.4, 0.5, 0.7, 1.0, 1.3, 1.6)


def halting_claims(methods: Methods) -> str:
    """Tabulate the differences of `HALTING_CLAIMS` on SST-2, at `HALTING_BUDGETS`."""
    contrasts = {}
    for title, other_title in HALTING_CLAIMS:
        results = at_budgets(methods["SST-2", title], HALTING_BUDGETS)
        other = at_budgets(methods["SST-2", other_title], HALTING_BUDGETS)
        for number, budget in enumerate(HALTING_BUDGETS):
            if is_within(results.cost[number], budget) and is_within(other.cost[number], budget):
                row = f"SST-2: {title} − {other_title}"
                contrast = difference(results.score[number], other.score[number])
                contrasts[str(budget), row] = contrast
    columns = [str(budget) for budget in HALTING_BUDGETS]
    return table("difference in points at a cost of", columns, estimate_cells(contrasts))


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
    random_scores = {task: mean_over_budgets(methods[task, ELBERT_RANDOM_EXITS]) for task in TASKS}
    contrasts = {}
    for (task, title), method in methods.items():
        if title != ELBERT_RANDOM_EXITS:
            contrasts[task, title] = difference(mean_over_budgets(method), random_scores[task])
    cells = {}
    for task, random_score in random_scores.items():
        cells[task, "random exits themselves"] = f"{100 * random_score.mean():.1f}"
    for key, gain in estimate_all(contrasts).items():
        cells[key] = gain_text(gain)
    for task, random_score in random_scores.items():
        room = mean_oracle(networks, task, "shared-exits") - random_score.mean()
        cells[task, "oracle"] = f"{100 * room:+.1f}"
    return table("gain over random exits of ELBERT's network, in points", TASKS, cells)


class Gain(NamedTuple):
    """What a rule gains over random exits of the same network.

    Scores are means over `WIDE_BUDGETS`.
    """

    task: str
    network: str
    rule: str
    random_exits: float  # the score of random exits
    room: float  # the oracle's score less that of random exits
    gain: float
    low: float
    high: float
    efficiency: float  # gain / room


GAIN_COLUMNS = "task,network,rule,random exits,oracle - random exits,gain,low,high,efficiency"


def gains_by_network(methods: Methods, networks: Networks) -> list[Gain]:
    """Estimate what each rule gains on each network."""
    contrasts = {}
    random_scores = {}
    rooms = {}
    for task, network in networks:
        random_score = mean_over_budgets(methods[task, method_name(RANDOM_MIXTURE, network)])
        random_scores[task, network] = float(random_score.mean())
        rooms[task, network] = mean_oracle(networks, task, network) - float(random_score.mean())
        for rule in RULES:
            key = (task, method_name(rule, network))
            if rule != RANDOM_MIXTURE and key in methods:
                contrast = difference(mean_over_budgets(methods[key]), random_score)
                contrasts[task, network, rule] = contrast
    gains = []
    for (task, network, rule), estimate in estimate_all(contrasts).items():
        room = rooms[task, network]
        gain = Gain(
            task=task,
            network=network,
            rule=rule,
            random_exits=random_scores[task, network],
            room=room,
            gain=estimate.value,
            low=estimate.low,
            high=estimate.high,
            efficiency=estimate.value / room,
        )
        gains.append(gain)
    return gains


OWN_GAIN_RULES = ("entropy", "windows", "halting")  # networks.csv has the others, too
WIDEST = 0.2  # interval that tells something of a gain; networks.csv has the wider ones, too


def own_gains_table(gains: Sequence[Gain]) -> str:
    """Tabulate what some rules gain over random exits of the same network."""
    cells = {}
    for gain in gains:
        if gain.rule in OWN_GAIN_RULES:
            row = f"{gain.task}: {NETWORKS[gain.network]}"
            estimate = Estimate(gain.gain, gain.low, gain.high)
            cells["random exits, %", row] = f"{100 * gain.random_exits:.1f}"
            is_known = gain.high - gain.low < WIDEST
            cells[RULES[gain.rule], row] = gain_text(estimate) if is_known else "seeds disagree"
    columns = ["random exits, %", *(RULES[rule] for rule in OWN_GAIN_RULES)]
    return table("gain over random exits of the same network, in points", columns, cells)


# Every layer.

DEPTHS = range(1, 7)


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
    "fixed-depth networks": "{depth}",
    "fixed-depth networks, a new pooler at 4 × the rate": "{depth}-own-x4",
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
                has_one_answer = answers == 1
                if has_one_answer or depth * answers % len(DEPTHS) == 0:
                    place = 0 if has_one_answer else depth * answers // len(DEPTHS) - 1
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
    Population("MiniLM, SST-2's dev set", "SST-2", "untied-exits-equal-x4", 11, DEV),
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
    return table(
        "share of layers that the certified threshold runs, by calibration examples:",
        columns,
        cells,
    )
