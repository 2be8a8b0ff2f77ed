"""change_config.py: one key, typed, printed, written whole or not at all."""

import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from change_config import change, main
from modeling import UserError, load_config
from modeling.keys import ELBERT_KEYS
from tests.conftest import tiny_config


@pytest.fixture
def trained(tmp_path):
    """OUT_DIR with the config.json of a trained model."""
    tiny_config(thres_lst=[0.9, 0.8], kd_enable=False, kd_T=1.5).save_pretrained(tmp_path / "RTE")
    return tmp_path


def arguments(trained, key, value, *more):
    where = ("--task", "RTE", "--model", "tiny", "--out_dir", trained)
    return ("--key", key, "--value", value, *where, *more)


def config_of(trained, name="config.json") -> dict:
    return json.loads((trained / "RTE" / name).read_text())


@pytest.mark.parametrize(
    ("key", "text", "old", "new"),
    [
        ("exit_thres", "0.3", 0.1, 0.3),
        ("exit_thres", "1", 0.1, 1.0),
        ("cnt_thres", "3", 4, 3),
        ("cnt_thres", "3.0", 4, 3),
        ("thres_name", "bias_3", "bias_1", "bias_3"),
        ("use_fc2", "True", False, True),
        ("use_fc2", "true", False, True),
        ("exit_config_path", "exit_config.json", "", "exit_config.json"),
        ("my_out_dir", "7", "stat_out", "7"),
        ("thres_lst", "[0.5, 0.4]", [0.9, 0.8], [0.5, 0.4]),
        ("kd_enable", "false", False, False),
        ("kd_T", "2", 1.5, 2.0),
        ("hidden_act", "gelu", "gelu_new", "gelu"),
    ],
)
def test_values_are_typed_by_the_key(trained, script, key, text, old, new):
    before = config_of(trained)
    assert before[key] == old
    outcome = script(main, *arguments(trained, key, text))
    assert outcome.status == 0
    assert f"{key} {json.dumps(old)} -> {json.dumps(new)}" in outcome.out
    after = config_of(trained)
    assert after == {**before, key: new}
    assert type(after[key]) is type(new)
    assert list(after) == list(before)  # the keys keep their order
    load_config(trained / "RTE")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("exit_thresh", "0.3", ["exit_thresh", "exit_thres"]),
        ("zzzzz", "1", ["unknown key zzzzz"]),
        ("exit_thres", "1.5", ["exit_thres = 1.5", "0 to 1"]),
        ("exit_thres", "NaN", ["exit_thres"]),
        ("exit_thres", "low", ["'low'", "a number"]),
        ("exit_thres", "9" * 5000, ["exit_thres"]),
        ("exit_thres", "[" * 100_000, ["exit_thres"]),
        ("cnt_thres", "0", ["cnt_thres = 0", "1"]),
        ("cnt_thres", "5", ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ("num_exit_layers", "5", ["num_exit_layers = 5", "num_hidden_layers = 4"]),
        ("thres_name", "bias_4", ["bias_4", "patience"]),
        ("use_fc2", "maybe", ["maybe", "true or false"]),
        ("thres_lst", "0.5", ["thres_lst", "list"]),
        ("kd_enable", "3", ["kd_enable", "bool"]),
        ("kd_T", "NaN", ["kd_T"]),
        ("exit_thres", "", ["exit_thres"]),
    ],
)
def test_a_bad_edit_leaves_the_file_untouched(trained, script, key, text, words):
    path = trained / "RTE/config.json"
    before = path.read_bytes()
    outcome = script(main, *arguments(trained, key, text))
    assert outcome.status == 2
    for word in [str(path), *words]:
        assert word in outcome.err
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["config.json"]


@pytest.mark.parametrize("content", [None, "", "{}", '{"margin": 0.1}'])
def test_exit_config_json_takes_the_edit_instead(trained, script, content):
    path = trained / "RTE/exit_config.json"
    if content is not None:
        path.write_text(content)
    before = (trained / "RTE/config.json").read_bytes()
    edit = arguments(trained, "exit_thres", "0.3", "--config_file", "exit_config.json")
    assert script(main, *edit).status == 0
    assert json.loads(path.read_text()) == {**json.loads(content or "{}"), "exit_thres": 0.3}
    assert (trained / "RTE/config.json").read_bytes() == before
    whole = path.read_bytes()
    for key, value in (("pooler_input", "mean"), ("cnt_thres", "5"), ("exit_thres", "3")):
        edit = arguments(trained, key, value, "--config_file", "exit_config.json")
        assert script(main, *edit).status == 2
        assert path.read_bytes() == whole


def test_no_trained_model_says_what_to_run_first(tmp_path, script):
    outcome = script(main, *arguments(tmp_path, "exit_thres", "0.3"))
    assert outcome.status == 2
    assert "config.json" in outcome.err
    assert "--do_train" in outcome.err
    assert os.listdir(tmp_path) == []


def test_a_config_cut_in_half_is_named_and_left(trained, script):
    path = trained / "RTE/config.json"
    path.write_text(path.read_text()[:100])
    before = path.read_bytes()
    outcome = script(main, *arguments(trained, "exit_thres", "0.3"))
    assert outcome.status == 2
    assert f"{path}, line " in outcome.err
    assert path.read_bytes() == before


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_failing_write_leaves_the_file(trained, script, monkeypatch, failing):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = config_of(trained)
    monkeypatch.setattr(os, failing, full)
    outcome = script(main, *arguments(trained, "exit_thres", "0.3"))
    assert outcome.status == 2
    assert "No space left on device" in outcome.err
    assert config_of(trained) == before
    assert os.listdir(trained / "RTE") == ["config.json"]


@given(key=st.sampled_from(list(ELBERT_KEYS)), text=st.text(max_size=12))
@example(key="cnt_thres", text="1e999")
@example(key="fc_size1", text="1" * 400)
def test_an_accepted_edit_can_be_loaded(trained, key, text):
    path = trained / "RTE/config.json"
    before = path.read_bytes()
    try:
        change(path, key, text)
    except UserError:
        assert path.read_bytes() == before
    else:
        load_config(trained / "RTE")
        path.write_bytes(before)
