"""Every encoder of transformers with a classifier: which run one layer at a time, which do not."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
)

from elbert import (
    ElbertConfig,
    ElbertForSequenceClassification,
    UserError,
    load_model,
    load_pretrained,
)
from modeling.families import reason_against
from modeling.hf_layers.configs import as_elbert
from modeling.keys import RECIPES
from tests.conftest import random_ids
from tests.general_encoders import SIZES
from tests.models import mask_of

PAGE = Path(__file__).parents[3] / "docs/encoders.md"
# Sizes by other names, and what some encoders ask for beside SIZES.
MORE_SIZES = {
    "num_labels": 3,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "embedding_size": 32,
    "input_embedding_size": 32,
    "emb_dim": 32,
    "n_layers": 4,
    "n_heads": 4,
    "pooler_hidden_size": 32,
    "max_2d_position_embeddings": 40,
    "coordinate_size": 5,
    "shape_size": 6,
    "xpath_unit_hidden_size": 8,
    "max_depth": 2,
    "entity_vocab_size": 20,
    "entity_emb_size": 8,
    "attention_window": [4] * 4,
    "local_attention": 4,
    "global_attn_every_n_layers": 2,
    "block_size": 4,
    "mask_token_id": 4,
    "decoder_start_token_id": 2,
    "hidden_dropout_prob": 0.0,
}
# No small one can be made of these sizes, or it needs a library or a picture.
NOT_MADE = {"funnel", "layoutlmv2", "lilt", "mistral4", "modernvbert", "reformer", "ultravbert"}


def small(model_type: str):
    """A random classifier of any model_type, in eval mode, whose layers differ."""
    torch.manual_seed(0)
    config_class = CONFIG_MAPPING[model_type]
    defaults = config_class()
    sizes = {**SIZES, **MORE_SIZES}
    known = {name: value for name, value in sizes.items() if hasattr(defaults, name)}
    model = AutoModelForSequenceClassification.from_config(config_class(**known)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "orm" not in name:
                parameter.normal_(0, 0.1)
    return model


def listed(heading: str) -> dict[str, str]:
    """The model_types of a table of docs/encoders.md, and what stands beside each."""
    section = PAGE.read_text("utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*`.+`.*) \| (.+) \|$", section, re.MULTILINE)[1:]
    return {name: text for names, text in rows for name in re.findall(r"`(.+?)`", names)}


WORKING = listed("Which encoders work")
REFUSED = listed("Which are refused")


def test_the_page_lists_every_encoder_that_has_a_classifier():
    encoders = {name for name in CLASSIFIERS if not reason_against(name)}
    assert {*WORKING, *REFUSED} == encoders


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted({*WORKING} - {"albert", "luke"}))
def test_a_classifier_of_the_page_answers_as_transformers_with_all_layers(model_type, tmp_path):
    """Also those that have the suite's own layer, here by transformers' layers."""
    twin = small(model_type)
    twin.save_pretrained(tmp_path)
    values = as_elbert(json.loads((tmp_path / "config.json").read_text()))
    config = ElbertConfig(**{**values, **RECIPES["add_exits"]["elbert"], "exit_thres": 0.0})
    model, report = load_model(ElbertForSequenceClassification, tmp_path, config)
    assert not report.ignored
    mask = mask_of([9, 5, 7])
    ids = random_ids(3, 9) * mask
    with torch.no_grad():
        expected = twin(input_ids=ids, attention_mask=mask).logits
        assert torch.equal(model.eval()(ids, mask).logits, expected)


def test_a_head_that_reads_more_than_the_last_states_is_not_kept(tmp_path):
    small("luke").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"'luke' cannot have exits .*entity_hidden_states"):
        load_pretrained(tmp_path, **RECIPES["add_exits"]["elbert"])
    load_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted({*REFUSED} - NOT_MADE))
def test_an_encoder_that_the_page_says_is_refused_is_refused_with_its_reason(model_type, tmp_path):
    small(model_type).save_pretrained(tmp_path)
    with pytest.raises(UserError) as error:
        load_pretrained(tmp_path)
    assert REFUSED[model_type] in str(error.value)
    assert model_type in str(error.value)
