"""The shared layer pass against HF's AlbertModel, and where packed weights serve."""

import pytest
import torch
import transformers

from elbert import cpu_packing
from modeling.cpu_packing import packed_copy
from modeling.errors import UserError
from tests.conftest import TINY, random_ids, tiny_model
from tests.models import assert_near, either_way, hidden_states, mask_of, tiny_act


def hf_twin(model, seed: int = 3) -> transformers.AlbertModel:
    """A random HF AlbertModel, its weights copied into `model` by name."""
    torch.manual_seed(seed)
    names = [*TINY, "hidden_act", "num_hidden_groups", "inner_group_num"]
    config = transformers.AlbertConfig(**{name: getattr(model.config, name) for name in names})
    twin = transformers.AlbertModel(config).eval()
    missing, unexpected = model.albert.load_state_dict(twin.state_dict(), strict=False)
    assert unexpected == []
    assert all("exit_out" in name for name in missing)
    return twin


@either_way
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"hidden_act": "gelu"},
        {"num_hidden_groups": 2, "num_hidden_layers": 5},
        {"num_hidden_groups": 4},
        {"inner_group_num": 3, "num_hidden_layers": 2},
        {"num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "relu"},
    ],
)
def test_every_layer_is_that_of_hf_albert(shape, attention, way):
    model = tiny_model(**shape, attn_implementation=attention)
    twin = hf_twin(model)
    ids, types = random_ids(3, 9), random_ids(3, 9, 1) % 2
    mask = mask_of([9, 5, 1])
    with torch.no_grad():
        hf = twin(ids, mask, types, output_hidden_states=True).hidden_states
    ours = hidden_states(way(model), ids, mask, types)
    inner = model.config.inner_group_num
    # HF records the states within a group too.
    hf = hf[::inner] if len(hf) != len(ours) else hf
    real = mask.bool()
    for mine, theirs in zip(ours, hf, strict=True):
        assert_near(mine[real], theirs[real])


@pytest.mark.parametrize("reason", ["eager", "float64", "autocast", "no oneDNN"])
def test_where_packing_does_not_serve_the_model_runs_as_it_is(reason, monkeypatch):
    model = tiny_model(attn_implementation="eager" if reason == "eager" else "sdpa")
    if reason == "float64":
        model.double()
    if reason == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        monkeypatch.setattr(cpu_packing, "PACKABLE", cpu_packing.packable_types())
    with torch.autocast("cpu", enabled=reason == "autocast"), torch.inference_mode():
        copy = packed_copy(model)
        assert not packed_parts(copy)
        assert copy(random_ids(2, 6)).logits.isfinite().all()


@pytest.mark.skipif(not cpu_packing.PACKABLE, reason="torch without oneDNN packs nothing")
@pytest.mark.parametrize("make", [tiny_model, tiny_act])
def test_a_packed_model_is_no_half_of_the_callers_autocast(make):
    """Its own maps would stay in float32, and all others would go to half precision."""
    copy = packed_copy(make().float().eval())
    outside = pytest.raises(UserError, match=r"outside of torch\.autocast")
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), outside:
        copy(random_ids(1, 6) % 40)


def packed_parts(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [part for part in model.modules() if isinstance(part, cpu_packing.PackedPart)]


@pytest.mark.skipif(not cpu_packing.PACKABLE, reason="torch without oneDNN packs nothing")
@pytest.mark.parametrize("keys", [{}, {"use_out_pooler": False, "num_exit_layers": 4}])
def test_layers_and_poolers_are_packed_in_the_copy_alone(keys):
    model = tiny_model(**keys)
    kinds = cpu_packing.AlbertLayer, cpu_packing.Pooler
    usable = [module for module in model.modules() if isinstance(module, kinds)]
    copy = packed_copy(model)
    assert len(packed_parts(copy)) == len(usable) > 0
    assert not packed_parts(model)
    ids = random_ids(3, 7)
    with torch.inference_mode():
        model.config.exit_thres = 0.0  # the copy has the same configuration
        assert_near(copy(ids).logits, model(ids).logits)
        model.config.exit_thres = 1.0
        assert copy(ids).exit_layer.tolist() == model(ids).exit_layer.tolist() == [1, 1, 1]


@pytest.mark.skipif(not cpu_packing.PACKABLE, reason="torch without oneDNN packs nothing")
@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.train(),
        lambda model: model.to(torch.bfloat16),
        lambda model: model.state_dict(),
        lambda model: model.load_state_dict(tiny_model().state_dict()),
        lambda model: cpu_packing.cast_layers(model, torch.bfloat16),
    ],
)
def test_what_would_change_packed_weights_is_refused(change):
    with pytest.raises(UserError, match="packed for inference"):
        change(packed_copy(tiny_model()))
