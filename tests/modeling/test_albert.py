"""The shared layer pass, plain and packed, against HF's AlbertModel."""

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
)
from tests.conftest import TINY, random_ids, tiny_config, tiny_model
from tests.models import assert_near, either_way, hidden_states, mask_of


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
    with way(model):
        ours = hidden_states(model, ids, mask, types)
    inner = model.config.inner_group_num
    # HF records the states within a group too.
    hf = hf[::inner] if len(hf) != len(ours) else hf
    real = mask.bool()
    for mine, theirs in zip(ours, hf, strict=True):
        assert_near(mine[real], theirs[real])


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
