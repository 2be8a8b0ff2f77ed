"""Tables, CSV files and the figure of docs/results.md and its appendix, from the recorded answers.

    python -m experiments.comparison.report

Reads what is in experiments/recorded; a row whose recordings are not there is left out. Thresholds
are cross-fitted: one half of the examples chooses, the other reports, then the other way round.
Costs are FLOPs, with an exit check after every layer that runs and the ponder models' extra token,
as shares of MiniLM's six layers without exits. Writes, beside this file, results/tables.md with the
pages' tables and results/*.csv with what no table has; and docs/comparison.png and
docs/milliseconds.png.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from answers.figures import COLOURS, Figure, save_figure, styled
from elbert.configuration import ElbertConfig
from elbert.rules import scan
from exit_lab.choice import count_certified, losses
from exit_lab.estimates import Estimate
from experiments.comparison import analysis
from experiments.comparison.analysis import (
    TASKS,
    Answers,
    Method,
    at_budgets,
    cost_to_reach,
    difference,
    joined,
    load,
    method_of,
    outcomes,
    resampled,
    seeds,
    simultaneous,
)
from experiments.comparison.timings import draw_milliseconds, milliseconds
from runs.console import markdown_table

RESULTS = Path(__file__).parent / "results"
BUDGETS = (0.2, 0.3, 0.4, 0.5)  # of a table's columns
WIDE = np.arange(0.6, 1.21, 0.1)  # that all methods have; the mean over these is an *area*
FINE = np.arange(0.15, 1.75, 0.01)  # of costs, and of the figure
Methods = dict[tuple[str, str], Method]  # by task and name
Networks = dict[tuple[str, str], list[Answers]]  # by task and network, of each seed
GRID = {  # PonderNet's files, and the pages' names
    f"pondernet-beta{beta:g}-prior{prior:g}": f"PonderNet, β = {beta:g}, λ_p = {prior:g}"
    for beta, prior in product((0.01, 0.03, 0.1), (0.1, 0.2))
}
NETWORKS = {  # files, and the pages' names
    "shared-exits": "ELBERT",
    "shared-exits-equal": "ELBERT, equal weights",
    "shared-exits-taught": "ELBERT, taught",
    "twelve-exits-equal": "ELBERT of 12 passes, equal weights",
    "twelve-exits-taught": "ELBERT of 12 passes, taught",
    "still-exits": "ELBERT without dropout",
    "still-exits-best": "ELBERT without dropout, best checkpoint",
    "untied-exits": "MiniLM with exits",
    "untied-exits-equal": "MiniLM with exits, equal weights",
    "untied-exits-taught": "MiniLM with exits, taught",
    "rank8-exits": "corrections of rank 8",
    "rank32-exits": "corrections of rank 32",
    **GRID,
    "pondernet-beta0.03": "PonderNet, β = 0.03, λ_p = 0.3",
    "pondernet-beta0.5": "PonderNet, PALBERT's β = 0.5, λ_p = 0.3",
    "palbert-beta0.5": "PALBERT, β = 0.5, λ_p = 0.3",
    "pondernet": "PonderNet on [CLS]",
    "palbert": "PALBERT's heads on [CLS]",
}
RULES = {"coin": "coin", "entropy": "entropy", "windows": "windows (bias_1)"}
RULES |= {"learnt": "learnt exit", "patience": "patience", "halting": "halting CDF"}
TRUNCATED = {  # files of models trained to k layers, and their name
    "untied-{}": "truncated MiniLM",
    "untied-{}-taught": "truncated MiniLM, taught",
    "shared-{}": "shared passes, trained to k",
    "rank8-{}": "corrections of rank 8, trained to k",
    "rank32-{}": "corrections of rank 32, trained to k",
}
MIXED, CASCADE = "{}: two, by a coin", "{}: two, as a cascade"
ACT = "ACT in Graves' form"
LAYERS = {"untied": "MiniLM", "rank32": "corrections of rank 32", "shared": "shared"}
HOW = {  # files of a family, and how they were trained
    "{}-{}": "trained to this depth",
    "{}-{}-taught": "trained to this depth, taught",
    "{}-exits": "an exit after each",
    "{}-exits-equal": "an exit after each, equal weights",
    "{}-exits-taught": "an exit after each, taught",
}
CERTIFIED = {  # task, network, seed, and whose rows calibrate
    "MiniLM, equal weights, SST-2's dev set": ("SST-2", "untied-exits-equal", 1, "dev"),
    "ELBERT, SST-2's dev set": ("SST-2", "shared-exits", 1, "dev"),
    "ELBERT, phrases of its training set": ("SST-2", "shared-exits", 1, "phrases"),
    "ELBERT, SICK": ("SICK", "elbert", 43, "dev"),
}


def label(rule: str, kind: str) -> str:
    return f"{RULES[rule]}, {NETWORKS[kind]}"


COIN = label("coin", "shared-exits")
TAUGHT, EQUAL, PLAIN = (label("entropy", f"untied-exits{x}") for x in ("-taught", "-equal", ""))
SHARED, SHARED_TAUGHT = (label("entropy", f"shared-exits{x}") for x in ("", "-taught"))
CUT, CUT_TAUGHT = TRUNCATED["untied-{}"], TRUNCATED["untied-{}-taught"]
HEADLINES = (TAUGHT, EQUAL, PLAIN, CUT_TAUGHT, CUT, CASCADE.format(CUT_TAUGHT), CASCADE.format(CUT))
HEADLINES += (MIXED.format(CUT_TAUGHT), MIXED.format(CUT), SHARED_TAUGHT, SHARED)
CLAIMS = (  # a method, and what it is compared with
    (TAUGHT, MIXED.format(CUT_TAUGHT)),
    (TAUGHT, CASCADE.format(CUT_TAUGHT)),
    (TAUGHT, MIXED.format(CUT)),
    (TAUGHT, EQUAL),
    (TAUGHT, PLAIN),
    (EQUAL, PLAIN),
    (EQUAL, MIXED.format(CUT)),
    (EQUAL, CASCADE.format(CUT)),
    (EQUAL, label("coin", "untied-exits-equal")),
    (SHARED_TAUGHT, SHARED),
    (SHARED, MIXED.format(TRUNCATED["shared-{}"])),
    (label("entropy", "pondernet-beta0.5"), SHARED),
    *((label("halting", kind), label("entropy", "still-exits-best")) for kind in GRID),
    *((label("entropy", kind), label("entropy", "still-exits-best")) for kind in GRID),
)
SHOWN = {  # in the figure: the name, and where it stands
    EQUAL: ("MiniLM, exits with equal weights", (0.145, 85.6)),
    CUT: ("MiniLM truncated, one network", (0.52, 86.7)),
    PLAIN: ("MiniLM, exits with the published loss", (0.23, 74.5)),
    SHARED: ("one shared layer, exits (ELBERT)", (0.55, 81.2)),
}


# Methods, from the recordings.


def networks_of() -> Networks:
    """All networks with exits that learnt something, without unmoved halting; to halting.csv."""
    networks, log = {}, []
    for task, kind in product(TASKS, NETWORKS):
        for seed in seeds(task, kind):
            found = load(task, kind, seed)
            if found.halts is not None:
                path = analysis.path_of(task, kind, seed)
                depths, unmoved = analysis.depths_of(found.halts, path)
                verdict = analysis.failure(found.scores, found.labels, unmoved)
                numbers = depths.mean(), depths.std(), found.scores.mean(1).max()
                log.append((task, NETWORKS[kind], seed, *map(float, numbers), verdict or "learnt"))
                if verdict == analysis.UNMOVED:
                    found = found._replace(halts=None)
                elif verdict:
                    continue
            networks.setdefault((task, kind), []).append(found)
    columns = "task,network,seed,mean depth,deviation between examples,best score,verdict"
    write("halting", columns, log)
    return networks


def token_halting() -> Method:
    """ACT on SST-2 at every price and act_epsilon, as the settings of one method; to act.csv."""
    settings, log, labels = {}, [], analysis.rows("SST-2")["labels"]
    for path in sorted(analysis.RECORDED.glob("SST-2-act-tau*")):
        tau, seed = path.stem.removeprefix("SST-2-act-tau").split("-")
        found, updates, deviation = analysis.load_tokens(path)
        verdict = analysis.failure(found.score, labels, updates.std(1).max() < 0.1)
        means = (x.mean(1).tolist() for x in (found.cost, updates, deviation, found.score))
        rows = zip(analysis.EPSILONS, *means, strict=True)
        log += [(tau, seed, *row, verdict or "learnt") for row in rows]
        if not verdict:
            settings.setdefault(seed, []).append(found)
    columns = "tau,seed,act_epsilon,cost,mean updates,deviation between tokens,accuracy,verdict"
    write("act", columns, log)
    found = map(joined, settings.values())
    return method_of("SST-2", [lambda _, x=x: x for x in found])


def methods_of(networks: Networks) -> Methods:
    """Every rule on every network that has it, and what models of a fixed depth give; by task."""
    methods = {}
    for ((task, kind), answers), rule in product(networks.items(), RULES):
        # A seed whose halting is unmoved has no halting CDF.
        if found := [partial(outcomes, a, rule) for a in answers if rule in analysis.rules_of(a)]:
            methods[task, label(rule, kind)] = method_of(task, found)
    for task, (files, title) in product(TASKS, TRUNCATED.items()):
        if trained := truncated(task, files):
            alone = [
                lambda rows, x=x: joined(outcomes(a, "coin", rows) for a in x) for x in trained
            ]
            methods[task, title] = method_of(task, alone, mixes=False)
            methods[task, MIXED.format(title)] = method_of(task, alone)
            if files.startswith("untied") and task != "STS-B":
                cascades = [partial(analysis.cascade, x) for x in trained]
                methods[task, CASCADE.format(title)] = method_of(task, cascades)
    return methods


def truncated(task: str, files: str) -> list[list[Answers]]:
    """Models trained to k layers or passes, of each seed that has all depths but the last."""
    found = {k: seeds(task, files.format(k)) for k in range(1, 7)}
    depths = [k for k in found if found[k]] or [1]
    complete = [n for n in found[depths[0]] if all(n in found[k] for k in depths[:-1])]
    return [[load(task, files.format(k), n) for k in depths if n in found[k]] for n in complete]


# Tables.


def write(file: str, columns: str, rows: Sequence[Sequence]) -> None:
    """Write results/FILE.csv."""
    lines = [[f"{x:.4f}" if isinstance(x, float) else x for x in row] for row in rows]
    with (RESULTS / f"{file}.csv").open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([columns.split(","), *lines])


def table(corner: str, columns: Sequence[str], cells: Mapping[tuple[str, str], object]) -> str:
    """Format cells by column and row; a row for each that has a cell."""
    names = dict.fromkeys(row for _, row in cells)
    rows = [[row, *(cells.get((column, row), "–") for column in columns)] for row in names]
    return markdown_table([corner, *columns], rows)


def rates() -> list[tuple[str, float]]:
    """Learning rates: accuracy on SST-2's training rows 8,001 to 9,000, SICK's trial pairs."""
    labels = {"SST-2": analysis.rows("SST-2", "phrases")["labels"]}
    labels["SICK"] = load_file(analysis.RECORDED / "SICK-elbert-42-dev.safetensors")["labels"]
    found = []
    for task, truth in labels.items():
        for path in sorted(analysis.RECORDED.glob(f"{task}-*-rate*")):
            answers = load_file(path)["all_logits"][-1, : len(truth)].argmax(-1)
            found.append((path.stem, float((answers == truth).mean())))
    return found


def recorded() -> list[tuple[str, float, str]]:
    """Score of each recorded model's last layer, and of every layer alone."""
    rows = []
    for task, path in ((t, path) for t in TASKS for path in analysis.RECORDED.glob(f"{t}-*")):
        stem = path.stem.removesuffix("-test" * (task == "SICK"))
        network, _, seed = stem.removeprefix(f"{task}-").rpartition("-")
        if seed.isdigit() and not network.startswith("act") and network != "all":
            scores = load(task, network, int(seed)).scores.mean(1)
            rows.append((stem, float(scores[-1]), " ".join(f"{x:.4f}" for x in scores)))
    return sorted(rows)


def layers() -> str:
    """Score of every layer alone, and of the models of a fixed depth, mean of the seeds."""
    cells, depths = {}, [str(k) for k in range(1, 7)]
    for task, family, files in product(TASKS, LAYERS, HOW):
        row = f"{task}: {LAYERS[family]}, {HOW[files]}"
        for depth in depths:
            file = files.format(family, depth)
            found = [load(task, file, seed).scores for seed in seeds(task, file)]
            if found:
                scores = [100 * x[min(len(x), int(depth)) - 1].mean() for x in found]
                cells[depth, f"{row} ({len(found)})"] = f"{np.mean(scores):.1f}"
    for family in ("untied", "shared"):
        costs = analysis.costs("SST-2", f"{family}-exits").mean(1)
        for depth, cost in zip(depths, costs, strict=True):
            cells[depth, f"*cost of an exit on SST-2, {LAYERS[family]}*"] = f"{cost:.2f}"
    return table("100 × score (seeds)", depths, cells)


def area(method: Method) -> np.ndarray:
    """Return scores at the WIDE budgets, their mean: (seeds, examples)."""
    return at_budgets(method, WIDE)[1].mean(0)


def estimates(contrasts: dict[Any, list[np.ndarray]]) -> dict[Any, Estimate]:
    """Return their simultaneous estimates, under the same keys."""
    return dict(zip(contrasts, simultaneous(list(contrasts.values())), strict=True))


def overview(methods: Methods, networks: Networks) -> str:
    """Gains over the coin of ELBERT's network at equal budgets, means over WIDE."""
    coins = {task: area(methods[task, COIN]) for task in TASKS}
    others = {key: area(methods[key]) for key in methods if key[1] != COIN}
    gains = estimates({key: difference(x, coins[key[0]]) for key, x in others.items()})
    cells: dict = {(task, "the coin itself"): f"{100 * x.mean():.1f}" for task, x in coins.items()}
    cells |= {key: gain.difference_text() for key, gain in gains.items()}
    for task, coin in coins.items():
        most = np.mean([analysis.oracle(a, WIDE) for a in networks[task, "shared-exits"]])
        cells[task, "oracle"] = f"{100 * (most - coin.mean()):+.1f}"
    return table("gain over the coin of ELBERT's network, in points", TASKS, cells)


def who_stops(methods: Methods, networks: Networks) -> str:
    """Who stops × how it was trained: each network's rules over its own coin; efficiency η."""
    contrasts, cells, rows = {}, {}, []
    for (task, kind), answers in networks.items():
        coin = area(methods[task, label("coin", kind)])
        room = np.mean([analysis.oracle(a, WIDE) for a in answers]) - coin.mean()
        for rule in [x for x in RULES if x != "coin" and (task, label(x, kind)) in methods]:
            key = task, kind, rule, float(coin.mean()), float(room)
            contrasts[key] = difference(area(methods[task, label(rule, kind)]), coin)
    for key, gain in estimates(contrasts).items():
        task, kind, rule, level, room = key
        cells[task, f"{NETWORKS[kind]}: its coin"] = f"{100 * level:.1f}"
        cells[task, f"{NETWORKS[kind]}: {RULES[rule]}"] = gain.difference_text()
        rows.append((*key, *gain, gain.value / room))
    write("networks", "task,network,rule,coin,oracle - coin,gain,low,high,efficiency", rows)
    return table("gain over the coin of the same network, in points", TASKS, cells)


def within(cost: np.ndarray, budget: float) -> bool:
    """Tell whether a method's mean cost, (seeds,), is within a budget; its cheapest may be more."""
    return bool(cost.mean() < budget + 0.01)


def at_equal_cost(methods: Methods, task: str) -> str:
    """Tabulate scores of the headline methods at BUDGETS."""
    cells = {}
    for title in (title for title in HEADLINES if (task, title) in methods):
        method = methods[task, title]
        for budget, cost, score in zip(BUDGETS, *at_budgets(method, BUDGETS), strict=True):
            if within(cost, budget):
                cells[f"{budget}", f"{title} ({len(method)})"] = f"{100 * score.mean():.1f}"
    return table(f"{task}: accuracy at a cost of (seeds)", [f"{x}" for x in BUDGETS], cells)


def claims(methods: Methods) -> str:
    """Differences of the methods that CLAIMS sets side by side, at BUDGETS."""
    contrasts = {}
    for task, pair in product(TASKS, CLAIMS):
        if all((task, title) in methods for title in pair):
            found = [at_budgets(methods[task, title], BUDGETS) for title in pair]
            for budget, *both in zip(BUDGETS, *(zip(*x, strict=True) for x in found), strict=True):
                if all(within(cost, budget) for cost, _ in both):
                    row = f"{task}: {' − '.join(pair)}"
                    contrasts[f"{budget}", row] = difference(*(score for _, score in both))
    cells = {key: found.difference_text() for key, found in estimates(contrasts).items()}
    return table("difference in points at a cost of", [f"{x}" for x in BUDGETS], cells)


def one_point(methods: Methods) -> str:
    """Tabulate the least cost that loses at most 1 or 2 points of the deepest truncated MiniLM."""
    cells = {}
    for task, points in product(TASKS, (1, 2)):
        best = resampled(np.stack([x[-1].scores[0] for x in truncated(task, "untied-{}")]))
        for title in (title for title in (*HEADLINES, COIN) if (task, title) in methods):
            cost = cost_to_reach(methods[task, title], best - points / 100, FINE)
            cells[f"{task}, {points}", title] = cost.text().replace("inf", "never")
    return table("cost to lose at most (points)", list(dict.fromkeys(x for x, _ in cells)), cells)


def certified_exits() -> str:
    """Entropy thresholds by Learn then Test, and how often their risk is above its limit.

    The recorded rows are the population that calibration examples are drawn from; where those are
    the training set's phrases, the risk is that of the dev set's sentences: a shift.
    """
    rows, rng, alpha = [], np.random.default_rng(3), 0.02
    thresholds = torch.linspace(0, 1, 51, dtype=torch.float64)[:, None]
    rule = ElbertConfig().exit_rule(thres_name="entropy", exit_thres=thresholds)
    counts = (100, 200, 400, 800, 2000)
    for title, (task, kind, seed, part) in CERTIFIED.items():
        lost, exits = {}, {}
        for which in ("dev", part):
            found = load(task, kind, seed, which)
            exits[which] = scan(rule, {"all_logits": torch.tensor(found.logits)}).numpy()
            lost[which] = losses(found.logits.argmax(-1), found.labels, exits[which])
        risk, depth = lost["dev"].mean(1), exits["dev"].mean(1) / 6
        for count in counts:
            chosen_by = rng.integers(lost[part].shape[1], size=(1000, count))
            sure = [count_certified(lost[part][:, sample], alpha, 0.05) for sample in chosen_by]
            chosen = np.maximum(sure, 1) - 1  # the first setting is full depth
            above, cost = float((risk[chosen] > alpha).mean()), float(depth[chosen].mean())
            rows.append((title, count, above, cost))
    write("certified", "task,examples,share of 1000 samples whose risk is above 0.02,cost", rows)
    table = [[x, *(f"{row[3]:.2f}" for row in rows if row[0] == x)] for x in CERTIFIED]
    return markdown_table(["cost of the certified threshold, examples:", *counts], table)


@styled
def draw(methods: Methods) -> None:
    """Draw accuracy on SST-2 against cost, with bands of two standard errors of the seeds."""
    figure = Figure(figsize=(6.9, 4.2), layout="constrained")
    panel = figure.subplots()
    panel.grid()
    for colour, (title, (name, at)) in zip(COLOURS, SHOWN.items(), strict=False):
        if ("SST-2", title) not in methods:
            continue
        cost, score = at_budgets(methods["SST-2", title], FINE)
        x, by_seed = cost.mean(1), 100 * score.mean(-1)
        y, count = by_seed.mean(1), by_seed.shape[1]
        band = 2 * by_seed.std(1, ddof=1) / np.sqrt(count) if count > 1 else 0
        steps, style = ("post", "steps-post") if title == CUT else (None, "default")
        panel.plot(x, y, color=colour, linewidth=2, drawstyle=style)
        panel.fill_between(x, y - band, y + band, color=colour, alpha=0.15, lw=0, step=steps)
        panel.annotate(name, at, color=colour)
    panel.set(xlabel="cost: FLOPs, 1 = MiniLM's six layers", ylabel="accuracy on SST-2, %")
    save_figure(figure, RESULTS.parents[2] / "docs/comparison.png")


def main() -> None:
    networks = networks_of()
    methods = methods_of(networks)
    methods["SST-2", ACT] = token_halting()
    write("rates", "training,accuracy on rows that do not report", rates())
    write("layers", "model,score,of every layer alone", recorded())
    tables = [at_equal_cost(methods, "SST-2"), at_equal_cost(methods, "SICK"), one_point(methods)]
    tables += [milliseconds(), certified_exits(), layers(), claims(methods)]
    tables += [overview(methods, networks), who_stops(methods, networks)]
    (RESULTS / "tables.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    print("\n\n".join(tables))
    draw(methods)
    draw_milliseconds()


if __name__ == "__main__":
    main()
