"""The ponder model: depth batching, the halting head."""

import math

import pytest
import torch
from torch.nn import functional as F
from transformers import AlbertConfig

from modeling import PonderAlbertClassifier, UserError
from modeling.depth import layer_states
from modeling.depth_batching import DepthBatcher
from tests.models import SMALL, one_of, ponder_batch, tiny_ponder


@pytest.mark.parametrize("arch", ["mlp", "linear_cat"])
@pytest.mark.parametrize("criterion", ["sample", "threshold", "expectation"])
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_depth_batching_gives_the_answers_of_one_at_a_time(slots, criterion, arch):
    model = tiny_ponder(exit_criteria=criterion, exit_thres=0.3, lambda_layer_arch=arch)
    batch, rows = ponder_batch([6, 9, 12, 5, 20, 11, 8, 7]), []
    hook = model.albert_layer.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    examples = [one_of(batch, row) for row in range(8)]
    draws = torch.linspace(0.95, 0.05, 8)
    batcher = DepthBatcher(model, slots=slots, window=4)
    batcher.submit(
        (x["input_ids"][0].tolist(), x["token_type_ids"][0].tolist(), draw)
        for x, draw in zip(examples, draws.tolist(), strict=True)
    )
    answers = sorted(batcher.answers())
    hook.remove()
    assert sum(rows) == sum(answer.exit_layer for answer in answers)
    with torch.no_grad():
        for answer, example, draw in zip(answers, examples, draws, strict=True):
            alone = model(**example, draws=draw[None])
            assert answer.exit_layer == alone.exit_layer.item()
            torch.testing.assert_close(answer.logits, alone.answer[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arch", ["linear", "linear_cat", "linear_diff"])
def test_palberts_head_sees_this_and_the_previous_layer_as_its_name_says(arch):
    """Recomputed layer by layer with plain functions; the state before the first layer is 0."""
    model = tiny_ponder(lambda_layer_arch=arch, num_lambda_layers=3)
    batch = ponder_batch([9, 9])
    linears = [module for module in model.ponder if isinstance(module, torch.nn.Linear)]
    assert len(linears) == 4  # three tanh layers and the output
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    previous, expected = torch.zeros(2, 16), []
    for state in layer_states(model, hidden, None):
        now = state[:, 1]
        features = {"linear": now, "linear_diff": now - previous}.get(
            arch, torch.cat((now, previous), 1)
        )
        for linear in linears[:-1]:
            features = torch.tanh(F.linear(features, linear.weight, linear.bias))
        expected.append(F.linear(features, linears[-1].weight, linears[-1].bias)[:, 0].sigmoid())
        previous = now
    found = model(**batch, output_all_exits=True).halt_probabilities
    torch.testing.assert_close(found, torch.stack(expected, 1), atol=1e-5, rtol=1e-5)


def test_the_classifier_reads_the_first_cls_and_the_halting_head_the_second():
    model, batch = tiny_ponder(), ponder_batch([7, 7])
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    state = model.start(model.config.exit_rule(), 2, {})
    moved = hidden.clone()
    moved[:, 1] += 1.0
    first = model.check_exit(model.config.exit_rule(), hidden, None, 0, state)
    second = model.check_exit(model.config.exit_rule(), moved, None, 0, state)
    assert torch.equal(first.answer, second.answer)
    chances = [check.seen.halt_probability for check in (first, second)]
    assert not torch.equal(*chances)


@pytest.mark.parametrize("value", [0, -0.1, 1.5, math.nan, "0.2", True])
def test_target_halt_probability_outside_0_to_1_is_an_error(value):
    with pytest.raises(UserError, match="target_halt_probability = "):
        PonderAlbertClassifier(AlbertConfig(**SMALL), None, value)
