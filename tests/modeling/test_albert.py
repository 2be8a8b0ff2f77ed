"""The shared layer pass, plain and packed, against HF's AlbertModel."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
import transformers

from modeling import (
    AlbertActConfig,
    AlbertActModel,
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    UserError,
    cpu_packing,
)
from modeling.albert import ExitLinear, Pooler, attention_mask_of, cast_layers
from modeling.cpu_packing import packed_weights
from modeling.depth import layer_states
from tests.conftest import TINY, random_ids, tiny_config, tiny_model


def hidden_states(model, ids, mask=None, types=None) -> list[torch.Tensor]:
    """State at depth 0, 1, ... N."""
    with torch.no_grad():
        start = model.embed(ids, types)
        return [start, *layer_states(model, start, attention_mask_of(mask))]


def plain(model: torch.nn.Module) -> nullcontext:
    """In place of `packed_weights`."""
    return nullcontext()


either_way = pytest.mark.parametrize("way", [plain, packed_weights])


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
    mask = torch.tensor([9, 5, 1])[:, None].gt(torch.arange(9)).long()
    with torch.no_grad():
        hf = twin(ids, mask, types, output_hidden_states=True).hidden_states
    with way(model):
        ours = hidden_states(model, ids, mask, types)
    inner = model.config.inner_group_num
    # HF records the states within a group too.
    hf = hf[::inner] if len(hf) != len(ours) else hf
    real = mask.bool()
    for mine, theirs in zip(ours, hf, strict=True):
        torch.testing.assert_close(mine[real], theirs[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", range(1, 17))
def test_groups_share_the_depth_as_in_hf_albert(layers):
    for groups in range(1, layers + 1):
        config = tiny_config(
            num_hidden_layers=layers, num_hidden_groups=groups, hidden_size=4, intermediate_size=4
        )
        backbone = ElbertForSequenceClassification(config).albert
        expected = [int(i / (layers / groups)) for i in range(layers)]  # HF's AlbertTransformer
        assert [backbone.group_of(i) for i in range(layers)] == expected


MODELS = {
    "elbert": (ElbertForSequenceClassification, tiny_config),
    "ponder_albert": (PonderAlbertClassifier, PonderAlbertConfig),
    "albert_act": (AlbertActModel, AlbertActConfig),
}


@pytest.fixture(params=MODELS)
def any_model(request) -> torch.nn.Module:
    model, config = MODELS[request.param]
    return model(config(**TINY)).eval()


def test_a_text_of_more_tokens_than_positions_is_refused_with_both_numbers(any_model):
    with torch.no_grad():
        any_model(random_ids(2, 40))
        with pytest.raises(UserError, match=r"^41 tokens.* max_position_embeddings = 40;"):
            any_model(random_ids(2, 41))


def test_every_model_answers_with_a_tuple_if_asked(any_model):
    with torch.no_grad():
        assert isinstance(any_model(random_ids(2, 5), return_dict=False), tuple)


def test_a_mask_of_ones_is_no_mask():
    model, ids = tiny_model(), random_ids(2, 6)
    with_mask = hidden_states(model, ids, torch.ones_like(ids))
    for mine, theirs in zip(with_mask, hidden_states(model, ids), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


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


def test_the_pooler_is_the_tanh_of_a_linear_map_packed_or_not():
    pooler, states = Pooler(tiny_config(), 12).eval(), torch.randn(3, 5, 32)
    expected = torch.tanh(states @ pooler.weight.T + pooler.bias)
    for way in (plain, packed_weights):
        with way(pooler):
            torch.testing.assert_close(pooler(states), expected, atol=1e-6, rtol=0)


def test_a_map_of_an_exit_is_linear_for_one_row_and_many():
    linear, states = ExitLinear(32, 12), torch.randn(3, 5, 32)
    expected = states @ linear.weight.T + linear.bias
    torch.testing.assert_close(linear(states), expected, atol=1e-6, rtol=0)
    for row in (states[1, 2], states[1, 2][None], states[None, 1, 2][None]):
        torch.testing.assert_close(
            linear(row), expected[1, 2].view(*row.shape[:-1], -1), atol=1e-6, rtol=0
        )


def test_cast_layers_are_half_precision_products_between_float32_states():
    """Against float32 with the same weights rounded: what is left is the products' rounding."""
    model, rounded = tiny_model(), tiny_model()
    cast_layers(model, torch.bfloat16)
    layer = rounded.albert.encoder.albert_layer_groups[0].albert_layers[0]
    cast = {name for name, p in model.named_parameters() if p.dtype == torch.bfloat16}
    names = ("attention.query", "attention.key", "attention.value", "attention.dense")
    prefix = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    maps = [prefix + name for name in (*names, "ffn", "ffn_output")]
    assert cast == {f"{name}.{part}" for name in maps for part in ("weight", "bias")}
    for linear in layer.linear_maps:
        for parameter in linear.parameters():
            parameter.data = parameter.data.bfloat16().float()
    ids = random_ids(3, 9)
    for way in (plain, packed_weights):
        with way(model), way(rounded):
            states, expected = (
                [model_.embed(ids), model_.layer_pass(model_.embed(ids), None, 0)]
                for model_ in (model, rounded)
            )
        assert [state.dtype for state in states] == [torch.float32] * 2
        assert torch.equal(states[0], expected[0])
        torch.testing.assert_close(states[1], expected[1], atol=0.05, rtol=0)
        assert not torch.equal(states[1], expected[1])


@either_way
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cast_layers_answer_alike_alone_and_in_a_batch(dtype, way):
    model = tiny_model(pooler_input="cls-mean")
    cast_layers(model, dtype)
    ids = random_ids(4, 9)
    mask = torch.tensor([9, 5, 2, 7])[:, None].gt(torch.arange(9)).long()
    with torch.inference_mode(), way(model):
        together = model(ids, mask, output_all_exits=True).all_logits
        for row, length in enumerate((9, 5, 2, 7)):
            alone = model(ids[row : row + 1, :length], output_all_exits=True).all_logits
            torch.testing.assert_close(together[:, row], alone[:, 0], atol=0.1, rtol=0)


def test_no_linear_map_works_on_padding(monkeypatch):
    """Of 3 × 9 tokens, 15 are real; what the maps give for them is HF's (see above)."""
    seen = []
    original = cpu_packing.packed_linear

    def counted(states, *more):
        seen.append(len(states))
        return original(states, *more)

    monkeypatch.setattr(cpu_packing, "packed_linear", counted)
    model = tiny_model()
    mask = torch.tensor([9, 5, 1])[:, None].gt(torch.arange(9)).long()
    with packed_weights(model):
        hidden_states(model, random_ids(3, 9), mask, None)
    assert seen
    assert set(seen) == {15}
