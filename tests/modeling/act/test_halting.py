"""Halting of tokens: worked tables, what adds up, and what the ponder cost teaches."""

import torch

from modeling.act.encoder import Halting
from tests.models import padded_batch, tiny_act


def test_halting_of_a_table():
    """A token that halts at once, one that halts at the third update, one that never does."""
    halting = Halting.start(torch.tensor([True, True, True, False]), torch.double)
    weights = []
    for probability in ([1.0, 0.5, 0.25, 1.0], [0.5, 0.25, 0.25, 1.0], [0.5, 0.5, 0.25, 1.0]):
        weight, halting = halting.advance(torch.tensor(probability, dtype=torch.double), 0.01)
        weights.append(weight.tolist())
    assert weights == [[1.0, 0.5, 0.25, 0.0], [0.0, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.0]]
    assert halting.updates.tolist() == [1, 3, 3, 0]
    assert halting.remainder.tolist() == [1.0, 0.25, 0.25, 0.0]
    assert halting.running.tolist() == [False, False, True, False]


def test_ponder_cost_gradient_reaches_the_halting_head():
    """Against central differences, while no token's number of updates changes."""
    model, inputs = tiny_act(2), padded_batch([7, 5], 2)
    head = model.encoder.albert_layer.act.dense
    model(**inputs).ponder_cost.sum().backward()
    for parameter in (head.weight, head.bias, model.encoder.albert_layer.ffn.bias):
        expected, step = torch.zeros_like(parameter), 1e-6
        for index in range(parameter.numel()):
            costs, counts = [], []
            for sign in (step, -step):
                with torch.no_grad():
                    parameter.view(-1)[index] += sign
                    out = model(**inputs)
                    parameter.view(-1)[index] -= sign
                costs.append(out.ponder_cost.sum().item())
                counts.append(out.updates)
            assert torch.equal(*counts)
            expected.view(-1)[index] = (costs[0] - costs[1]) / (2 * step)
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(parameter.grad, expected, atol=1e-6, rtol=1e-5)


def test_a_model_that_never_halts_learns_to():
    """Its tokens all run to the maximum; what is left unspent there still gives a gradient."""
    model, inputs = tiny_act(0), padded_batch([6], 0)
    head = model.encoder.albert_layer.act.dense
    with torch.no_grad():
        head.bias.fill_(-12.0)
    out = model(**inputs)
    assert (out.updates == model.config.num_hidden_layers).all()
    out.ponder_cost.sum().backward()
    assert head.bias.grad.item() < 0  # a higher bias lowers the cost
