"""Tables, CSV files and the figure of docs/results.md's comparison, from the recorded answers.

    python -m experiments.comparison.report

Thresholds are cross-fitted: one half of the examples chooses, the other reports, then the other way
round. Costs are FLOPs, with an exit check after every pass that runs and the ponder models' extra
token, as shares of the shared encoder's full depth without exits (ten MiniLM layers). Prints the
tables; writes results/*.csv beside this file and docs/comparison.png.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evaluation.figures import COLOURS, plt, save_figure
from exit_lab.choice import certified
from experiments.comparison import analysis
from experiments.comparison.analysis import LIMITS, TASKS, Menu, halves, load, seeds
from utils.console import markdown_table

HERE = Path(__file__).parent
CURVE = np.arange(0.1, 1.051, 0.05)
Method = list[list[Menu]]  # of each seed the settings, chosen by each half
NAMES = {"shared": "ELBERT", "untied": "MiniLM with exits", "pondernet": "PonderNet"}
NAMES |= {"palbert": "PALBERT's heads", "pondernet-pooler": "PonderNet, one pooler"}
NAMES |= {"palbert-pooler": "PALBERT, one pooler"}
PRICES = ("0", "0.0005", "0.002")  # of an update of ACT: τ
SCALES = {"SST-2": (76, 89), "SICK": (66, 95), "STS-B": (40, 88)}
CERTIFIED = (("SST-2", "shared-exits", 1), ("SICK", "elbert", 43))
halting: list[tuple] = []  # rows of trainings that learn to halt
by_epsilon: list[tuple] = []  # rows of ACT under each act_epsilon


def succeeded(about: tuple, scores: np.ndarray, depths: np.ndarray, unmoved: bool) -> bool:
    """Has a training learnt the task, and when to halt? about: task, model, seed."""
    verdict = analysis.failure(scores, analysis.rows(about[0])["labels"], unmoved)
    numbers = float(depths.mean()), float(depths.std()), float(scores.mean(1).max())
    halting.append((*about, *numbers, f"failed: {verdict}" if verdict else "learnt"))
    return not verdict


def network(task: str, kind: str) -> list[analysis.Answers]:
    """A network's recordings without failed trainings."""
    shared, answers = "shared-exits" if task == "SST-2" else "elbert", []
    name = {"shared": shared, "untied": "untied-exits"}.get(kind, kind)
    for seed in seeds(task, name):
        found = load(task, name, seed)
        if found.halts is not None:
            about, moved = (task, NAMES[kind], seed), analysis.depths_of(found.halts)
            if not succeeded(about, found.scores, *moved):
                continue
        answers.append(found)
    return answers


def token_halting() -> Method:
    """ACT on SST-2 at every price and act_epsilon, as the settings of one method."""
    menus: dict[int, list[Menu]] = {}
    for tau in PRICES:
        for seed in seeds("SST-2", f"act-tau{tau}"):
            menu, updates, deviation = analysis.load_tokens(tau, seed)
            means = (x.mean(1).tolist() for x in (menu.cost, updates, deviation, menu.score))
            by_epsilon.extend(
                (tau, seed, *row) for row in zip(analysis.EPSILONS, *means, strict=True)
            )
            about, unmoved = ("SST-2", f"ACT, τ = {tau}", seed), updates[0].std() < 0.1
            if succeeded(about, menu.score, updates[0], unmoved):
                menus.setdefault(seed, []).append(menu)
    joined = [Menu(*map(np.concatenate, zip(*found, strict=True))) for found in menus.values()]
    return [[menu.best(choose) for choose, _ in halves(menu.cost.shape[1])] for menu in joined]


def trained_to(family: str) -> Method:
    """SST-2's models of a fixed depth, untied-K or shared-K, as the settings of one method."""
    methods = []
    for seed in seeds("SST-2", f"{family}-3"):
        found = [k for k in range(1, 7) if seed in seeds("SST-2", f"{family}-{k}")]
        scores = [load("SST-2", f"{family}-{k}", seed).scores[-1] for k in found]
        menu = Menu(np.stack(scores), np.stack([analysis.costs("SST-2", family, k) for k in found]))
        methods.append([menu.best(choose) for choose, _ in halves(len(scores[0]))])
    return methods


def gains(method: Method, coin: Method) -> np.ndarray:
    """Cross-fitted gain over the coin: (limits, seeds, examples)."""
    tables = []
    for menus, coins in zip(method, coin, strict=False):
        examples = menus[0].cost.shape[1]
        found = np.empty((len(LIMITS), examples))
        for menu, theirs, (choose, report) in zip(menus, coins, halves(examples), strict=True):
            for row, limit in zip(found, LIMITS, strict=True):
                row[report] = analysis.gain(menu, theirs, limit, choose, report)
        tables.append(found)
    return np.stack(tables, 1)


def curve(method: Method, limits: Sequence[float]) -> np.ndarray:
    """Cross-fitted cost and score: (2, limits, seeds)."""
    found = np.zeros((2, len(limits), len(method)))
    for i, menus in enumerate(method):
        for menu, (choose, report) in zip(menus, halves(menus[0].cost.shape[1]), strict=True):
            for j, limit in enumerate(limits):
                score, cost, _ = menu.at(limit, choose, report)
                found[:, j, i] += cost.mean() / 2, score.mean() / 2
    return found


def write(name: str, columns: str, rows: Sequence[Sequence]) -> None:
    """Write results/NAME.csv, and print it."""
    lines = [[f"{x:.4f}" if isinstance(x, float) else x for x in row] for row in rows]
    print(f"{name}\n\n{markdown_table(columns.split(','), lines)}\n")
    with (HERE / f"results/{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns.split(","), *lines])


networks = {(task, kind): network(task, kind) for task in TASKS for kind in NAMES}
networks = {key: answers for key, answers in networks.items() if answers}
methods = {
    (task, f"{NAMES[kind]}: {rule}"): [
        [Menu.of(a, rule, choose) for choose, _ in halves(len(a.labels))] for a in answers
    ]
    for (task, kind), answers in networks.items()
    for rule in analysis.rules_of(answers[0])
}
for family in ("untied", "shared"):
    if seeds("SST-2", f"{family}-3"):
        methods["SST-2", f"{family}, trained to k layers"] = trained_to(family)
if found := token_halting():
    methods["SST-2", "ACT: each τ and act_epsilon"] = found
coins = {task: methods[task, "ELBERT: coin"] for task in TASKS}

# Trainings that learn to halt: layers, or updates of a token, and which of them failed.
columns = "task,model,seed,mean depth,deviation between examples,best score,verdict"
write("halting", columns, halting)
columns = "tau,seed,act_epsilon,cost,mean updates,deviation between a text's tokens,accuracy"
write("act", columns, by_epsilon)

# The learning rates, compared on training rows 8,001 to 9,000.
rows = [
    (kind, rate, float(load("SST-2", f"{kind}-rate{rate}", 7, "phrases").scores[-1].mean()))
    for kind in ("untied-3", "shared-exits", "untied-exits")
    for rate in ("5e-05", "0.0001", "0.0002")
    if seeds("SST-2", f"{kind}-rate{rate}")
]
write("rates", "model,rate,accuracy on training rows 8001 to 9000", rows)

# Accuracy of every layer alone, and of the models of a fixed depth.
rows = []
for family in ["shared-exits", "untied-exits", *list(NAMES)[2:]]:
    answers = [load("SST-2", family, seed) for seed in seeds("SST-2", family)]
    for layer in range(6 * bool(answers)):
        scores = [float(a.scores[layer].mean()) for a in answers]
        rows.append((family, layer + 1, float(answers[0].cost[layer].mean()), scores))
for kind in ("untied", "shared"):
    for depth in range(1, 7):
        found = (load("SST-2", f"{kind}-{depth}", n) for n in seeds("SST-2", f"{kind}-{depth}"))
        scores = [float(answers.scores[-1].mean()) for answers in found]
        rows.append((kind, depth, float(analysis.costs("SST-2", kind, depth).mean()), scores))
rows = [(*r[:3], float(np.mean(r[3])), " ".join(f"{s:.4f}" for s in r[3])) for r in rows if r[3]]
write("layers", "SST-2,layer,cost,accuracy,of each seed", rows)

# Gains over the coin of ELBERT's network at equal FLOPs: at each cost, and their mean (area).
tables = {key: gains(m, coins[key[0]]) for key, m in methods.items() if m is not coins[key[0]]}
areas = analysis.simultaneous([table.mean(0) for table in tables.values()])
cells = iter(analysis.simultaneous([row for table in tables.values() for row in table]))
rows = [(*key, limit, *next(cells)) for key in tables for limit in LIMITS]
write("gains", "task,method,cost,gain over ELBERT's coin,low,high", rows)
levels = {task: curve(coins[task], LIMITS)[1].mean() for task in TASKS}
best = {t: np.mean([analysis.oracle(a, LIMITS) for a in networks[t, "shared"]]) for t in TASKS}
overview = {"coin (the score itself)": {t: f"{100 * levels[t]:.1f}" for t in TASKS}}
for (task, label), cell in zip(tables, areas, strict=True):
    overview.setdefault(label, {})[task] = str(cell)
overview["oracle"] = {task: f"{100 * (best[task] - levels[task]):+.1f}" for task in TASKS}
lines = [[label, *(row.get(task, "–") for task in TASKS)] for label, row in overview.items()]
print(markdown_table(["mean over costs 0.3 to 0.8", *TASKS], lines), "\n")

# Who stops × how it was trained: each network's rules over its own coin; efficiency η.
keys, own = [], []
for (task, kind), answers in networks.items():
    coin = methods[task, f"{NAMES[kind]}: coin"]
    level = curve(coin, LIMITS)[1].mean()
    room = np.mean([analysis.oracle(a, LIMITS) for a in answers]) - level
    for rule in analysis.rules_of(answers[0])[1:]:
        keys.append((task, NAMES[kind], rule, float(level), float(room)))
        own.append(gains(methods[task, f"{NAMES[kind]}: {rule}"], coin).mean(0))
rows = [
    (*k, *cell, cell.mean / k[-1]) for k, cell in zip(keys, analysis.simultaneous(own), strict=True)
]
write("networks", "task,network,rule,its coin,oracle - coin,rule - coin,low,high,efficiency", rows)

# The least cost that loses at most one point of ELBERT's full depth.
rows, fine = [], np.arange(0.05, 1.1, 0.01)
bars = {t: np.mean([a.scores[-1].mean() for a in networks[t, "shared"]]) - 0.01 for t in TASKS}
for (task, label), method in methods.items():
    cost, score = curve(method, fine).mean(2)
    if (score >= bars[task]).any():
        first = int((score >= bars[task]).argmax())
        rows.append((task, label, float(cost[first]), float(score[first]), float(bars[task])))
write("one_point", "task,method,cost,score,bar", rows)

# Certified exits: entropy thresholds by Learn then Test. The recorded rows are the population that
# calibration examples are drawn from; of SST-2 also the training set's phrases, whose risk is that
# of the dev set's sentences: a shift.
rows, rng, alpha, doubts = [], np.random.default_rng(3), 0.02, np.linspace(0, 1, 51)
for (task, name, seed), shift in zip((*CERTIFIED, CERTIFIED[0]), (False, False, True), strict=True):
    learnt = [load(task, name, seed, part) for part in ("dev", "phrases")[: 1 + shift]]
    exits = [analysis.entropy_exits(answers, doubts) for answers in learnt]
    losses = [analysis.lost(answers, taken) for answers, taken in zip(learnt, exits, strict=True)]
    risk, layers = losses[0].mean(1), (exits[0] + 1).mean(1) / 6
    for count in (100, 200, 400, 800, 2000):
        draws = rng.integers(losses[-1].shape[1], size=(1000, count))
        sure = [certified(losses[-1][:, draw], alpha, 0.05) for draw in draws]
        chosen = np.maximum(sure, 1) - 1  # the first setting is full depth
        rows.append((f"{task}{', shifted' * shift}", count, float((risk[chosen] > alpha).mean())))
        rows[-1] += (float(layers[chosen].mean()),)
write("certified", "task,examples,share of 1000 draws whose risk is above 0.02,cost", rows)

# The figure: a panel a task, bands of two standard errors of the seeds.
shown = {"ELBERT: coin": "coin", "ELBERT: entropy": "entropy", "ELBERT: patience": "patience"}
shown |= {
    "PonderNet: halting": "PonderNet's halting",
    "ACT: each τ and act_epsilon": "ACT",
    "MiniLM with exits: entropy": "untied, entropy",
    "untied, trained to k layers": "untied, k layers",
}
colours = dict(zip(shown, COLOURS, strict=False))
figure, panels = plt.subplots(1, len(TASKS), figsize=(10, 3.4), layout="constrained")
for task, panel in zip(TASKS, panels, strict=True):
    for label, name in shown.items():
        if (task, label) not in methods:
            continue
        cost, score = curve(methods[task, label], CURVE)
        mean = 100 * score.mean(1)
        band = 200 * score.std(1, ddof=1) / np.sqrt(score.shape[1]) if score.shape[1] > 1 else 0
        x = cost.mean(1)
        panel.plot(x, mean, color=colours[label], label=name, marker="." * ("untied" in name))
        panel.fill_between(x, mean - band, mean + band, color=colours[label], alpha=0.15, lw=0)
    truth = np.mean([analysis.oracle(a, CURVE) for a in networks[task, "shared"]], 0)
    dots = networks[task, "shared"][0].cost[0].mean() <= CURVE  # no exit is cheaper than the first
    panel.plot(CURVE[dots], 100 * truth[dots], color="0.6", ls=":", label="oracle")
    panel.set(title=task, xlabel="FLOPs / full depth", xlim=(0.1, 1.05), ylim=SCALES[task])
panels[0].set_ylabel("100 × score")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=4)
save_figure(figure, HERE.parents[1] / "docs/comparison.png")
