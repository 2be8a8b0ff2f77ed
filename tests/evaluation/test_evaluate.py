"""What run_glue.py's evaluation warns of and refuses before it runs."""

import logging

import pytest
import torch

from evaluation import evaluate
from modeling.cpu_packing import EMULATED


@pytest.mark.parametrize(
    ("name", "is_emulated", "is_file", "words"),
    [
        ("bf16", True, False, EMULATED),
        ("fp32", True, False, ""),
        ("bf16", False, False, ""),
        ("fp32", False, False, "--dtype auto would use bf16"),
        ("fp32", False, True, ""),  # a file keeps its own type
    ],
)
def test_a_slower_type_is_said(name, is_emulated, is_file, words, monkeypatch, caplog):
    types = {"bf16": torch.bfloat16, "fp32": torch.float32}
    types["auto"] = types["fp32" if is_emulated else "bf16"]
    monkeypatch.setattr(evaluate, "dtype_of", lambda name, device: types[name])
    monkeypatch.setattr(
        evaluate, "is_emulated", lambda dtype, device: is_emulated and dtype == torch.bfloat16
    )
    with caplog.at_level(logging.INFO):
        evaluate.warn_of_type(name, torch.device("cpu"), is_file)
    assert (words in caplog.text) if words else (caplog.text == "")


def test_a_key_that_the_rule_does_not_read_is_said(trained, glue, caplog):
    keys = ("--set", "thres_name=entropy", "exit_thres=0.5", "margin=0.2", "exit_calibration=[]")
    glue(trained, "--do_eval", *keys).done()
    assert "margin has no effect: the exit rule entropy does not read it" in caplog.text
    assert caplog.text.count("has no effect") == 1  # every rule reads recalibrated answers
