"""Methods side by side: what is paired, and what an interval is of."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import norm

from exit_lab.choice import Parts
from exit_lab.compare import compare
from exit_lab.frontiers import FULL_DEPTH
from exit_lab.grids import RuleGrid
from exit_lab.methods import (
    LearnedDepths,
    MethodSweeps,
    curve,
    difference_table,
    differences,
    field_of,
)
from exit_lab.recording import Recording
from exit_lab.study_report import (
    LIMITS,
    REFERENCE,
    PartReport,
    layer_table,
    learned_depths,
    overview,
)
from exit_lab.sweep import TRUNCATION
from glue.tasks import TASKS
from tests.exit_lab.builders import swept

EXAMPLES = 400
HALVES = Parts(np.arange(200), np.arange(200, EXAMPLES))


def contender(models: int, right: float, seed: int = 0, cost: float = 0.3) -> MethodSweeps:
    """Models of learned depth that are right about a share of the examples, each about others."""
    rng, labels = np.random.default_rng(seed), np.arange(EXAMPLES) % 2
    sweeps = [
        LearnedDepths(
            TASKS["rte"],
            (RuleGrid("learned", {"model": (1.0,)}),),
            [{"thres_name": "only"}],
            np.ones((1, EXAMPLES), np.uint8),
            np.where(rng.random(EXAMPLES) < right, labels, 1 - labels)[None],
            labels,
            costs=np.full((1, EXAMPLES), cost),
        )
        for _ in range(models)
    ]
    return MethodSweeps(sweeps, "learned")


def test_a_learned_depth_costs_what_its_own_examples_cost():
    costs = np.linspace(0, 1, EXAMPLES)[None]
    model = dataclasses.replace(contender(1, 1.0).sweeps[0], costs=costs)
    front = field_of({"act": MethodSweeps([model], "learned")}, HALVES, 50, 1).frontiers["act"][0]
    assert front.cost == pytest.approx(costs[:, 200:].mean())
    assert (front.at(0.2), front.at(0.3)) == (None, 0)  # 0.25 on the half that chooses


def test_trainings_with_several_prices_of_an_update_are_one_contender():
    """The dearer model is right about all examples, the cheaper about those of one class."""
    labels = np.arange(EXAMPLES) % 2
    answers = {"act-tau0.1": np.zeros(EXAMPLES, int), "act-tau0.01": labels}
    recordings = {
        name: Recording(
            {
                "all_logits": torch.nn.functional.one_hot(torch.from_numpy(said), 2)[None].float(),
                "cost": torch.full((EXAMPLES,), cost),
            },
            labels,
        )
        for (name, said), cost in zip(answers.items(), (0.2, 0.6), strict=True)
    }
    both = MethodSweeps([learned_depths(recordings, TASKS["rte"])], "learned")
    front = field_of({"ACT": both}, HALVES, 50, 1).frontiers["ACT"][0]
    assert [front.at(limit) for limit in (0.1, 0.3, 0.7)] == [None, 0, 1]
    assert front.settings == ("act-tau0.1", "act-tau0.01")
    assert front.metric.tolist() == [0.5, 1.0]
    assert front.cost == pytest.approx([0.2, 0.6])


def test_a_paired_difference_has_the_standard_error_of_the_pairs():
    """With one seed: √(variance of the examples' differences / examples), as of any mean."""
    one, other = contender(1, 0.8, seed=1), contender(1, 0.6, seed=2)
    field = field_of({"one": one, "other": other}, HALVES, 4000, 3)
    found = differences(field, "one", (0.5,))["other"][0]
    right = [c.sweeps[0].predictions[0, 200:] == c.sweeps[0].labels[200:] for c in (one, other)]
    pairs = right[1].astype(float) - right[0]
    error = pairs.std() / np.sqrt(200)
    assert found.value == pytest.approx(pairs.mean())
    assert found.visible == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * error, rel=0.05)
    assert found.low == pytest.approx(pairs.mean() - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(pairs.mean() + 1.96 * error, abs=0.2 * error)


def test_a_contender_does_not_differ_from_itself():
    field = field_of({"one": contender(3, 0.7), "again": contender(3, 0.7)}, HALVES, 50, 1)
    found = differences(field, "one", (0.5,))["again"][0]
    assert found == (0, 0, 0, 0)
    assert not found.clear


def test_intervals_are_over_seeds_too():
    """Nothing but seeds differs, so the standard error is √(s²/n), with s² of n − 1."""
    rights = (1.0, 0.0, 0.0)
    mixed = MethodSweeps([model for r in rights for model in contender(1, r).sweeps], "learned")
    field = field_of({"right": contender(3, 1.0), "mixed": mixed}, HALVES, 20_000, 1)
    found = differences(field, "right", (0.5,))["mixed"][0]
    error = np.std(rights, ddof=1) / np.sqrt(3)
    assert found.value == pytest.approx(-2 / 3)
    assert found.visible == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) * error, rel=0.02)


def test_rules_truncation_and_learned_depths_share_a_table():
    sweeps = [swept(2, "rte", examples=EXAMPLES)[0]]
    labels = sweeps[0].labels
    learned = dataclasses.replace(contender(1, 0.5).sweeps[0], labels=labels)
    rows = {name: MethodSweeps(sweeps, name) for name in ("bias_1", TRUNCATION, FULL_DEPTH)}
    field = field_of({**rows, "ACT": MethodSweeps([learned], "learned")}, HALVES, 50, 1)
    cells = compare(field, (0.2, 0.8))
    assert cells["ACT"][0] is None
    right = learned.predictions[0, 200:] == labels[200:]
    assert cells["ACT"][1].metric.value == pytest.approx(right.mean())
    assert cells[FULL_DEPTH][0].cost == 1.0
    cost, metric = curve(field, TRUNCATION, np.arange(0.1, 1.01, 0.05))
    assert set(np.round(cost * 5)) <= {1, 2, 3, 4, 5}
    layers = np.round(cost * 5).astype(int) - 1
    expected = (sweeps[0].predictions[layers, 200:] == labels[200:]).mean(1)
    assert metric == pytest.approx(expected)


def test_the_table_of_differences_marks_what_is_clear():
    rows = {"reference": 0.6, "clear": 1.0, "unclear": 0.62}
    contenders = {name: contender(2, right, len(name)) for name, right in rows.items()}
    found = differences(field_of(contenders, HALVES, 200, 1), "reference", (0.2, 0.5))
    lines = difference_table(found, (0.2, 0.5)).splitlines()
    assert lines[0] == "| | cost ≤ 0.20 | cost ≤ 0.50 | visible from |"
    assert lines[2].startswith("| clear | – | **+")
    assert "**" not in lines[3]


def test_the_table_of_layers_says_what_each_answers_alone():
    """Layer 1 is right about one example of four, then three, layer 2 about all, then none."""
    labels = np.array([0, 1, 0, 1])
    answers = [[[1, 0, 1, 1], [0, 1, 0, 1]], [[0, 1, 0, 0], [1, 0, 1, 0]]]
    models = [
        dataclasses.replace(contender(1, 1.0).sweeps[0], predictions=np.array(own), labels=labels)
        for own in answers
    ]
    assert layer_table(models, (7, 8)).splitlines() == [
        "| seed | 1 | 2 |",
        "|---|---|---|",
        "| 7 | 25.0 | 100.0 |",
        "| 8 | 75.0 | 0.0 |",
        "| mean | 50.0 | 50.0 |",
    ]


def test_the_table_over_all_tasks_has_a_row_for_every_method_of_any_task():
    """A task without a method, or a method that is too dear at that cost, has a dash."""
    always, never = contender(2, 1.0), contender(2, 0.0)
    rows = (
        {REFERENCE: always, "ACT": never},
        {REFERENCE: always, "PALBERT": contender(2, 1.0, 0, 0.9)},
    )
    fields = [
        field_of({**own, TRUNCATION: always, FULL_DEPTH: always}, HALVES, 50, 1) for own in rows
    ]
    reports = [
        PartReport(name, "", compare(field, LIMITS), differences(field, REFERENCE, LIMITS))
        for name, field in zip(("one", "two"), fields, strict=True)
    ]
    lines = overview(reports).splitlines()
    assert lines[0] == "| | one | two |"
    table = {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}
    assert table[REFERENCE].count("100.0 [100.0, 100.0] at 0.30") == 2
    assert table["ACT"] == "| ACT | **-100.0 [-100.0, -100.0]** | – |"
    assert table["PALBERT"] == "| PALBERT | – | – |"
    assert "entropy (DeeBERT)" not in table
