"""Configurations: published files as they are, and arbitrary ones without a traceback."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoConfig

from change_config import change
from modeling import ElbertConfig, ElbertForSequenceClassification, ExitRule, UserError, load_config
from modeling.configuration import AdaptiveConfig
from modeling.keys import (
    ACT_KEYS,
    ELBERT_KEYS,
    EXIT_KEYS,
    INERT_KEYS,
    PONDER_KEYS,
    KeyTable,
    Number,
    Whole,
    checked,
)
from modeling.loading.configs import apply_exit_config
from tests.conftest import TINY, tiny_config
from tests.golden_vectors import load_golden


@pytest.mark.parametrize("name", ["elbert_cls", "elbert_three_way"])
def test_a_published_config_is_accepted_as_it_is(name, tmp_path):
    published = load_golden(name)[0]["config"]
    (tmp_path / "config.json").write_text(json.dumps(published))
    config = load_config(tmp_path)
    computed = {"fc_size1"}  # use_out_pooler: as wide as the pooler
    implied = {"num_labels", "output_attentions"}  # HF saves id2label, and no flag that is off
    for key, value in published.items():
        if key not in computed:
            assert getattr(config, key) == value, key
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert published.keys() - implied <= saved.keys()  # every published key is carried along
    assert ElbertConfig.from_pretrained(tmp_path).exit_keys() == config.exit_keys()


def test_null_means_the_default():
    assert tiny_config(exit_thres=None).exit_thres == 0.1


def test_a_file_that_asks_for_tuples_does_not_change_what_the_scripts_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "return_dict": False}))
    assert load_config(tmp_path).return_dict is True


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("exit_thres", -0.1, "0 to 1"),
        ("exit_thres", 1.01, "0 to 1"),
        ("exit_thres", float("nan"), "0 to 1"),
        ("exit_thres", "0.1", "a number"),
        ("exit_thres", True, "a number"),
        ("cnt_thres", 0, "at least 1"),
        ("cnt_thres", 5, "num_hidden_layers = 4"),
        ("cnt_thres", 10**400, "whole number"),
        ("range_tmp", 10**400, "a number"),
        ("cnt_thres", 2.5, "whole number"),
        ("thres_name", "entropie", "entropy, logits, max_prob, bias_1, bias_2, bias_3, patience"),
        ("margin", 0.6, "0 to 0.5"),
        ("use_fc2", 1, "true or false"),
        ("pooler_input", "min", "mean-max"),
        ("weight_name", "dynamic", "dyn, equal"),
        ("num_exit_layers", 5, "num_hidden_layers = 4"),
        ("num_hidden_groups", 5, "num_hidden_layers = 4"),
        ("hidden_size", 30, "num_attention_heads"),
        ("num_hidden_layers", 0, "from 1"),
    ],
)
def test_a_value_out_of_range_names_key_value_and_what_is_allowed(key, value, allowed):
    with pytest.raises(UserError) as caught:
        tiny_config(**{key: value})
    assert key in str(caught.value)
    assert str(value) in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("cnt_thres", 5), ("cnt_thres", 0), ("exit_thres", 2)])
def test_a_bad_edit_of_a_live_config_is_found_at_the_next_call(key, value):
    config = tiny_config()
    setattr(config, key, value)
    with pytest.raises(UserError, match=key):
        ExitRule.from_config(config)


def test_whole_floats_count_as_whole_numbers():
    """The published change_config.py writes every value as a float."""
    assert tiny_config(cnt_thres=3.0).cnt_thres == 3
    assert isinstance(tiny_config(cnt_thres=3.0).cnt_thres, int)


def test_a_mode_of_ones_own_is_a_class_with_a_table(tmp_path):
    exit_keys = {"halt_after": Whole(default=2, meaning="", minimum=1, counts_layers=True)}
    keys = {**exit_keys, "weight": Number(default=None, meaning="")}

    class OwnConfig(AdaptiveConfig):
        model_type = "a_mode_of_ones_own"
        table = KeyTable(keys, exit_keys)

        def derived_defaults(self):
            return {"weight": 1 / self.num_hidden_layers}

    tiny_config(exit_thres=0.3).save_pretrained(tmp_path)  # another mode's keys are not its own
    config = load_config(tmp_path, config_class=OwnConfig, halt_after=3)
    assert (config.halt_after, config.weight, config.exit_keys()) == (3, 0.25, {"halt_after": 3})
    assert not hasattr(config, "exit_thres")
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).exit_keys() == {"halt_after": 3}
    with pytest.raises(UserError, match="halt_after = 5: allowed is 1 to num_hidden_layers = 4"):
        change(tmp_path / "config.json", "halt_after", "5")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
ARCHITECTURE = (*TINY, "num_hidden_groups", "inner_group_num", "hidden_act", "num_labels")
OTHERS = (
    "id2label label2id problem_type hidden_dropout_prob attention_probs_dropout_prob "
    "classifier_dropout_prob layer_norm_eps pad_token_id tie_word_embeddings finetuning_task "
    "architectures model_type dtype torch_dtype return_dict output_attentions _name_or_path"
).split()
keys = st.sampled_from([*ELBERT_KEYS, *INERT_KEYS, *ARCHITECTURE, *OTHERS]) | st.text(max_size=6)
small = st.integers(-2, 40) | st.sampled_from([0.5, 1.0, 2.0, "bias_2", "lead", "gelu", "relu"])


def outcome_of(function, *arguments):
    """The result, or the UserError; anything else is a traceback for the user and fails."""
    try:
        return function(*arguments)
    except UserError as error:
        return error


def size_of(config: ElbertConfig) -> int:
    """The largest matrix, so that a fuzzed size does not fill the memory."""
    names = "vocab_size embedding_size hidden_size intermediate_size fc_size1 fc_size2".split()
    sizes = sorted(getattr(config, name) for name in names)
    layers = config.num_hidden_layers * config.inner_group_num
    return max(sizes[-1] * sizes[-2] * layers, config.max_position_embeddings * sizes[-1])


@given(values=st.dictionaries(keys, small | json_values, max_size=4))
@example(values={"cnt_thres": 10**400})
@example(values={"hidden_act": "none such"})
@example(values={"hidden_dropout_prob": 2.0})
@example(values={"num_labels": 0})
@example(values={"num_labels": -1})
@example(values={"id2label": [1]})
@example(values={"layer_norm_eps": "x"})
@example(values={"initializer_range": -1.0})
@example(values={"pad_token_id": 10**6})
@example(values={"num_attention_heads": -4})
@example(values={"dtype": "float99"})
@example(values={"": 1})
def test_any_config_json_gives_a_model_or_an_error_for_the_user(values, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **values}))
    config = outcome_of(load_config, tmp_path)
    if isinstance(config, UserError):
        assert str(tmp_path) in str(config)
    elif size_of(config) < 10**6:
        ElbertForSequenceClassification(config)


@given(text=st.text(max_size=30) | st.binary(max_size=30))
@example(text="[" * 100_000)
@example(text='{"exit_thres": ' + "9" * 5000 + "}")
def test_any_text_as_config_json_gives_an_error_for_the_user(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=r"config\.json"):
        load_config(tmp_path)


exit_keys = st.sampled_from([*EXIT_KEYS, *ELBERT_KEYS, *INERT_KEYS]) | st.text(max_size=6)


@given(values=st.dictionaries(exit_keys, small | json_values, max_size=4))
@example(values={"cnt_thres": 10**400})
def test_any_exit_config_json_gives_a_rule_or_an_error_for_the_user(values, tmp_path):
    config = tiny_config(exit_config_path="exit_config.json")
    before = config.exit_keys()
    (tmp_path / "exit_config.json").write_text(json.dumps(values))
    overrides = outcome_of(apply_exit_config, config, tmp_path)
    if isinstance(overrides, UserError):
        assert "exit_config.json" in str(overrides)
        assert config.exit_keys() == before
    else:
        assert config.exit_keys() == {**before, **overrides}
        ExitRule.from_config(config)


@given(name=st.sampled_from(list(ELBERT_KEYS)), value=json_values | small)
@example(name="range_tmp", value=10**400)
def test_a_checked_value_has_the_type_of_its_key(name, value):
    result = outcome_of(checked, name, value)
    if isinstance(result, UserError):
        assert name in str(result)
    else:
        assert type(result) is ELBERT_KEYS[name].kind
        assert result == value
        json.dumps(result, allow_nan=False)


def documented_tables() -> list[dict[str, tuple[str, str]]]:
    """The tables of keys of docs/configuration.md, each as key -> (default, meaning)."""
    text = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
    tables = []
    for block in text.split("| key | default | meaning |\n|---|---|---|\n")[1:]:
        rows = [line.strip("| ").split(" | ") for line in block.split("\n\n")[0].splitlines()]
        tables.append({key.strip("`"): (default, meaning) for key, default, meaning in rows})
    return tables


# What a default is called where the model decides it.
DERIVED = {"cnt_thres": "8, or N if less", "fc_size1": "hidden_size", "fc_size2": "hidden_size"}


@pytest.mark.parametrize("number", range(3))
def test_the_page_lists_every_key_as_the_code_has_it(number):
    keys = (ELBERT_KEYS, PONDER_KEYS, ACT_KEYS)[number]
    listed = documented_tables()[number]
    assert list(listed) == list(keys)
    for name, key in keys.items():
        default, meaning = listed[name]
        assert meaning == f"{key.meaning}; {key.allowed()}"
        plain = "(none)" if key.default in ("", None) else str(key.default)
        assert default == DERIVED.get(name, plain.lower() if key.kind is bool else plain)
