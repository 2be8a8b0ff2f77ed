"""Packed weights: the same answers, only inside their block, and plain where they do not serve."""

import copy
import pickle
import platform
from pathlib import Path

import pytest
import torch

from modeling import UserError, cpu_packing
from modeling.cpu_packing import PackedLinear, is_emulated, packed_weights
from tests.conftest import random_ids, tiny_model
from tests.models import either_way, hidden_states, mask_of, plain


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


def test_a_model_trains_on_after_an_evaluation_with_packed_weights():
    model, ids = tiny_model(), random_ids(4, 6)
    answers(model, ids)
    model.train()(ids, labels=torch.tensor([0, 1, 0, 1])).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    fresh = tiny_model(seed=9)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(answers(model.eval(), ids), answers(fresh, ids))


def test_a_model_made_in_inference_mode_runs_packed():
    expected = answers(tiny_model(), random_ids(2, 6))
    with torch.inference_mode():
        model = tiny_model()
    assert torch.equal(answers(model, random_ids(2, 6)), expected)


def is_packed(model: torch.nn.Module) -> bool:
    return any(getattr(module, "packed", None) is not None for module in model.modules())


def test_packed_weights_may_be_entered_twice_and_end_with_the_outer_block():
    model = tiny_model()
    with packed_weights(model):
        with packed_weights(model):
            assert is_packed(model)
        assert is_packed(model)
        assert torch.is_inference_mode_enabled()
    assert not is_packed(model)
    assert not torch.is_inference_mode_enabled()


def test_packed_weights_end_with_an_error_too():
    model = tiny_model()
    with pytest.raises(KeyError), packed_weights(model):
        raise KeyError
    assert not is_packed(model)


def test_packing_refuses_a_model_in_train_mode():
    with pytest.raises(UserError, match=r"model\.eval\(\)"), packed_weights(tiny_model().train()):
        pass


def test_copies_and_saved_weights_know_nothing_of_packing():
    model, ids = tiny_model(), random_ids(2, 6)
    names = list(model.state_dict())
    expected = answers(model, ids, plain)
    with packed_weights(model):
        assert list(model.state_dict()) == names
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in twins:
        assert not is_packed(twin)
        assert torch.equal(answers(twin, ids, plain), expected)


@pytest.mark.parametrize("reason", ["eager", "float64", "autocast", "no oneDNN", "no operator"])
def test_where_packing_does_not_serve_the_model_runs_as_it_is(reason, monkeypatch):
    model = tiny_model(attn_implementation="eager" if reason == "eager" else "sdpa")
    if reason == "float64":
        model.double()
    if reason == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    if reason == "no operator":
        monkeypatch.setattr(cpu_packing, "NEEDED", (*cpu_packing.NEEDED, "_an_operator_of_later"))
    if reason.startswith("no "):
        monkeypatch.setattr(cpu_packing, "PACKABLE", cpu_packing.packable_types())
    with torch.autocast("cpu", enabled=reason == "autocast"), packed_weights(model):
        assert not is_packed(model)
        assert model(random_ids(2, 6)).logits.isfinite().all()


def test_no_linear_map_works_on_padding(monkeypatch):
    """Of 3 × 9 tokens, 15 are real, and one of these is taken again and again, up to a round
    number; what the maps give for them is HF's (see above)."""
    seen = []
    original = PackedLinear.__call__

    def counted(self, states, *more):
        seen.append(len(states))
        return original(self, states, *more)

    monkeypatch.setattr(PackedLinear, "__call__", counted)
    model = tiny_model()
    mask = mask_of([9, 5, 1])
    with packed_weights(model):
        hidden_states(model, random_ids(3, 9), mask, None)
    assert seen
    assert set(seen) == {32}


def test_rows_are_filled_up_to_few_numbers():
    sizes = []
    for count in range(1, 4097):
        filled = cpu_packing.filled_up(torch.arange(count))
        sizes.append(len(filled))
        assert filled[:count].equal(torch.arange(count))
        assert filled[count:].eq(count - 1).all()
        assert len(filled) - count < max(32, count / 16)
    assert len(set(sizes)) < 100


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not Path("/proc/cpuinfo").exists(),
    reason="reads Linux's list of what the processor can",
)
def test_half_precision_is_emulated_where_the_processor_lists_no_instructions_for_it():
    flags = set(
        Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    )
    assert is_emulated(torch.bfloat16, "cpu") == flags.isdisjoint({"avx512_bf16", "amx_bf16"})
    assert is_emulated(torch.float16, "cpu") == flags.isdisjoint({"avx512_fp16", "amx_fp16"})
    assert not is_emulated(torch.float32, "cpu")
    assert not is_emulated(torch.bfloat16, "cuda")
