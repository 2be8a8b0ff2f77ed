"""Compiled and half-precision inference against float32 in eager mode."""

import logging
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from evaluation.early_exit import run_early_exit
from evaluation.job import Job, load_trained
from evaluation.modes import MODES
from glue.features import encode
from glue.tasks import get_task, read_examples
from modeling import PonderAlbertClassifier, PonderAlbertConfig, compilation
from modeling.albert import cast_layers
from modeling.cpu_packing import packed_weights
from modeling.elbert.rules import RULES
from tests.conftest import TINY, random_ids, tiny_model
from tests.models import assert_near

ROOT = Path(__file__).parents[2]


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
def test_compile_time_does_not_grow_with_depth():
    """The number of compiled graphs is the same for any number of layers."""
    graphs = []
    for layers in (2, 9):
        torch.compiler.reset()
        counters.clear()
        assert compilation.compile_for_inference(tiny_model(num_hidden_layers=layers))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0


def test_all_tensors_of_an_exit_check_are_in_one_compiled_region():
    model = tiny_model(pooler_input="cls-mean")
    (exit_,) = (x for x in compilation.regions(model) if hasattr(x, "classifier"))
    hidden, mask = torch.randn(2, 5, 32), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    with torch.inference_mode():
        explained = torch._dynamo.explain(exit_)(hidden, mask, model.albert.pooler)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    called = " ".join(str(node.target) for node in explained.graphs[0].graph.nodes)
    for part in ("sum", "tanh", "linear", "softmax"):  # pooling, pooler, classifier, scores
        assert part in called


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


def test_auto_compiles_only_when_the_examples_repay_it(monkeypatch):
    model = tiny_model()
    assert not compilation.repays(model, examples=10**9, length=20)  # a CPU: packed is faster
    monkeypatch.setitem(compilation.SAVED_SHARE, "cpu", 0.4)
    assert compilation.repays(model, examples=10**9, length=20)
    assert not compilation.repays(model, examples=450, length=20)


@pytest.mark.slow
def test_bf16_takes_the_exits_of_fp32_on_the_trained_sample():
    """On the model that `make demo` leaves behind."""
    trained = ROOT / "out" / "demo" / "RTE"
    if not (trained / "model.safetensors").exists():
        pytest.skip("needs the trained sample: run `make demo` first")
    task = get_task("rte")
    model, tokenizer = load_trained(trained, MODES["albert"], task, torch.device("cpu"))
    examples = read_examples(task, ROOT / "configs" / "sample" / "RTE", "dev")
    features = encode(examples, tokenizer, 128)
    job = Job(MODES["albert"], model, tokenizer, task, features)
    expected = run_early_exit(job)["exit_layer"]
    cast_layers(model, torch.bfloat16)
    exits = run_early_exit(job)["exit_layer"]
    assert (exits == expected).float().mean() >= 0.99
