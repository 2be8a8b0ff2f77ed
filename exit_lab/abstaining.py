"""Answering only where the score is high enough: which share is answered, and how much is wrong."""

import numpy as np
from matplotlib.figure import Figure

from evaluation.figures import COLOURS, INK, styled
from evaluation.measures import predictions_of
from evaluation.sweep import Sweep
from exit_lab.tables import Row
from modeling.exit_settings import Setting
from modeling.rules import Tensors, certainty, exit_scores, layer_answers, scan_answers

SHOWN_SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
FULL_DEPTH = "full depth"
EARLY_EXIT = "early exit"


def risk_coverage(
    swept: Sweep, setting: Setting, tensors: Tensors, rows: np.ndarray
) -> list[Row] | None:
    """Compute the risk-coverage curves of early exit and of full depth: a row for each score.

    A row has the value for classify.py's --abstain_below; the coverage, the share of examples that
    are answered then; and the risk, the share of these that are wrong.

    Args:
        setting: exit keys, with the rule's name.
        tensors: of the recording.
        rows: numbers of the examples.

    Returns None for values and for several labels, where an answer is not simply right or wrong.
    """
    if swept.task.is_regression or swept.task.multi_label:
        return None
    rule = swept.config.exit_rule(**swept.config.keys_read(**setting))
    logits, _ = scan_answers(rule, tensors)
    last_layer = layer_answers(rule, tensors)[-1]
    table = []
    for name, answers in ((EARLY_EXIT, logits), (FULL_DEPTH, last_layer)):
        scores = certainty(exit_scores(answers.float()), multi_label=False).numpy()[rows]
        is_wrong = predictions_of(answers)[rows] != swept.labels[rows]
        order = np.argsort(-scores, kind="stable")
        answered = np.arange(1, len(rows) + 1)
        wrong = is_wrong[order].cumsum()
        # Equal scores are answered together.
        is_last = np.append(np.diff(scores[order]) != 0, True)
        for number in np.flatnonzero(is_last):
            table.append(
                {
                    "answers": name,
                    "abstain_below": float(scores[order][number]),
                    "coverage": answered[number] / len(rows),
                    "risk": wrong[number] / answered[number],
                }
            )
    return table


def coverage_lines(table: list[Row]) -> list[str]:
    """Say what is gained by leaving the least certain examples without an answer."""
    rows = [row for row in table if row["answers"] == EARLY_EXIT]
    lines = ["Answering only certain examples (held-out; classify.py --abstain_below):"]
    for share in SHOWN_SHARES:
        within = [row for row in rows if row["coverage"] <= share + 1e-9]
        if within:
            row = max(within, key=lambda row: row["coverage"])
            lines.append(
                f"  from score {row['abstain_below']:.4f} on, {row['coverage']:.1%} are answered, "
                f"{row['risk']:.2%} of them wrongly"
            )
    return list(dict.fromkeys(lines))


@styled
def risk_coverage_figure(table: list[Row]) -> Figure:
    """Draw the share of wrong answers against the share of examples that are answered."""
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    for name, colour in ((EARLY_EXIT, COLOURS[0]), (FULL_DEPTH, INK)):
        rows = [row for row in table if row["answers"] == name]
        coverage = [100 * row["coverage"] for row in rows]
        risk = [100 * row["risk"] for row in rows]
        axes.plot(coverage, risk, color=colour, label=name)
    axes.set_xlabel("examples that are answered, %")
    axes.set_ylabel("wrong answers among them, %")
    axes.legend()
    return figure
