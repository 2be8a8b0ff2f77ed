"""Which examples the pictures show."""

import numpy as np

from exit_lab.pictures import telling_examples


def test_telling_examples_show_what_they_say():
    labels = np.array([1, 1, 1, 1, 1, 1])
    early = np.array([1, 1, 1, 0, 1, 0])
    full = np.array([1, 1, 1, 1, 0, 0])
    predictions = np.stack((early, early, early, full))
    exits = np.array([1, 2, 4, 1, 3, 3])
    found = {why: row for row, why in telling_examples(predictions, labels, exits, False)}
    assert found == {
        "exits early": 0,
        "exits midway": 1,
        "goes deepest": 2,
        "lost by exiting early": 3,
        "won by exiting early": 4,
        "wrong at both": 5,
    }
