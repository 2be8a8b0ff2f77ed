"""What the pictures show: which examples, which lines, and words that are true."""

import dataclasses

import numpy as np
import pytest

from exit_lab.choice import split
from exit_lab.closeups import in_lines, leads, telling_examples
from exit_lab.curves import curves_of, exits_at, frontier_figure
from exit_lab.frontiers import make_field
from exit_lab.pictures import closeups
from exit_lab.sweep import TRUNCATION
from glue.tasks import Example
from tests.exit_lab.builders import ELBERT, swept

pytestmark = pytest.mark.usefixtures("close_figures")


def test_telling_examples_show_what_they_say():
    labels = np.array([1, 1, 1, 1, 1, 1])
    early = np.array([1, 1, 1, 0, 1, 0])
    full = np.array([1, 1, 1, 1, 0, 0])
    predictions = np.stack((early, early, early, full))
    exits = np.array([1, 2, 4, 1, 3, 3])
    found = {why: row for row, why in telling_examples(predictions, labels, exits, False)}
    assert found == {
        "leaves first": 0,
        "leaves midway": 1,
        "goes deepest": 2,
        "lost by leaving early": 3,
        "won by leaving early": 4,
        "wrong at both": 5,
    }


def test_no_title_claims_what_is_not_so():
    """All leave at one layer: none goes deepest. A regression off by 0.03 is not far off."""
    labels = np.linspace(0, 5, 6)
    predictions = np.stack((labels + 0.03, labels))
    titles = [why for _, why in telling_examples(predictions, labels, np.full(6, 1), True)]
    assert titles == ["leaves with all"]
    predictions[0, 2] += 2
    titles = [why for _, why in telling_examples(predictions, labels, np.full(6, 1), True)]
    assert titles == ["leaves with all", "lost by leaving early"]


def test_a_lead_is_negative_where_the_answer_is_wrong():
    found, recording = swept(3, "mnli")
    scores = recording.tensors["all_logits"].softmax(-1).numpy()
    assert np.array_equal(leads(scores, found.labels) < 0, found.predictions != found.labels)


def test_a_text_is_cut_to_the_room_that_there_is():
    shown = in_lines(["word " * 60, None])
    assert shown.count("\n") == 3
    assert shown.endswith("…")
    assert in_lines(["one", "two"]) == "one\ntwo"


def test_a_curve_is_what_was_chosen_on_the_other_half():
    """Two models: at each cost the mean of what each would use, by its report part's cost."""
    sweeps = [swept(2, "rte", examples=120)[0]]
    sweeps.append(dataclasses.replace(sweeps[0], predictions=np.roll(sweeps[0].predictions, 1, 1)))
    field = make_field(sweeps, split(120, 0.5, 1), draws=50, seed=0)
    curves = {name: curve for curve in curves_of(field) for name in curve.names}
    assert set(curves) == {*ELBERT.reads(False), TRUNCATION}
    assert curves["logits"] is curves["max_prob"]  # of two classes: one line
    for cost, metric in zip(curves["bias_1"].cost, curves["bias_1"].metric, strict=True):
        values = []
        for front in field.frontiers["bias_1"]:
            reached = np.maximum.accumulate(front.cost) <= cost + 1e-9
            values.append(front.metric[np.flatnonzero(reached)[-1]])
        assert metric == pytest.approx(np.mean(values))
    assert all((np.diff(curve.metric) != 0).all() for curve in curves.values())  # no idle ink


def test_the_frontier_names_every_line_and_its_area():
    found, _ = swept(2, "rte", examples=120)
    field = make_field([found], split(120, 0.5, 1), draws=50, seed=0)
    main, *panels = frontier_figure(field, "acc", "rte", "how").axes
    shown = [text.get_text() for text in main.get_legend().get_texts()]
    assert sum(text.startswith(TRUNCATION) for text in shown) == 1
    assert len(shown) == len(panels) + 1
    areas = [float(text.split()[-1]) for text in shown]
    assert areas == sorted(areas, reverse=True)


def test_exits_side_by_side_are_of_settings_that_may_cost_so_much():
    found, _ = swept(2, "rte", examples=120)
    parts = split(120, 0.5, 1)
    rows = exits_at(make_field([found], parts, draws=5, seed=0), 0.6)
    assert rows[-1].name == TRUNCATION
    for row in rows:
        layers = np.repeat(np.arange(1, 6), row.exits)
        assert len(layers) == len(parts.report)
        assert row.cost == pytest.approx(layers.mean() / 5)


@pytest.mark.parametrize(("classes", "task"), [(2, "rte"), (1, "sts-b")])
def test_close_ups_show_the_texts_and_the_rule(classes, task):
    found, recording = swept(classes, task)
    examples = [Example(str(i), f"first $x$ {i}", f"second {i}", 0) for i in range(40)]
    setting = {"thres_name": "bias_1", "exit_thres": 0.3, "cnt_thres": 2, "margin": 0.0}
    setting["range_tmp"] = 0.3
    figures = closeups(found, ELBERT, recording, setting, examples)
    drawn = figures["decisions"]
    rule = "cnt_thres 2, margin 0" if classes > 1 else "cnt_thres 2, range_tmp 0.3"
    assert drawn.get_suptitle().endswith(rule)
    texts = [text.get_text() for panel in drawn.axes for text in panel.texts]
    assert all("first $x$ " in text and "\nsecond " in text for text in texts)
    assert ("exit with a wrong answer" in figures["heatmap"].axes[0].texts[0].get_text()) == (
        classes > 1
    )
