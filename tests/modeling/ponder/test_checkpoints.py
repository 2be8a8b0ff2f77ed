"""Ponder models from files of ALBERT, of ELBERT, and of their own."""

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    AlbertModel,
)

from modeling import (
    ElbertConfig,
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    UserError,
)
from tests.conftest import edit_json
from tests.models import SMALL, hidden_states, ponder_batch


def save_albert(path, kind, **keys):
    torch.manual_seed(0)
    kind(AlbertConfig(**{**SMALL, **keys})).save_pretrained(path / "albert")
    return path / "albert"


@pytest.mark.parametrize("kind", [AlbertModel, AlbertForMaskedLM, AlbertForSequenceClassification])
def test_layers_of_an_hf_checkpoint_compute_what_hf_computes_at_any_depth(tmp_path, kind):
    checkpoint = save_albert(tmp_path, kind)
    model = PonderAlbertClassifier.from_pretrained(checkpoint, num_hidden_layers=9)
    hf = AlbertModel.from_pretrained(checkpoint, num_hidden_layers=9).eval()
    ids, mask, types = ponder_batch([9, 14]).values()
    with torch.no_grad():
        expected = hf(ids, mask, types, output_hidden_states=True).hidden_states
    for state, theirs in zip(hidden_states(model, ids, mask, types), expected, strict=True):
        real = mask.bool()
        torch.testing.assert_close(state[real], theirs[real], atol=1e-5, rtol=1e-5)


def test_an_elbert_checkpoint_gives_its_encoder_and_not_its_entropy_threshold(tmp_path):
    torch.manual_seed(0)
    elbert = ElbertForSequenceClassification(ElbertConfig(**SMALL, exit_thres=0.05, cnt_thres=2))
    elbert.save_pretrained(tmp_path)
    model = PonderAlbertClassifier.from_pretrained(tmp_path)
    layer = elbert.albert.encoder.albert_layer_groups[0].albert_layers[0]
    assert torch.equal(model.albert_layer.ffn.weight, layer.ffn.weight)
    assert model.config.exit_thres == 0.5


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"num_hidden_groups": 2}, "config.json: num_hidden_groups = 2: allowed is 1, since a pon"),
        ({"inner_group_num": 2}, "config.json: inner_group_num = 2: allowed is 1, since a ponder"),
        ({"model_type": "bert"}, "allowed is 1, since a ponder model applies one layer"),
        ({"model_type": "roberta"}, "allowed is 1, since a ponder model applies one layer"),
        ({"intermediate_size": 64}, r"albert_layer\.ffn.*shape"),
    ],
)
def test_a_checkpoint_of_another_shape_is_an_error(tmp_path, edits, message):
    checkpoint = save_albert(tmp_path, AlbertModel)
    edit_json(checkpoint / "config.json", **edits)
    with pytest.raises(UserError, match=message):
        PonderAlbertClassifier.from_pretrained(checkpoint)
