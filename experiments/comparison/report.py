"""The last two tables of docs/results.md and the files behind them, from the recorded answers.

    python -m experiments.comparison.report

Reads what is in experiments/recorded; a row whose recordings are not there is left out. Thresholds
are cross-fitted: one half of the examples chooses, the other reports, then the other way round.
Costs are FLOPs, with an exit check after every layer that runs and the ponder models' extra token,
as shares of MiniLM's six layers without exits. Writes, beside this file, results/tables.md, and
results/*.csv with what no table has.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from experiments.comparison import tables
from experiments.comparison.halting import (
    EPSILONS,
    UNMOVED,
    expected_depths,
    failure,
    halts_as_prior,
    load_token_halting,
)
from experiments.comparison.methods import (
    Method,
    Methods,
    Outcomes,
    join,
    make_method,
    outcomes_of,
)
from experiments.comparison.names import ACT, NETWORKS, RULES, method_name
from experiments.comparison.recordings import (
    RECORDED,
    TASKS,
    Networks,
    config_of,
    load,
    load_rows,
    path_of,
    seeds,
)
from experiments.comparison.rules import rules_of

RESULTS = Path(__file__).parent / "results"
LEARNT = "learnt"  # the verdict on a training that did not fail


# Networks.


class Halting(NamedTuple):
    """What a network that learns to halt has learnt."""

    task: str
    network: str  # the page's name
    seed: int
    mean_depth: float  # expected layer, mean of the examples
    deviation: float  # of the expected layer, between examples
    best_score: float  # of a layer
    verdict: str


HALTING_COLUMNS = "task,network,seed,mean depth,deviation between examples,best score,verdict"


def load_networks() -> tuple[Networks, list[Halting]]:
    """Load all networks with exits that learnt something; and say what was learnt of halting.

    A network whose halting is still the prior's is loaded without it: its layers' answers count.
    """
    networks: Networks = {}
    halting = []
    for task, network in product(TASKS, NETWORKS):
        for seed in seeds(task, network):
            answers = load(task, network, seed)
            if answers.halts is not None:
                config = config_of(path_of(task, network, seed))
                unmoved = halts_as_prior(answers.halts, config)
                problem = failure(answers.scores, answers.labels, unmoved)
                depths = expected_depths(answers.halts)
                row = Halting(
                    task=task,
                    network=NETWORKS[network],
                    seed=seed,
                    mean_depth=float(depths.mean()),
                    deviation=float(depths.std()),
                    best_score=float(answers.scores.mean(1).max()),
                    verdict=problem or LEARNT,
                )
                halting.append(row)
                if problem == UNMOVED:
                    answers = replace(answers, halts=None)
                elif problem:
                    continue
            networks.setdefault((task, network), []).append(answers)
    return networks, halting


# Methods.


def make_methods(networks: Networks) -> Methods:
    """Make a method of every rule on every network that has it."""
    methods: Methods = {}
    for (task, network), of_seeds in networks.items():
        for rule in RULES:
            # A seed whose halting did not move has no halting probabilities.
            with_rule = [answers for answers in of_seeds if rule in rules_of(answers)]
            if with_rule:
                outcomes = partial(outcomes_of, rule=rule)
                title = method_name(rule, network)
                methods[task, title] = make_method(with_rule, outcomes, row_count(task))
    return methods


def row_count(task: str) -> int:
    """Return how many rows of a task report."""
    return len(load_rows(task).labels)


class TokenUpdates(NamedTuple):
    """What an ACT model does on SST-2 under one act_epsilon, mean of the examples."""

    tau: str  # the price of an update
    seed: str
    act_epsilon: float
    cost: float
    updates: float  # of a token
    deviation: float  # between a text's tokens
    accuracy: float
    verdict: str


ACT_COLUMNS = "tau,seed,act_epsilon,cost,mean updates,deviation between tokens,accuracy,verdict"


def make_act_method() -> tuple[Method, list[TokenUpdates]]:
    """Make one method of ACT on SST-2, whose settings are all prices and all act_epsilon."""
    labels = load_rows("SST-2").labels
    by_seed: dict[str, list[Outcomes]] = {}
    updates = []
    for path in sorted(RECORDED.glob("SST-2-act-tau*")):
        tau, seed = path.stem.removeprefix("SST-2-act-tau").split("-")
        halting = load_token_halting(path)
        outcomes = halting.outcomes
        unmoved = halting.updates.std(1).max() < 0.1
        problem = failure(outcomes.score, labels, unmoved)
        for setting, epsilon in enumerate(EPSILONS):
            row = TokenUpdates(
                tau=tau,
                seed=seed,
                act_epsilon=epsilon,
                cost=float(outcomes.cost[setting].mean()),
                updates=float(halting.updates[setting].mean()),
                deviation=float(halting.deviation[setting].mean()),
                accuracy=float(outcomes.score[setting].mean()),
                verdict=problem or LEARNT,
            )
            updates.append(row)
        if not problem:
            by_seed.setdefault(seed, []).append(outcomes)
    settings = [join(prices) for prices in by_seed.values()]
    # They are the same, whichever rows choose among them.
    method = make_method(settings, lambda outcomes, choosing: outcomes, len(labels))
    return method, updates


# The report.


def write_csv(name: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
    """Write results/NAME.csv, numbers with four decimals."""
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns.split(","))
        for row in rows:
            writer.writerow([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row])


def main() -> None:
    networks, halting = load_networks()
    write_csv("halting", HALTING_COLUMNS, halting)
    methods = make_methods(networks)
    methods["SST-2", ACT], updates = make_act_method()
    write_csv("act", ACT_COLUMNS, updates)
    write_csv("rates", tables.RATE_COLUMNS, tables.learning_rates())
    write_csv("layers", tables.LAYER_COLUMNS, tables.layer_scores())
    certified = tables.certified_exits()
    write_csv("certified", tables.CERTIFIED_COLUMNS, certified)
    gains = tables.gains_by_network(methods, networks)
    write_csv("networks", tables.GAIN_COLUMNS, gains)

    texts = [
        tables.overview(methods, networks),
        tables.own_gains_table(gains),
        tables.certified_table(certified),
        tables.choices_table(),
        tables.halting_claims(methods),
    ]
    report = "\n\n".join(texts)
    (RESULTS / "tables.md").write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
