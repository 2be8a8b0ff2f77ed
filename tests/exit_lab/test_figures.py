"""What the figures show: lines that are true, of what was chosen on the other half."""

import dataclasses

import numpy as np
import pytest

from exit_lab.choice import split
from exit_lab.compare import frontier_set
from exit_lab.figures import frontier_figure, rule_curves
from exit_lab.sweep import COIN, ORACLE, TRUNCATION
from tests.exit_lab.builders import SWEPT_RULES, swept

pytestmark = pytest.mark.usefixtures("close_figures")


def test_a_curve_is_what_was_chosen_on_the_other_half():
    """Two models: at each cost the mean of what each would use, by its report part's cost."""
    sweeps = [swept(2, "rte", examples=120)[0]]
    sweeps.append(dataclasses.replace(sweeps[0], predictions=np.roll(sweeps[0].predictions, 1, 1)))
    found = frontier_set(sweeps, split(120, 0.5, 1), draws=50, seed=0)
    curves = {name: curve for curve in rule_curves(found) for name in curve.names}
    assert set(curves) == set(SWEPT_RULES)
    assert curves["logits"] is curves["max_prob"]  # of two classes: one line
    for cost, metric in zip(curves["bias_1"].cost, curves["bias_1"].metric, strict=True):
        values = []
        for front in found.frontiers["bias_1"]:
            reached = np.maximum.accumulate(front.cost) <= cost + 1e-9
            values.append(front.metric[np.flatnonzero(reached)[-1], 0])
        assert metric == pytest.approx(np.mean(values))
    assert all((np.diff(curve.metric) != 0).all() for curve in curves.values())  # no idle ink


def test_the_frontier_names_every_line_and_shows_all_of_it():
    found, _ = swept(2, "rte", examples=120)
    fronts = frontier_set([found], split(120, 0.5, 1), draws=50, seed=0)
    figure = frontier_figure(fronts, found.task)
    panels = figure.axes[1:]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == [*(panel.get_title("left") for panel in panels), TRUNCATION, COIN, ORACLE]
    assert any(label.get_visible() for label in panels[0].get_yticklabels())
    for panel in figure.axes:
        low, high = panel.get_ylim()
        assert all(low <= y <= high for line in panel.lines for y in line.get_ydata())
