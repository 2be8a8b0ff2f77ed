"""Compiled inference against eager mode."""

import logging

import pytest
import torch

from modeling import compilation
from modeling.configuration import RULES

from .conftest import random_ids, tiny_model


def answers(model, batches):
    with torch.inference_mode():
        return [model(ids, mask) for ids, mask in batches]


@pytest.mark.slow
def test_compiled_answers_are_the_eager_ones_for_every_rule_and_length():
    model = tiny_model(pooler_input="cls-mean", exit_thres=0.5, cnt_thres=2)
    batches = [(random_ids(1, length, seed=length), None) for length in (2, 7, 19, 33)]
    mask = torch.tensor([[1] * 20, [1] * 11 + [0] * 9, [1] * 3 + [0] * 17])
    batches.append((random_ids(3, 20), mask))
    expected = {}
    for rule in RULES:
        model.config.thres_name = rule
        expected[rule] = answers(model, batches)
    assert compilation.compile_for_inference(model)
    for rule in RULES:
        model.config.thres_name = rule
        for got, eager in zip(answers(model, batches), expected[rule], strict=True):
            assert torch.equal(got.exit_layer, eager.exit_layer)
            torch.testing.assert_close(got.logits, eager.logits, atol=1e-5, rtol=0)


def test_without_a_compiler_there_is_one_warning_and_eager_mode(monkeypatch, caplog):
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
    model = tiny_model()
    with caplog.at_level(logging.WARNING):
        assert not compilation.compile_for_inference(model)
    assert len(caplog.records) == 1
    assert "compiler" in caplog.text
    assert answers(model, [(random_ids(1, 5), None)])[0].logits.shape == (1, 2)


def test_a_compiler_that_fails_leaves_the_model_in_eager_mode(monkeypatch, caplog):
    def broken(self, *args, **kwargs):
        self._compiled_call_impl = lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no luck"))

    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    model = tiny_model()
    expected = answers(model, [(random_ids(1, 5), None)])[0].logits
    with caplog.at_level(logging.WARNING):
        assert not compilation.compile_for_inference(model)
    assert "no luck" in caplog.text
    assert torch.equal(answers(model, [(random_ids(1, 5), None)])[0].logits, expected)


def test_auto_compiles_only_when_the_examples_repay_it(monkeypatch):
    model = tiny_model()
    assert not compilation.repays(model, examples=10**9, length=20)  # a CPU: packed is faster
    monkeypatch.setitem(compilation.SAVED_SHARE, "cpu", 0.4)
    assert compilation.repays(model, examples=10**9, length=20)
    assert not compilation.repays(model, examples=450, length=20)
