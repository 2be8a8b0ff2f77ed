"""The loop that computes only running tokens, against the dense one."""

import torch

from modeling.act.encoder import COMPACTION_FLOPS, grid_slots
from modeling.flops import layer_pass_flops
from tests.models import assert_near, padded_batch, tiny_act


def test_only_running_tokens_are_computed():
    """Query, attention output and feed-forward see as many tokens as there are updates."""
    model, inputs = tiny_act(3), padded_batch([12, 7, 10], 3)
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
    model, hidden = tiny_act(0), torch.zeros(4, 10, 16)
    pays = model.encoder.compaction_pays
    # A token's pass: 4 · 16² projections, 2 · 16 · 10 attention, 2 · 16 · 32 feed-forward, each 2.
    per_token = 2 * (4 * 16 * 16 + 2 * 16 * 10 + 2 * 16 * 32)
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
    model, inputs = tiny_act(5), padded_batch([12, 12, 9], 5)
    with torch.no_grad():
        model.encoder.compact = False
        dense = model(**inputs)
        model.encoder.compact = None
        for halted in (1, 5, 15, 25, 30):
            flops = layer_pass_flops(model.config, 12) / 12
            monkeypatch.setitem(COMPACTION_FLOPS, "cpu", halted * flops)
            switched = model(**inputs)
            assert_near(dict(switched), dict(dense), 1e-10)
