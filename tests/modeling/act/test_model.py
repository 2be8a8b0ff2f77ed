"""Adaptive Depth against the recurrence, token by token; its loops, its gradients."""

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from elbert import AlbertActConfig, AlbertActModel
from tests.models import SMALL, assert_near, padded_batch, tiny_act


def reference(model: AlbertActModel, ids: torch.Tensor, types: torch.Tensor):
    """Compute one unpadded text a token at a time, from the state dict and torch.nn.functional.

    As Simoulin and Crabbé (2021), or as Graves (2016), whose answer is the mean of the states (eq.
    6 and 13). Returns the states (length, hidden) of every depth, from the embedding's to the
    maximum's, the answer, and updates and ponder cost.
    """
    weights = model.state_dict()
    config = model.config

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, name):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, config.layer_norm_eps)

    kinds = ("word", "position", "token_type")
    tables = [weights[f"embeddings.{kind}_embeddings.weight"] for kind in kinds]
    indices = (ids, torch.arange(len(ids)), types)
    embedded = sum(table[index] for table, index in zip(tables, indices, strict=True))
    embedded = norm(embedded, "embeddings.LayerNorm")
    states = list(linear(embedded, "encoder.embedding_hidden_mapping_in"))
    layer = "encoder.albert_layer"
    heads = config.num_attention_heads
    size = config.hidden_size // heads
    weight_sums = [0.0] * len(ids)
    updates = [0] * len(ids)
    halted = [False] * len(ids)
    cost = 0.0
    all_states = [torch.stack(states)]
    mean = torch.zeros_like(all_states[0])
    graves = config.act_update == "graves"
    for updates_left in reversed(range(config.num_hidden_layers)):
        old = all_states[-1]
        keys = linear(old, f"{layer}.attention.key")
        values = linear(old, f"{layer}.attention.value")
        for token in range(len(ids)):
            if halted[token]:
                continue
            query = linear(old[token], f"{layer}.attention.query")
            context = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                scores = keys[:, part] @ query[part] / size**0.5
                context.append(scores.softmax(0) @ values[:, part])
            attended = linear(torch.cat(context), f"{layer}.attention.dense") + old[token]
            attended = norm(attended, f"{layer}.LayerNorm")
            inner = F.gelu(linear(attended, f"{layer}.ffn"), approximate="tanh")
            new = norm(
                linear(inner, f"{layer}.ffn_output") + attended, f"{layer}.full_layer_layer_norm"
            )
            p = linear(new, f"{layer}.act.dense").sigmoid().item()
            reaches_threshold = weight_sums[token] + p > 1 - config.act_epsilon
            halted[token] = reaches_threshold or (graves and updates_left == 0)
            weight = 1 - weight_sums[token] if halted[token] else p
            weight_sums[token] += weight
            updates[token] += 1
            cost += weight if halted[token] else 0.0
            mean[token] += weight * new
            states[token] = new if graves else weight * new + (1 - weight) * old[token]
        all_states.append(torch.stack(states))
    cost += sum(updates)
    for weight_sum, has_halted in zip(weight_sums, halted, strict=True):
        if not has_halted:
            cost += 1 - weight_sum
    return all_states, mean if graves else all_states[-1], updates, cost


@pytest.mark.parametrize("update", ["published", "graves"])
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_model_is_the_recurrence_token_by_token(seed, compact, update):
    model = tiny_act(seed, act_update=update, act_epsilon=0.3)
    inputs = padded_batch([9, 4, 12], seed)
    model.encoder.compact = compact
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
        assert torch.equal(model(**inputs).last_hidden_state, out.last_hidden_state)
    assert out.updates.unique().numel() > 2  # 0 on padding, and tokens that differ
    assert len(out.hidden_states) == out.updates.max() + 1
    for row, length in enumerate((9, 4, 12)):
        ids, types = inputs["input_ids"][row, :length], inputs["token_type_ids"][row, :length]
        all_states, answer, updates, cost = reference(model, ids, types)
        assert_near(out.last_hidden_state[row, :length], answer, 1e-9)
        for depth, expected in enumerate(all_states):
            # After the last update of any token, all states stay as they are.
            states = out.hidden_states[min(depth, len(out.hidden_states) - 1)]
            assert_near(states[row, :length], expected, 1e-9)
        assert out.updates[row, 0, 0, :length].tolist() == updates
        assert out.ponder_cost[row].item() == pytest.approx(cost, abs=1e-9)


def test_only_running_tokens_are_computed():
    """Attention output and feed-forward see as many tokens as there are updates."""
    model = tiny_act(3)
    layer = model.encoder.albert_layer
    counts = []
    for module in (layer.attention.dense, layer.ffn):
        module.register_forward_pre_hook(lambda _, args: counts.append(args[0].shape[:-1].numel()))
    with torch.no_grad():
        updates = model(**padded_batch([12, 7, 10], 3)).updates.sum()
    assert sum(counts) == 2 * updates
    assert updates < 29 * model.config.num_hidden_layers


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
    """Its tokens all run to the maximum; what is left of 1 there still gives a gradient."""
    model, inputs = tiny_act(0), padded_batch([6], 0)
    bias = model.encoder.albert_layer.act.dense.bias
    torch.nn.init.constant_(bias, -12.0)
    out = model(**inputs)
    assert (out.updates == model.config.num_hidden_layers).all()
    out.ponder_cost.sum().backward()
    assert bias.grad.item() < 0  # a higher bias lowers the cost


def test_a_new_halting_head_begins_at_its_bias():
    """Before training, -1.6 halts with about 1/6 after every update: never before the sixth."""
    config = AlbertActConfig(**SMALL, act_update="graves", halting_bias=-1.6, pooler_input="mean")
    model, inputs = AlbertActModel(config).eval(), padded_batch([6, 3])
    assert model.encoder.albert_layer.act.dense.bias.item() == pytest.approx(-1.6)
    with torch.no_grad():
        out = model(**inputs)
    assert (out.updates.sum((1, 2, 3)) / torch.tensor([6, 3])).tolist() == [6, 6]
    means = [out.last_hidden_state[0].mean(0), out.last_hidden_state[1, :3].mean(0)]
    assert_near(out.pooler_output, model.pooler(torch.stack(means)).tanh(), 1e-6)
