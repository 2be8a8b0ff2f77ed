"""Answers small enough to work a table by hand."""

import numpy as np

from experiments.comparison.recordings import Answers

# Two layers, four examples, two classes: the logits of class 1; those of class 0 are 0.
#                     sure and right, unsure and wrong, sure and wrong, unsure and right
FIRST_LAYER = (4.0, -0.5, -4.0, 0.5)
SECOND_LAYER = (4.0, 3.0, 3.0, -3.0)
LABELS = np.ones(4)
ALL_ROWS = np.arange(4)


def two_layers() -> Answers:
    """Answer four examples; the first layer costs 0.5, both 1."""
    margins = np.array([FIRST_LAYER, SECOND_LAYER], dtype=np.float32)
    return Answers(
        logits=with_class_0(margins),
        labels=LABELS,
        cost=np.array([[0.5] * 4, [1.0] * 4]),
    )


def with_class_0(margins: np.ndarray) -> np.ndarray:
    """Return logits whose class 0 has 0, (..., 2), from those of class 1."""
    return np.stack([np.zeros_like(margins), margins], axis=-1)
