"""Adaptive Depth: its properties, its losses, its heads, and the loop that saves time."""

import copy
import json
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from modeling import (
    AlbertActConfig,
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActModel,
    UserError,
)
from modeling.act.encoder import COMPACTION_FLOPS, grid_slots
from modeling.act.halting import Halting, halting_weight
from modeling.flops import layer_pass_flops

CONFIGS = Path(__file__).parents[2] / "configs"
SIZES = {
    "vocab_size": 50,
    "embedding_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "classifier_dropout_prob": 0.0,
}
HEADS = {
    "PreTraining": AlbertActForPreTraining,
    "MaskedLM": AlbertActForMaskedLM,
    "SequenceClassification": AlbertActForSequenceClassification,
    "TokenClassification": AlbertActForTokenClassification,
    "QuestionAnswering": AlbertActForQuestionAnswering,
    "MultipleChoice": AlbertActForMultipleChoice,
}


def random_model(seed: int = 0, model_class: type = AlbertActModel, **overrides):
    """A tiny model in float64 with weights large enough that tokens differ in their updates."""
    torch.manual_seed(seed)
    model = model_class(AlbertActConfig(**{**SIZES, **overrides})).double().eval()
    encoder = getattr(model, "albert", model)
    with torch.no_grad():
        for parameter in model.parameters():
            # Large biases would lead all tokens to one state.
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.05))
        head = encoder.encoder.albert_layer.act.dense
        head.weight.mul_(2.0)
        head.bias.fill_(-0.5)
    return model


def random_inputs(seed: int, lengths: list[int]) -> dict[str, torch.Tensor]:
    """A padded batch, (batch, longest)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, 50, shape, generator=generator)
    types = torch.randint(0, 2, shape, generator=generator)
    return {"input_ids": ids * mask, "attention_mask": mask.long(), "token_type_ids": types * mask}


seeds = st.integers(0, 10**6)
batches = st.lists(st.integers(1, 12), min_size=1, max_size=5)
examples = settings(max_examples=40, deadline=None)


# The recurrence


def test_halting_weights_of_a_table():
    """Graves (2016), with ε = 0.1 and powers of two: below, at and above the threshold."""
    probability = torch.tensor([0.25, 0.50, 0.875, 0.95, 0.50])
    spent = torch.tensor([0.00, 0.25, 0.00, 0.00, 0.75])
    weight, halts = halting_weight(probability, spent, epsilon=0.125)
    assert halts.tolist() == [False, False, False, True, True]
    assert weight.tolist() == [0.25, 0.50, 0.875, 1.00, 0.25]


def test_halting_of_a_table():
    """A token that halts at once, one that halts at the third update, one that never does."""
    halting = Halting(torch.tensor([True, True, True, False]), torch.double, epsilon=0.01)
    weights = []
    for probability in ([1.0, 0.5, 0.25, 1.0], [0.5, 0.25, 0.25, 1.0], [0.5, 0.5, 0.25, 1.0]):
        weights.append(halting.advance(torch.tensor(probability, dtype=torch.double)).tolist())
    assert weights == [[1.0, 0.5, 0.25, 0.0], [0.0, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.0]]
    assert halting.updates.tolist() == [1, 3, 3, 0]
    assert halting.remainder.tolist() == [1.0, 0.25, 0.25, 0.0]
    assert halting.running.tolist() == [False, False, True, False]


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
    model, inputs = random_model(seed), random_inputs(seed, [9, 4, 12])
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
            torch.testing.assert_close(states[row, :length], expected, atol=1e-9, rtol=0)
        assert out.updates[row, 0, 0, :length].tolist() == updates
        assert out.ponder_cost[row].item() == pytest.approx(cost, abs=1e-9)


# Properties


@examples
@given(seeds, batches, st.floats(0.001, 0.9), st.integers(1, 8))
def test_updates_weights_and_remainders_add_up(seed, lengths, epsilon, maximum):
    model = random_model(seed, act_epsilon=epsilon, num_hidden_layers=maximum)
    inputs = random_inputs(seed, lengths)
    real = inputs["attention_mask"].bool()
    embedded = model.embeddings(inputs["input_ids"], inputs["token_type_ids"])
    _, halting = model.encoder(embedded, real[:, None, None])
    assert (halting.updates[real] >= 1).all()
    assert (halting.updates <= maximum).all()
    assert (halting.updates[~real] == 0).all()
    assert (halting.remainder[~real] == 0).all()
    stopped = real & ~halting.running  # by themselves; the others by the maximum
    ones = torch.ones_like(halting.spent)
    torch.testing.assert_close(halting.spent[stopped], ones[stopped])
    unspent = (halting.spent + halting.remainder)[halting.running]
    torch.testing.assert_close(unspent, ones[halting.running])
    assert (halting.updates[halting.running] == maximum).all()
    assert (halting.spent[halting.running] <= 1 - epsilon).all()


@examples
@given(seeds, batches)
def test_compacted_loop_is_the_dense_loop(seed, lengths):
    """Over random models, batches and paddings, in float32 and float64."""
    model, inputs = random_model(seed), random_inputs(seed, lengths)
    real = inputs["attention_mask"].bool()
    for tolerance, dtype in ((1e-10, torch.double), (1e-5, torch.float)):
        answers = []
        for compact in (False, True):
            model.to(dtype).encoder.compact = compact
            with torch.no_grad():
                out = model(**inputs)
            answers.append((out.last_hidden_state[real], out.updates, out.ponder_cost))
        torch.testing.assert_close(*answers, atol=tolerance, rtol=tolerance)


@examples
@given(seeds, batches, st.integers(0, 8), st.booleans())
def test_an_example_depends_neither_on_its_batch_nor_on_padding(seed, lengths, padding, compact):
    model, inputs = random_model(seed), random_inputs(seed, lengths)
    model.encoder.compact = compact
    padded = {name: F.pad(tensor, (0, padding)) for name, tensor in inputs.items()}
    padded["input_ids"][padded["attention_mask"] == 0] = 7  # whatever stands there
    with torch.no_grad():
        together = model(**padded)
        for row, length in enumerate(lengths):
            alone = model(**{k: v[row : row + 1, :length] for k, v in inputs.items()})
            torch.testing.assert_close(
                together.last_hidden_state[row, :length],
                alone.last_hidden_state[0],
                atol=1e-10,
                rtol=0,
            )
            assert torch.equal(together.updates[row, 0, 0, :length], alone.updates[0, 0, 0])
            assert (together.updates[row, 0, 0, length:] == 0).all()
            torch.testing.assert_close(together.ponder_cost[row], alone.ponder_cost[0])


# What the compacted loop computes


def test_only_running_tokens_are_computed():
    """Query, attention output and feed-forward see as many tokens as there are updates."""
    model, inputs = random_model(3), random_inputs(3, [12, 7, 10])
    model.encoder.compact = True
    layer, seen = model.encoder.albert_layer, {"dense": 0, "ffn": 0, "query": 0}

    def count(name: str, module: torch.nn.Module) -> None:
        def hook(_, arguments, __):
            seen[name] += arguments[0].shape[:-1].numel()

        module.register_forward_hook(hook)

    count("dense", layer.attention.dense)
    count("ffn", layer.ffn)
    project = layer.attention.project

    def counting_project(hidden, parts):
        if parts.start == 0:  # a slice of query, key, value that has the query
            seen["query"] += hidden.shape[:-1].numel()
        return project(hidden, parts)

    layer.attention.project = counting_project
    with torch.no_grad():
        out = model(**inputs)
    updates = int(out.updates.sum())
    assert updates < 29 * model.config.num_hidden_layers
    assert seen == {"dense": updates, "ffn": updates, "query": updates}


def test_grid_slots_of_a_table():
    running = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]]).bool()
    slots, width = grid_slots(running)
    assert width == 3
    assert slots.tolist() == [0, 1, 2, 6, 7]


def test_compaction_is_chosen_where_the_saved_work_repays_it(monkeypatch):
    model, hidden = random_model(0), torch.zeros(4, 10, 16)
    pays = model.encoder.compaction_pays
    # A token's pass: 4 · 16² projections, 2 · 16 · 10 attention, 2 · 16 · 24 feed-forward, each 2.
    per_token = 2 * (4 * 16 * 16 + 2 * 16 * 10 + 2 * 16 * 24)
    monkeypatch.setitem(COMPACTION_FLOPS, "cpu", 5 * per_token)
    with torch.no_grad():
        assert [pays(hidden, running) for running in (40, 36, 35, 34, 1)] == [False] * 3 + [
            True
        ] * 2
        model.encoder.compact = True
        assert pays(hidden, 40)
        model.train()
        assert not pays(hidden, 1)
    assert not model.eval().encoder.compaction_pays(hidden, 1)  # gradients are on


def test_the_switch_within_a_text_changes_nothing(monkeypatch):
    """Dense passes first, compacted ones from the step where they pay."""
    model, inputs = random_model(5), random_inputs(5, [12, 12, 9])
    with torch.no_grad():
        model.encoder.compact = False
        dense = model(**inputs)
        model.encoder.compact = None
        for halted in (1, 5, 15, 25, 30):
            flops = layer_pass_flops(model.config, 12) / 12
            monkeypatch.setitem(COMPACTION_FLOPS, "cpu", halted * flops)
            switched = model(**inputs)
            torch.testing.assert_close(dict(switched), dict(dense), atol=1e-10, rtol=0)


@pytest.mark.parametrize("compact", [False, True])
def test_half_precision_runs(compact):
    """bf16 weights, and bf16 autocast over float32 ones, which keeps states in float32."""
    inputs = random_inputs(1, [8, 5])
    model = random_model(1).float()
    model.encoder.compact = compact
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = model(**inputs)
    assert out.last_hidden_state.dtype == torch.float
    with torch.no_grad():
        half = model.bfloat16()(**inputs)
    assert half.last_hidden_state.dtype == torch.bfloat16
    assert half.ponder_cost.dtype == torch.float
    assert half.last_hidden_state.isfinite().all()


# Gradients and losses


def test_ponder_cost_gradient_reaches_the_halting_head():
    """Against central differences, while no token's number of updates changes."""
    model, inputs = random_model(2), random_inputs(2, [7, 5])
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
    model, inputs = random_model(0), random_inputs(0, [6])
    head = model.encoder.albert_layer.act.dense
    with torch.no_grad():
        head.bias.fill_(-12.0)
    out = model(**inputs)
    assert (out.updates == model.config.num_hidden_layers).all()
    out.ponder_cost.sum().backward()
    assert head.bias.grad.item() < 0  # a higher bias lowers the cost


def test_training_on_the_ponder_cost_lowers_the_updates():
    model = random_model(4, AlbertActForSequenceClassification, tau=1.0)
    inputs, labels = random_inputs(4, [10, 8]), torch.tensor([0, 1])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    before = model(**inputs).updates.sum()
    for _ in range(25):
        optimiser.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimiser.step()
    assert model(**inputs).updates.sum() < before


def test_gradient_checkpointing_changes_no_gradient():
    inputs, labels = random_inputs(14, [8, 5]), torch.tensor([0, 1])
    gradients = []
    for checkpointing in (False, True):
        model = random_model(14, AlbertActForSequenceClassification).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(**inputs, labels=labels).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(*gradients)


def labels_for(head: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    batch = len(inputs["input_ids"])
    tokens = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    classes = torch.arange(batch) % 2
    return {
        "PreTraining": {"labels": tokens, "sentence_order_label": classes},
        "MaskedLM": {"labels": tokens},
        "SequenceClassification": {"labels": classes},
        "TokenClassification": {"labels": tokens.clamp(max=1)},
        "QuestionAnswering": {"start_positions": classes, "end_positions": classes + 1},
        "MultipleChoice": {"labels": classes},
    }[head]


def inputs_for(head: str) -> dict[str, torch.Tensor]:
    """(batch, length), or (batch, 2 choices, length)."""
    if head == "QuestionAnswering":  # HF's answers may begin in the padding; without any, all agree
        return random_inputs(6, [9, 9, 9])
    if head != "MultipleChoice":
        return random_inputs(6, [9, 6, 7])
    return {k: v.view(2, 2, -1) for k, v in random_inputs(6, [9, 6, 7, 9]).items()}


def hf_name(name: str) -> str:
    """HF ALBERT's name of a weight."""
    name = name.replace("albert_layer.LayerNorm", "albert_layer.attention.LayerNorm")
    return name.replace("albert_layer.", "albert_layer_groups.0.albert_layers.0.")


def hf_twins(head: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A model whose tokens halt at once, and HF's with one layer, on the same weights."""
    model = random_model(6, HEADS[head], tau=0.0)
    with torch.no_grad():
        model.albert.encoder.albert_layer.act.dense.bias.fill_(1e3)
    config = transformers.AlbertConfig(**{**SIZES, "num_hidden_layers": 1})
    peer = getattr(transformers, f"AlbertFor{head}")(config).double().eval()
    weights = {hf_name(k): v for k, v in model.state_dict().items() if ".act." not in k}
    peer.load_state_dict(weights)
    return model, peer


def assert_same_on_the_text(
    ours: torch.Tensor, theirs: torch.Tensor, attention_mask: torch.Tensor
) -> None:
    """Equal but for the values of padding, which HF updates too."""
    real = attention_mask.bool()
    if ours.shape[: real.dim()] == real.shape:
        ours, theirs = ours[real], theirs[real]
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("head", HEADS)
def test_halting_at_once_is_hf_albert_with_one_layer(head):
    """Logits and task loss of every head, against HF's head on the same weights."""
    model, peer = hf_twins(head)
    inputs = inputs_for(head)
    labels = labels_for(head, inputs)
    out, expected = model(**inputs, **labels), peer(**inputs, **labels)
    assert (out.updates <= 1).all()
    torch.testing.assert_close(out.loss, expected.loss)
    names = [name for name in expected if name.endswith("logits")]
    assert names
    for name in names:
        assert_same_on_the_text(out[name], expected[name], inputs["attention_mask"])


@pytest.mark.parametrize("head", HEADS)
def test_calls_are_those_of_hf_albert(head):
    """Embedded words for ids, the states of every depth, and a tuple with HF's in front."""
    model, peer = hf_twins(head)
    inputs = inputs_for(head)
    mask, labels = inputs["attention_mask"], labels_for(head, inputs)
    words = peer.albert.embeddings.word_embeddings(inputs.pop("input_ids")).detach()
    call = {**inputs, **labels, "inputs_embeds": words}
    for ours, theirs in zip(
        model(**call, output_hidden_states=True).hidden_states,
        peer(**call, output_hidden_states=True).hidden_states,
        strict=True,
    ):
        assert_same_on_the_text(ours, theirs, mask.flatten(0, -2))
    expected = peer(**call, return_dict=False)
    answer = model(**call, return_dict=False)
    for ours, theirs in zip(answer[: len(expected)], expected, strict=True):
        assert_same_on_the_text(ours, theirs, mask)
    # The configuration may ask for the same.
    model.config.return_dict, model.config.output_hidden_states = False, True
    assert isinstance(model(**call), tuple)
    assert len(model(**call)) == len(answer) + 1


def test_a_model_takes_ids_or_embedded_words():
    model, inputs = random_model(0), random_inputs(0, [3])
    words = model.embeddings.word_embeddings(inputs["input_ids"])
    for call in ({}, {**inputs, "inputs_embeds": words}):
        with pytest.raises(UserError, match="input_ids or inputs_embeds"):
            model(**call)


@pytest.mark.parametrize("head", HEADS)
def test_loss_is_task_loss_plus_tau_times_mean_ponder_cost(head):
    model, inputs = random_model(7, HEADS[head], tau=0.0), inputs_for(head)
    labels = labels_for(head, inputs)
    task = model(**inputs, **labels)
    model.config.tau = 0.03
    out = model(**inputs, **labels)
    assert out.ponder_cost.shape == (len(inputs["input_ids"]),)
    torch.testing.assert_close(out.loss, task.loss + 0.03 * task.ponder_cost.mean())
    assert model(**inputs).loss is None


def test_pre_training_loss_is_the_sum_of_its_parts():
    model, inputs = random_model(8, AlbertActForPreTraining, tau=0.0), random_inputs(8, [9, 6])
    labels = labels_for("PreTraining", inputs)
    out = model(**inputs, **labels)
    torch.testing.assert_close(out.loss, out.mlm_loss + out.sop_loss)
    torch.testing.assert_close(model(**inputs, labels=labels["labels"]).loss, out.mlm_loss)
    # A batch without sentence pairs, or without a masked piece, is no reason for NaN.
    labels["sentence_order_label"] = torch.tensor([-100, -100])
    torch.testing.assert_close(model(**inputs, **labels).loss, out.mlm_loss)


def test_regression_is_mean_squared_error():
    model = random_model(9, AlbertActForSequenceClassification, num_labels=1, tau=0.0)
    inputs, labels = random_inputs(9, [4, 6]), torch.tensor([0.5, 4.0], dtype=torch.double)
    out = model(**inputs, labels=labels)
    torch.testing.assert_close(out.loss, ((out.logits[:, 0] - labels.float()) ** 2).mean())


def test_an_answer_never_lies_in_the_padding():
    """Padding changes neither the loss nor the answer; a span beyond the text does not count."""
    model = random_model(13, AlbertActForQuestionAnswering, tau=0.0)
    inputs = random_inputs(13, [5, 5])
    padded = {name: F.pad(tensor, (0, 4)) for name, tensor in inputs.items()}
    start, end = torch.tensor([1, 2]), torch.tensor([3, 7])
    out = model(**inputs, start_positions=start, end_positions=end)
    wide = model(**padded, start_positions=start, end_positions=end)
    expected = F.cross_entropy(out.start_logits, start) + F.cross_entropy(
        out.end_logits[:1], end[:1]
    )
    torch.testing.assert_close(out.loss, expected / 2)
    torch.testing.assert_close(wide.loss, out.loss)
    assert torch.equal(wide.start_logits.argmax(1), out.start_logits.argmax(1))
    assert (wide.end_logits.softmax(1)[:, 5:] == 0).all()


# Files and settings


@pytest.mark.parametrize("head", HEADS)
def test_save_and_auto_class_round_trip(head, tmp_path):
    model, inputs = random_model(10, HEADS[head]).float(), inputs_for(head)
    model.save_pretrained(tmp_path)
    auto_class = getattr(transformers, f"AutoModelFor{head}")
    loaded = auto_class.from_pretrained(tmp_path)
    assert type(loaded) is HEADS[head]
    with torch.no_grad():
        torch.testing.assert_close(dict(loaded.eval()(**inputs)), dict(model(**inputs)))


def test_encoder_and_heads_load_each_other(tmp_path):
    model = random_model(11, AlbertActForPreTraining).float()
    model.save_pretrained(tmp_path)
    encoder = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(encoder) is AlbertActModel
    for name, weight in model.albert.state_dict().items():
        assert torch.equal(encoder.state_dict()[name], weight), name
    encoder.save_pretrained(tmp_path / "encoder")
    head = AlbertActForMaskedLM.from_pretrained(tmp_path / "encoder")
    layer = model.albert.encoder.albert_layer
    assert torch.equal(head.albert.encoder.albert_layer.act.dense.weight, layer.act.dense.weight)


def test_config_keeps_its_keys_through_a_file(tmp_path):
    AlbertActConfig(**SIZES, act_epsilon=0.05, tau=2e-3).save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert type(config) is AlbertActConfig
    assert (config.act_epsilon, config.tau, config.num_hidden_layers) == (0.05, 2e-3, 6)


@pytest.mark.parametrize(
    ("name", "tau", "iterations"), [("tiny", 1e-3, 6), ("small", 5e-4, 12), ("base", 2.5e-4, 24)]
)
def test_published_sizes(name, tau, iterations):
    """The table of the published model card; all three have ALBERT-base's sizes."""
    values = json.loads((CONFIGS / f"act_{name}.json").read_text())
    config = AlbertActConfig(**values)
    assert (config.tau, config.num_hidden_layers, config.act_epsilon) == (tau, iterations, 0.01)
    sizes = (config.embedding_size, config.hidden_size, config.num_attention_heads)
    assert (*sizes, config.intermediate_size) == (128, 768, 12, 3072)
    model = AlbertActForPreTraining(copy.deepcopy(config))
    parameters = sum(p.numel() for p in model.albert.parameters())
    assert parameters == 11_683_584 + 768 + 1  # ALBERT-base's, and the halting head's


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan"), "0.01", True])
def test_act_epsilon_outside_its_range_is_an_error(value):
    with pytest.raises(UserError, match=r"act_epsilon = .*from 0 to 1, both excluded"):
        AlbertActConfig(**SIZES, act_epsilon=value)


@pytest.mark.parametrize("value", [-1e-9, -1, float("inf"), float("nan"), "high"])
def test_tau_below_zero_is_an_error(value):
    with pytest.raises(UserError, match=r"tau = .*at least 0"):
        AlbertActConfig(**SIZES, tau=value)


def test_values_set_later_are_checked_too():
    model, inputs = random_model(12, AlbertActForMaskedLM), random_inputs(12, [3])
    model.config.tau = -1.0
    with pytest.raises(UserError, match="tau"):
        model(**inputs, labels=inputs["input_ids"])
    model.config.tau, model.config.act_epsilon = 0.0, 1.0
    with pytest.raises(UserError, match="act_epsilon"):
        model(**inputs)


@pytest.mark.parametrize("name", ["num_hidden_groups", "inner_group_num"])
def test_more_than_one_layer_is_an_error(name):
    with pytest.raises(UserError, match=f"{name} = 2: allowed is 1"):
        AlbertActConfig(**SIZES, **{name: 2})
