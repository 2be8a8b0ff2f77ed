"""Baselines by hand and by brute force; rules at equal costs; the report of a choice."""

import dataclasses
import re
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import bootstrap

from elbert import ElbertConfig
from evaluation.predict import record_layers, run_all
from evaluation.sweep import FULL_DEPTH, ORACLE, RANDOM_MIXTURE, TRUNCATION, Recording, Sweep
from exit_lab.choice import Parts, first_allowed, split
from exit_lab.compare import compare_two_models, comparison, held_out_report, points_within
from exit_lab.estimates import estimate
from exit_lab.explorer import PageInfo, explorer_page
from exit_lab.figures import curve_of
from exit_lab.frontiers import FrontierSet, Mixture, Point, frontier_set, mixture_within
from exit_lab.methods import SweptModel, compare_methods
from glue.tasks import TASKS
from tests.conftest import job_of, random_ids, run_of, tiny_model
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
    config = ElbertConfig(num_hidden_layers=len(answers))
    return Sweep(TASKS[task], config, {}, [], none, answers, np.full(examples, label))


def baselines(made: Sweep, resamples: int = 20) -> FrontierSet:
    everyone = np.arange(len(made.labels))
    return frontier_set(made, Parts(everyone, everyone), resamples, seed=0)


def test_the_random_mixture_is_the_best_of_any_two_layers_on_the_calibration_part():
    """Brute force over all pairs; measured on the other part, draw by draw."""
    made, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    fronts = frontier_set(made, parts, resamples=30, seed=0)
    right = made.predictions == made.labels
    calibration, report = (right[:, rows].mean(1) for rows in parts)
    drawn = right[:, parts.report] @ fronts.resample_weights[1:].T / len(parts.report)
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
        _, metric, drawn_metrics = max(mixtures, key=lambda mixture: mixture[0])
        mixture_metric = fronts.at(RANDOM_MIXTURE, layers / 5).metric
        assert mixture_metric[0] == pytest.approx(metric)
        assert mixture_metric[1:] == pytest.approx(drawn_metrics)


def test_a_mixture_costs_the_limit_and_a_single_setting_at_most_that():
    costs = np.array([0.25, 0.5, 1.0])
    assert mixture_within(costs, 0.2, mixes=True) is None
    assert mixture_within(costs, 0.25, mixes=True) == Mixture(0, 0)
    assert mixture_within(costs, 0.75, mixes=True) == Mixture(1, 2, pytest.approx(0.5))
    assert mixture_within(costs, 0.75, mixes=True).of(costs) == pytest.approx(0.75)
    assert mixture_within(costs, 0.75, mixes=False) == Mixture(1, 1)
    assert mixture_within(costs, 2.0, mixes=True) == Mixture(2, 2)
    with pytest.raises(ValueError, match="truncation has no setting"):
        baselines(by_hand()).at(TRUNCATION, 0.2)


def test_the_oracle_exits_at_the_first_right_layer_by_hand():
    """Right first at layer 1: 4 examples, at 2: 2, at 3: 3; never: 1, which stops at layer 1."""
    made = by_hand()
    assert made.oracle.tolist() == [
        [1] * 10,
        [1, 1, 1, 1, 2, 2, 1, 1, 1, 1],
        [1, 1, 1, 1, 2, 2, 3, 3, 3, 1],
        [1, 1, 1, 1, 2, 2, 3, 3, 3, 1],
    ]
    fronts = baselines(made)
    for layers, metric in [(10, 0.4), (11, 0.5), (12, 0.6), (15, 0.75), (18, 0.9), (40, 0.9)]:
        point = fronts.at(ORACLE, layers / 40)
        assert point.metric[0] == pytest.approx(metric)
        assert point.cost == pytest.approx(min(layers, 18) / 40)


def test_the_oracle_of_a_regression_takes_the_first_of_the_least_errors():
    answers = np.array([[1.0, 5.0, 2.5], [2.0, 4.0, 2.5], [2.4, 0.0, 2.5]])
    oracle = by_hand(answers, "sts-b", label=2.5).oracle
    assert oracle.tolist() == [[1, 1, 1], [2, 2, 1], [3, 2, 1]]


def test_exit_efficiency_by_hand():
    """At a cost of 0.45 the mixture has 0.6 and the oracle 0.9: 0.75 is half the way.

    It is of layers 1 and 3: layer 2 has 0.5, where these two have 0.65.
    """
    fronts = baselines(by_hand())
    assert fronts.at(RANDOM_MIXTURE, 0.45).settings == [0, 2]
    rule = Point([], 0.45, np.full(21, 0.75))
    assert fronts.efficiency(rule).value == pytest.approx(0.5)
    assert fronts.efficiency(fronts.at(ORACLE, 0.45)).value == pytest.approx(1)
    assert fronts.efficiency(fronts.at(RANDOM_MIXTURE, 0.45)).value == pytest.approx(0)
    assert fronts.efficiency(fronts.at(RANDOM_MIXTURE, 0.25)) is None  # nothing to gain


def test_elue_s_score_by_hand():
    """The mean gain over the layers' own curve, at the costs of a rule's best settings."""
    made, _ = swept(2, "rte", ["entropy"], examples=300)
    fronts = frontier_set(made, split(300, 0.5, 0), 50, 0)
    rule, layers = fronts.frontiers["entropy"], fronts.frontiers["truncation"]
    curve = np.interp(rule.cost, layers.cost, layers.metric[:, 0])
    expected = np.mean(rule.metric[:, 0] - curve)
    assert fronts.elue_score("entropy").value == pytest.approx(expected)
    assert fronts.elue_score("truncation") == (0, 0, 0)
    assert "ELUE's score in points" in comparison(made, fronts)


def test_a_comparison_chooses_on_one_part_and_reports_on_the_other():
    made, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    fronts = frontier_set(made, parts, resamples=200, seed=0)
    assert list(fronts.frontiers) == [*SWEPT_RULES, TRUNCATION, RANDOM_MIXTURE, ORACLE, FULL_DEPTH]
    for rule, limit in product(SWEPT_RULES, (0.5, 0.8)):
        exits = made.exit_layer[made.of_rule(rule)]
        (point,) = points_within(fronts, rule, [limit])
        cost = made.cost(exits, parts.calibration)
        metric = made.main_metric(exits, parts.calibration)
        best = first_allowed(cost <= limit + 1e-9, -metric, cost)
        if best is None:
            assert point is None
            continue
        report, (value, low, high) = exits[best][None], estimate(point.metric)
        assert value == pytest.approx(made.main_metric(report, parts.report)[0])
        assert point.cost == pytest.approx(made.cost(report, parts.report)[0])
        assert low <= value <= high
        mixture = fronts.at(RANDOM_MIXTURE, point.cost)
        assert fronts.gain_over_mixture(point).value == pytest.approx(value - mixture.metric[0])
    right = made.predictions[:, parts.report] == made.labels[parts.report]
    assert points_within(fronts, FULL_DEPTH, [0.5])[0].metric[0] == pytest.approx(right[-1].mean())
    assert fronts.at(TRUNCATION, 0.5).cost in (0.2, 0.4)
    # Paired: no draw differs from itself.
    difference = fronts.gain_over_mixture(fronts.at(RANDOM_MIXTURE, 0.5))
    assert difference == pytest.approx([0, 0, 0])
    assert difference.difference_text() == "+0.0 [+0.0, +0.0]"


def paired_interval(values: np.ndarray, others: np.ndarray) -> list[float]:
    """scipy's 95% interval of the mean difference of two models on the same examples."""
    interval = bootstrap(
        (values, others),
        lambda x, y, axis: x.mean(axis) - y.mean(axis),
        paired=True,
        method="percentile",
        rng=0,
    ).confidence_interval
    return [interval.low, interval.high]


def test_two_models_differ_by_scipys_paired_bootstrap():
    """On real runs, one example at a time, each model under its own rule."""
    texts = [random_ids(1, 3 + (5 * i) % 11, i)[0].tolist() for i in range(80)]
    models, answers, costs = [], [], []
    for seed, threshold in ((0, 0.9), (1, 0.97), (2, 0.97)):
        job = job_of(tiny_model(seed=seed, thres_name="entropy", exit_thres=threshold), texts)
        labels, real = np.array(job.features.labels), run_all(job, run_of(job))
        models.append((job, Recording(record_layers(job), labels)))
        answers.append(real["logits"].argmax(-1).numpy() == labels)
        costs.append(real["exit_layer"].numpy() / 4)
    lines = compare_two_models({"a": models[:1], "b": models[1:2]}, seed=0).splitlines()
    for name, (first, second) in (("acc", answers[:2]), ("computation cost", costs[:2])):
        cells = next(line.split("|")[2:5] for line in lines if line.startswith(f"| {name} |"))
        numbers = [[float(x) for x in re.findall(r"[-+]?\d\.\d+", cell)] for cell in cells]
        assert [x[0] for x in numbers] == pytest.approx(
            [first.mean(), second.mean(), second.mean() - first.mean()], abs=1e-4
        )
        assert numbers[2][1:] == pytest.approx(paired_interval(second, first), abs=0.02)
        assert ("**" in cells[2]) == (numbers[2][1] > 0 or numbers[2][2] < 0)
    text = compare_two_models({"a": models[:1], "b*": models[1:]}, seed=0)
    assert "| mean of 2 seeds, b* |" in text
    assert f" {np.mean(answers[1:]):.4f} [" in text


def test_methods_over_seeds_are_the_means_of_the_best_settings_at_a_cost():
    """By brute force over all settings; the second name is a model of half the FLOPs.

    The interval of the difference of two single models is scipy's, of the examples that report.
    """
    sweeps = [swept(2, "rte", ["entropy", "patience"], examples=200, seed=s)[0] for s in range(3)]
    # The same examples: the labels of the first, and answers that are right as often.
    labels = sweeps[0].labels
    sweeps = [
        dataclasses.replace(
            made,
            labels=labels,
            predictions=np.where(made.predictions == made.labels, labels, 1 - labels),
        )
        for made in sweeps
    ]
    parts = split(200, 0.5, seed=1)
    large = [SweptModel(made, 2e9) for made in sweeps[:2]]
    compared = compare_methods({"a*": large, "b": [SweptModel(sweeps[2], 1e9)]}, parts, seed=0)
    assert [method.name for method in compared.methods] == [
        "a*: entropy", "a*: patience", "b: entropy", "b: patience"
    ]  # fmt: skip

    def best(made: Sweep, rule: str, limit: float) -> tuple[np.ndarray, float]:
        """Which of the reporting examples are right, and their cost."""
        exits = made.exit_layer[made.of_rule(rule)]
        cost = made.cost(exits, parts.calibration)
        metric = made.main_metric(exits, parts.calibration)
        number = first_allowed(cost <= limit + 1e-9, -metric, cost)
        report = exits[number][parts.report]
        answers = made.predictions[report - 1, parts.report]
        return answers == labels[parts.report], report.mean() / 5

    for method, limit in product(compared.methods, (0.45, 0.8)):
        made, share = (sweeps[:2], 1) if method.name.startswith("a") else (sweeps[2:], 0.5)
        outcome = method.within(limit)
        if outcome is None:
            assert (method.name, limit) == ("a*: patience", 0.45)
            continue
        of_seeds = [best(one, method.rule, limit / share) for one in made]
        assert outcome.metric[0] == pytest.approx(np.mean([right for right, _ in of_seeds]))
        assert outcome.cost == pytest.approx(share * np.mean([cost for _, cost in of_seeds]))
    small = compared.methods[2]
    assert small.within(0.09) is None  # its first layer costs 0.1
    assert max(cost for _, cost, *_ in small.curve(10).T) <= 0.5
    both = {"a": large[:1], "b": [SweptModel(sweeps[2], 1e9)]}
    a, _, b, _ = compare_methods(both, parts, seed=0).methods
    difference = estimate(b.within(0.4).metric - a.within(0.4).metric)
    right_b, _ = best(sweeps[2], "entropy", 0.8)
    right_a, _ = best(sweeps[0], "entropy", 0.4)
    assert difference[1:] == pytest.approx(paired_interval(right_b, right_a), abs=0.03)
    text = compare_methods(both, parts, seed=0).as_markdown()
    assert "| cost ≤ 0.40 |" in text
    assert f" {difference.difference_text()} |" in text


def test_a_choice_that_a_random_mixture_matches_is_called_so():
    made, _ = swept(2, "rte", rules=["entropy"], examples=200)
    parts = split(200, 0.5, seed=0)
    layer = dataclasses.replace(made, exit_layer=made.truncations[1:2], settings=[{}])
    text = held_out_report(layer, 0, parts, seed=0)
    assert "\nNot shown to be better than random exits at layer " in text
    oracle = dataclasses.replace(layer, exit_layer=made.oracle[-1:])
    text = held_out_report(oracle, 0, parts, seed=0)
    assert "\nBetter than" in text
    assert text.endswith("as a share of the oracle's: 1.00 [1.00, 1.00]\n")


def test_a_choice_is_told_in_words_that_agree_with_its_table():
    made, _ = swept(2, "rte", rules=["entropy"], examples=200)
    parts = split(200, 0.5, seed=0)
    layer = dataclasses.replace(made, exit_layer=made.truncations[1:2], settings=[{}])
    text = held_out_report(layer, 0, parts, seed=0, max_drop=0.01)
    table, words, _ = text.split("\n\n", 2)
    row = next(line for line in table.splitlines() if "drop from full depth" in line)
    _, _, _, value, bounds, _ = (cell.strip() for cell in row.split("|"))
    assert float(value) > 0.01  # of layer 2: a loss
    assert f"by {value}" in words
    assert f"may lose up to {bounds.split()[-1]}" in words
    assert f"saves {1 - 2 / made.num_layers:.0%} of the layers" in words
    assert "The limit of 0.01 is enforced on the calibration part alone" in words
    same = dataclasses.replace(made, exit_layer=made.truncations[-1:], settings=[{}])
    text = held_out_report(same, 0, parts, seed=0, max_drop=0.01)
    assert "saves 0% of the layers and leaves acc as it is" in text
    assert "which rules no loss out for new texts" in text
    assert "may lose" not in text
    assert "The limit" not in text


# Figures: lines that are true. tests/robustness opens the explorer in a browser.


def test_a_curve_never_goes_back():
    made, _ = swept(2, "rte", examples=120)
    fronts = frontier_set(made, split(120, 0.5, 1), 50, seed=0)
    for name in SWEPT_RULES:
        cost, metric, low, high = curve_of(fronts, name)
        assert (np.diff(cost) >= 0).all()
        assert (np.diff(metric) != 0).all()  # no idle ink
        assert ((low <= metric) & (metric <= high)).all()


def test_the_explorers_texts_and_title_are_escaped():
    page = explorer_page(*explored("rte"), PageInfo("<i>" + EVIL))
    assert "default-src 'none'" in page  # the network is asked nothing
    assert page.count("</script>") == 2  # the data's and the program's own
    assert "<title>&lt;i&gt;&lt;/script&gt;" in page
