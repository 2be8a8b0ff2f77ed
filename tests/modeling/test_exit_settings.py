"""Which exit keys a folder means, and where each is written."""

import hashlib
import json

import pytest
from transformers import AutoModelForSequenceClassification

from modeling import ElbertConfig, ElbertForSequenceClassification, UserError, load_pretrained
from modeling.elbert.keys import TABLE
from modeling.exit_settings import exit_settings
from tests.conftest import edit_json, tiny_model

HF_WAYS = (AutoModelForSequenceClassification, ElbertForSequenceClassification)


def folder_of(path, overrides: dict | None = None, **config):
    """A folder whose config.json says this, and whose exit_config.json says `overrides`."""
    pointer = {} if overrides is None else {"exit_config_path": "exit_config.json"}
    (path / "config.json").write_text(json.dumps({**config, **pointer}))
    (path / "exit_config.json").write_text(json.dumps(overrides or {"exit_thres": 0.9}))
    return path


def test_each_value_has_the_source_that_wins(tmp_path):
    overrides = {"exit_thres": 0.7, "margin": 0.1}
    folder = folder_of(tmp_path, overrides, exit_thres=0.4, range_tmp=0.5, num_hidden_layers=4)
    found = exit_settings(folder, TABLE).under({"margin": 0.2}, "--set")
    assert found.values == {
        "thres_name": "bias_1",
        "exit_thres": 0.7,
        "cnt_thres": 4,  # the default 8, of a model of 4 layers
        "margin": 0.2,
        "range_tmp": 0.5,
        "window_score": "lead",
    }
    own, other = "config.json", "exit_config.json"
    assert list(found.sources.values()) == ["default", other, "default", "--set", own, "default"]
    assert "exit_thres = 0.7 (exit_config.json)" in found.line()
    assert "exit_thres" not in found.line(without="exit_thres")


def test_a_file_that_nothing_points_to_counts_for_nothing(tmp_path):
    assert exit_settings(folder_of(tmp_path, exit_thres=0.4), TABLE).values["exit_thres"] == 0.4


def test_a_bad_value_names_its_file(tmp_path):
    with pytest.raises(UserError, match=r"exit_config\.json: exit_thres = 3"):
        exit_settings(folder_of(tmp_path, {"exit_thres": 3}), TABLE)
    with pytest.raises(UserError, match=r"/config\.json: exit_thres = 2"):
        exit_settings(folder_of(tmp_path, exit_thres=2), TABLE)


def test_a_model_loaded_in_python_has_the_rule_of_its_folder(tmp_path):
    tiny_model(exit_thres=0.4, cnt_thres=3).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", exit_config_path="exit_config.json")
    (tmp_path / "exit_config.json").write_text('{"exit_thres": 0.7, "thres_name": "patience"}')
    model, _ = load_pretrained(tmp_path)
    loaded = [model, *(kind.from_pretrained(tmp_path) for kind in HF_WAYS)]
    for one in loaded:
        assert one.config.exit_keys() == exit_settings(tmp_path, TABLE).values
        rule = one.exit_rule()
        assert (rule.thres_name, rule.exit_thres, rule.cnt_thres) == ("patience", 0.7, 3)
    assert ElbertConfig.from_pretrained(tmp_path, exit_thres=0.2).exit_thres == 0.2


def test_a_choice_for_other_weights_is_said(tmp_path, caplog):
    chosen_for = {"weights": hashlib.sha256(b"old").hexdigest()}
    folder = folder_of(tmp_path, {"exit_thres": 0.7, "provenance": chosen_for})
    exit_settings(folder, TABLE)  # no weights, nothing to say
    (folder / "model.safetensors").write_bytes(b"old")
    assert exit_settings(folder, TABLE).values["exit_thres"] == 0.7
    assert not caplog.records
    (folder / "model.safetensors").write_bytes(b"new")
    exit_settings(folder, TABLE)
    assert "exit_config.json was chosen for other weights" in caplog.text
