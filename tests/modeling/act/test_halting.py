"""Halting of tokens: worked tables, what adds up, and what the ponder cost teaches."""

import torch
from torch.func import functional_call

from tests.models import padded_batch, tiny_act


def test_ponder_cost_gradient_reaches_the_halting_head():
    """Against central differences, while no token's number of updates changes."""
    model, inputs = tiny_act(2), padded_batch([7, 5], 2)
    layer = "encoder.albert_layer."
    names = [f"{layer}act.dense.weight", f"{layer}act.dense.bias", f"{layer}ffn.bias"]
    weights = [model.get_parameter(name) for name in names]

    def cost(*values: torch.Tensor) -> torch.Tensor:
        changed = dict(zip(names, values, strict=True))
        return functional_call(model, changed, kwargs=inputs).ponder_cost.sum()

    assert torch.autograd.gradcheck(cost, weights)
    assert all(grad.abs().max() > 1e-3 for grad in torch.autograd.grad(cost(*weights), weights))


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
