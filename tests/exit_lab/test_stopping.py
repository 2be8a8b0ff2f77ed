"""The fit of optimal_stopping: scipy's optima, an exhaustive search, a problem solved by hand."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from elbert import ElbertConfig
from evaluation.sweep import Recording, Sweep, make_grids, scan_settings, sweep
from exit_lab.lab import cross_fitted
from exit_lab.stopping import PENALTY, fit_calibration, fit_stopping, stopping_thresholds
from glue.tasks import TASKS
from modeling.keys import PRICES
from modeling.rules import layer_answers
from tests.exit_lab.builders import config_of, made_recording


def calibration_loss(maps: np.ndarray, logits: np.ndarray, labels: np.ndarray, start) -> float:
    """What a layer's recalibration minimises, plainly."""
    classes = logits.shape[-1]
    table = maps.reshape(start.shape)
    if classes == 1:
        answers = table[0, 0] + logits @ table[0, 1:2]
        loss = ((answers - labels) ** 2).sum() / (2 * labels.var())
    elif labels.ndim == 2:
        answers = table[:, 0] + logits * table[:, 1]
        loss = -np.log(expit(np.where(labels > 0, answers, -answers))).sum()
    else:
        inputs = log_softmax(logits, -1) if classes > 2 else logits - logits.mean(-1, keepdims=True)
        answers = table[:, 0] + inputs @ table[:, 1:].T
        loss = -log_softmax(answers, -1)[np.arange(len(labels)), labels].sum()
    strength = np.full(start.shape, PENALTY)
    strength[:, 0] = 1e-3
    penalised = table.copy()
    if classes == 1:  # the bias of values in standard deviations from the labels' mean
        shift = labels.mean() * (1 - table[0, 1])
        penalised[0, 0] = (table[0, 0] - shift) / labels.std()
    return loss + (strength * (penalised - start) ** 2).sum() / 2


@pytest.mark.parametrize(("classes", "several"), [(1, False), (2, False), (3, False), (3, True)])
def test_a_recalibration_is_the_penalised_optimum(classes, several):
    """At the first layer, by another optimiser and the formula; of the rows that choose alone."""
    recording, rows = made_recording(classes, examples=120, seed=3), np.arange(0, 120, 2)
    shape = {"num_labels": classes, "num_hidden_layers": 5}
    if several:
        flags = np.random.default_rng(0).integers(0, 2, (120, classes))
        recording = Recording(recording.tensors, flags)
        shape["problem_type"] = "multi_label_classification"
    fitted = np.array(fit_calibration(ElbertConfig(**shape), recording, rows)[0])
    start = np.c_[np.zeros(classes), np.eye(classes)]
    if several:
        start = np.tile([0.0, 1.0], (classes, 1))
        table = fitted.reshape(classes, 1 + classes)
        fitted = np.c_[table[:, 0], np.diag(table[:, 1:])].ravel()
    elif classes == 1:
        assert fitted[2] == 0  # nothing stands before the first layer
        fitted = fitted[:2]
    logits = recording.tensors["all_logits"][0, rows].double().numpy()
    arguments = (logits, recording.labels[rows], start)
    best = minimize(calibration_loss, start.ravel(), args=arguments, method="BFGS")
    assert calibration_loss(fitted, *arguments) == pytest.approx(best.fun, rel=1e-6)
    assert best.fun < calibration_loss(start.ravel(), *arguments)


def test_a_recalibration_of_values_is_the_same_in_every_unit():
    """Values and labels in a unit that is 400 times smaller, from another zero."""
    recording, rows = made_recording(1, examples=60, seed=3), np.arange(0, 60, 2)
    logits = recording.tensors["all_logits"].double()
    units = Recording({"all_logits": logits * 400 + 1200}, recording.labels * 400.0 + 1200)
    config = ElbertConfig(num_labels=1, num_hidden_layers=5)
    before, after = (np.array(fit_calibration(config, it, rows)) for it in (recording, units))
    shifts = 1200 * (1 - before[:, 1:].sum(-1))
    np.testing.assert_allclose(after[:, 1:], before[:, 1:], atol=1e-3)
    np.testing.assert_allclose(after[:, 0], 400 * before[:, 0] + shifts, atol=1)


@pytest.mark.parametrize(("classes", "several"), [(1, False), (2, False), (3, False), (3, True)])
def test_a_kept_head_answers_as_before(classes, several):
    """Its probabilities, or its value; the exits below are recalibrated."""
    recording, rows = made_recording(classes, examples=120, seed=3), np.arange(0, 120, 2)
    shape = {"num_labels": classes, "num_hidden_layers": 5, "keep_head": True}
    if several:
        flags = np.random.default_rng(0).integers(0, 2, (120, classes))
        recording = Recording(recording.tensors, flags)
        shape["problem_type"] = "multi_label_classification"
    fitted = fit_stopping(ElbertConfig(**shape), recording, rows)
    rule = fitted.exit_rule(thres_name="optimal_stopping", exit_price=0)
    logits = recording.tensors["all_logits"].double()
    answers = layer_answers(rule, {"all_logits": logits})
    if classes > 1 and not several:
        logits, answers = logits.log_softmax(-1), answers.log_softmax(-1)
    torch.testing.assert_close(answers[-1], logits[-1], check_dtype=False)
    assert not torch.allclose(answers[0].double(), logits[0], atol=1e-3)


def test_many_classes_are_not_recalibrated():
    recording = made_recording(21)
    assert fit_calibration(config_of(recording), recording, np.arange(40)) == []


def test_stopping_pays_where_a_hand_worked_problem_says():
    """Two layers: where uncertain, the first is right half of the time, the second always.

    Going on gains 1/2 where uncertain, else nothing. It costs price/2.
    """
    uncertainties = np.array([[0.4] * 200 + [0.01] * 200, [0.01] * 400])
    is_right = np.array([[1.0, 0.0] * 100 + [1.0] * 200, [1.0] * 400])
    costs = np.array([0.5, 1.0])
    for price, exits in [(0.0, [False, False]), (0.2, [False, True]), (2.0, [True, True])]:
        (threshold,) = stopping_thresholds(is_right, uncertainties, price * costs, is_value=False)
        assert [bool(threshold > uncertainty) for uncertainty in (0.4, 0.01)] == exits, price


def test_no_thresholds_on_a_grid_are_clearly_better():
    """Right answers less the price of three layers, against all pairs of thresholds."""
    generator = np.random.default_rng(0)
    certainty = generator.uniform(0.5, 1, (3, 4000)).cumsum(0) / np.arange(1, 4)[:, None]
    uncertainties = 1 - certainty
    is_right = (generator.uniform(size=certainty.shape) < certainty).astype(float)
    is_right[2] = generator.uniform(size=4000) < 0.95
    costs = np.arange(1, 4) / 3
    grid = np.linspace(0, 0.5, 26)
    examples = np.arange(4000)
    for price in (0.05, 0.2, 0.4):

        def value(first: float, second: float, price: float = price) -> float:
            exits = np.where(uncertainties[0] < first, 0, np.where(uncertainties[1] < second, 1, 2))
            return (is_right[exits, examples] - price * costs[exits]).mean()

        fitted = stopping_thresholds(is_right, uncertainties, price * costs, is_value=False)
        best = max(value(first, second) for first in grid for second in grid)
        assert value(*fitted) > best - 0.01, price


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_a_fitted_rule_exits_earlier_at_a_higher_price(classes):
    """From full depth to the first layer; and the configuration given stays as it was."""
    recording = made_recording(classes, examples=300, seed=1)
    config, rows = config_of(recording), np.arange(150)
    before = config.to_dict()
    fitted = fit_stopping(config, recording, rows)
    assert config.to_dict() == before
    assert [row[0] for row in fitted.stopping_thresholds] == list(PRICES)
    settings = [{"exit_price": price} for price in PRICES]
    tensors = recording.tensors
    costs = scan_settings(fitted, "optimal_stopping", settings, tensors).mean(1)
    assert costs[-1] == 1
    assert costs[0] == 5  # computation is free
    assert (np.diff(costs) < 0.15).all()


def test_a_rule_without_a_fit_lets_nobody_exit():
    rule = ElbertConfig(thres_name="optimal_stopping").exit_rule()
    assert "not fitted" in rule.never_exits
    recorded = {"all_logits": torch.tensor([[[9.0, 0.0]]] * 3)}
    exits = scan_settings(
        ElbertConfig(num_hidden_layers=3), "optimal_stopping", [{"exit_price": 9.0}], recorded
    )
    assert exits.tolist() == [[3]]


@pytest.mark.slow
def test_an_example_has_no_part_in_the_fit_that_answers_it_when_a_setting_is_chosen():
    """Another label for it changes its answers under its own fit, but not where settings are
    chosen; examples that report are as under the fit to all."""
    recording = made_recording(3, examples=60)
    rows = np.arange(40)

    def chosen_on(labels: np.ndarray) -> tuple[Sweep, Sweep]:
        relabelled = Recording(recording.tensors, labels)

        def fit(some_rows: np.ndarray) -> Sweep:
            config = fit_stopping(config_of(recording), relabelled, some_rows)
            rules = make_grids(config, ["optimal_stopping"], {})
            return sweep(config, rules, relabelled, TASKS["mnli"])

        fitted = fit(rows)
        return fitted, cross_fitted(fitted, fit, rows, seed=0)

    labels = recording.labels
    fitted, honest = chosen_on(labels)
    assert np.array_equal(honest.exit_layer[:, 40:], fitted.exit_layer[:, 40:])
    changed = 0
    for row in range(0, 40, 8):
        other = labels.copy()
        other[row] = (labels[row] + 1) % 3
        refitted, still_honest = chosen_on(other)
        assert np.array_equal(still_honest.exit_layer[:, row], honest.exit_layer[:, row])
        assert np.array_equal(still_honest.predictions[:, row], honest.predictions[:, row])
        changed += not np.array_equal(refitted.exit_layer[:, row], fitted.exit_layer[:, row])
    assert changed > 0
