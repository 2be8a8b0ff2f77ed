"""Configurations: published files as they are, values out of range, the page of keys."""

import json
from pathlib import Path

import pytest

import elbert
from elbert import UserError, load_config
from modeling.keys import ACT_KEYS, ELBERT_KEYS, PONDER_KEYS
from tests.conftest import TINY, tiny_config
from tests.golden_vectors import load_golden

CONFIGS = Path(__file__).parents[2] / "configs"


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
    assert elbert.ElbertConfig.from_pretrained(tmp_path).exit_keys() == config.exit_keys()


def test_values_as_files_have_them(tmp_path):
    assert tiny_config(exit_thres=None).exit_thres == 0.1  # null
    number = tiny_config(cnt_thres=3.0).cnt_thres  # the published change_config.py writes floats
    assert (number, type(number)) == (3, int)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "return_dict": False}))
    assert load_config(tmp_path).return_dict is True  # as the scripts read the answers


CLASSIC = ("entropy", "logits", "max_prob", "bias_1", "bias_2", "bias_3", "patience")
RULES = (*CLASSIC, "learnt", "optimal_stopping")
ELBERT, PONDER, ACT = elbert.ElbertConfig, elbert.PonderAlbertConfig, elbert.AlbertActConfig
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "key", "values", "allowed"),
    [
        (ELBERT, "exit_thres", [-0.1, 1.01, NAN, "0.1", True], "a number from 0 to 1"),
        (ELBERT, "cnt_thres", [5], "num_hidden_layers = 4"),
        (ELBERT, "cnt_thres", [0, 10**400, 2.5], "whole number of at least 1"),
        (ELBERT, "thres_name", ["entropie"], ", ".join(RULES)),
        (ELBERT, "use_fc2", [1], "true or false"),
        (ELBERT, "learnt_weights", [[0.1], [["a"]], [[NAN]]], "rows of numbers"),
        (ELBERT, "num_hidden_groups", [5], "num_hidden_layers = 4"),
        (ELBERT, "hidden_size", [30], "num_attention_heads"),
        (ELBERT, "num_hidden_layers", [0], "from 1"),
        (PONDER, "target_halt_probability", [0, 1.5], "from 1e-06 to 1"),
        (ACT, "act_epsilon", [0, 1], "from 1e-06 to 0.999"),
        (ACT, "tau", [-1e-9, INFINITY], "at least 0"),
        (ACT, "num_hidden_groups", [2], "num_hidden_groups = 2: allowed is 1"),
    ],
)
def test_a_value_out_of_range_names_key_value_and_what_is_allowed(kind, key, values, allowed):
    for value in values:
        with pytest.raises(UserError, match=key) as caught:
            kind(**{**TINY, key: value})
        assert str(value) in str(caught.value)
        assert allowed in str(caught.value)


def test_a_config_of_no_folder_takes_no_exit_keys_from_where_python_runs(tmp_path, monkeypatch):
    (tmp_path / "exit_config.json").write_text('{"thres_name": "entropy", "exit_thres": 0.125}')
    monkeypatch.chdir(tmp_path)
    values = {**TINY, "model_type": "elbert", "exit_thres": 0.5}
    assert elbert.ElbertConfig.from_dict(values).exit_thres == 0.5


def test_a_misspelt_key_is_refused_and_other_programs_keys_are_kept():
    for name in ("exit_thress", "exit_threshold"):
        with pytest.raises(UserError, match=rf"{name} = 0.3; did you mean exit_thres\?"):
            tiny_config(**{name: 0.3})
    bert = {"classifier_dropout": 0.1, "pooler_type": "first_token_transform", "is_decoder": False}
    assert bert.items() <= vars(tiny_config(**bert)).items()


@pytest.mark.parametrize(
    ("name", "tau", "iterations"), [("tiny", 1e-3, 6), ("small", 5e-4, 12), ("base", 2.5e-4, 24)]
)
def test_published_sizes(name, tau, iterations):
    """The table of the published model card; all three have ALBERT-base's sizes."""
    values = json.loads((CONFIGS / f"act_{name}.json").read_text())
    config = elbert.AlbertActConfig(**values)
    assert (config.tau, config.num_hidden_layers, config.act_epsilon) == (tau, iterations, 0.01)
    parameters = sum(p.numel() for p in elbert.AlbertActForPreTraining(config).albert.parameters())
    assert parameters == 11_683_584 + 768 + 1  # ALBERT-base's, and the halting head's


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


@pytest.mark.parametrize(("groups", "exits"), [(1, 1), (4, 4), (2, 2)])
def test_no_exit_layers_means_one_for_each_layer_of_its_own(groups, exits):
    config = ELBERT(num_hidden_layers=4, num_hidden_groups=groups, num_exit_layers=0)
    assert config.num_exit_layers == exits
