"""The recipe and the rule, confirmed on new seeds, and on rows of SST-2 that chose nothing.

    python -m experiments.comparison.confirmation

Prints the first two tables of docs/results.md and the tables behind them, and writes all into
results/confirmation.md; draws docs/comparison.png.

All was chosen before: the learning rate of the exits and the rule's penalties by other seeds and
rows. The networks of SST-2 have seeds 11 and up. All methods have the same data, two epochs, bf16
and optimiser, and read recalibrated answers; cascades stop by the same fit as the exits do. But for
SST-2, all may answer with the majority class for nothing. Only exits have a learning rate of their
own; fixed-depth networks gain nothing from one (tables.md, "accuracy on 5,000 phrases").
"""

import re
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
from sklearn.metrics import f1_score, matthews_corrcoef

from evaluation.exit_metrics import at_exit
from evaluation.sweep import RANDOM_MIXTURE, Recording, exit_predictions, scan_settings
from exit_lab.stopping import fit_calibration, fit_stopping
from experiments.comparison.figures import Curve, Dot, Panel, draw_comparison
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
from experiments.comparison.rules import elbert_config
from experiments.comparison.tables import (
    BUDGETS,
    DEPTHS,
    Cells,
    estimate_cells,
    is_within,
    table,
)
from modeling.keys import PRICES
from modeling.rules import layer_answers


class Population(NamedTuple):
    """Rows that report, and the networks that answer them.

    Attributes:
        task, part: the rows.
        exits: networks with an exit after each layer.
        fixed_depth: networks of one depth each, with `{depth}` in place of the number of layers.
    """

    task: str
    part: str
    exits: str
    fixed_depth: str


PLAIN = ("untied-exits-equal-x4", "untied-{depth}")
DISTILLED = ("untied-exits-taught-x4", "untied-{depth}-taught")
POPULATIONS = {  # by title
    "SST-2, dev set": Population("SST-2", DEV, *PLAIN),
    "SST-2, other sentences": Population("SST-2", SENTENCES, *PLAIN),
    # The rule's form was chosen with earlier networks' answers to these rows at hand.
    "SICK": Population("SICK", DEV, *PLAIN),
}
MORE_POPULATIONS = {  # with intervals of their own
    "SST-2, dev set, distilled": Population("SST-2", DEV, *DISTILLED),
    "SST-2, other sentences, distilled": Population("SST-2", SENTENCES, *DISTILLED),
    # Nothing was chosen with the help of these.
    "CoLA": Population("CoLA", DEV, *PLAIN),
    "MRPC": Population("MRPC", DEV, *PLAIN),
}
ABLATION = {  # networks with exits that learn at the encoder's rate, by title
    "published loss, one pooler": "untied-exits",
    "published loss, a pooler for each exit": "untied-exits-dynown",
    "equal weights, one pooler": "untied-exits-equalshared",
    "equal weights, a pooler for each exit": "untied-exits-equal",
}
ALL_POPULATIONS = POPULATIONS | MORE_POPULATIONS
HEADLINE = "SST-2, dev set"
SENTENCES_TITLE = "SST-2, other sentences"
DISTILLED_TITLE = "SST-2, dev set, distilled"
SUMMARY_BUDGETS = (0.3, 0.4, 0.5)
CURVE_BUDGETS = np.arange(0.15, 1.0, 0.01)
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
MOST_STAGES = 3  # networks of a cascade
FIXED_THRESHOLDS = (0.0, 0.1, 0.3, 0.6, 0.8)  # of the normalised entropy; at 0 all layers run
# Fixed-depth networks that take about as many milliseconds (benchmarks/one_text.py).
AS_FAST = {
    "exits, cost 0.5": "fixed depth, 4 layers",
    "exits, cost 0.4": "fixed depth, 3 layers",
}
TIMED_AS = {"exits, all layers": "exits, cost 1"}  # rows with another name in milliseconds.md


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
    """Add the setting that answers with the majority class of `choosing`, for nothing."""
    values, counts = np.unique(labels[choosing], return_counts=True)
    right = (labels == values[counts.argmax()]).astype(float)
    return join([Outcomes(right[None], np.zeros_like(right)[None]), outcomes])


def no_settings(answers: Answers, choosing: np.ndarray) -> Outcomes:
    """Return no settings, so that `with_depth_0`'s is the only one."""
    none = np.empty((0, len(answers.labels)))
    return Outcomes(score=none, cost=none)


# Methods.

EXIT_METHODS: dict[str, Callable[[Answers, np.ndarray], Outcomes]] = {
    "optimal stopping": stopping,
    "entropy, recalibrated": on_recalibrated(partial(outcomes_of, rule="entropy")),
    "entropy, as trained": partial(outcomes_of, rule="entropy"),
    "MSDNet's thresholds": on_recalibrated(by_shares),
    "PCEE-BERT's rule": on_recalibrated(patient_and_confident),
    "EENet's schedule": on_recalibrated(learnt_schedule),
    "random exits": on_recalibrated(partial(outcomes_of, rule=RANDOM_MIXTURE)),
}
NETWORK_METHODS: dict[str, Callable[[Sequence[Answers], np.ndarray], Outcomes]] = {
    "cascade": stopping_cascade,
    "random mix": recalibrated_choice,
}
STOPPING = "exits: optimal stopping"
RECALIBRATED_ENTROPY = "exits: entropy, recalibrated"
ENTROPY = "exits: entropy, as trained"
CASCADE = "fixed depth: cascade"
RANDOM_MIX = "fixed depth: random mix"
WORDS_EXITS = "bag of words, then exits: optimal stopping"
WORDS_CASCADE = "bag of words, then fixed depth: cascade"
WORDS_ALONE = "bag of words alone"
MAJORITY = "majority class"


def load_exits(population: Population) -> dict[int, Answers]:
    """Load the networks with exits, by seed."""
    networks = {}
    for seed in CONFIRMING_SEEDS:
        if path_of(population.task, population.exits, seed).exists():
            networks[seed] = load(population.task, population.exits, seed, population.part)
    return networks


def load_fixed_depths(population: Population) -> dict[int, dict[int, Answers]]:
    """Load the fixed-depth networks, by seed and depth; seeds that lack a depth are left out."""
    by_seed = {}
    for seed in CONFIRMING_SEEDS:
        by_depth = {}
        for depth in DEPTHS:
            network = population.fixed_depth.format(depth=depth)
            if path_of(population.task, network, seed).exists():
                by_depth[depth] = load(population.task, network, seed, population.part)
        by_seed[seed] = by_depth
    most = max(len(by_depth) for by_depth in by_seed.values())
    return {seed: by_depth for seed, by_depth in by_seed.items() if len(by_depth) == most > 1}


def make_methods(population: Population) -> dict[str, Method]:
    """Make all methods of a population, by title, of the seeds that all of them have."""
    with_exits = load_exits(population)
    fixed_depths = load_fixed_depths(population)
    seeds = sorted(with_exits.keys() & fixed_depths.keys())
    exits = [with_exits[seed] for seed in seeds]
    fixed = [list(fixed_depths[seed].values()) for seed in seeds]
    make = partial(make_population_method, population.task)
    methods: dict[str, Method] = {}
    for name, outcomes in EXIT_METHODS.items():
        methods[f"exits: {name}"] = make(exits, outcomes)
    for name, outcomes in NETWORK_METHODS.items():
        methods[f"fixed depth: {name}"] = make(fixed, outcomes)
    if population.task == "SST-2":
        words = load_words(population.part)
        methods[WORDS_EXITS] = make([after_words(one, words) for one in exits], stopping)
        methods[WORDS_CASCADE] = make([[words, *networks] for networks in fixed], stopping_cascade)
        methods[WORDS_ALONE] = make([[words]] * len(seeds), choice_of_networks)
    else:
        methods[MAJORITY] = make(exits, no_settings)
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


def accuracies(task: str, answers: Answers) -> np.ndarray:
    """Return the accuracy of each layer's answers: (layers,)."""
    return answers.scores.mean(1)


def own_metrics(task: str, answers: Answers) -> np.ndarray:
    """Return what GLUE calls the metric of CoLA or MRPC, of each layer's answers: (layers,)."""
    metric = {"CoLA": matthews_corrcoef, "MRPC": f1_score}[task]
    return np.array([metric(answers.labels, logits.argmax(-1)) for logits in answers.logits])


def depths_table(
    corner: str,
    populations: dict[str, Population],
    metrics_of: Callable[[str, Answers], np.ndarray] = accuracies,
) -> str:
    """Tabulate a metric of every exit, and of a fixed-depth network of as many layers."""
    cells = {}
    for title, population in populations.items():
        with_exits = load_exits(population)
        fixed_depths = load_fixed_depths(population)
        seeds = sorted(with_exits.keys() & fixed_depths.keys())
        exits = np.mean([metrics_of(population.task, with_exits[seed]) for seed in seeds], axis=0)
        for depth in DEPTHS:
            row = f"{title}: an exit after each layer ({len(seeds)})"
            cells[str(depth), row] = f"{100 * exits[depth - 1]:.1f}"
            networks = [fixed_depths[seed][depth] for seed in seeds if depth in fixed_depths[seed]]
            if networks:
                mean = np.mean([metrics_of(population.task, answers)[0] for answers in networks])
                row = f"{title}: a fixed-depth network ({len(seeds)})"
                cells[str(depth), row] = f"{100 * mean:.1f}"
    return table(corner, [str(depth) for depth in DEPTHS], cells)


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
        for answers in load_exits(ALL_POPULATIONS[title]).values():
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


CLAIMS = (  # a method, and what it is compared with
    (STOPPING, RECALIBRATED_ENTROPY),
    (RECALIBRATED_ENTROPY, ENTROPY),
    (STOPPING, CASCADE),
    (STOPPING, RANDOM_MIX),
    (WORDS_EXITS, WORDS_CASCADE),
)
MORE_CLAIMS = ((STOPPING, ENTROPY),)  # with intervals of their own


def claim_cells(
    methods: dict[str, dict[str, Method]], claims: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Estimate the differences of methods side by side, with simultaneous intervals.

    Returns texts by cost, and by the row that `claim_row` names.
    """
    contrasts = {}
    for (title, by_name), (name, other_name) in product(methods.items(), claims):
        if name not in by_name or other_name not in by_name:
            continue
        results, other = (at_budgets(by_name[key], BUDGETS) for key in (name, other_name))
        for number, budget in enumerate(BUDGETS):
            if is_within(results.cost[number], budget) and is_within(other.cost[number], budget):
                contrast = difference(results.score[number], other.score[number])
                contrasts[str(budget), claim_row(title, name, other_name)] = contrast
    return estimate_cells(contrasts)


def claim_row(title: str, name: str, other_name: str) -> str:
    """Name the difference of two methods on a population."""
    return f"{title}: {name} − {other_name}"


def claims_table(cells: Cells) -> str:
    """Tabulate differences of methods side by side: `claim_cells`."""
    return table("difference in points at a cost of", [str(budget) for budget in BUDGETS], cells)


def equal_cost_summary(methods: dict[str, dict[str, Method]], differences: Cells) -> str:
    """Tabulate exits beside their baselines, a row for each population and cost.

    differences: `claim_cells` of these methods.
    """
    cells: dict[tuple[str, str], str] = {}
    others = {"− cascade": CASCADE, "− random mix": RANDOM_MIX}
    for title, by_name in methods.items():
        for budget in SUMMARY_BUDGETS:
            row = f"{title}, {budget}"
            score = at_budgets(by_name[STOPPING], [budget]).score
            cells["exits", row] = f"{100 * score.mean():.1f}"
            cells["fixed depth", row] = nearest_fixed_depth(POPULATIONS[title], budget)
            for column, name in others.items():
                cells[column, row] = differences[str(budget), claim_row(title, STOPPING, name)]
    columns = ["exits", "fixed depth", *others]
    seeds = len(next(iter(next(iter(methods.values())).values())))
    return table(f"accuracy, %, {seeds} seeds, at a cost of", columns, cells)


def nearest_fixed_depth(population: Population, budget: float) -> str:
    """Return the mean accuracy of the fixed-depth networks whose cost is nearest, and that cost."""
    networks: dict[int, list[Answers]] = {}
    for by_depth in load_fixed_depths(population).values():
        for depth, answers in by_depth.items():
            networks.setdefault(depth, []).append(answers)
    costs = {depth: of_seeds[0].cost.mean() for depth, of_seeds in networks.items()}
    depth = min(costs, key=lambda depth: abs(costs[depth] - budget))
    accuracy = np.mean([answers.scores.mean() for answers in networks[depth]])
    return f"{100 * accuracy:.1f} at {costs[depth]:.2f}"


class Headline(NamedTuple):
    """What the headline says of a population, by row of the table."""

    accuracy: dict[str, str]
    against_six_layers: dict[str, str]
    against_as_fast: dict[str, str]  # the row that `AS_FAST` names


def headline_of(population: Population, exits: Method) -> Headline:
    """Estimate accuracies of a population's networks with 95% intervals, and their differences.

    exits: the method `STOPPING` of that population.
    """
    with_exits = load_exits(population)
    fixed_depths = load_fixed_depths(population)
    seeds = sorted(with_exits.keys() & fixed_depths.keys())
    scores: dict[str, np.ndarray] = {}  # (seeds, examples), by row
    for depth in (6, 4, 3):
        networks = [fixed_depths[seed][depth] for seed in seeds]
        scores[f"fixed depth, {depth} layers"] = np.stack([x.scores[0] for x in networks])
    full = scores["fixed depth, 6 layers"]
    scores["exits, all layers"] = np.stack([with_exits[seed].scores[-1] for seed in seeds])
    for budget in (0.5, 0.4):
        scores[f"exits, cost {budget}"] = at_budgets(exits, [budget]).score[0]
    accuracy = {}
    contrasts = {}
    for row, right in scores.items():
        (estimate,) = simultaneous([[right]])
        accuracy[row] = estimate.text(100, ".1f")
        if right is not full:
            contrasts["six layers", row] = difference(right, full)
        if row in AS_FAST:
            contrasts["as fast", row] = difference(right, scores[AS_FAST[row]])
    against: dict[str, dict[str, str]] = {"six layers": {}, "as fast": {}}
    for (other, row), text in estimate_cells(contrasts).items():
        against[other][row] = text
    return Headline(accuracy, against["six layers"], against["as fast"])


def headline_table(methods: dict[str, dict[str, Method]]) -> str:
    """Tabulate accuracies on SST-2 beside the milliseconds of networks of that size."""
    dev = headline_of(POPULATIONS[HEADLINE], methods[HEADLINE][STOPPING])
    sentences = headline_of(POPULATIONS[SENTENCES_TITLE], methods[SENTENCES_TITLE][STOPPING])
    times = read_times(RESULTS / "milliseconds.md")
    cells: dict[tuple[str, str], str] = {}
    for row, accuracy in dev.accuracy.items():
        cells["dev set, %", row] = accuracy
        if row in dev.against_six_layers:
            cells["− six layers", row] = dev.against_six_layers[row]
        if row in AS_FAST:
            layers = AS_FAST[row].removeprefix("fixed depth, ")
            cells["− as fast", row] = f"{layers}: {dev.against_as_fast[row]}"
            cells["− as fast, other sentences", row] = sentences.against_as_fast[row]
        for form in ("PyTorch", "ONNX, int8"):
            cells[f"{form}: mean ms, p95", row] = times[TIMED_AS.get(row, row)][form]
    columns = ["dev set, %", "− six layers", "− as fast", "− as fast, other sentences"]
    columns += ["PyTorch: mean ms, p95", "ONNX, int8: mean ms, p95"]
    seeds = len(methods[HEADLINE][STOPPING])
    return table(f"SST-2, {seeds} seeds", columns, cells)


def read_times(path: Path) -> dict[str, dict[str, str]]:
    """Read mean and 95th percentile, "5.5, 7.6", by row and column of benchmarks/one_text.py's."""
    header, _, *rows = path.read_text(encoding="utf-8").splitlines()
    _, *forms = split_row(header)
    times = {}
    for line in rows:
        name, *cells = split_row(line)
        means = [re.sub(r" \(.*\)", "", cell) for cell in cells]
        times[name] = dict(zip(forms, means, strict=True))
    return times


def split_row(line: str) -> list[str]:
    """Split a row of a Markdown table into its cells."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def draw_headline(methods: dict[str, dict[str, Method]]) -> None:
    """Draw docs/comparison.png, on SST-2's dev set; methods: by population and name."""
    panels = {}
    for panel, title in {"trained on labels": HEADLINE, "distilled": DISTILLED_TITLE}.items():
        curves = {
            "exits, optimal stopping": methods[title][STOPPING],
            "cascade of fixed-depth networks": methods[title][CASCADE],
            "random mix of two fixed-depth networks": methods[title][RANDOM_MIX],
        }
        by_seed = load_fixed_depths(ALL_POPULATIONS[title]).values()
        dots = {depth: dot_of([of_seed[depth] for of_seed in by_seed]) for depth in DEPTHS}
        panels[panel] = Panel({label: curve_of(method) for label, method in curves.items()}, dots)
    draw_comparison(panels, DOCS / "comparison.png", "six layers")


def curve_of(method: Method) -> Curve:
    """Return what a method gets at the costs that it reaches."""
    results = at_budgets(method, CURVE_BUDGETS)
    cost = results.cost.mean(1)
    is_reached = cost < CURVE_BUDGETS + 0.01
    return Curve(cost[is_reached], 100 * results.score.mean(-1)[is_reached])


def dot_of(networks: Sequence[Answers]) -> Dot:
    """Return what fixed-depth networks of one depth get, mean of the seeds."""
    cost = np.mean([answers.cost.mean() for answers in networks])
    accuracy = np.mean([answers.scores.mean() for answers in networks])
    return Dot(float(cost), 100 * float(accuracy))


def main() -> None:
    # Fits of cascades take minutes a population. A fork would inherit this process's threads.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = pool.map(make_methods, ALL_POPULATIONS.values())
        methods = dict(zip(ALL_POPULATIONS, made, strict=True))
    texts = [headline_table(methods)]
    for populations in (POPULATIONS, MORE_POPULATIONS):
        of_these = {title: methods[title] for title in populations}
        differences = claim_cells(of_these, CLAIMS)
        if populations is POPULATIONS:
            texts.append(equal_cost_summary(of_these, differences))
        texts.append(depths_table("accuracy, % (seeds)", populations))
        texts += equal_cost_tables(of_these)
        texts.append(claims_table(differences))
    texts.append(claims_table(claim_cells(methods, MORE_CLAIMS)))
    texts += [ablation_table(), thresholds_table()]
    by_glue = {title: MORE_POPULATIONS[title] for title in ("CoLA", "MRPC")}
    corner = "100 × Matthews' correlation, and 100 × F1 (seeds)"
    texts.append(depths_table(corner, by_glue, own_metrics))
    report = "\n\n".join(texts)
    draw_headline(methods)
    (RESULTS / "confirmation.md").write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
