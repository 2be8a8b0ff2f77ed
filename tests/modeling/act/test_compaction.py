"""The loop that computes only running tokens, against the dense one."""

import torch

from modeling.act.encoder import COMPACTION_FLOPS
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
