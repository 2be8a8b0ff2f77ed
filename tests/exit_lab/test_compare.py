"""Rules side by side at a budget: what is chosen and printed; the report of a choice."""

import dataclasses

import numpy as np
import pytest

from exit_lab.choice import Parts, best_under_cost, split
from exit_lab.compare import against_coin, choice_table, compare, limits_of, write_comparison
from exit_lab.frontiers import rules_and_baselines
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION
from modeling import UserError
from tests.exit_lab.builders import SWEPT_RULES, swept


def test_a_comparison_chooses_on_one_part_and_reports_on_the_other():
    found, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    fronts = rules_and_baselines([found], parts, draws=200, seed=0)
    cells = compare(fronts, (0.5, 0.8))
    assert list(cells) == [*SWEPT_RULES, TRUNCATION, COIN, ORACLE, FULL_DEPTH]
    right = found.predictions[:, parts.report] == found.labels[parts.report]
    for rule in SWEPT_RULES:
        exits = found.exit_layer[found.of_rule(rule)]
        cost, metric = (f(exits, parts.calibration) for f in (found.cost, found.main_metric))
        for limit, cell in zip((0.5, 0.8), cells[rule], strict=False):
            best = best_under_cost(cost, metric, limit)
            if best is None:
                assert cell is None
                continue
            report = exits[best][None]
            value, low, high, _ = cell.metric
            assert value == pytest.approx(found.main_metric(report, parts.report)[0])
            assert cell.cost == pytest.approx(found.cost(report, parts.report)[0])
            assert low <= value <= high
            (coin,) = fronts.at(COIN, cell.cost)
            assert cell.over_coin.value == pytest.approx(value - coin.metric)
            assert cell.over_full_depth.value == pytest.approx(value - right[-1].mean())
    assert cells[FULL_DEPTH][0].metric.value == pytest.approx(right[-1].mean())
    assert cells[TRUNCATION][0].cost in (0.2, 0.4)
    # Paired: no draw differs from itself.
    assert cells[COIN][0].over_coin[:3] == pytest.approx((0, 0, 0))
    assert not cells[COIN][0].over_coin.clear


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


def test_the_comparison_is_four_markdown_tables(tmp_path, capsys):
    found, _ = swept(1, "sts-b", examples=100)
    write_comparison([found], Parts(np.arange(50), np.arange(50, 100)), 42, tmp_path)
    text = (tmp_path / "compare.md").read_text()
    assert text in capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head = "| | cost ≤ 0.20 | cost ≤ 0.40 | cost ≤ 0.60 | cost ≤ 0.80 |"
    assert (lines.count(f"{head} area |"), lines.count(head)) == (2, 2)
    names = [line.split("|")[1].strip() for line in lines]
    rules = ["bias_1", "bias_2", "bias_3", "patience"]  # the others never fire on a value
    assert names[2:10] == [*rules, TRUNCATION, COIN, ORACLE, FULL_DEPTH]
    assert {line.count("|") for line in lines} == {6, 7}
    assert "nan" not in text


def test_the_choice_table_shows_both_parts():
    found, _ = swept(2, "mrpc", examples=100)
    parts = split(100, 0.5, seed=0)
    lines = choice_table(found, 0, parts, seed=0).splitlines()
    assert lines[0].startswith("| | calibration (50) | report (50) |")
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names[:3] == ["acc", "acc, drop from full depth", "f1"]
    assert names[-2:] == ["computation cost", "p95 latency, ms (recorded)"]


def test_a_choice_that_a_coin_matches_is_called_so():
    found, _ = swept(2, "rte", rules=["entropy"], examples=200)
    parts = split(200, 0.5, seed=0)
    layer = dataclasses.replace(found, exit_layer=found.truncations[1:2], settings=[{}])
    text = against_coin(layer, 0, parts, seed=0)
    assert text.startswith("Not shown to be better than a coin that stops each example at layer ")
    oracle = dataclasses.replace(layer, exit_layer=found.oracle[-1:])
    text = against_coin(oracle, 0, parts, seed=0)
    assert text.startswith("Better than")
    assert text.endswith("as a share of the oracle's: 1.00 [1.00, 1.00]")
