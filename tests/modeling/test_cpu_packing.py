"""Packed weights: the same answers, only inside their block, and plain where they do not serve."""

import pytest
import torch

from modeling import UserError, cpu_packing
from modeling.cpu_packing import packed_weights
from tests.conftest import random_ids, tiny_model
from tests.models import either_way


def answers(model, ids, way=packed_weights) -> torch.Tensor:
    with torch.no_grad(), way(model):
        return model(ids, output_all_exits=True).all_logits


@either_way
def test_a_changed_weight_shows_at_the_next_call(way):
    model, other, ids = tiny_model(), tiny_model(seed=5), random_ids(2, 6)
    before = answers(model, ids, way)
    model.load_state_dict(other.state_dict())
    after = answers(model, ids, way)
    assert not torch.allclose(before, after)
    assert torch.equal(after, answers(other, ids, way))


def is_packed(model: torch.nn.Module) -> bool:
    return any(getattr(module, "packed", None) is not None for module in model.modules())


def test_packing_refuses_a_model_in_train_mode():
    with pytest.raises(UserError, match=r"model\.eval\(\)"), packed_weights(tiny_model().train()):
        pass


@pytest.mark.parametrize("reason", ["eager", "float64", "autocast", "no oneDNN"])
def test_where_packing_does_not_serve_the_model_runs_as_it_is(reason, monkeypatch):
    model = tiny_model(attn_implementation="eager" if reason == "eager" else "sdpa")
    if reason == "float64":
        model.double()
    if reason == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        monkeypatch.setattr(cpu_packing, "PACKABLE", cpu_packing.packable_types())
    with torch.autocast("cpu", enabled=reason == "autocast"), packed_weights(model):
        assert not is_packed(model)
        assert model(random_ids(2, 6)).logits.isfinite().all()
