"""The comparison's arithmetic, against tables worked by hand and against simulated truths."""

import numpy as np
import pytest

from exit_lab.choice import Parts
from experiments.comparison.analysis import (
    Answers,
    Outcomes,
    at,
    at_budgets,
    best,
    cascade,
    cost_to_reach,
    depths_of,
    difference,
    exits_of,
    failure,
    halves,
    oracle,
    outcomes,
    path_of,
    resampled,
    seed_factor,
    simultaneous,
)

# Two layers, four examples, two classes; the logits of class 1, of class 0 they are 0.
#           sure and right, unsure and wrong, sure and wrong, unsure and right
FIRST, SECOND = (4.0, -0.5, -4.0, 0.5), (4.0, 3.0, 3.0, -3.0)
LABELS = np.ones(4)
EVERYBODY = np.arange(4)
BOTH = Parts(EVERYBODY, EVERYBODY)


@pytest.fixture
def answers() -> Answers:
    margins = np.array([FIRST, SECOND], dtype=np.float32)
    logits = np.stack([np.zeros_like(margins), margins], -1)
    return Answers(logits, LABELS, np.array([[0.5] * 4, [1.0] * 4]))


def test_values_score_the_share_of_the_variance_that_they_explain():
    labels = np.array([1.0, 3.0])  # variance 1
    answers = Answers(np.array([[[1.0], [3.0]], [[2.0], [2.0]]]), labels, np.ones((2, 2)))
    assert answers.scores.mean(1).tolist() == [1, 0]


def test_halting_ends_where_the_cdf_passes_its_threshold(answers):
    halting = answers._replace(halts=np.array([[0.1, 0.2, 0.6, 0.9], [1.0] * 4], np.float32))
    exits = exits_of(halting, "halting", EVERYBODY)
    leave_first = {tuple(np.flatnonzero(row == 0)) for row in exits}
    assert leave_first == {(), (3,), (2, 3), (1, 2, 3), (0, 1, 2, 3)}


def test_a_learnt_exit_trusts_what_was_right_elsewhere(answers):
    """There small margins were right and large ones wrong, so the unsure leave first."""
    margins = np.array([[4.0, 0.5] * 10] * 2, dtype=np.float32)
    labels = np.array([0.0, 1.0] * 10)
    elsewhere = Answers(np.stack([0 * margins, margins], -1), labels, np.ones((2, 20)))
    exits = exits_of(answers._replace(others=elsewhere), "learnt", EVERYBODY)
    leave_first = {tuple(np.flatnonzero(row == 0)) for row in exits}
    assert leave_first == {(), (1, 3), (0, 1, 2, 3)}


def test_depths_of_the_prior_and_of_others():
    prior = np.array([[0.3, 0.3, 0.3, 0.3, 0.3, 1.0]] * 2, np.float32).T
    depths, unmoved = depths_of(prior, path_of("SST-2", "pondernet", 42))
    assert depths == pytest.approx([(1 - 0.7**6) / 0.3] * 2)
    assert unmoved
    prior[0] = [0.5, 0.1]
    depths, unmoved = depths_of(prior, path_of("SST-2", "pondernet", 42))
    rest = (1 - 0.7**5) / 0.3
    assert depths == pytest.approx([1 + 0.5 * rest, 1 + 0.9 * rest])
    assert not unmoved


def test_what_a_failed_training_is():
    labels = np.array([1, 1, 1, 0] * 100)
    good, constant = np.ones((1, 400)), (labels == 1)[None].astype(float)
    assert failure(good, labels, unmoved=False) == ""
    assert failure(constant, labels, unmoved=False) == "no better than one answer for all"
    assert failure(good, labels, unmoved=True) == "depth as at the start"
    values = np.linspace(0, 5, 400)
    assert failure(np.full((2, 400), -0.01), values, unmoved=False)
    assert not failure(np.full((2, 400), 0.3), values, unmoved=False)


def test_a_coin_has_every_cost_between_two_layers(answers):
    score, cost = at(best(outcomes(answers, "coin", EVERYBODY), BOTH), 0.75)
    assert cost == pytest.approx([0.75] * 4)
    assert score == pytest.approx([1, 0.5, 0.5, 0.5])  # half the first, half the second


def test_a_budget_is_met_on_the_half_that_reports_and_what_is_unspent_buys_nothing():
    """One setting costs 0.2 to 0.6 and scores 0, another 1 for everybody and scores 1."""
    cost = np.array([[0.2, 0.2, 0.6, 0.6], [1.0] * 4])
    found = Outcomes(np.array([[0.0] * 4, [1.0] * 4]), cost)
    front = best(found, Parts(np.array([0, 1]), np.array([2, 3])))
    score, spent = at(front, 0.8)  # half of 0.6 and half of 1, not what the other half would mix
    assert (score.tolist(), spent.tolist()) == (pytest.approx([0.5] * 2), pytest.approx([0.8] * 2))
    assert [x.mean() for x in at(front, 2.0)] == [1, 1]
    single = best(found, BOTH, mixes=False)
    assert [x.mean() for x in at(single, 0.8)] == pytest.approx([0, 0.4])


def test_a_cascade_pays_both_networks_where_the_first_is_unsure(answers):
    small, large = (
        Answers(answers.logits[[k]], LABELS, np.full((1, 4), cost))
        for k, cost in enumerate((0.5, 1.0))
    )
    found = cascade([small, large], EVERYBODY)
    points = {tuple(map(tuple, x)) for x in zip(found.score, found.cost, strict=True)}
    assert ((1, 0, 0, 1), (0.5,) * 4) in points  # the small one alone
    assert ((1, 1, 1, 0), (1.0,) * 4) in points  # the large one alone, and not the small one first
    assert ((1, 1, 0, 0), (0.5, 1.5, 0.5, 1.5)) in points


def test_the_cost_of_a_bar_and_its_interval():
    """Two seeds whose score is the cost, plus or minus 0.1: the bar is met at 0.1 more or less."""
    parts = halves(40)
    costs = np.array([[0.0] * 40, [1.0] * 40])
    method = [
        [best(Outcomes(costs + shift, costs), part) for part in parts] for shift in (-0.1, 0.1)
    ]
    grid = np.arange(0, 1.01, 0.01)
    assert at_budgets(method, [0.3])[1].mean(-1)[0] == pytest.approx([0.2, 0.4])
    found = cost_to_reach(method, np.full(1001, 0.5), grid)
    reach = 0.1 * np.sqrt(2)  # both draws the one seed, spread by √(n/(n−1))
    assert found == pytest.approx([0.5, 0.5 - reach, 0.5 + reach], abs=0.011)
    assert cost_to_reach(method, np.full(1001, 2.0), grid).text() == "inf [inf, inf]"


def test_the_oracle_stops_at_the_first_right_layer_as_far_as_the_cost_allows(answers):
    # Layer 1 is right for two; each of the other two becomes right for half a cost more.
    assert oracle(answers, [0.5, 0.625, 0.75, 1.0]) == pytest.approx([0.5, 0.75, 1.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("between_seeds", [0.0, 0.02])
def test_simultaneous_intervals_cover_all_their_truths_nearly_always(between_seeds):
    """Ten gains of 1 point over 400 examples and 3 seeds: all inside in about 95% of studies."""
    rng, covered, studies = np.random.default_rng(0), 0, 120
    for _ in range(studies):
        hardness = rng.normal(0, 0.3, (1, 1, 400))
        seeds = rng.normal(0, between_seeds, (10, 3, 1))
        tables = 0.01 + hardness + seeds + rng.normal(0, 0.3, (10, 3, 400))
        cells = simultaneous([[table] for table in tables])
        covered += all(cell.low <= 0.01 <= cell.high for cell in cells)
    assert covered / studies >= 0.88


def test_few_seeds_that_differ_widen_an_interval():
    alike = np.random.default_rng(0).normal(size=(3, 500))
    assert seed_factor([alike]) == pytest.approx(1.2, abs=0.2)
    differ = alike + np.array([[-1.0], [0.0], [1.0]])
    assert seed_factor([differ]) > 2
    many = np.random.default_rng(1).normal(size=(5, 500))
    assert seed_factor([alike]) <= seed_factor(difference(differ, many)) < seed_factor([differ])


def test_networks_with_other_numbers_of_seeds_are_resampled_apart():
    tables = [np.array([[x] * 50 for x in seeds]) for seeds in ((0.0, 1.0, 2.0), (5.0, 9.0))]
    (found,) = simultaneous([difference(*tables)])
    assert found.value == pytest.approx(1 - 7)
    both = np.var([0, 1, 2], ddof=1) / 3 + np.var([5, 9], ddof=1) / 2
    assert sum(resampled(t)[1:].var() for t in tables) == pytest.approx(both, rel=0.1)
    assert found.high - found.value > 1.96 * np.sqrt(both)
