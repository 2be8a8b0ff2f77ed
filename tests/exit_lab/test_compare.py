"""Rules side by side at a budget: what is chosen, averaged, subtracted and printed."""

import dataclasses

import numpy as np
import pytest

from exit_lab.choice import Parts, best_under_cost, split
from exit_lab.compare import compare, limits_of, write_comparison
from exit_lab.frontiers import FULL_DEPTH, area_under, make_field
from exit_lab.sweep import TRUNCATION
from exit_lab.verdict import against_truncation
from modeling import UserError
from tests.exit_lab.builders import ELBERT, swept


def test_a_comparison_chooses_on_one_part_and_reports_on_the_other():
    found, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    cells = compare(make_field([found], parts, draws=200, seed=0), (0.5, 0.8))
    assert list(cells) == [*ELBERT.reads(False), TRUNCATION, FULL_DEPTH]
    right = found.predictions[:, parts.report] == found.labels[parts.report]
    for rule in ELBERT.reads(False):
        own = found.of_rule(rule)
        exits = found.exit_layer[own]
        cost, metric = (f(exits, parts.calibration) for f in (found.cost, found.main_metric))
        for limit, cell, same in zip((0.5, 0.8), cells[rule], cells[TRUNCATION], strict=False):
            best = best_under_cost(cost, metric, limit)
            if best is None:
                assert cell is None
                continue
            report = exits[best][None]
            value, low, high = cell.metric
            assert value == pytest.approx(found.main_metric(report, parts.report)[0])
            assert cell.cost == pytest.approx(found.cost(report, parts.report)[0])
            assert low <= value <= high
            assert cell.over_truncation.value == pytest.approx(value - same.metric.value)
            assert cell.over_full_depth.value == pytest.approx(value - right[-1].mean())
    assert cells[FULL_DEPTH][0].metric.value == pytest.approx(right[-1].mean())
    assert cells[TRUNCATION][0].cost in (0.2, 0.4)
    assert cells[TRUNCATION][0].over_truncation == (0, 0, 0)  # paired: no draw differs from itself


def test_intervals_draw_models_and_examples():
    """Two models that are each other's opposite: their mean is 0.5, but for the draw of models."""
    one = swept(2, "rte", rules=["entropy"], examples=100, seed=0)[0]
    other = dataclasses.replace(one, predictions=1 - one.predictions)
    parts = split(100, 0.5, seed=1)
    alone, opposite, both = (
        compare(make_field(sweeps, parts, draws=300, seed=0), (0.8,))[FULL_DEPTH][0].metric
        for sweeps in ([one], [other], [one, other])
    )
    assert both.value == pytest.approx((alone.value + opposite.value) / 2)
    # A quarter of the draws is the one twice, and spread by √2: see `make_draws`.
    half = np.sqrt(2) * (alone.value - opposite.value) / 2
    assert both.low == pytest.approx(both.value - half, abs=0.1)
    assert both.high == pytest.approx(both.value + half, abs=0.1)
    same = compare(make_field([one, one], parts, draws=300, seed=0), (0.8,))[FULL_DEPTH][0].metric
    assert same == pytest.approx(alone)


def test_the_area_is_the_mean_metric_over_all_costs():
    """Against ten thousand costs, one after the other."""
    found, _ = swept(2, "rte", rules=["patience"], examples=200)
    parts = split(200, 0.5, seed=1)
    field = make_field([found], parts, draws=20, seed=0)
    (own,), (cheap,) = field.frontiers["patience"], field.frontiers[TRUNCATION]
    by_hand = []
    for cost in np.linspace(0.2, 1, 10_001)[:-1]:
        dearest = np.maximum.accumulate(own.cost) <= cost + 1e-9
        use, reached = (own, dearest) if dearest.any() else (cheap, cheap.cost <= cost + 1e-9)
        by_hand.append(use.metric[np.flatnonzero(reached)[-1]])
    value, drawn = area_under(own, cheap, 5)
    assert value == pytest.approx(np.mean(by_hand), abs=1e-3)
    assert drawn.shape == (20,)
    assert own.cost[0] > 0.2  # so that truncation had to answer


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(1, [1]), (4, [1, 2, 3]), (6, [1, 2, 3, 4, 5]), (12, [1, 2, 3, 4, 7, 11])],
)
def test_columns_are_costs_that_truncation_has(layers, expected):
    assert limits_of(layers) == [n / layers for n in expected]


def test_models_of_different_data_are_not_compared(tmp_path):
    sweeps = [swept(2, "rte", rules=["entropy"], seed=seed)[0] for seed in (0, 1)]
    with pytest.raises(UserError, match="different examples"):
        write_comparison(sweeps, split(40, 0.5, 1), 42, tmp_path)


def test_the_comparison_is_three_markdown_tables(tmp_path, capsys):
    found, _ = swept(1, "sts-b", examples=100)
    write_comparison([found], Parts(np.arange(50), np.arange(50, 100)), 42, tmp_path)
    text = (tmp_path / "compare.md").read_text()
    assert text in capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head = "| | cost ≤ 0.20 | cost ≤ 0.40 | cost ≤ 0.60 | cost ≤ 0.80 | area |"
    assert lines.count(head) == 2
    names = [line.split("|")[1].strip() for line in lines]
    rules = ["bias_1", "bias_2", "bias_3", "patience"]  # the others never fire on a value
    assert names[2:8] == [*rules, TRUNCATION, FULL_DEPTH]
    assert {line.count("|") for line in lines} == {6, 7}
    assert "nan" not in text


def test_a_choice_that_truncation_matches_is_called_so():
    found, _ = swept(2, "rte", rules=["entropy"], examples=200)
    parts = split(200, 0.5, seed=0)
    layer = dataclasses.replace(found, exit_layer=found.truncations[1:2], settings=[{}])
    text = against_truncation(layer, 0, parts, seed=0)
    assert text.startswith("Not shown to be better than stopping everyone at one layer")
    assert "everyone at layer 2, cost 0.4000: acc +0.0000 [+0.0000, +0.0000]" in text
    knows = np.where(found.predictions[0] == found.labels, 1, found.num_layers)[None]
    oracle = dataclasses.replace(layer, exit_layer=knows)
    assert against_truncation(oracle, 0, parts, seed=0).startswith("Better than")
