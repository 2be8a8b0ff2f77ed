"""Adaptive Depth against what the published PyTorch implementation computed."""

import json

import pytest
import torch
from safetensors.torch import save_file

from elbert import AlbertActConfig, AlbertActForPreTraining, AlbertActModel
from tests.golden_vectors import load_golden
from tests.models import assert_near


def published_model(attention: str = "sdpa") -> tuple[AlbertActModel, dict[str, torch.Tensor]]:
    config, weights, tensors = load_golden("act_model")
    model = AlbertActModel(AlbertActConfig(**config, attn_implementation=attention)).eval()
    model.load_state_dict(weights)  # strict: the published names, position_ids included
    return model, tensors


def published_updates(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """(batch, length): the published (batch, 1, batch, length) is an accidental broadcast."""
    batch = torch.arange(len(tensors["updates"]))
    return tensors["updates"][batch, 0, batch]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("compact", [False, True])
def test_states_and_updates_are_the_published_ones(attention, compact):
    model, tensors = published_model(attention)
    model.encoder.compact = compact
    with torch.no_grad():
        out = model(tensors["input_ids"], tensors["attention_mask"])
    real = tensors["attention_mask"].bool()
    states, expected = out.last_hidden_state[real], tensors["last_hidden_state"][real]
    assert_near(states, expected)
    assert_near(out.pooler_output, tensors["pooler_output"])
    assert out.updates.shape == (32, 1, 1, 24)
    assert torch.equal(out.updates[:, 0, 0], published_updates(tensors))


def test_a_published_checkpoint_directory_loads_as_it_is(tmp_path):
    """Its config.json says `albert` and lacks the keys that are this suite's own."""
    model, tensors = published_model()
    config, weights, _ = load_golden("act_model")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "albert"}))
    loaded = AlbertActModel.from_pretrained(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    with torch.no_grad():
        out = loaded(tensors["input_ids"], tensors["attention_mask"])
    assert_near(out.pooler_output, tensors["pooler_output"])
    below_heads = AlbertActForPreTraining.from_pretrained(tmp_path)
    words = below_heads.albert.embeddings.word_embeddings.weight
    assert torch.equal(words, weights["embeddings.word_embeddings.weight"])
    assert below_heads.predictions.decoder.weight is words
