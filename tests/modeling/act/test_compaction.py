"""The loop that computes only running tokens, against the dense one."""

import torch

from modeling.act.encoder import COMPACTION_FLOPS
from modeling.flops import layer_pass_flops
from tests.models import assert_near, padded_batch, tiny_act


def test_only_running_tokens_are_computed():
    """Attention output and feed-forward see as many tokens as there are updates."""
    model, inputs, seen = tiny_act(3), padded_batch([12, 7, 10], 3), []
    model.encoder.compact = True
    layer = model.encoder.albert_layer
    for module in (layer.attention.dense, layer.ffn):
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1].numel()))
    with torch.no_grad():
        updates = model(**inputs).updates.sum()
    assert sum(seen) == 2 * updates < 2 * 29 * model.config.num_hidden_layers


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
