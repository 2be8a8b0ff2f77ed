"""Exits of the compared rules."""

from dataclasses import replace

import numpy as np

from evaluation.sweep import ORACLE
from experiments.comparison.recordings import Answers
from experiments.comparison.rules import all_settings, exits_of, rules_of
from tests.experiments.builders import ALL_ROWS, two_layers, with_class_0


def exit_first(exit_layer: np.ndarray) -> set[tuple[int, ...]]:
    """Collect, over all settings, which examples exit at the first layer."""
    return {tuple(np.flatnonzero(setting == 1)) for setting in exit_layer}


def test_settings_combine_all_values_and_the_last_key_varies_fastest():
    assert all_settings(cnt_thres=[1, 2], exit_thres=[0.5]) == [
        {"cnt_thres": 1, "exit_thres": 0.5},
        {"cnt_thres": 2, "exit_thres": 0.5},
    ]


def test_examples_exit_in_the_order_of_their_entropy():
    exit_layer = exits_of(two_layers(), ALL_ROWS, "entropy")
    assert exit_first(exit_layer) == {(), (0, 2), (0, 1, 2, 3)}


def test_halting_ends_where_the_cdf_passes_its_threshold():
    halts = np.array([[0.1, 0.2, 0.6, 0.9], [1.0] * 4], np.float32)
    exit_layer = exits_of(replace(two_layers(), halts=halts), ALL_ROWS, "halting")
    assert exit_first(exit_layer) == {(), (3,), (2, 3), (1, 2, 3), (0, 1, 2, 3)}


def test_a_learnt_exit_trusts_what_was_right_elsewhere():
    """There small margins were right and large ones wrong, so the unsure exit first."""
    margins = np.array([[4.0, 0.5] * 10] * 2, dtype=np.float32)
    labels = np.array([0.0, 1.0] * 10)
    phrases = Answers(with_class_0(margins), labels, np.ones((2, 20)))
    exit_layer = exits_of(replace(two_layers(), phrases=phrases), ALL_ROWS, "learnt")
    assert exit_first(exit_layer) == {(), (1, 3), (0, 1, 2, 3)}


def test_without_a_price_the_oracle_exits_at_the_first_layer_that_is_right():
    exit_layer = exits_of(two_layers(), ALL_ROWS, ORACLE)
    assert exit_layer[-1].tolist() == [1, 2, 2, 1]
    assert (exit_layer == 1).all(1).any()  # at a high price everyone exits at the first


def test_a_network_has_the_rules_whose_inputs_were_recorded():
    answers = two_layers()
    assert rules_of(answers) == ["random exits", "entropy", "windows", "patience"]
    complete = replace(answers, halts=np.ones((2, 4)), phrases=answers)
    assert {*rules_of(complete)} - {*rules_of(answers)} == {"learnt", "halting"}
    values = replace(answers, logits=answers.logits[..., :1])
    assert rules_of(values) == ["random exits", "patience"]
