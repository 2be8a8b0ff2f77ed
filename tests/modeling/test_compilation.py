"""Compiled and half-precision inference against float32 in eager mode."""

import logging

import pytest
import torch

from modeling import PonderAlbertClassifier, PonderAlbertConfig, compilation
from modeling.cpu_packing import packed_weights
from modeling.elbert.rules import RULES
from tests.conftest import TINY, random_ids, tiny_model
from tests.models import assert_near


def answers(model, batches):
    with packed_weights(model):  # which compiled regions do not use
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
            assert_near(got.logits, eager.logits)


@pytest.mark.slow
def test_a_compiled_ponder_model_halts_where_the_eager_one_does():
    torch.manual_seed(0)
    config = PonderAlbertConfig(**TINY, exit_criteria="threshold", exit_thres=0.4)
    model = PonderAlbertClassifier(config).eval()
    with torch.no_grad():
        model.ponder[-1].weight.mul_(3)
    batches = [(random_ids(1, length, seed=length), None) for length in (2, 7, 19, 33)]
    batches.append((random_ids(2, 12), torch.tensor([[1] * 12, [1] * 5 + [0] * 7])))
    expected = answers(model, batches)
    assert compilation.compile_for_inference(model)
    for got, eager in zip(answers(model, batches), expected, strict=True):
        assert torch.equal(got.exit_layer, eager.exit_layer)
        assert_near(got.answer, eager.answer)


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
