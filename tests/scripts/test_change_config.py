"""change_config.py: one key, typed, printed, written whole or not at all."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

import change_config
from change_config import change
from elbert import UserError, load_config
from modeling.keys import ELBERT_KEYS
from tests.commands import Outcome, edit_key
from tests.conftest import edit_json, tiny_config, write


@pytest.fixture
def model(tmp_path) -> Path:
    """OUT_DIR/TASK with the config.json of a trained model."""
    folder = tmp_path / "RTE"
    tiny_config().save_pretrained(folder)
    return folder


@pytest.fixture
def edit(script, model) -> Callable[..., Outcome]:
    """`edit("exit_thres", "0.3", ...)` changes a key of the model."""
    return partial(edit_key, script, model)


def config_of(model: Path) -> dict:
    return json.loads((model / "config.json").read_text())


def test_of_commands_at_the_same_time_no_change_is_lost(model):
    values = {"exit_thres": "0.31", "cnt_thres": "2", "margin": "0.05", "range_tmp": "0.4"}
    for _ in range(5):
        tiny_config().save_pretrained(model)
        with ThreadPoolExecutor(len(values)) as pool:
            list(pool.map(partial(change, model), values.keys(), values.values()))
        content = config_of(model)
        assert {key: str(content[key]) for key in values} == values


@pytest.mark.parametrize(
    ("key", "text", "old", "new"),
    [
        ("exit_thres", "0.3", 0.1, 0.3),
        ("cnt_thres", "3.0", 4, 3),
        ("use_fc2", "True", False, True),
        ("exit_config_path", "exit_config.json", "", "exit_config.json"),
        ("my_out_dir", "7", "stat_out", "7"),
    ],
)
def test_values_are_typed_by_the_key(model, edit, key, text, old, new):
    before = config_of(model)
    assert before[key] == old
    outcome = edit(key, text).done()
    assert f"{key} {json.dumps(old)} -> {json.dumps(new)}" in outcome.out
    after = config_of(model)
    assert after == {**before, key: new}
    assert type(after[key]) is type(new)
    assert list(after) == list(before)  # the keys keep their order
    load_config(model)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("exit_thres", "low", ["'low'", "a number"]),
        ("cnt_thres", "5", ["cnt_thres = 5", "num_hidden_layers = 4"]),
        ("use_fc2", "maybe", ["maybe", "true or false"]),
        ("kd_T", "2", ["unknown key kd_T"]),
        ("exit_config_path", "../", ["leads out of"]),
    ],
)
def test_a_bad_edit_leaves_the_file_untouched(model, edit, key, text, words):
    path = model / "config.json"
    write(model.parent / "exit_config.json", '{"margin": 0.1}')  # outside the model's folder
    before = path.read_bytes()
    edit(key, text).refused(path, *words)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["config.json"]


@pytest.mark.parametrize(("name", "old"), [("exit_config.json", 3), ("elsewhere.json", 0.7)])
def test_a_key_is_edited_where_it_counts_even_if_its_value_was_wrong(model, edit, name, old):
    path = model / name
    edit_json(model / "config.json", exit_config_path=name)
    path.write_text(json.dumps({"exit_thres": old}))
    before = config_of(model)
    assert f"{path}: exit_thres {old} -> 0.3" in edit("exit_thres", "0.3").done().out
    assert (json.loads(path.read_text()), config_of(model)) == ({"exit_thres": 0.3}, before)
    edit("cnt_thres", "2").done()  # not a key of that file
    assert config_of(model)["cnt_thres"] == 2


def test_the_folder_is_named_as_in_other_scripts_or_as_published(model, script):
    edit = ("--key", "exit_thres", "--value")
    published = ("--task", model.name, "--out_dir", model.parent)
    said = script(change_config.main, *edit, "0.3", "--model_dir", model).done().out
    assert said == f"{model / 'config.json'}: exit_thres 0.1 -> 0.3\n"
    said = script(change_config.main, *edit, "0.4", *published, "--model", "tiny").done().out
    assert said == f"tiny {model / 'config.json'}: exit_thres 0.3 -> 0.4\n"
    for folders in ((), (*published, "--model_dir", model)):
        script(change_config.main, *edit, "0.5", *folders).refused("--model_dir", "--task")


def test_an_edit_that_the_rule_does_not_read_is_said(model, edit):
    edit_json(model / "config.json", thres_name="patience")
    said = edit("exit_thres", "0.3").done().out
    assert "exit_thres has no effect: the exit rule is patience, cnt_thres 4" in said
    assert "no effect" not in edit("cnt_thres", "2").done().out
    assert "no effect" not in edit("thres_name", "entropy").done().out


def test_keys_that_fix_the_shape_of_trained_weights_stay(model, edit, tmp_path, script):
    (model / "model.safetensors").touch()
    before = config_of(model)
    for key in ("num_hidden_layers", "pooler_input"):
        edit(key, "2").refused(f"the shape of the weights depends on {key}", "--do_train")
    assert config_of(model) == before
    edit_key(script, tmp_path / "MRPC", "exit_thres", "0.3").refused("config.json", "--do_train")


@given(key=st.sampled_from(list(ELBERT_KEYS)), text=st.text(max_size=12))
@example(key="cnt_thres", text="1e999")
@example(key="fc_size1", text="1" * 400)
def test_an_accepted_edit_can_be_loaded(model, key, text):
    path = model / "config.json"
    before = path.read_bytes()
    try:
        change(model, key, text)
    except UserError:
        assert path.read_bytes() == before
    else:
        load_config(model)
        path.write_bytes(before)
