"""Fitting the exit rule `learnt` to the examples that choose."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from answers.sweep import Recording
from elbert.configuration import ElbertConfig
from elbert.rules import LayerOutput, Size


def fit_weights(config: ElbertConfig, recording: Recording, rows: np.ndarray) -> list:
    """Weights of the rule `learnt`, a row for each layer, from the answers to some examples.

    A layer's logistic regression predicts whether its class is right. A value is right to the share
    1 − tanh |error| (BERxiT, Xin et al., 2021), and wrong for the rest.
    """
    rule, weights = config.exit_rule(thres_name="learnt"), []
    logits, labels = recording.tensors["all_logits"][:, rows], recording.labels[rows]
    predictions = recording.predictions[:, rows]  # (layers, examples)
    if config.is_multi_label:  # the rule reads each label as an example of two classes
        logits = torch.stack([rule.of_labels(LayerOutput(x)).logits for x in logits])
        predictions, labels, rule = predictions.reshape(len(logits), -1), labels.ravel(), rule.rule
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
