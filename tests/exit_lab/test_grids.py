"""What --grid may say."""

import pytest

from exit_lab.grids import make_grids, parse_values
from modeling import UserError
from modeling.elbert.rules import RULES
from tests.exit_lab.builders import ELBERT


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("exit_thres", "0:1:0.25", (0, 0.25, 0.5, 0.75, 1)),
        ("exit_thres", "0.9:0.1:-0.4", (0.9, 0.5, 0.1)),
        ("exit_thres", "0.1,0.5:0.7:0.1", (0.1, 0.5, 0.6, 0.7)),
        ("cnt_thres", "1:N", (1, 2, 3, 4, 5, 6)),
        ("cnt_thres", "2:6:2", (2, 4, 6)),
        ("margin", "0.05", (0.05,)),
    ],
)
def test_grid_texts(key, text, expected):
    assert parse_values(key, text, 6, ELBERT.table.exit_keys) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("exit_tres", "0:1", "did you mean exit_thres"),
        ("thres_name", "entropy", "grid thres_name=entropy"),
        ("exit_thres", "0.5:0.1", "empty range"),
        ("exit_thres", "0:1:-0.1", "empty range"),
        ("exit_thres", "0:1:0", "expected a number"),
        ("exit_thres", "a", "expected a number"),
        ("exit_thres", "", "expected a number"),
        ("exit_thres", "0:1:1e-9", "too large a range"),
        ("exit_thres", "0:inf", "expected a number"),
        ("exit_thres", "nan", "allowed is a number from 0 to 1"),
        ("exit_thres", "0.5,1.5", "exit_thres = 1.5: allowed is a number from 0 to 1"),
        ("cnt_thres", "0:3", "allowed is a whole number of at least 1"),
        ("cnt_thres", "1.5", "whole number"),
        ("cnt_thres", "1:7", "allowed is 1 to num_hidden_layers = 6"),
    ],
)
def test_bad_grids_say_what_is_allowed(key, text, message):
    with pytest.raises(UserError, match=message):
        parse_values(key, text, 6, ELBERT.table.exit_keys)


@pytest.mark.parametrize("reads", [("exit_thresh",), "exit_thres"])  # a slip; a comma forgotten
def test_a_new_rule_that_reads_no_such_key_is_named(monkeypatch, reads):
    odd = type("Odd", (RULES["entropy"].classes,), {"reads": reads})
    monkeypatch.setitem(RULES, "odd", RULES["entropy"]._replace(classes=odd))
    with pytest.raises(UserError, match=r"rule odd reads .*exit_thres"):
        make_grids(ELBERT, ["odd"], {}, 6, regression=False)
