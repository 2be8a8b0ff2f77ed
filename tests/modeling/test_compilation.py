"""Compiled and half-precision inference against float32 in eager mode."""

import logging

import pytest
import torch

from modeling import depth
from modeling.cpu_packing import packed_weights
from modeling.elbert.rules import RULES
from tests.conftest import TINY, random_ids, tiny_model
from tests.models import assert_near, mask_of, tiny_ponder


def answers(model, batches):
    with packed_weights(model):  # which compiled regions do not use
        return [model(ids, mask) for ids, mask in batches]


BATCHES = [(random_ids(1, length, seed=length), None) for length in (2, 7, 19, 33)]
BATCHES.append((random_ids(3, 20), mask_of([20, 11, 3])))
for ids, _ in BATCHES:
    ids[:, :2] = 2  # the two [CLS] of a ponder model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (
            tiny_model(pooler_input="cls-mean", exit_thres=0.5, cnt_thres=2),
            [{"thres_name": rule} for rule in RULES],
        ),
        (
            tiny_ponder(**TINY, exit_criteria="threshold"),
            [{"exit_thres": threshold} for threshold in (0.2, 0.5, 0.8)],
        ),
    ],
)
def test_compiled_answers_are_the_eager_ones_for_every_rule_and_length(model, settings):
    expected = []
    for keys in settings:
        model.config.update(keys)
        expected.append(answers(model, BATCHES))
    assert depth.compile_for_inference(model)
    for keys, eager_answers in zip(settings, expected, strict=True):
        model.config.update(keys)
        for got, eager in zip(answers(model, BATCHES), eager_answers, strict=True):
            assert torch.equal(got.exit_layer, eager.exit_layer)
            name = "answer" if "answer" in got else "logits"
            assert_near(got[name], eager[name])


def test_without_a_compiler_that_works_there_is_one_warning_and_eager_mode(monkeypatch, caplog):
    def broken(self, *args, **kwargs):
        self._compiled_call_impl = lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no luck"))

    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    model = tiny_model()
    expected = answers(model, BATCHES[:1])[0].logits
    with caplog.at_level(logging.WARNING):
        assert not depth.compile_for_inference(model)
    (record,) = caplog.records
    assert "no luck" in record.getMessage()
    assert torch.equal(answers(model, BATCHES[:1])[0].logits, expected)
