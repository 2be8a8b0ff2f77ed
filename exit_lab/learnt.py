"""Fitting the exit rule `learnt` to the examples that choose."""

from typing import cast

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from answers.sweep import Recording
from elbert.configuration import ElbertConfig
from elbert.exits.rules import Learnt
from elbert.rules import EachLabel, LayerOutput, Size


def fit_weights(config: ElbertConfig, recording: Recording, rows: np.ndarray) -> list:
    """Weights of the rule `learnt`, a row for each layer, from the answers to some examples.

    A layer's logistic regression predicts whether its class is right. A value is right to the share
    1 − tanh |error| (BERxiT, Xin et al., 2021), and wrong for the rest.
    """
    exit_rule = config.exit_rule(thres_name="learnt")
    logits, labels = recording.tensors["all_logits"][:, rows], recording.labels[rows]
    predictions = recording.predictions[:, rows]  # (layers, examples)
    rule = exit_rule
    if isinstance(exit_rule, EachLabel):  # it reads each label as an example of two classes
        logits = torch.stack([exit_rule.of_labels(LayerOutput(x)).logits for x in logits])
        predictions, labels = predictions.reshape(len(logits), -1), labels.ravel()
        rule = exit_rule.rule
    rule = cast(Learnt, rule)
    weights = []
    layers, examples, classes = logits.shape
    _, before = rule.start(Size((), examples, classes, layers), {})
    for answers, predicted in zip(logits, predictions, strict=True):
        scores = rule.scores(answers)
        inputs = rule.read(scores, before).numpy()  # (examples, inputs of the regression)
        right = 1 - np.tanh(np.abs(predicted - labels)) if classes == 1 else predicted == labels
        # Every example as one that is right and as one that is wrong, by its shares.
        fitted = LogisticRegression(max_iter=1000).fit(
            np.tile(inputs, (2, 1)),
            np.repeat([True, False], examples),
            sample_weight=np.concatenate([right, 1.0 - right]),
        )
        weights.append([round(float(x), 6) for x in (*fitted.intercept_, *fitted.coef_[0])])
        before = scores
    return weights
