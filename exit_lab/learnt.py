"""Fitting the exit rule `learnt` to the examples that choose."""

import copy

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from evaluation.sweep import Recording, exit_predictions
from exit_lab.settings import LEARNT
from modeling.configuration import EarlyExitConfig
from modeling.exits.rules import Learnt
from modeling.rules import EachLabel, LayerOutput, Recalibrated, Size, layer_answers


def fit_learnt(config: EarlyExitConfig, recording: Recording, rows: np.ndarray) -> EarlyExitConfig:
    """Return a copy of the configuration, with weights of the rule `learnt` fitted to some rows.

    See `fit_weights`.
    """
    fitted = copy.deepcopy(config)
    fitted.learnt_weights = fit_weights(config, recording, rows)
    return fitted


def fit_weights(
    config: EarlyExitConfig, recording: Recording, rows: np.ndarray
) -> list[list[float]]:
    """Fit weights of the rule `learnt`, a row for each layer, to the answers to some examples.

    A layer's logistic regression predicts whether its class is right. A value is right to the share
    1 − tanh |error| (BERxiT, Xin et al., 2021), and wrong for the rest. For an example with several
    labels, each label is an example of two classes.

    rows: numbers of the examples.
    """
    rule = config.exit_rule(**{config.rule_key: LEARNT})
    logits = layer_answers(rule, recording.tensors)[:, rows]  # (layers, examples, classes)
    predictions = exit_predictions(config, recording)[:, rows]  # (layers, examples)
    labels = recording.labels[rows]
    if isinstance(rule, Recalibrated):
        rule = rule.rule  # the logits are recalibrated by now
    if isinstance(rule, EachLabel):
        logits = torch.stack([rule.of_labels(LayerOutput(answers)).logits for answers in logits])
        predictions = predictions.reshape(len(logits), -1)
        labels = labels.ravel()
        rule = rule.rule
    if not isinstance(rule, Learnt):
        raise TypeError(f"the rule {LEARNT} of this configuration has no weights")
    layers, examples, classes = logits.shape
    # What the rule remembers of the layer before; its own start for the first layer.
    scores_before = rule.start(Size((), examples, classes, layers), {})
    weights = {}
    for exit_layer in config.exits:
        answers, predicted = logits[exit_layer - 1], predictions[exit_layer - 1]
        scores = rule.scores(answers)
        inputs = rule.read(scores, scores_before).numpy()  # (examples, inputs of the regression)
        rightness = share_right(predicted, labels, is_value=classes == 1)
        weights[exit_layer] = fit_layer(inputs, rightness)
        scores_before = scores
    return [weights[exit_layer] for exit_layer in config.newest_exits()]


def share_right(predicted: np.ndarray, labels: np.ndarray, is_value: bool) -> np.ndarray:
    """Return how right each answer is, in [0, 1]: (examples,)."""
    if is_value:
        return 1 - np.tanh(np.abs(predicted - labels))
    return (predicted == labels).astype(float)


def fit_layer(inputs: np.ndarray, rightness: np.ndarray) -> list[float]:
    """Fit one layer's logistic regression: its bias, then a slope for each input.

    inputs: (examples, inputs); rightness: (examples,), in [0, 1].
    """
    examples = len(rightness)
    # scikit-learn takes no shares as labels: each example counts once as right and once as wrong,
    # with its shares as weights.
    regression = LogisticRegression(max_iter=1000).fit(
        np.tile(inputs, (2, 1)),
        np.repeat([True, False], examples),
        sample_weight=np.concatenate([rightness, 1 - rightness]),
    )
    weights = [*regression.intercept_, *regression.coef_[0]]
    return [round(float(weight), 6) for weight in weights]
