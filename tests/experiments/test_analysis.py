"""The comparison's arithmetic, against tables worked by hand and against simulated truths."""

import numpy as np
import pytest

from exit_lab.choice import Parts
from experiments.comparison.analysis import (
    Answers,
    Outcomes,
    at,
    best,
    depths_of,
    exits_of,
    failure,
    gain,
    halves,
    oracle,
    outcomes,
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


def test_scores_of_every_layer(answers):
    assert answers.scores.tolist() == [[1, 0, 0, 1], [1, 1, 1, 0]]


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
    depths, unmoved = depths_of(prior)
    assert depths == pytest.approx([(1 - 0.7**6) / 0.3] * 2)
    assert unmoved
    prior[0] = [0.5, 0.1]
    depths, unmoved = depths_of(prior)
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
    score, cost, _ = at(best(outcomes(answers, "coin", EVERYBODY), BOTH), 0.75)
    assert cost == pytest.approx([0.75] * 4)
    assert score == pytest.approx([1, 0.5, 0.5, 0.5])  # half the first, half the second


def test_the_gain_is_over_the_coin_at_the_cost_that_was_had(answers):
    coin = best(outcomes(answers, "coin", EVERYBODY), BOTH)
    assert gain(coin, coin, 0.75) == pytest.approx([0] * 4)
    # Half leave at layer 1, one of them right; at layer 2 one of the others: a coin has 5/8.
    exits = np.array([[0, 1, 0, 1]])
    rule = Outcomes(answers.scores[exits, EVERYBODY], answers.cost[exits, EVERYBODY])
    gains = gain(best(rule, BOTH), coin, 0.75)
    assert gains.mean() == pytest.approx(2 / 4 - 5 / 8)


def test_the_oracle_stops_at_the_first_right_layer_as_far_as_the_cost_allows(answers):
    # Layer 1 is right for two; each of the other two becomes right for half a cost more.
    assert oracle(answers, [0.5, 0.625, 0.75, 1.0]) == pytest.approx([0.5, 0.75, 1.0, 1.0])


def test_each_half_chooses_once_and_reports_once():
    (first, second), (again, other) = halves(11)
    assert sorted([*first, *second]) == list(range(11))
    assert (first.tolist(), second.tolist()) == (other.tolist(), again.tolist())


@pytest.mark.slow
@pytest.mark.parametrize("between_seeds", [0.0, 0.02])
def test_simultaneous_intervals_cover_all_their_truths_nearly_always(between_seeds):
    """Ten gains of 1 point over 400 examples and 3 seeds: all inside in about 95% of studies."""
    rng, covered, studies = np.random.default_rng(0), 0, 120
    for _ in range(studies):
        hardness = rng.normal(0, 0.3, (1, 1, 400))
        seeds = rng.normal(0, between_seeds, (10, 3, 1))
        tables = 0.01 + hardness + seeds + rng.normal(0, 0.3, (10, 3, 400))
        cells = simultaneous(list(tables), draws=200)
        covered += all(cell.low <= 0.01 <= cell.high for cell in cells)
    assert covered / studies >= 0.88


def test_few_seeds_that_differ_widen_an_interval():
    alike = np.random.default_rng(0).normal(size=(3, 500))
    assert seed_factor(alike) == pytest.approx(1.2, abs=0.2)
    assert seed_factor(alike + np.array([[-1.0], [0.0], [1.0]])) > 2
