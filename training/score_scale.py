"""Regression in the labels' own units: prices in the thousands train as well as scores from 0 to 5.

A step of the optimiser moves a weight by about the learning rate, whatever the labels are: heads
would need thousands of steps to reach answers in the thousands. So a training step sees
standardised labels, and heads of this scale. At all other times the heads answer in units.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from evaluation.measures import labels_of
from glue.features import Features
from glue.tasks import Task


@dataclass(frozen=True)
class ScoreScale:
    """What 0 and 1 of a training step are in the labels' units: a label is centre + spread · value.

    Attributes:
        centre: a float32 number.
        spread: a power of 2: weights are multiplied and divided by it without rounding.
    """

    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def of(cls, task: Task, features: Features) -> "ScoreScale":
        """Return the mean, and the power of 2 nearest to the standard deviation, of the labels.

        GLUE's scores are trained as published, and classes have no scale.
        """
        if not task.is_regression or task.folder:
            return cls()
        scores = known_scores(features)
        if not len(scores):
            return cls()
        deviation = float(scores.std())
        spread = 2.0 ** round(math.log2(deviation)) if deviation > 0 else 1.0
        return cls(float(np.float32(scores.mean())), spread)

    def standardised(self, features: Features) -> Features:
        """Return the features with the labels, and a teacher's answers, of a training step."""
        if self == ScoreScale():
            return features
        inputs = dict(features.inputs)
        if "teacher_logits" in inputs:
            answers = inputs["teacher_logits"]
            values = (answers.astype(float) - self.centre) / self.spread
            inputs["teacher_logits"] = values.astype(answers.dtype)
        labels = (labels_of(features) - self.centre) / self.spread
        return replace(features, labels=labels, inputs=inputs)

    @contextmanager
    def of_training(self, model: nn.Module) -> Iterator[None]:
        """Let the heads of a regression answer standardised labels meanwhile."""
        if self == ScoreScale():
            yield
            return
        heads = score_heads(model).values()
        with torch.no_grad():
            for head in heads:
                head.weight.div_(self.spread)
                head.bias.sub_(self.centre).div_(self.spread)
        try:
            yield
        finally:
            with torch.no_grad():
                for head in heads:
                    head.weight.mul_(self.spread)
                    head.bias.mul_(self.spread).add_(self.centre)


def known_scores(features: Features) -> np.ndarray:
    """Return the scores of the examples that have one; examples for a teacher may have NaN."""
    scores = np.asarray(labels_of(features), float)
    return scores[~np.isnan(scores)]


def score_heads(model: nn.Module) -> dict[str, nn.Linear]:
    """Find the last linear map of every exit of a regression, by its name."""
    return {
        name: module
        for name, module in model.named_modules()
        if "classifier" in name and isinstance(module, nn.Linear) and module.out_features == 1
    }


def start_heads(
    model: nn.Module, new_names: Collection[str], features: Features, scale: ScoreScale
) -> None:
    """Let the new heads of a regression answer the mean score at first, and move on the scale.

    Steps from 0 towards the mean would saturate the pooler's tanh.

    Args:
        model: with heads that are new, and others.
        new_names: of the parameters that are newly initialised.
        features: of the training, in the labels' units.
        scale: of the training.
    """
    scores = known_scores(features)
    if not len(scores):
        return
    for name, head in score_heads(model).items():
        if f"{name}.bias" in new_names:
            with torch.no_grad():
                head.weight.mul_(scale.spread)
            nn.init.constant_(head.bias, scores.mean())
