"""What a sweep shows: each rule's trade-off, where examples exit, and how single ones decide."""

import numpy as np
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from evaluation.figures import (
    Decision,
    RuleCurve,
    RuleExits,
    decisions_figure,
    exits_by_rule_figure,
    frontier_figure,
    heatmap_figure,
    save_figure,
)
from evaluation.modes.base import RuleSet, Setting, describe
from exit_lab.choice import best_under_cost, bootstrap_weights
from exit_lab.explorer import View, explorer_page
from exit_lab.lab import Lab
from exit_lab.metrics import taken
from exit_lab.recording import Recording
from exit_lab.sweep import Sweep, scan_setting
from exit_lab.tables import frontier, nearest_setting
from glue.files import write_text
from glue.tasks import label_text, primary_metric
from modeling.elbert.rules import exit_scores

BAND_DRAWS = 200
MIDDLE_COST = 0.6  # at which the rules' exits are drawn side by side


def draw(lab: Lab, recording: Recording, swept: Sweep, setting: Setting, seed: int) -> None:
    """The figures, as PNG and to TensorBoard, and the explorer; `setting` is looked at closely."""
    whole = {**lab.fixed, **setting}
    figures = figures_of(swept, lab.rule_set, recording, whole, seed)
    with SummaryWriter(str(lab.output / "runs")) as writer:
        for name, figure in figures.items():
            writer.add_figure(f"{lab.task.name}/{name}", figure, close=False)
            save_figure(figure, lab.output / f"{name}.png")
    exits = scan_setting(lab.rule_set, whole, recording)
    title = f"Exit explorer: {lab.task.name}, {lab.directory.name}"
    view = View(title, nearest_setting(swept, setting, exits), seed)
    confidence = exit_scores(recording.tensors["all_logits"]).amax(-1).numpy()
    page = explorer_page(swept, lab.examples, confidence, view)
    write_text(lab.output / "explorer.html", page)
    print(f"figures ({', '.join(figures)}) and explorer.html: {lab.output}")


def figures_of(
    swept: Sweep, rule_set: RuleSet, recording: Recording, setting: Setting, seed: int
) -> dict[str, Figure]:
    """The figures by name; `setting`, with all keys that its scan needs, is looked at closely."""
    task, metric = swept.task, primary_metric(swept.task)
    exits = scan_setting(rule_set, setting, recording)[0]
    scores = exit_scores(recording.tensors["all_logits"]).numpy()
    full = float(swept.main_metric(swept.truncations[-1:])[0])
    shown = rule_set.named(setting, task.is_regression)
    about = f"{task.name}: {describe(shown, swept.name_key)}"
    window = rule_set.window(setting, recording.tensors).numpy()
    value_name = "predicted value" if task.is_regression else "confidence"
    figures = {
        "frontier": frontier_figure(rule_curves(swept, seed), full, metric, task.name),
        "decisions": decisions_figure(decisions(swept, scores, exits, window), task.labels, about),
        "heatmap": heatmap_figure(scores.max(-1), exits, value_name, about),
    }
    if middle := rules_at_cost(swept, MIDDLE_COST):
        title = f"{task.name}: exits of each rule's best setting at or under cost {MIDDLE_COST:g}"
        figures["exits"] = exits_by_rule_figure(middle, metric, title)
    return figures


def rule_curves(swept: Sweep, seed: int) -> list[RuleCurve]:
    """Each rule's settings, frontier and bootstrap band; none for rules that never exit early."""
    weights = bootstrap_weights(len(swept.labels), BAND_DRAWS, seed)
    curves = []
    for number, grid in enumerate(swept.grids):
        if not grid.values:
            continue
        exits = swept.exit_layer[swept.of_rule(grid.rule)]
        cost, metric = swept.cost(exits), swept.main_metric(exits)
        best = frontier(cost, metric)
        drawn = swept.main_metric(exits[best], weights=weights)
        low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
        curves.append(RuleCurve(grid.rule, number, cost, metric, best, low, high))
    return curves


def rules_at_cost(swept: Sweep, limit: float) -> list[RuleExits]:
    """Where the examples exit under each rule's best setting at or under a cost."""
    result = []
    for grid in swept.grids:
        exits = swept.exit_layer[swept.of_rule(grid.rule)]
        cost, metric = swept.cost(exits), swept.main_metric(exits)
        best = best_under_cost(cost, metric, limit)
        if best is not None:
            counts = swept.exits_per_layer(exits[best][None])[0]
            result.append(RuleExits(grid.rule, counts, metric[best], cost[best]))
    return result


def decisions(
    swept: Sweep, scores: np.ndarray, exit_layer: np.ndarray, window: np.ndarray
) -> list[Decision]:
    """The decision process of a few telling examples.

    scores (layers, examples, classes); exit_layer and window (examples,).
    """
    found = telling_examples(swept.predictions, swept.labels, exit_layer, swept.task.is_regression)
    return [
        Decision(
            f"{why}: example {row}, layer {exit_layer[row]}\n"
            f"label: {label_text(swept.task, swept.labels[row])}",
            scores[:, row],
            int(exit_layer[row]),
            int(window[row]),
            swept.labels[row],
        )
        for row, why in found
    ]


def telling_examples(
    predictions: np.ndarray, labels: np.ndarray, exit_layer: np.ndarray, regression: bool
) -> list[tuple[int, str]]:
    """Examples worth a look, each with what it shows: early, late, lost and won by exiting."""
    early = taken(predictions, exit_layer)
    wrong, full_wrong = (
        np.abs(answer - labels) if regression else (answer != labels).astype(float)
        for answer in (early, predictions[-1])
    )
    good = np.where(wrong <= np.median(wrong), 0.0, 1e3)  # rather show answers that are right
    middle = (exit_layer.min() + exit_layer.max()) / 2
    candidates = [
        ("exits early", -(good + exit_layer)),
        ("exits midway", -(good + np.abs(exit_layer - middle))),
        ("goes deepest", exit_layer - good),
        ("lost by exiting early", wrong - full_wrong),
        ("won by exiting early", full_wrong - wrong),
        ("wrong at both", np.minimum(wrong, full_wrong)),
    ]
    chosen: dict[int, str] = {}
    for name, score in candidates:
        score = score.astype(float)
        score[list(chosen)] = -np.inf
        best = int(score.argmax())
        if score[best] > 0 or (name.startswith(("exits", "goes")) and np.isfinite(score[best])):
            chosen[best] = name
    return list(chosen.items())
