"""The recipe and the rule, confirmed on new seeds, and on rows of SST-2 that chose nothing.

    python -m experiments.comparison.confirmation

Prints the tables of docs/results.md's first sections, and writes them into results/confirmation.md;
draws docs/comparison.png.

All was chosen before: the learning rate of the exits and the rule's penalties by other seeds and
rows. The networks of SST-2 have seeds 11 and up. All methods have the same data, two epochs, bf16
and optimiser, and read recalibrated answers; cascades stop by the same fit as the exits do. But for
SST-2, all may answer with the commonest class for nothing. Only exits have a learning rate of their
own; ordinary networks gain nothing from one (tables.md, "accuracy on 5,000 phrases").
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from answers.exit_metrics import at_exit
from answers.sweep import RANDOM_MIXTURE, Recording, exit_predictions, scan_settings
from elbert.configuration import ElbertConfig
from elbert.rules import layer_answers
from elbert_base.keys import PRICES
from exit_lab.stopping import fit_calibration, fit_stopping
from experiments.comparison.figures import draw_comparison
from experiments.comparison.intervals import difference, simultaneous
from experiments.comparison.methods import (
    Method,
    Outcomes,
    at_budgets,
    choice_of_networks,
    join,
    make_method,
    outcomes_of,
)
from experiments.comparison.recordings import (
    CONFIRMING_SEEDS,
    DEV,
    SENTENCES,
    Answers,
    load,
    load_words,
    path_of,
)
from experiments.comparison.rivals import by_shares, learnt_schedule, patient_and_confident
from experiments.comparison.tables import BUDGETS, DEPTHS, estimate_cells, is_within, table


class Population(NamedTuple):
    """Rows that report, and the networks that answer them.

    Attributes:
        task, part: the rows.
        exits: networks with an exit after each layer.
        ordinary: networks of one depth each, with `{depth}` in place of the number of layers.
    """

    task: str
    part: str
    exits: str
    ordinary: str


NEW = ("untied-exits-equal-x4", "untied-{depth}")
TAUGHT = ("untied-exits-taught-x4", "untied-{depth}-taught")
POPULATIONS = {  # by title
    "SST-2, dev set": Population("SST-2", DEV, *NEW),
    "SST-2, other sentences": Population("SST-2", SENTENCES, *NEW),
    # The rule's form was chosen with earlier networks' answers to these rows at hand.
    "SICK": Population("SICK", DEV, *NEW),
}
MORE_POPULATIONS = {  # with intervals of their own
    "SST-2, dev set, taught": Population("SST-2", DEV, *TAUGHT),
    "SST-2, other sentences, taught": Population("SST-2", SENTENCES, *TAUGHT),
    # Nothing was chosen with the help of these.
    "CoLA": Population("CoLA", DEV, *NEW),
    "MRPC": Population("MRPC", DEV, *NEW),
}
ABLATION = {  # networks with exits that learn at the encoder's rate, by title
    "published loss, one pooler": "untied-exits",
    "published loss, a pooler for each exit": "untied-exits-dynown",
    "equal weights, one pooler": "untied-exits-equalshared",
    "equal weights, a pooler for each exit": "untied-exits-equal",
}
HEADLINE = "SST-2, dev set"
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
MOST_STAGES = 3  # networks of a cascade
FIXED_THRESHOLDS = (0.0, 0.1, 0.3, 0.6, 0.8)  # of the normalised entropy; at 0 all layers run
# Ordinary networks that take about as many milliseconds (benchmarks/one_text.py).
AS_FAST = {
    "exits, cost 0.5": "ordinary, 4 layers",
    "exits, cost 0.4": "ordinary, 3 layers",
}


def elbert_config(answers: Answers) -> ElbertConfig:
    """Make a configuration of as many layers and classes as the answers have."""
    layers, _, classes = answers.logits.shape
    return ElbertConfig(
        num_hidden_layers=layers,
        num_hidden_groups=layers,
        id2label=dict.fromkeys(range(classes), "class"),
    )


def recording_of(answers: Answers) -> Recording:
    """Make what a sweep would have recorded."""
    tensors = {"all_logits": torch.tensor(answers.logits, dtype=torch.float)}
    return Recording(tensors, answers.labels.astype(int), answers.cost)


def stopping(answers: Answers, choosing: np.ndarray) -> Outcomes:
    """Compute the outcomes of the rule optimal_stopping at each price, fitted to `choosing`."""
    recording = recording_of(answers)
    config = fit_stopping(elbert_config(answers), recording, choosing)
    settings = [{"exit_price": price} for price in PRICES]
    exit_layer = scan_settings(config, "optimal_stopping", settings, recording.tensors)
    scores = (exit_predictions(config, recording) == answers.labels).astype(float)
    return Outcomes(at_exit(scores, exit_layer), at_exit(answers.cost, exit_layer))


def recalibrated(answers: Answers, choosing: np.ndarray) -> Answers:
    """Recalibrate every exit, by the fit that `stopping` makes as well."""
    config, recording = elbert_config(answers), recording_of(answers)
    config.exit_calibration = fit_calibration(config, recording, choosing)
    logits = layer_answers(config.exit_rule(), recording.tensors).numpy()
    return replace(answers, logits=logits)


def on_recalibrated(
    outcomes: Callable[[Answers, np.ndarray], Outcomes],
) -> Callable[[Answers, np.ndarray], Outcomes]:
    """Let a method read recalibrated answers."""
    return lambda answers, choosing: outcomes(recalibrated(answers, choosing), choosing)


def recalibrated_choice(networks: Sequence[Answers], choosing: np.ndarray) -> Outcomes:
    """Compute the outcomes of networks without exits, each recalibrated; each is a setting."""
    return choice_of_networks([recalibrated(answers, choosing) for answers in networks], choosing)


def stopping_cascade(networks: Sequence[Answers], choosing: np.ndarray) -> Outcomes:
    """Compute the outcomes of networks without exits, alone and two or three after one another.

    The next network runs from its first layer where going on pays, by the fit of the exits' rule.
    """
    methods = [recalibrated_choice(networks, choosing)]
    for count in range(2, MOST_STAGES + 1):
        for stages in combinations(networks, count):
            answers = Answers(
                logits=np.concatenate([stage.logits for stage in stages]),
                labels=stages[0].labels,
                cost=np.cumsum([stage.cost[0] for stage in stages], axis=0),
            )
            methods.append(stopping(answers, choosing))
    return join(methods)


def after_words(answers: Answers, words: Answers) -> Answers:
    """Put a bag of words before a network with exits, as an exit that costs nothing."""
    return Answers(
        logits=np.concatenate([words.logits, answers.logits]),
        labels=answers.labels,
        cost=np.concatenate([words.cost, answers.cost]),
    )


def with_depth_0(outcomes: Outcomes, labels: np.ndarray, choosing: np.ndarray) -> Outcomes:
    """Add the setting that answers with the commonest class of `choosing`, for nothing."""
    values, counts = np.unique(labels[choosing], return_counts=True)
    right = (labels == values[counts.argmax()]).astype(float)
    return join([Outcomes(right[None], np.zeros_like(right)[None]), outcomes])


def no_network(answers: Answers, choosing: np.ndarray) -> Outcomes:
    """Return no settings, so that `with_depth_0`'s is the only one."""
    none = np.empty((0, len(answers.labels)))
    return Outcomes(score=none, cost=none)


# Methods.

EXIT_METHODS: dict[str, Callable[[Answers, np.ndarray], Outcomes]] = {
    "optimal_stopping": stopping,
    "entropy": on_recalibrated(partial(outcomes_of, rule="entropy")),
    "entropy, not recalibrated": partial(outcomes_of, rule="entropy"),
    "thresholds by shares": on_recalibrated(by_shares),
    "patient and confident": on_recalibrated(patient_and_confident),
    "a learnt schedule": on_recalibrated(learnt_schedule),
    "random exits": on_recalibrated(partial(outcomes_of, rule=RANDOM_MIXTURE)),
}
NETWORK_METHODS: dict[str, Callable[[Sequence[Answers], np.ndarray], Outcomes]] = {
    "a cascade": stopping_cascade,
    "two, at random": recalibrated_choice,
}


def load_exits(population: Population) -> dict[int, Answers]:
    """Load the networks with exits, by seed."""
    networks = {}
    for seed in CONFIRMING_SEEDS:
        if path_of(population.task, population.exits, seed).exists():
            networks[seed] = load(population.task, population.exits, seed, population.part)
    return networks


def load_ordinary(population: Population) -> dict[int, dict[int, Answers]]:
    """Load the ordinary networks, by seed and depth; seeds that lack a depth are left out."""
    by_seed = {}
    for seed in CONFIRMING_SEEDS:
        by_depth = {}
        for depth in DEPTHS:
            network = population.ordinary.format(depth=depth)
            if path_of(population.task, network, seed).exists():
                by_depth[depth] = load(population.task, network, seed, population.part)
        by_seed[seed] = by_depth
    most = max(len(by_depth) for by_depth in by_seed.values())
    return {seed: by_depth for seed, by_depth in by_seed.items() if len(by_depth) == most > 1}


def make_methods(population: Population) -> dict[str, Method]:
    """Make all methods of a population, by title, of the seeds that all of them have."""
    with_exits = load_exits(population)
    ordinary = load_ordinary(population)
    seeds = sorted(with_exits.keys() & ordinary.keys())
    methods: dict[str, Method] = {}
    for name, outcomes in EXIT_METHODS.items():
        trained = [with_exits[seed] for seed in seeds]
        methods[f"exits: {name}"] = make_population_method(population.task, trained, outcomes)
    for name, outcomes in NETWORK_METHODS.items():
        trained = [list(ordinary[seed].values()) for seed in seeds]
        methods[f"ordinary networks: {name}"] = make_population_method(
            population.task, trained, outcomes
        )
    if population.task != "SST-2":
        trained = [with_exits[seed] for seed in seeds]
        methods["the commonest class"] = make_population_method(
            population.task, trained, no_network
        )
    if population.task == "SST-2":
        words = load_words(population.part)
        trained = [after_words(with_exits[seed], words) for seed in seeds]
        name = "exits behind a bag of words: optimal_stopping"
        methods[name] = make_population_method(population.task, trained, stopping)
        trained = [[words, *ordinary[seed].values()] for seed in seeds]
        name = "ordinary networks behind a bag of words: a cascade"
        methods[name] = make_population_method(population.task, trained, stopping_cascade)
    return methods


def make_population_method(
    task: str, trained: Sequence, outcomes: Callable[..., Outcomes]
) -> Method:
    """Make a method of what was trained with each seed, with depth 0 as a setting but on SST-2."""
    first = trained[0] if isinstance(trained[0], Answers) else trained[0][0]
    labels = first.labels

    def settings(networks: Any, choosing: np.ndarray) -> Outcomes:
        found = outcomes(networks, choosing)
        return found if task == "SST-2" else with_depth_0(found, labels, choosing)

    return make_method(trained, settings, len(labels))


# Tables.


def depths_table(populations: dict[str, Population]) -> str:
    """Tabulate the accuracy of every exit, and of an ordinary network of its depth."""
    cells = {}
    for title, population in populations.items():
        with_exits = load_exits(population)
        ordinary = load_ordinary(population)
        seeds = sorted(with_exits.keys() & ordinary.keys())
        for depth in DEPTHS:
            exits = [with_exits[seed].scores[depth - 1].mean() for seed in seeds]
            row = f"{title}: an exit after each layer ({len(seeds)})"
            cells[str(depth), row] = f"{100 * np.mean(exits):.1f}"
            networks = [ordinary[seed][depth] for seed in seeds if depth in ordinary[seed]]
            if networks:
                mean = np.mean([answers.scores[0].mean() for answers in networks])
                row = f"{title}: an ordinary network of this depth ({len(seeds)})"
                cells[str(depth), row] = f"{100 * mean:.1f}"
    return table("accuracy, % (seeds)", [str(depth) for depth in DEPTHS], cells)


def ablation_table() -> str:
    """Tabulate what the loss and the poolers do, each alone, on SST-2's dev set: `ABLATION`."""
    cells: dict[tuple[str, str], str] = {}
    scores = {}
    for title, network in ABLATION.items():
        networks = [load("SST-2", network, seed) for seed in CONFIRMING_SEEDS]
        scores[title] = np.stack([answers.scores for answers in networks])
        for depth in DEPTHS:
            accuracy = scores[title][:, depth - 1].mean()
            cells[str(depth), title] = f"{100 * accuracy:.1f}"
    published, own_pooler, equal_loss, both = scores.values()
    effects = {
        "the loss alone: difference": (equal_loss, published),
        "the poolers alone: difference": (own_pooler, published),
        "both: difference": (both, published),
    }
    contrasts = {}
    for (title, (one, other)), depth in product(effects.items(), DEPTHS):
        contrasts[str(depth), title] = difference(one[:, depth - 1], other[:, depth - 1])
    cells |= estimate_cells(contrasts)
    return table(
        f"exits on SST-2's dev set, % ({len(CONFIRMING_SEEDS)} seeds)",
        [str(depth) for depth in DEPTHS],
        cells,
    )


def thresholds_table() -> str:
    """Tabulate what fixed thresholds of the rule `entropy` cost and lose, without any choice.

    The cost is the mean share of layers.
    """
    columns = ["SST-2, dev set", "SICK", "CoLA", "MRPC"]
    settings = [{"exit_thres": threshold} for threshold in FIXED_THRESHOLDS]
    cells = {}
    for title in columns:
        of_settings = []  # for each seed, (settings, 2): share of layers, accuracy
        for answers in load_exits((POPULATIONS | MORE_POPULATIONS)[title]).values():
            recording = recording_of(answers)
            config = elbert_config(answers)
            exit_layer = scan_settings(config, "entropy", settings, recording.tensors)
            share = exit_layer.mean(1) / len(answers.logits)
            of_settings.append(np.stack([share, at_exit(answers.scores, exit_layer).mean(1)], 1))
        for setting, (share, accuracy) in zip(settings, np.mean(of_settings, 0), strict=True):
            row = f"`exit_thres` {setting['exit_thres']:g}"
            cells[title, row] = f"{100 * accuracy:.1f} at {share:.2f}"
    return table("accuracy, %, at a share of the layers", columns, cells)


def equal_cost_tables(methods: dict[str, dict[str, Method]]) -> list[str]:
    """Tabulate the accuracy of all methods at `BUDGETS`: a table for each population."""
    tables = []
    for title, by_name in methods.items():
        cells: dict[tuple[str, str], str] = {}
        for name, method in by_name.items():
            results = at_budgets(method, BUDGETS)
            for budget, cost, score in zip(BUDGETS, results.cost, results.score, strict=True):
                if is_within(cost, budget):
                    cells[str(budget), name] = f"{100 * score.mean():.1f}"
        seeds = len(next(iter(by_name.values())))
        corner = f"{title}, {seeds} seeds: accuracy at a cost of"
        tables.append(table(corner, [str(budget) for budget in BUDGETS], cells))
    return tables


def headline_table(methods: dict[str, Method]) -> str:
    """Tabulate accuracies on SST-2's dev set, each with its 95% interval, and their differences.

    methods: of that population, by title.
    """
    population = POPULATIONS[HEADLINE]
    with_exits = load_exits(population)
    ordinary = load_ordinary(population)
    seeds = sorted(with_exits.keys() & ordinary.keys())
    scores: dict[str, np.ndarray] = {}  # (seeds, examples), by row
    for depth in (6, 4, 3):
        networks = [ordinary[seed][depth] for seed in seeds]
        scores[f"ordinary, {depth} layers"] = np.stack([x.scores[0] for x in networks])
    scores["exits, all layers"] = np.stack([with_exits[seed].scores[-1] for seed in seeds])
    for budget in (0.5, 0.4):
        results = at_budgets(methods["exits: optimal_stopping"], [budget])
        scores[f"exits, cost {budget}"] = results.score[0]
    full = scores["ordinary, 6 layers"]
    columns = ["accuracy, %", "against six layers", "against a network of its time"]
    cells: dict[tuple[str, str], str] = {}
    contrasts = {}
    for row, right in scores.items():
        (accuracy,) = simultaneous([[right]])
        cells[columns[0], row] = accuracy.text(100, ".1f")
        if right is not full:
            contrasts[columns[1], row] = difference(right, full)
        if row in AS_FAST:
            contrasts[columns[2], row] = difference(right, scores[AS_FAST[row]])
    for (column, row), text in estimate_cells(contrasts).items():
        peer = f"{AS_FAST[row]}: " if column == columns[2] else ""
        cells[column, row] = peer + text
    return table(f"{HEADLINE}, {len(seeds)} seeds", columns, cells)


CLAIMS = (
    ("exits: optimal_stopping", "exits: entropy"),
    ("exits: entropy", "exits: entropy, not recalibrated"),
    ("exits: optimal_stopping", "ordinary networks: a cascade"),
    ("exits: optimal_stopping", "ordinary networks: two, at random"),
    (
        "exits behind a bag of words: optimal_stopping",
        "ordinary networks behind a bag of words: a cascade",
    ),
)


def claims_table(methods: dict[str, dict[str, Method]]) -> str:
    """Tabulate the differences of methods side by side, with simultaneous intervals."""
    contrasts = {}
    for (title, by_name), (name, other_name) in product(methods.items(), CLAIMS):
        if name not in by_name or other_name not in by_name:
            continue
        results, other = (at_budgets(by_name[key], BUDGETS) for key in (name, other_name))
        for number, budget in enumerate(BUDGETS):
            if is_within(results.cost[number], budget) and is_within(other.cost[number], budget):
                contrast = difference(results.score[number], other.score[number])
                contrasts[str(budget), f"{title}: {name} − {other_name}"] = contrast
    cells = estimate_cells(contrasts)
    return table("difference in points at a cost of", [str(budget) for budget in BUDGETS], cells)


def draw_headline(methods: dict[str, dict[str, Method]]) -> None:
    """Draw docs/comparison.png, on SST-2's dev set; methods: by population and name."""
    plain = methods[HEADLINE]
    taught = methods[f"{HEADLINE}, taught"]
    curves = {
        "exits, taught": taught["exits: optimal_stopping"],
        "exits": plain["exits: optimal_stopping"],
        "a cascade of ordinary networks": plain["ordinary networks: a cascade"],
        "two ordinary networks, at random": plain["ordinary networks: two, at random"],
    }
    by_seed = load_ordinary(POPULATIONS[HEADLINE]).values()
    ordinary = {depth: [by_depth[depth] for by_depth in by_seed] for depth in DEPTHS}
    draw_comparison(curves, ordinary, DOCS / "comparison.png")


def main() -> None:
    all_populations = POPULATIONS | MORE_POPULATIONS
    # Fits of cascades take minutes a population. A fork would inherit this process's threads.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = pool.map(make_methods, all_populations.values())
        methods = dict(zip(all_populations, made, strict=True))
    texts = [headline_table(methods[HEADLINE])]
    for populations in (POPULATIONS, MORE_POPULATIONS):
        of_these = {title: methods[title] for title in populations}
        texts.append(depths_table(populations))
        texts += equal_cost_tables(of_these)
        texts.append(claims_table(of_these))
    texts += [ablation_table(), thresholds_table()]
    report = "\n\n".join(texts)
    draw_headline(methods)
    (RESULTS / "confirmation.md").write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
