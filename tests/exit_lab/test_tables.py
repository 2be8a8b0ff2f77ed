"""sweep.csv, the frontier and the nearest setting, against brute force."""

import numpy as np
import pytest
from hypothesis import given

from exit_lab.tables import (
    concave_hull,
    frontier,
    sweep_table,
    write_tables,
)
from tests.exit_lab.builders import POINTS, SMALL, swept
from tests.scripts.conftest import rows_of


def test_a_table_row_is_what_the_setting_does():
    found, _ = swept(3, "mnli")
    rows = sweep_table(found)
    assert len(rows) == len(found.settings)
    for row, setting, exits in zip(rows, found.settings, found.exit_layer, strict=True):
        assert row["rule"] == setting["thres_name"]
        assert all(row[key] == setting.get(key, "") for key in SMALL)
        answers = found.predictions[exits.astype(int) - 1, np.arange(40)]
        assert row["acc"] == pytest.approx((answers == found.labels).mean())
        assert row["compute_ratio"] == pytest.approx(exits.mean() / 5)
        assert row["exit_sample_ratio"] == pytest.approx((exits < 5).mean())
        assert [row[f"exits_{n}"] for n in range(1, 6)] == np.bincount(exits, minlength=6)[
            1:
        ].tolist()


def test_both_files_end_with_the_baselines(tmp_path):
    found, _ = swept(3, "mnli")
    write_tables(found, tmp_path)
    *settings, first, second, third, fourth, last = rows_of(tmp_path / "sweep.csv")
    assert len(settings) == len(found.settings)
    assert not any(row["layer"] for row in settings)
    layers = [first, second, third, fourth, last]
    assert [(row["rule"], row["layer"]) for row in layers] == [("truncation", n) for n in "12345"]
    accuracies = (found.predictions == found.labels).mean(1).tolist()
    assert [float(row["acc"]) for row in layers] == pytest.approx(accuracies)
    assert [float(row["compute_ratio"]) for row in layers] == [0.2, 0.4, 0.6, 0.8, 1.0]
    best = [(row["rule"], row["layer"]) for row in rows_of(tmp_path / "frontier.csv")]
    metrics = [("truncation", n) for n in frontier(np.arange(5), np.array(accuracies))]
    metrics += [("coin", n) for n in concave_hull(np.arange(5), np.array(accuracies))]
    shown = [one for one in best if one[0] in ("truncation", "coin")]
    assert shown == [(name, str(n + 1)) for name, n in metrics]
    assert best[-1][0] == "oracle"


@given(POINTS)
def test_the_hull_is_what_no_mixture_beats(pairs):
    cost, metric = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    kept = concave_hull(cost, metric)
    line = np.interp(cost, cost[kept], metric[kept], left=np.nan)
    assert (metric <= line + 1e-9).all()
    slopes = np.diff(metric[kept]) / np.diff(cost[kept])
    assert (slopes > 0).all()
    assert (np.diff(slopes) < 0).all()


@given(POINTS)
def test_the_frontier_is_what_no_other_setting_beats(pairs):
    cost, metric = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    kept = frontier(cost, metric)

    def beaten(i: int) -> bool:
        as_good = (cost <= cost[i]) & (metric >= metric[i])
        return bool((as_good & ((cost < cost[i]) | (metric > metric[i]))).any())

    best = {pairs[i] for i in range(len(pairs)) if not beaten(i)}
    assert [pairs[i] for i in kept] == sorted(best)
