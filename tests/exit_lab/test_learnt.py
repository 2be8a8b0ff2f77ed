"""The fit of the rule `learnt`: scipy finds the same weights from the formula."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit, softmax

from exit_lab.learnt import fit_learnt, fit_weights
from tests.exit_lab.builders import config_of, made_recording


def inputs_and_shares(logits: np.ndarray, labels: np.ndarray, layer: int) -> tuple:
    """What a layer's regression reads, and how right each answer is; plainly, by example."""
    inputs, shares = [], []
    for row, label in enumerate(labels):
        now = logits[layer, row]
        if len(now) == 1:
            before = logits[layer - 1, row, 0] if layer else 0.5
            inputs.append([now[0], now[0] ** 2, abs(now[0] - before)])
            shares.append(1 - np.tanh(abs(now[0] - label)))
        else:
            top = now.argmax()
            before = softmax(logits[layer - 1, row])[top] if layer else 0.5
            inputs.append([logit(softmax(now)[top]), logit(before)])
            shares.append(float(top == label))
    return np.array(inputs), np.array(shares)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_each_layers_weights_are_the_most_likely_ones(classes):
    """By a penalised likelihood, Σ −log p + |w|²/2, of the examples that choose alone."""
    recording, rows = made_recording(classes, examples=120, seed=3), np.arange(0, 120, 2)
    fitted = fit_weights(config_of(recording), recording, rows)
    logits = recording.tensors["all_logits"].double().numpy()[:, rows]
    for layer, weights in enumerate(fitted):
        inputs, shares = inputs_and_shares(logits, recording.labels[rows], layer)

        def loss(w, inputs=inputs, shares=shares):
            p = expit(w[0] + inputs @ w[1:])
            return -(shares * np.log(p) + (1 - shares) * np.log(1 - p)).sum() + w[1:] @ w[1:] / 2

        best = minimize(loss, np.zeros(1 + inputs.shape[1]))
        assert weights == pytest.approx(best.x, abs=2e-3)


def test_the_fitted_configuration_is_another_one():
    recording, rows = made_recording(2), np.arange(20)
    config = config_of(recording)
    before = config.to_dict()
    fitted = fit_learnt(config, recording, rows)
    assert config.to_dict() == before
    assert fitted.learnt_weights == fit_weights(config, recording, rows)
    assert fitted.to_dict() == before | {"learnt_weights": fitted.learnt_weights}
