"""Tables, CSV files and the figure of docs/results.md's comparison, from the recorded answers.

    python -m experiments.comparison.report

Thresholds are cross-fitted: one half of the examples chooses, the other reports, then the other way
round. Costs are FLOPs, with an exit check after every pass that runs and the ponder models' extra
token, as shares of the shared encoder's full depth without exits (ten MiniLM layers). Writes
results/*.csv beside this file, results/tables.md with the page's tables, and docs/comparison.png.
"""

import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from evaluation.figures import COLOURS, Figure, save_figure, styled
from exit_lab.choice import certified, losses
from exit_lab.compare import Frontier
from experiments.comparison import analysis
from experiments.comparison.analysis import LIMITS, TASKS, Answers, Outcomes, halves, load, seeds
from modeling.configuration import ElbertConfig
from modeling.rules import scan
from utils.console import markdown_table

RESULTS = Path(__file__).parent / "results"
CURVE, FINE = np.arange(0.1, 1.051, 0.05), np.arange(0.05, 1.1, 0.01)
Method = list[list[Frontier]]  # of each seed, chosen by each half
Methods = dict[tuple[str, str], Method]  # by task and name
Networks = dict[tuple[str, str], list[Answers]]  # by task and network, of each seed
NETWORKS = {  # files, and the page's names
    "shared-exits": "ELBERT",
    "still-exits": "ELBERT without dropout",
    "untied-exits": "untied layers with exits",
    "rank8-exits": "corrections of rank 8",
    "rank32-exits": "corrections of rank 32",
    "pondernet-beta0.5": "PonderNet as published",
    "palbert-beta0.5": "PALBERT as published",
    "pondernet-beta0.03": "PonderNet, β = 0.03",
    "pondernet": "PonderNet on [CLS]",
    "palbert": "PALBERT's heads on [CLS]",
}
RULES = {"coin": "coin", "entropy": "entropy", "windows": "windows (bias_1)"}
RULES |= {"learnt": "learnt exit", "patience": "patience", "halting": "halting CDF"}
TRAINED_TO = {"untied": "untied, trained to k layers", "shared": "shared, trained to k passes"}
TRAINED_TO |= {f"rank{n}": f"corrections of rank {n}, trained to k passes" for n in (8, 32)}
ACT = "ACT in Graves' form"
SCALES = {"SST-2": (74, 89), "SICK": (58, 95), "STS-B": (20, 88)}
CERTIFIED = {  # task, network, seed, and whose rows calibrate
    "SST-2's dev set": ("SST-2", "shared-exits", 1, "dev"),
    "phrases of its training set": ("SST-2", "shared-exits", 1, "phrases"),
    "SICK": ("SICK", "elbert", 43, "dev"),
}


def label(rule: str, kind: str) -> str:
    return f"{RULES[rule]}, {NETWORKS[kind]}"


COIN = label("coin", "shared-exits")
SHOWN = [label(rule, "shared-exits") for rule in ("coin", "entropy", "patience")]  # in the figure
SHOWN += [
    label("halting", "pondernet"),
    ACT,
    label("entropy", "untied-exits"),
    TRAINED_TO["untied"],
]
SHOWN += [label("entropy", "rank32-exits")]
TIMED = {"shared": SHOWN[1], "untied": SHOWN[5], "untied-3": SHOWN[6], "rank32": SHOWN[7]}


# Methods, from the recordings.


def networks_of() -> Networks:
    """All networks with exits that learnt something, without unmoved halting; to halting.csv."""
    networks, log = {}, []
    for task, kind in product(TASKS, NETWORKS):
        file = "elbert" if task != "SST-2" and kind == "shared-exits" else kind
        for seed in seeds(task, file):
            found = load(task, file, seed)
            if found.halts is not None:
                depths, unmoved = analysis.depths_of(found.halts)
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
    settings: dict[str, list[Outcomes]] = {}
    log, labels = [], analysis.rows("SST-2")["labels"]
    for path in sorted(analysis.RECORDED.glob("SST-2-act-tau*")):
        tau, seed = path.stem.removeprefix("SST-2-act-tau").split("-")
        found, updates, deviation = analysis.load_tokens(tau, int(seed))
        verdict = analysis.failure(found.score, labels, updates.std(1).max() < 0.1)
        means = (x.mean(1).tolist() for x in (found.cost, updates, deviation, found.score))
        for row in zip(analysis.EPSILONS, *means, strict=True):
            log.append((tau, seed, *row, verdict or "learnt"))
        if not verdict:
            settings.setdefault(seed, []).append(found)
    columns = "tau,seed,act_epsilon,cost,mean updates,deviation between tokens,accuracy,verdict"
    write("act", columns, log)
    return [
        cross_fitted(*map(np.concatenate, zip(*found, strict=True))) for found in settings.values()
    ]


def cross_fitted(score: np.ndarray, cost: np.ndarray) -> list[Frontier]:
    """One seed's frontiers, of scores and costs (settings, examples)."""
    return [analysis.best(Outcomes(score, cost), parts) for parts in halves(score.shape[1])]


def trained_to(task: str, family: str) -> Method:
    """Models of a fixed depth, untied-K or shared-K, as the settings of one method."""
    methods = []
    for seed in sorted({n for k in range(1, 7) for n in seeds(task, f"{family}-{k}")}):
        found = [k for k in range(1, 7) if seed in seeds(task, f"{family}-{k}")]
        scores = [load(task, f"{family}-{k}", seed).scores[-1] for k in found]
        costs = [analysis.costs(task, family, k) for k in found]
        methods.append(cross_fitted(np.stack(scores), np.stack(costs)))
    return methods


def methods_of(networks: Networks) -> Methods:
    """Every rule on every network that has it, and the models of a fixed depth; by task, name."""
    methods = {
        (task, label(rule, kind)): [
            [
                analysis.best(analysis.outcomes(a, rule, parts.calibration), parts)
                for parts in halves(len(a.labels))
            ]
            for a in answers
        ]
        for (task, kind), answers in networks.items()
        for rule in analysis.rules_of(answers[0])
    }
    for task in TASKS:
        for family, title in TRAINED_TO.items():
            if found := trained_to(task, family):
                methods[task, title] = found
    return methods


def gains(method: Method, coin: Method) -> np.ndarray:
    """Cross-fitted gain over the coin, mean over LIMITS: (seeds, examples)."""
    tables = []
    for fronts, coins in zip(method, coin, strict=False):
        found = np.empty(sum(front.cost.shape[1] for front in fronts))
        for front, other, parts in zip(fronts, coins, halves(len(found)), strict=True):
            each = [analysis.gain(front, other, limit) for limit in LIMITS]
            found[parts.report] = np.mean(each, 0)
        tables.append(found)
    return np.stack(tables)


def curve(method: Method, limits: Sequence[float]) -> np.ndarray:
    """Cross-fitted cost and score: (2, limits, seeds)."""
    found = np.zeros((2, len(limits), len(method)))
    for i, fronts in enumerate(method):
        for front, (j, limit) in product(fronts, enumerate(limits)):
            score, cost, _ = analysis.at(front, limit)
            found[:, j, i] += cost.mean() / 2, score.mean() / 2
    return found


# Tables.


def write(file: str, columns: str, rows: Sequence[Sequence]) -> None:
    """Write results/FILE.csv."""
    lines = [[f"{x:.4f}" if isinstance(x, float) else x for x in row] for row in rows]
    with (RESULTS / f"{file}.csv").open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([columns.split(","), *lines])


def by_task(title: str, cells: dict[tuple[str, str], object]) -> str:
    """A table with a row for each name, and a column for each task."""
    titles = dict.fromkeys(row for _, row in cells)
    rows = [[row, *(cells.get((task, row), "–") for task in TASKS)] for row in titles]
    return markdown_table([title, *TASKS], rows)


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
    """Accuracy on SST-2 of every layer alone, and of the models of a fixed depth."""
    page, depths = [], range(1, 7)
    for family in ("untied", "rank8", "rank32", "shared"):
        title = family.replace("rank", "corrections of rank ")
        for exits, how in ((False, "trained to this depth"), (True, "an exit after each")):
            row, costs = [], []
            for k in depths:
                file = f"{family}-exits" if exits else f"{family}-{k}"
                answers = [load("SST-2", file, seed) for seed in seeds("SST-2", file)]
                scores = [100 * a.scores[k - 1 if exits else -1].mean() for a in answers]
                row.append(f"{np.mean(scores):.1f}" if scores else "–")
                costs += [f"{a.cost[k - 1].mean():.2f}" for a in answers[:1] if exits]
            page.append([f"{title}, {how}", *row])
        page.append(["*their cost*", *costs])
    return markdown_table(["layers or passes", *depths], page)


def overview(methods: Methods, networks: Networks) -> str:
    """Gains over the coin of ELBERT's network at equal FLOPs, means over LIMITS."""
    coins = {task: methods[task, COIN] for task in TASKS}
    tables = {key: gains(m, coins[key[0]]) for key, m in methods.items() if key[1] != COIN}
    areas = analysis.simultaneous(list(tables.values()))
    rows = [(*key, *area) for key, area in zip(tables, areas, strict=True)]
    write("gains", "task,method,gain over ELBERT's coin,low,high", rows)
    levels = {task: curve(coins[task], LIMITS)[1].mean() for task in TASKS}
    cells: dict = {(task, "the coin itself"): f"{100 * x:.1f}" for task, x in levels.items()}
    cells |= {key: area.points() for key, area in zip(tables, areas, strict=True)}
    for task, level in levels.items():
        best = np.mean([analysis.oracle(a, LIMITS) for a in networks[task, "shared-exits"]])
        cells[task, "oracle"] = f"{100 * (best - level):+.1f}"
    return by_task("gain over the coin of ELBERT's network, in points", cells)


def who_stops(methods: Methods, networks: Networks) -> str:
    """Tabulate who stops × how it was trained: each network's rules over its own coin; η."""
    keys, own = [], []
    for (task, kind), answers in networks.items():
        coin = methods[task, label("coin", kind)]
        level = curve(coin, LIMITS)[1].mean()
        room = np.mean([analysis.oracle(a, LIMITS) for a in answers]) - level
        for rule in analysis.rules_of(answers[0])[1:]:
            keys.append((task, kind, rule, float(level), float(room)))
            own.append(gains(methods[task, label(rule, kind)], coin))
    cells = analysis.simultaneous(own)
    rows = [(*k, *cell, cell.value / k[-1]) for k, cell in zip(keys, cells, strict=True)]
    write("networks", "task,network,rule,coin,oracle - coin,gain,low,high,efficiency", rows)
    table = {}
    for (task, kind, rule, level, _), cell in zip(keys, cells, strict=True):
        table[task, f"{NETWORKS[kind]}: its coin"] = f"{100 * level:.1f}"
        table[task, f"{NETWORKS[kind]}: {RULES[rule]}"] = cell.points()
    return by_task("gain over the coin of the same network, in points", table)


def one_point(methods: Methods, networks: Networks) -> str:
    """The least cost that loses at most one point of ELBERT's full depth."""
    rows = []
    for (task, title), method in methods.items():
        bar = np.mean([a.scores[-1].mean() for a in networks[task, "shared-exits"]]) - 0.01
        cost, score = curve(method, FINE).mean(2)
        reached = cost[score >= bar]
        rows.append((task, title, f"{reached[0]:.2f}" if len(reached) else "never", float(bar)))
    write("one_point", "task,method,cost,bar", rows)
    return by_task("cost to lose at most a point", {row[:2]: row[2] for row in rows})


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
        answers = [load(task, kind, seed, x) for x in ("dev", part)]
        exits = [scan(rule, {"all_logits": torch.tensor(a.logits)}).numpy() for a in answers]
        lost = [
            losses(a.logits.argmax(-1), a.labels, taken)
            for a, taken in zip(answers, exits, strict=True)
        ]
        risk, depth = lost[0].mean(1), exits[0].mean(1) / 6
        for count in counts:
            chosen_by = rng.integers(lost[1].shape[1], size=(1000, count))
            sure = [certified(lost[1][:, sample], alpha, 0.05) for sample in chosen_by]
            chosen = np.maximum(sure, 1) - 1  # the first setting is full depth
            above, cost = float((risk[chosen] > alpha).mean()), float(depth[chosen].mean())
            rows.append((title, count, above, cost))
    write("certified", "task,examples,share of 1000 draws whose risk is above 0.02,cost", rows)
    table = [[x, *(f"{row[3]:.2f}" for row in rows if row[0] == x)] for x in CERTIFIED]
    return markdown_table(["cost of the certified threshold, examples:", *counts], table)


def results_of(folder: str) -> dict[str, dict]:
    """run_glue.py's results on SST-2 under a threshold, by NETWORK-THRESHOLD."""
    paths = sorted((analysis.RECORDED / folder).glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def milliseconds() -> str:
    """Accuracy, median and 95th percentile of an example's time, in PyTorch and in int8 files."""
    rows, float32 = [], results_of("milliseconds")
    for name, quantised in results_of("milliseconds/int8").items():
        both = float32[name], quantised
        scores = " / ".join(f"{100 * found['metrics']['acc']:.1f}" for found in both)
        spent = ("{median:.1f} ({p95:.1f})".format(**found["latency_ms"]) for found in both)
        network, _, threshold = name.rpartition("-")
        exits = f"entropy below {threshold}" if float(threshold) else "none"
        rows.append((f"{network}, {exits}", scores, *spent))
    head = "accuracy, float32 / int8", "PyTorch, ms: median (p95)", "int8 file"
    return markdown_table(["exits", *head], rows)


@styled
def draw(methods: Methods, networks: Networks) -> None:
    """A panel a task, with bands of two standard errors of the seeds; and one of milliseconds."""
    colours = dict(zip(SHOWN, COLOURS, strict=False))
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    panels = figure.subplots(1, len(TASKS) + 1)
    for task, panel in zip(TASKS, panels[:-1], strict=True):
        for shown in (title for title in SHOWN if (task, title) in methods):
            cost, score = curve(methods[task, shown], CURVE)
            x, mean, count = cost.mean(1), 100 * score.mean(1), score.shape[1]
            band = 200 * score.std(1, ddof=1) / np.sqrt(count) if count > 1 else 0
            colour = colours[shown]
            panel.plot(x, mean, color=colour, label=shown, marker="." * ("untied" in shown))
            panel.fill_between(x, mean - band, mean + band, color=colour, alpha=0.15, lw=0)
        answers = networks[task, "shared-exits"]
        truth = np.mean([analysis.oracle(a, CURVE) for a in answers], 0)
        dots = answers[0].cost[0].mean() <= CURVE  # no exit is cheaper than the first
        panel.plot(CURVE[dots], 100 * truth[dots], color="0.6", ls=":", label="oracle")
        panel.set(title=task, xlabel="FLOPs / full depth", xlim=(0.1, 1.05), ylim=SCALES[task])
    for file, found in results_of("milliseconds").items():
        point = 1000 / found["texts_per_second"], 100 * found["metrics"]["acc"]
        panels[-1].plot(*point, color=colours[TIMED[file.rpartition("-")[0]]], marker="o")
    panels[-1].set(title="SST-2, one by one in PyTorch", xlabel="mean ms an example")
    panels[0].set_ylabel("100 × score")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=4)
    save_figure(figure, RESULTS.parents[2] / "docs/comparison.png")


def main() -> None:
    networks = networks_of()
    methods = methods_of(networks)
    methods["SST-2", ACT] = token_halting()
    write("rates", "training,accuracy on rows that do not report", rates())
    write("layers", "model,score,of every layer alone", recorded())
    tables = [overview(methods, networks), one_point(methods, networks), layers()]
    tables += [who_stops(methods, networks), certified_exits(), milliseconds()]
    (RESULTS / "tables.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    print("\n\n".join(tables))
    draw(methods, networks)


if __name__ == "__main__":
    main()
