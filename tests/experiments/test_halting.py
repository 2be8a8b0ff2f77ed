"""What a network has learnt of halting."""

import numpy as np
import pytest

from experiments.comparison.halting import (
    ONE_ANSWER,
    UNMOVED,
    expected_depths,
    failure,
    halts_as_prior,
)
from experiments.comparison.recordings import config_of, path_of


def test_depths_of_the_prior_and_of_others():
    config = config_of(path_of("SST-2", "pondernet", 42))
    halts = np.array([[0.3, 0.3, 0.3, 0.3, 0.3, 1.0]] * 2, np.float32).T
    assert expected_depths(halts) == pytest.approx([(1 - 0.7**6) / 0.3] * 2)
    assert halts_as_prior(halts, config)
    halts[0] = [0.5, 0.1]
    after_first = (1 - 0.7**5) / 0.3
    assert expected_depths(halts) == pytest.approx([1 + 0.5 * after_first, 1 + 0.9 * after_first])
    assert not halts_as_prior(halts, config)


def test_what_a_failed_training_is():
    labels = np.array([1, 1, 1, 0] * 100)
    good, constant = np.ones((1, 400)), (labels == 1)[None].astype(float)
    assert failure(good, labels, unmoved=False) == ""
    assert failure(constant, labels, unmoved=False) == ONE_ANSWER
    assert failure(good, labels, unmoved=True) == UNMOVED
    values = np.linspace(0, 5, 400)
    assert failure(np.full((2, 400), -0.01), values, unmoved=False)
    assert not failure(np.full((2, 400), 0.3), values, unmoved=False)
