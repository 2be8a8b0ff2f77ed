"""Which exit settings are best at their computation cost."""

import numpy as np


def frontier(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """Find the settings that no other beats by being as good on both and better on one of them.

    cost, metric: (settings,). Returns their numbers by rising cost; of equal ones the first.
    """
    numbers = np.arange(len(cost))
    order = np.lexsort((numbers, -metric, cost))  # NumPy's last key counts first
    ordered_metric = metric[order]
    best_before = np.maximum.accumulate(np.r_[-np.inf, ordered_metric[:-1]])
    return order[ordered_metric > best_before]


def concave_hull(cost: np.ndarray, metric: np.ndarray) -> np.ndarray:
    """Find the settings of the frontier that no mixture of two others beats, by rising cost.

    A mixture gives each example one of two settings at random, so its cost and metric lie on the
    straight line between theirs.

    cost, metric: (settings,). Returns the settings' numbers.
    """
    hull: list[int] = []
    for newest in frontier(cost, metric):
        while len(hull) > 1:
            first, last = hull[-2:]
            # Does the last one lie above the line from the first to the newest?
            rise_to_last = metric[last] - metric[first]
            rise_to_newest = metric[newest] - metric[first]
            cost_to_last = cost[last] - cost[first]
            cost_to_newest = cost[newest] - cost[first]
            if rise_to_last * cost_to_newest > rise_to_newest * cost_to_last:
                break
            hull.pop()
        hull.append(int(newest))
    return np.array(hull)
