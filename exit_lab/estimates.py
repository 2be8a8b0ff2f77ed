"""Values with 95% intervals, from a bootstrap.

A metric is an array (…, 1 + resamples): its value first, then that in each resample.
"""

from typing import NamedTuple

import numpy as np

from evaluation.exit_metrics import interval
from exit_lab.choice import TOLERANCE


class Estimate(NamedTuple):
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def text(self, scale: float = 1, number_format: str = ".2f") -> str:
        """Write "0.45 [0.40, 0.50]", every number times `scale`."""
        value, low, high = (format(scale * number, number_format) for number in self)
        return f"{value} [{low}, {high}]"

    def difference_text(self, scale: float = 100, number_format: str = "+.1f") -> str:
        """Write a difference, by default in percentage points: "+1.2 [-0.3, +2.7]".

        It is bold where the interval leaves out 0 by more than rounding.
        """
        text = self.text(scale, number_format)
        is_clear = self.low > TOLERANCE or self.high < -TOLERANCE
        return f"**{text}**" if is_clear else text


def estimate(metric: np.ndarray) -> Estimate:
    """Return the value of a metric, (1 + resamples,), with its 95% percentile interval."""
    low, high = interval(metric)
    return Estimate(float(metric[0]), float(low), float(high))


def widen_shares(shares: np.ndarray) -> np.ndarray:
    """Move the shares of n models further from 1/n, by a factor of √(n/(n−1)).

    Drawn plainly, n models differ from their own mean by (n−1)/n of the variance that other models
    would have (Davison and Hinkley, 1997, section 2.3): a third too little for three seeds.

    shares: each model's share in each resample, (resamples, models).
    """
    count = shares.shape[1]
    factor = np.sqrt(count / max(1, count - 1))
    return 1 / count + factor * (shares - 1 / count)
