"""Choosing a setting: against brute force, scipy, and settings of known risk."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, entropy

from elbert import ElbertConfig, UserError
from evaluation.sweep import Recording, Sweep, sweep
from exit_lab.choice import (
    Parts,
    choose,
    control_risk,
    fixed_sequence,
    losses,
    split,
)
from exit_lab.compare import held_out_report
from exit_lab.goals import GOAL_KEYS, Goal, MaxCost, MaxDrop, MaxLatency, MaxRisk, parse_goal
from glue.tasks import TASKS
from modeling.keys import EXIT_KEYS
from tests.exit_lab.builders import SWEPT_RULES, swept


@pytest.mark.parametrize(
    ("goal", "limits"),
    [
        (MaxCost, (0.1, 0.4, 0.7, 1)),
        (MaxDrop, (-1, 0, 0.05, 0.2)),
        (MaxLatency, (0.5, 2.5, 4, 9)),
    ],
)
def test_a_choice_is_the_best_that_is_allowed(goal, limits):
    """The best metric under a limit of cost or of time, or the least cost within a drop."""
    made, recording = swept(2, "rte")
    rows = np.arange(0, 40, 2)
    seconds, exits = recording.tensors["seconds"].numpy(), made.exit_layer[:, rows]
    times = [[seconds[row, n - 1] for row, n in zip(rows, one, strict=True)] for one in exits]
    p95, cost = 1000 * np.quantile(times, 0.95, axis=1), exits.mean(1) / 5
    metric, full = made.main_metric(made.exit_layer, rows), (made.predictions[-1] == made.labels)
    drop = full[rows].mean() - metric
    limited = {MaxCost: cost, MaxDrop: drop, MaxLatency: p95}[goal]
    order = (cost, -metric) if goal is MaxDrop else (-metric, limited)
    for limit in limits:
        chosen = choose(made, goal(limit), [], rows).setting
        triples = zip(*order, limited, strict=True)
        allowed = [(a, b) for a, b, x in triples if x <= limit + 1e-9]
        assert allowed or chosen is None
        assert not allowed or [x[chosen] for x in order] == pytest.approx(min(allowed))


def test_what_a_recalibration_loses_counts_as_a_drop_and_as_a_risk():
    """All ten are right as trained, and two of them wrong at every layer once recalibrated."""
    labels = np.array([0, 1] * 5)
    recalibrated = np.where(np.arange(10) < 2, 1 - labels, labels)
    made = Sweep(
        task=TASKS["rte"],
        config=ElbertConfig(num_hidden_layers=2),
        grids={"entropy": {"exit_thres": (0.0, 1.0)}},
        settings=[{"thres_name": "entropy", "exit_thres": value} for value in (0.0, 1.0)],
        exit_layer=np.repeat([[2], [1]], 10, axis=1).astype(np.uint8),
        predictions=np.stack([recalibrated, recalibrated]),
        labels=labels,
        trained_answers=labels,
    )
    rows = np.arange(10)
    assert choose(made, MaxDrop(0.1), [], rows).setting is None
    assert choose(made, MaxDrop(0.2), [], rows).setting == 1
    assert losses(made.predictions, labels, made.exit_layer, labels).mean(1).tolist() == [0.2, 0.2]
    parts = Parts(calibration=rows[:5], report=rows)
    assert "| acc, drop from full depth | 0.4000 | 0.2000 |" in held_out_report(made, 1, parts, 0)


@pytest.mark.parametrize("goal", [MaxDrop(0.2), MaxCost(0.7), MaxRisk(0.9, 0.9)])
def test_a_setting_with_one_answer_for_all_is_passed_over(goal):
    """Nine of ten examples are of class 0, which layer 1 answers; layer 2 tells them apart."""
    labels = np.array([0] * 9 + [1])
    made = Sweep(
        task=TASKS["rte"],
        config=ElbertConfig(num_hidden_layers=3),
        grids={"entropy": {"exit_thres": (0.0, 0.5, 1.0)}},
        settings=[{"thres_name": "entropy", "exit_thres": value} for value in (0.0, 0.5, 1.0)],
        exit_layer=np.repeat([[3], [2], [1]], 10, axis=1).astype(np.uint8),
        predictions=np.array([[0] * 10, [1, *labels[1:]], [1, *labels[1:]]]),
        labels=labels,
    )
    rows = np.arange(10)
    assert choose(made, goal, ["entropy"], rows).setting == 1
    constant = replace(made, predictions=np.zeros((3, 10), dtype=int))
    assert choose(constant, goal, ["entropy"], rows).setting == 2  # the cheapest, as before
    alike = replace(made, labels=np.zeros(10, dtype=int))
    assert choose(alike, MaxDrop(0.2), ["entropy"], rows).setting == 2


@pytest.mark.parametrize(
    ("texts", "goal"),
    [
        (["max_cost=0.5"], MaxCost(0.5)),
        (["max_p95_ms=20"], MaxLatency(20.0)),
        (["max_drop=0.01"], MaxDrop(0.01)),
        (["delta=0.05", "risk=0.02"], MaxRisk(risk=0.02, delta=0.05)),
    ],
)
def test_a_goal_is_parsed(texts: list[str], goal: Goal):
    assert parse_goal(texts) == goal


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["risk=0.02"], "risk=… with delta=…"),
        (["delta=0.02"], "risk=… with delta=…"),
        (["max_cost=0.5", "max_drop=0.1"], "give max_cost=…, or max_drop=…"),
        ([f"{key}=0.5" for key in GOAL_KEYS], "give max_cost=…, or max_drop=…"),
        (["maxcost=0.5"], "--pick maxcost=0.5: did you mean max_cost"),
        (["max_cost=-1"], "max_cost = -1: allowed is a number of at least 0"),
        (["max_cost"], "--pick max_cost: "),
    ],
)
def test_goals_that_do_not_go_together_say_which_do(texts, message):
    with pytest.raises(UserError, match=message):
        parse_goal(texts)


def test_a_split_is_seeded_and_leaves_nobody_out():
    parts = split(101, 0.4, seed=3)
    assert len(parts.calibration) == 40
    assert sorted(np.concatenate(parts)) == list(range(101))
    assert all(map(np.array_equal, parts, split(101, 0.4, seed=3)))
    assert not np.array_equal(parts.calibration, split(101, 0.4, seed=4).calibration)


def test_losses_are_what_early_exit_gets_wrong():
    predictions = np.array([[0, 1, 0, 1], [0, 0, 1, 1]])
    exits = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [1, 2, 1, 2]])
    is_lost = losses(predictions, np.array([0, 0, 0, 1]), exits)
    assert is_lost.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("rule", SWEPT_RULES)
def test_the_path_of_every_rule_lets_examples_exit_ever_earlier(rule):
    """Two classes: along the walk no example exits later than before."""
    made, _ = swept(2, "rte", rules=[rule], examples=200)
    along = made.exit_layer[fixed_sequence(made.grids[rule], EXIT_KEYS)].astype(int)
    assert (np.diff(along, axis=0) <= 0).all()


SIMULATIONS, DELTA = 1000, 0.05


SURE_TO_UNSURE = np.linspace(1 - 1e-9, 0.5, 200_000)
ENTROPIES = (entropy(np.stack((SURE_TO_UNSURE, 1 - SURE_TO_UNSURE)), base=2), SURE_TO_UNSURE)


def known_risk_recording(rng: np.random.Generator, examples: int) -> Recording:
    """Layer 1 has entropy U, uniform, and is wrong with probability U; layer 2 is always right.

    The risk of `entropy` with exit_thres t is P(U < t and wrong) = t² / 2.
    """
    uniform = rng.random(examples)
    p = np.interp(uniform, *ENTROPIES)
    right = rng.random(examples) > uniform
    certainty = np.log(p / np.maximum(1 - p, 1e-30))
    logits = np.zeros((2, examples, 2))
    logits[0, :, 1] = np.where(right, certainty, -certainty)
    logits[1, :, 1] = 9.0
    return Recording({"all_logits": torch.tensor(logits).float()}, np.ones(examples, dtype=int))


def test_violations_stay_within_delta_from_logits_to_choice():
    """An exit_thres above √(2α) breaks the promise: in 4.2% of draws; one event off, in 8.7%."""
    alpha = 0.02
    safest = math.sqrt(2 * alpha)  # 0.2
    grids = {"entropy": {"exit_thres": (0, 0.05, 0.1, 0.15, 0.2005, 0.25, 0.3, 0.5)}}
    config = ElbertConfig(num_hidden_layers=2)
    rng = np.random.default_rng(11)
    violations = useful = 0
    for _ in range(SIMULATIONS):
        made = sweep(config, grids, known_risk_recording(rng, 535), TASKS["rte"])
        choice = control_risk(made, ["entropy"], np.arange(535), MaxRisk(alpha, DELTA))
        chosen = made.settings[choice.setting]["exit_thres"]
        violations += chosen > safest
        useful += chosen >= 0.1
    assert 0.03 < violations / SIMULATIONS <= DELTA
    assert useful > 0.9 * SIMULATIONS


@pytest.mark.parametrize("rules", [["bias_1"], ["entropy", "max_prob"]])
def test_the_cheapest_certified_setting_is_chosen(rules):
    """Of all settings before the first that fails scipy's test, where rules share δ evenly."""
    made, _ = swept(2, "rte", examples=400)
    choice = control_risk(made, rules, np.arange(400), MaxRisk(0.1, 0.1))
    passed = []
    for rule in rules:
        walk = fixed_sequence(made.grids[rule], EXIT_KEYS)
        path = [made.of_rule(rule).start + i for i in walk]
        risk = losses(made.predictions, made.labels, made.exit_layer[path]).mean(1)
        p = [binomtest(round(r * 400), 400, 0.1, alternative="less").pvalue for r in risk]
        stop = next((i for i, value in enumerate(p) if value > 0.1 / len(rules)), len(path))
        assert 0 < stop < len(path)
        passed += path[:stop]
    cost = made.cost(made.exit_layer)
    assert cost[choice.setting] == min(cost[passed])
    assert f"cheapest of {len(passed)} settings" in choice.reason


def test_a_guarantee_from_too_few_examples_says_how_many_it_needs():
    made, _ = swept(2, "rte", examples=60)
    choice = control_risk(made, ["entropy"], np.arange(30), MaxRisk(0.02, 0.05))
    assert choice.setting is None
    assert "even a setting without a single loss needs 149 examples" in choice.reason


def test_a_guarantee_needs_classes():
    made, _ = swept(1, "sts-b", examples=300)
    with pytest.raises(UserError, match="needs a task with classes"):
        control_risk(made, ["bias_1"], np.arange(300), MaxRisk(0.02, 0.05))
