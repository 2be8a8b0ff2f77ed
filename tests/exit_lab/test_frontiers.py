"""Coin and oracle against tables worked by hand and against brute force; areas; bootstraps."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest

from exit_lab.choice import Parts, split
from exit_lab.frontiers import Point, rules_and_baselines
from exit_lab.sweep import COIN, ORACLE, TRUNCATION, Sweep
from glue.tasks import TASKS
from tests.exit_lab.builders import swept

# Answers of 4 layers to 10 examples whose label is 1. Layers are right on 4, 5, 9 and 9 of them.
ANSWERS = np.array(
    [
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
    ]
)


def by_hand(answers: np.ndarray = ANSWERS, task: str = "rte", label: float = 1) -> Sweep:
    """A sweep without rules; one part of the examples chooses and reports."""
    examples = answers.shape[1]
    none = np.ones((0, examples), np.uint8)
    return Sweep(TASKS[task], (), [], none, answers, np.full(examples, label))


def baselines(made: Sweep, draws: int = 20):
    everyone = np.arange(len(made.labels))
    return rules_and_baselines([made], Parts(everyone, everyone), draws, seed=0)


@pytest.mark.parametrize(
    ("cost", "coin", "layers"),
    [
        (0.25, 0.4, "layer 1"),
        (0.50, 0.65, "layer 1 or layer 3"),  # layer 2 has 0.5: the coin beats it
        (0.60, 0.75, "layer 1 or layer 3"),
        (0.75, 0.9, "layer 3"),
        (1.00, 0.9, "layer 3"),  # layer 4 is no better
    ],
)
def test_a_coin_between_two_layers_by_hand(cost, coin, layers):
    (point,) = baselines(by_hand()).at(COIN, cost)
    assert point.metric == pytest.approx(coin)
    assert point.settings == layers
    assert point.cost == pytest.approx(min(cost, 0.75))


def test_a_coin_is_the_best_mixture_of_any_two_layers_on_the_calibration_part():
    """Brute force over all pairs; measured on the other part, draw by draw."""
    found, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    fronts = rules_and_baselines([found], parts, draws=30, seed=0)
    right = found.predictions == found.labels
    calibration, report = (right[:, rows].mean(1) for rows in parts)
    drawn = right[:, parts.report] @ fronts.bootstrap.examples.T / len(parts.report)
    for layers in np.linspace(1, 5, 23):
        mixtures = [
            (calibration[k - 1], report[k - 1], drawn[k - 1]) for k in range(1, 6) if k <= layers
        ]
        for a, b in combinations(range(1, 6), 2):
            if a <= layers <= b:
                share = (layers - a) / (b - a)
                mix = [
                    (1 - share) * v[a - 1] + share * v[b - 1] for v in (calibration, report, drawn)
                ]
                mixtures.append(tuple(mix))
        _, metric, draws = max(mixtures, key=lambda one: one[0])
        (point,) = fronts.at(COIN, layers / 5)
        assert point.metric == pytest.approx(metric)
        assert point.drawn == pytest.approx(draws)


def test_the_oracle_exits_at_the_first_right_layer_by_hand():
    """Right first at layer 1: 4 examples, at 2: 2, at 3: 3; never: 1, which stops at layer 1."""
    made = by_hand()
    assert made.oracle.tolist() == [
        [1] * 10,
        [1, 1, 1, 1, 2, 2, 1, 1, 1, 1],
        [1, 1, 1, 1, 2, 2, 3, 3, 3, 1],
        [1, 1, 1, 1, 2, 2, 3, 3, 3, 1],
    ]
    found = baselines(made)
    for layers, metric in [(10, 0.4), (11, 0.5), (12, 0.6), (15, 0.75), (18, 0.9), (40, 0.9)]:
        (point,) = found.at(ORACLE, layers / 40)
        assert point.metric == pytest.approx(metric)
        assert point.cost == pytest.approx(min(layers, 18) / 40)


def test_the_oracle_of_a_regression_takes_the_first_of_the_least_errors():
    answers = np.array([[1.0, 5.0, 2.5], [2.0, 4.0, 2.5], [2.4, 0.0, 2.5]])
    oracle = by_hand(answers, "sts-b", label=2.5).oracle
    assert oracle.tolist() == [[1, 1, 1], [2, 2, 1], [3, 2, 1]]


def test_exit_efficiency_by_hand():
    """At a cost of 0.45 the coin has 0.6 and the oracle 0.9: 0.75 is half the way."""
    found = baselines(by_hand())
    rule = Point("", 0.45, 0.75, np.full(20, 0.75))
    assert found.efficiency([rule]).value == pytest.approx(0.5)
    assert found.efficiency(found.at(ORACLE, 0.45)).value == pytest.approx(1)
    assert found.efficiency(found.at(COIN, 0.45)).value == pytest.approx(0)
    assert found.efficiency(found.at(COIN, 0.25)) is None  # nothing to gain


def test_areas_are_mean_metrics_over_all_costs():
    """Against ten thousand costs, one after the other; the coin's by hand."""
    found, _ = swept(2, "rte", rules=["patience"], examples=200)
    fronts = rules_and_baselines([found], split(200, 0.5, seed=1), draws=20, seed=0)
    (own,), (cheap,) = fronts.frontiers["patience"], fronts.frontiers[TRUNCATION]
    values = []
    for cost in np.linspace(0.2, 1, 10_001)[:-1]:
        dearest = np.maximum.accumulate(own.cost) <= cost + 1e-9
        use, reached = (own, dearest) if dearest.any() else (cheap, cheap.cost <= cost + 1e-9)
        values.append(use.metric[np.flatnonzero(reached)[-1]])
    (area,) = fronts.area("patience")
    assert area.metric == pytest.approx(np.mean(values), abs=1e-3)
    assert area.drawn.shape == (20,)
    assert own.cost[0] > 0.2  # so that truncation had to answer
    (area,) = baselines(by_hand()).area(COIN)  # 0.4 to 0.9 over two thirds of the costs, then 0.9
    assert area.metric == pytest.approx(0.65 * 2 / 3 + 0.9 / 3)


def test_intervals_draw_models_and_examples():
    """Two models that are each other's opposite: their mean is 0.5, but for the draw of models."""
    one = swept(2, "rte", rules=["entropy"], examples=100, seed=0)[0]
    other = dataclasses.replace(one, predictions=1 - one.predictions)
    parts = split(100, 0.5, seed=1)

    def full_depth(*sweeps):
        found = rules_and_baselines(sweeps, parts, draws=300, seed=0)
        return found.estimate(found.at("full depth", 1.0))

    alone, opposite, both = full_depth(one), full_depth(other), full_depth(one, other)
    assert both.value == pytest.approx((alone.value + opposite.value) / 2)
    # A quarter of the draws is the one twice, and spread by √2: see `make_bootstrap`.
    half = np.sqrt(2) * (alone.value - opposite.value) / 2
    assert both.low == pytest.approx(both.value - half, abs=0.1)
    assert both.high == pytest.approx(both.value + half, abs=0.1)
    assert full_depth(one, one) == pytest.approx(alone)
