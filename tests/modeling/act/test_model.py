"""Adaptive Depth against the recurrence, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertModel

from modeling import (
    AlbertActForSequenceClassification,
    AlbertActModel,
)
from tests.models import SMALL, assert_near, padded_batch, tiny_act

seeds = st.integers(0, 10**6)
batches = st.lists(st.integers(1, 12), min_size=1, max_size=5)
examples = settings(max_examples=25, deadline=None)


def reference(model: AlbertActModel, ids: torch.Tensor, types: torch.Tensor):
    """Simoulin and Crabbé (2021) one token at a time, from the state dict and torch.nn.functional.

    Returns the states (length, hidden) of every depth, from the embedding's to the maximum's, and
    updates and ponder cost of one unpadded text.
    """
    w, config = model.state_dict(), model.config

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(
            x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], config.layer_norm_eps
        )

    tables = [w[f"embeddings.{x}_embeddings.weight"] for x in ("word", "position", "token_type")]
    indices = (ids, torch.arange(len(ids)), types)
    embedded = sum(table[index] for table, index in zip(tables, indices, strict=True))
    embedded = norm(embedded, "embeddings.LayerNorm")
    states = list(linear(embedded, "encoder.embedding_hidden_mapping_in"))
    layer, heads = "encoder.albert_layer", config.num_attention_heads
    size = config.hidden_size // heads
    spent, updates, cost = [0.0] * len(ids), [0] * len(ids), 0.0
    halted = [False] * len(ids)
    trail = [torch.stack(states)]
    for _ in range(config.num_hidden_layers):
        old = trail[-1]
        keys, values = (
            linear(old, f"{layer}.attention.key"),
            linear(old, f"{layer}.attention.value"),
        )
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
            halted[token] = spent[token] + p > 1 - config.act_epsilon
            weight = 1 - spent[token] if halted[token] else p
            spent[token] += weight
            updates[token] += 1
            cost += weight if halted[token] else 0.0
            states[token] = weight * new + (1 - weight) * old[token]
        trail.append(torch.stack(states))
    cost += sum(updates) + sum(1 - s for s, done in zip(spent, halted, strict=True) if not done)
    return trail, updates, cost


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_model_is_the_recurrence_token_by_token(seed, compact):
    model, inputs = tiny_act(seed), padded_batch([9, 4, 12], seed)
    model.encoder.compact = compact
    with torch.no_grad():
        out = model(**inputs, output_hidden_states=True)
        assert torch.equal(model(**inputs).last_hidden_state, out.last_hidden_state)
    assert out.updates.unique().numel() > 2  # 0 on padding, and tokens that differ
    assert len(out.hidden_states) == out.updates.max() + 1
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    for row, length in enumerate((9, 4, 12)):
        ids, types = inputs["input_ids"][row, :length], inputs["token_type_ids"][row, :length]
        trail, updates, cost = reference(model, ids, types)
        for depth, expected in enumerate(trail):
            # After the last update of any token, all states stay as they are.
            states = out.hidden_states[min(depth, len(out.hidden_states) - 1)]
            assert_near(states[row, :length], expected, 1e-9)
        assert out.updates[row, 0, 0, :length].tolist() == updates
        assert out.ponder_cost[row].item() == pytest.approx(cost, abs=1e-9)


@examples
@given(seeds, batches)
def test_compacted_loop_is_the_dense_loop(seed, lengths):
    """Over random models, batches and paddings, in float32 and float64."""
    model, inputs = tiny_act(seed), padded_batch(lengths, seed)
    real = inputs["attention_mask"].bool()
    for tolerance, dtype in ((1e-10, torch.double), (1e-5, torch.float)):
        answers = []
        for compact in (False, True):
            model.to(dtype).encoder.compact = compact
            with torch.no_grad():
                out = model(**inputs)
            answers.append((out.last_hidden_state[real], out.updates, out.ponder_cost))
        torch.testing.assert_close(*answers, atol=tolerance, rtol=tolerance)


@pytest.fixture
def plain_albert(tmp_path):
    """The folder of an ALBERT, saved by HF, and the ALBERT."""
    torch.manual_seed(2)
    albert = AlbertModel(AlbertConfig(**SMALL, attn_implementation="eager")).eval()
    albert.save_pretrained(tmp_path / "albert")
    return tmp_path / "albert", albert


@pytest.mark.parametrize("model_class", [AlbertActModel, AlbertActForSequenceClassification])
def test_an_albert_gives_all_weights_but_the_halting_head_s(plain_albert, tmp_path, model_class):
    """A token that halts at once has had ALBERT's first layer; what it read is in `attentions`."""
    folder, albert = plain_albert
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    new = ("albert_layer.act.dense.", "classifier.")
    assert report["missing_keys"]
    assert all(any(part in name for part in new) for name in report["missing_keys"])
    encoder = getattr(model, "albert", model)
    torch.nn.init.constant_(encoder.encoder.albert_layer.act.dense.bias, 30.0)
    inputs = padded_batch([9, 4, 12])
    with torch.no_grad():
        out = encoder(**inputs, output_attentions=True)
        expected = albert(**inputs, output_hidden_states=True, output_attentions=True)
    real = inputs["attention_mask"].bool()
    assert_near(out.last_hidden_state[real], expected.hidden_states[1][real])
    assert len(out.attentions) == 1
    for ours, theirs, tokens in zip(out.attentions[0], expected.attentions[0], real, strict=True):
        assert_near(ours[:, tokens], theirs[:, tokens])
    model.save_pretrained(tmp_path / "act")
    names = load_file(tmp_path / "act/model.safetensors").keys()
    assert set(names) == set(model.state_dict())


def test_every_pass_has_its_attention_weights():
    """Also where states alone would come from running tokens; a head hands them on."""
    model, inputs = tiny_act(1, AlbertActForSequenceClassification), padded_batch([9, 4, 12])
    model.albert.encoder.compact = True
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
        assert_near(out.logits, model(**inputs).logits, 1e-9)
    assert len(out.attentions) == out.updates.max()
    for weights in out.attentions:
        assert weights.shape == (3, 2, 12, 12)
        assert_near(weights.sum(-1), torch.ones_like(weights[..., 0]), 1e-9)
        assert (weights.masked_select(~inputs["attention_mask"].bool()[:, None, None]) == 0).all()
