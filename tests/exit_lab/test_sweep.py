"""What --grid may say; sweeps against single scans and the golden vectors; sweep.csv and the
frontier against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given

from elbert import ElbertConfig, UserError
from evaluation.frontier import concave_hull, frontier
from evaluation.sweep import make_grids
from exit_lab.tables import write_tables
from modeling.exits.rules import RULES
from modeling.rules import (
    ExitRule,
    LayerOutput,
    Number,
    Outcome,
    State,
    exit_scores,
    exits_by_window,
    normalised_entropy,
    scan,
)
from tests.exit_lab.builders import POINTS, swept
from tests.scripts.conftest import rows_of


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("exit_thres", "0:1:0.25", (0, 0.25, 0.5, 0.75, 1)),
        ("exit_thres", "0.1,0.5:0.7:0.1", (0.1, 0.5, 0.6, 0.7)),
        ("cnt_thres", "2:6:2", (2, 4, 6)),
    ],
)
def test_grid_texts(key, text, expected):
    assert ElbertConfig(num_hidden_layers=6).grid(key, text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("thres_name", "entropy", "grid thres_name=entropy"),
        ("exit_thres", "0.5:0.1", "empty range"),
        ("exit_thres", "a", "expected a number"),
        ("exit_thres", "0:1:1e-9", "too large a range"),
        ("exit_thres", "0.5,1.5", "exit_thres = 1.5: allowed is a number from 0 to 1"),
        ("cnt_thres", "0:3", "allowed is a whole number of at least 1"),
        ("cnt_thres", "1:7", "allowed is 1 to num_hidden_layers = 6"),
    ],
)
def test_bad_grids_say_what_is_allowed(key, text, message):
    with pytest.raises(UserError, match=message):
        ElbertConfig(num_hidden_layers=6).grid(key, text)


def test_a_grid_that_no_rule_reads_names_the_rules_that_do():
    readers = [name for name, (rule, _) in RULES.items() if "margin" in rule.reads]
    assert {"bias_1", "bias_2", "bias_3"} <= {*readers}
    words = (
        f"grid margin=0.1: entropy, patience read no margin; rules that do: {', '.join(readers)}"
    )
    with pytest.raises(UserError, match=words):
        make_grids(ElbertConfig(), ["entropy", "patience"], {"margin": "0.1"})


def test_the_window_that_ended_a_pass_is_told():
    """Of one example whose class-0 probability is 0.5, 0.7, 0.7, 0.7, 0.99 by layer."""
    logits = torch.tensor([0.5, 0.7, 0.7, 0.7, 0.99]).logit()
    logits = torch.stack((logits, torch.zeros(5)), -1)[:, None]
    tensors = {"all_logits": logits}

    def by_window(name: str, **keys) -> bool:
        rule = ElbertConfig(thres_name=name, **keys).exit_rule()
        return bool(exits_by_window(rule, tensors, scan(rule, tensors)))

    assert by_window("bias_1", exit_thres=0.1, cnt_thres=3, margin=0.0)
    assert not by_window("bias_1", exit_thres=0.1, cnt_thres=5, margin=0.0)  # layer 5, by entropy
    assert by_window("bias_1", exit_thres=0.0, cnt_thres=4, margin=0.0)  # at the last layer
    assert by_window("patience", cnt_thres=2)
    assert not by_window("entropy", exit_thres=0.5)


class Idle(ExitRule):
    """Exits at a low entropy; its key has no effect, as one that all rules read may have none."""

    margin: Number

    def step(self, seen: LayerOutput, state: State) -> Outcome:
        return state, normalised_entropy(exit_scores(seen.logits)) < 0.5


def test_settings_of_a_key_without_effect_have_the_same_exits(monkeypatch):
    monkeypatch.setitem(RULES, "idle", (Idle, Idle))
    made, _ = swept(2, "rte", rules=["idle"])
    assert len(made.exit_layer) == len(made.settings) > 1
    assert len({*made.exit_layer[0]}) > 1
    assert (made.exit_layer == made.exit_layer[0]).all()


def test_both_files_end_with_the_baselines(tmp_path):
    made, _ = swept(3, "mnli")
    write_tables(made, tmp_path)
    *settings, first, second, third, fourth, last = rows_of(tmp_path / "sweep.csv")
    assert len(settings) == len(made.settings)
    assert not any(row["layer"] for row in settings)
    layers = [first, second, third, fourth, last]
    assert [(row["rule"], row["layer"]) for row in layers] == [("truncation", n) for n in "12345"]
    accuracies = (made.predictions == made.labels).mean(1).tolist()
    assert [float(row["acc"]) for row in layers] == pytest.approx(accuracies)
    assert [float(row["compute_ratio"]) for row in layers] == [0.2, 0.4, 0.6, 0.8, 1.0]
    best = [(row["rule"], row["layer"]) for row in rows_of(tmp_path / "frontier.csv")]
    metrics = [("truncation", n) for n in frontier(np.arange(5), np.array(accuracies))]
    metrics += [("random exits", n) for n in concave_hull(np.arange(5), np.array(accuracies))]
    shown = [one for one in best if one[0] in ("truncation", "random exits")]
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
