"""Coin and oracle by hand and by brute force; rules at equal costs; the report of a choice."""

import dataclasses
import re
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from scipy.stats import bootstrap

from evaluation.predictions import record_layers, run_early_exit
from exit_lab.choice import Parts, first_allowed, split
from exit_lab.compare import (
    Point,
    cell_at,
    estimate,
    frontier_set,
    held_out_report,
    two_models,
    write_comparison,
)
from exit_lab.explorer import explorer_page
from exit_lab.figures import curve_of
from exit_lab.sweep import COIN, FULL_DEPTH, ORACLE, TRUNCATION, Recording, Sweep
from glue.tasks import TASKS
from modeling import ElbertConfig, UserError
from tests.conftest import job_of, random_ids, tiny_model
from tests.exit_lab.builders import EVIL, SWEPT_RULES, explored, swept

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
    return Sweep(TASKS[task], ElbertConfig(), {}, [], none, answers, np.full(examples, label))


def baselines(made: Sweep, resamples: int = 20):
    everyone = np.arange(len(made.labels))
    return frontier_set([made], Parts(everyone, everyone), resamples, seed=0)


def test_a_coin_is_the_best_mixture_of_any_two_layers_on_the_calibration_part():
    """Brute force over all pairs; measured on the other part, draw by draw."""
    found, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    fronts = frontier_set([found], parts, resamples=30, seed=0)
    right = found.predictions == found.labels
    calibration, report = (right[:, rows].mean(1) for rows in parts)
    drawn = right[:, parts.report] @ fronts.drawn[1:].T / len(parts.report)
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
        _, metric, drawn_metrics = max(mixtures, key=lambda one: one[0])
        found = fronts.at(COIN, layers / 5).metric
        assert found[0] == pytest.approx(metric)
        assert found[1:] == pytest.approx(drawn_metrics)


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
        point = found.at(ORACLE, layers / 40)
        assert point.metric[0] == pytest.approx(metric)
        assert point.cost == pytest.approx(min(layers, 18) / 40)


def test_the_oracle_of_a_regression_takes_the_first_of_the_least_errors():
    answers = np.array([[1.0, 5.0, 2.5], [2.0, 4.0, 2.5], [2.4, 0.0, 2.5]])
    oracle = by_hand(answers, "sts-b", label=2.5).oracle
    assert oracle.tolist() == [[1, 1, 1], [2, 2, 1], [3, 2, 1]]


def test_exit_efficiency_by_hand():
    """At a cost of 0.45 the coin has 0.6 and the oracle 0.9: 0.75 is half the way.

    The coin tosses between layers 1 and 3: layer 2 has 0.5, where the two have 0.65.
    """
    found = baselines(by_hand())
    assert found.at(COIN, 0.45).settings == ["layer 1 or layer 3"]
    rule = Point([], np.array([0.45]), np.full(21, 0.75))
    assert found.efficiency(rule)[0] == pytest.approx(0.5)
    assert found.efficiency(found.at(ORACLE, 0.45))[0] == pytest.approx(1)
    assert found.efficiency(found.at(COIN, 0.45))[0] == pytest.approx(0)
    assert found.efficiency(found.at(COIN, 0.25)) is None  # nothing to gain


def test_intervals_draw_models_and_examples():
    """Two models that are each other's opposite: their mean is 0.5, but for the draw of models."""
    one = swept(2, "rte", rules=["entropy"], examples=100, seed=0)[0]
    other = dataclasses.replace(one, predictions=1 - one.predictions)
    parts = split(100, 0.5, seed=1)

    def full_depth(*sweeps):
        found = frontier_set(sweeps, parts, resamples=300, seed=0)
        return estimate(found.at(FULL_DEPTH, 1.0).metric)

    alone, opposite, (value, low, high) = full_depth(one), full_depth(other), full_depth(one, other)
    assert value == pytest.approx((alone[0] + opposite[0]) / 2)
    # A quarter of the resamples is the one twice, and spread by √2: see `frontier_set`.
    half = np.sqrt(2) * (alone[0] - opposite[0]) / 2
    assert low == pytest.approx(value - half, abs=0.1)
    assert high == pytest.approx(value + half, abs=0.1)
    assert full_depth(one, one) == pytest.approx(alone)


def test_a_comparison_chooses_on_one_part_and_reports_on_the_other():
    found, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    fronts = frontier_set([found], parts, resamples=200, seed=0)
    assert list(fronts.frontiers) == [*SWEPT_RULES, TRUNCATION, COIN, ORACLE, FULL_DEPTH]
    right = found.predictions[:, parts.report] == found.labels[parts.report]
    for rule, limit in product(SWEPT_RULES, (0.5, 0.8)):
        exits, cell = found.exit_layer[found.of_rule(rule)], cell_at(fronts, rule, limit)
        cost, metric = (f(exits, parts.calibration) for f in (found.cost, found.main_metric))
        best = first_allowed(cost <= limit + 1e-9, -metric, cost)
        if best is None:
            assert cell is None
            continue
        report = exits[best][None]
        assert cell["metric"].value == pytest.approx(found.main_metric(report, parts.report)[0])
        assert cell["cost"] == pytest.approx(found.cost(report, parts.report)[0])
        assert cell["metric"].low <= cell["metric"].value <= cell["metric"].high
        coin = fronts.at(COIN, cell["cost"])
        value = cell["metric"].value
        assert cell["over_coin"].value == pytest.approx(value - coin.metric[0])
        assert cell["over_full_depth"].value == pytest.approx(value - right[-1].mean())
    assert cell_at(fronts, FULL_DEPTH, 0.5)["metric"].value == pytest.approx(right[-1].mean())
    assert cell_at(fronts, TRUNCATION, 0.5)["cost"] in (0.2, 0.4)
    # Paired: no draw differs from itself.
    difference = cell_at(fronts, COIN, 0.5)["over_coin"]
    assert difference == pytest.approx([0, 0, 0])
    assert difference.points() == "+0.0 [+0.0, +0.0]"


def test_two_models_differ_by_scipys_paired_bootstrap():
    """On real runs, one example at a time, each model under its own rule."""
    texts = [random_ids(1, 3 + (5 * i) % 11, i)[0].tolist() for i in range(80)]
    models, answers, costs = [], [], []
    for seed, threshold in ((0, 0.9), (1, 0.97), (2, 0.97)):
        job = job_of(tiny_model(seed=seed, thres_name="entropy", exit_thres=threshold), texts)
        labels, real = np.array(job.features.labels), run_early_exit(job)
        models.append((job, Recording(record_layers(job), labels)))
        answers.append(real["logits"].argmax(-1).numpy() == labels)
        costs.append(real["exit_layer"].numpy() / 4)
    lines = two_models({"a": models[:1], "b": models[1:2]}, seed=0).splitlines()
    for name, (first, second) in (("acc", answers[:2]), ("computation cost", costs[:2])):
        cells = next(line.split("|")[2:5] for line in lines if line.startswith(f"| {name} |"))
        numbers = [[float(x) for x in re.findall(r"[-+]?\d\.\d+", cell)] for cell in cells]
        assert [x[0] for x in numbers] == pytest.approx(
            [first.mean(), second.mean(), second.mean() - first.mean()], abs=1e-4
        )
        both, paired = (second, first), {"paired": True, "method": "percentile", "rng": 0}
        found = bootstrap(both, lambda x, y, axis: x.mean(axis) - y.mean(axis), **paired)
        assert numbers[2][1:] == pytest.approx([*found.confidence_interval], abs=0.02)
        assert ("**" in cells[2]) == (numbers[2][1] > 0 or numbers[2][2] < 0)
    text = two_models({"a": models[:1], "b*": models[1:]}, seed=0)
    assert "| mean of 2 seeds, b* |" in text
    assert f" {np.mean(answers[1:]):.4f} [" in text


def test_models_of_different_data_are_not_compared(tmp_path):
    sweeps = [swept(2, "rte", rules=["entropy"], seed=seed)[0] for seed in (0, 1)]
    with pytest.raises(UserError, match="different examples"):
        write_comparison(sweeps, split(40, 0.5, 1), 42, tmp_path)


def test_a_choice_that_a_coin_matches_is_called_so():
    found, _ = swept(2, "rte", rules=["entropy"], examples=200)
    parts = split(200, 0.5, seed=0)
    layer = dataclasses.replace(found, exit_layer=found.truncations[1:2], settings=[{}])
    text = held_out_report(layer, 0, parts, seed=0)
    assert "\nNot shown to be better than a coin that stops each example at layer " in text
    oracle = dataclasses.replace(layer, exit_layer=found.oracle[-1:])
    text = held_out_report(oracle, 0, parts, seed=0)
    assert "\nBetter than" in text
    assert text.endswith("as a share of the oracle's: 1.00 [1.00, 1.00]\n")


# Figures: lines that are true. tests/robustness opens the explorer in a browser.


def test_a_curve_is_what_was_chosen_on_the_other_half():
    """Two models: at each cost the mean of what each would use, by its report part's cost."""
    sweeps = [swept(2, "rte", examples=120)[0]]
    sweeps.append(dataclasses.replace(sweeps[0], predictions=np.roll(sweeps[0].predictions, 1, 1)))
    found = frontier_set(sweeps, split(120, 0.5, 1), resamples=50, seed=0)
    limits = np.unique(np.concatenate([front.allowed for front in found.frontiers["bias_1"]]))
    values = []
    for limit in limits:
        chosen = [front.allowed <= limit + 1e-9 for front in found.frontiers["bias_1"]]
        if all(map(np.any, chosen)):
            last = [np.flatnonzero(one)[-1] for one in chosen]
            fronts = zip(found.frontiers["bias_1"], last, strict=True)
            values.append(np.mean([front.metric[number, 0] for front, number in fronts]))
    kept = [values[0], *(new for old, new in pairwise(values) if new != old)]  # no idle ink
    assert curve_of(found, "bias_1")[1] == pytest.approx(kept)
    for name in SWEPT_RULES:
        assert (np.diff(curve_of(found, name)[0]) >= 0).all()


def test_the_explorers_texts_and_title_are_escaped():
    page = explorer_page(*explored("rte"), {"title": "<i>" + EVIL})
    assert "default-src 'none'" in page  # the network is asked nothing
    assert page.count("</script>") == 2  # the data's and the program's own
    assert "<title>&lt;i&gt;&lt;/script&gt;" in page
