"""A model's folder from anywhere: no file outside it is read or written, no code in it is run, and
a user sees one of the project's errors or an answer."""

import builtins
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import run_glue
from evaluation.job import ResultPaths, load_finished
from evaluation.modes import trained_mode
from glue.tasks import get_task
from modeling import ElbertConfig, UserError, load_config, load_tokenizer
from modeling.elbert.keys import TABLE
from modeling.exit_settings import resolve
from modeling.loading.files import LARGEST_JSON, read_json, resolve_within
from tests.commands import flags
from tests.conftest import JSON, edit_json, tiny_config
from tests.hostile import KNOWN, VALUES, refused, replaced, tried
from training.provenance import remove_results

RTE = get_task("rte")


@pytest.fixture(scope="module")
def model(trained_once, tmp_path_factory) -> Path:
    """A trained model whose files a test may change, if it puts them back."""
    return Path(shutil.copytree(trained_once, tmp_path_factory.mktemp("foreign") / "RTE"))


def answer(folder: Path) -> torch.Tensor:
    """What an evaluation does with a model's folder."""
    model = load_finished(folder, trained_mode(folder))
    ResultPaths(folder).statistics(model.config, RTE)
    with torch.inference_mode():
        return model(torch.tensor([[2, 7, 3]])).logits


# config.json.

HOSTILE = "model_type id2label my_out_dir model_name dtype".split()
HOSTILE += "exit_config_path attn_implementation _attn_implementation auto_map use_cache".split()
PLACES = ["..", "../..", "/", "/dev/zero", "/etc/passwd", "a\0b", "~", "org/kernel", "a" * 300]


@given(
    st.dictionaries(
        st.sampled_from([*KNOWN, *HOSTILE]),
        VALUES | st.sampled_from(PLACES),
        min_size=1,
        max_size=3,
    )
)
@example({"model_type": []})
@example({"id2label": {"5": "a", "6": "b"}})
@example({"id2label": {"0": 1, "1": 2}})
@example({"w_init": 1e300})
@example({"eos_token_id": []})
@example({"eos_token_id": -(2**63) - 1})
@example({"my_out_dir": "a\0b", "exit_config_path": "a\0b", "model_name": "a\0b"})
def test_any_foreign_configuration(model, edits):
    path = model / "config.json"
    before, there = path.read_bytes(), {*model.parent.rglob("*")}
    edit_json(path, **edits)
    try:
        found = tried(answer, model)
        assert refused(found) or found.shape[0] == 1
        new = {*model.parent.rglob("*")} - there
        assert all(entry.is_relative_to(model) for entry in new)
    finally:
        path.write_bytes(before)


@pytest.fixture
def no_files(monkeypatch) -> list:
    """Opening a file that is not there to be read is noted."""
    seen, really = [], builtins.open

    def noted(file, *arguments, **keywords):
        seen.append(str(file))
        return really(file, *arguments, **keywords)

    monkeypatch.setattr(builtins, "open", noted)
    monkeypatch.setattr("io.open", noted)
    return seen


@pytest.mark.parametrize("kind", ["file", "link", "device", "pipe", "absolute"])
def test_an_exit_config_outside_the_model_is_not_read(kind, tmp_path, no_files):
    folder, outside = tmp_path / "model", tmp_path / "secret.json"
    folder.mkdir()
    outside.write_text('{"secret": "word"}')
    name = {"file": "../secret.json", "absolute": str(outside), "device": "/dev/zero"}.get(
        kind, "x"
    )
    if kind == "link":
        (folder / name).symlink_to(outside)
    if kind == "pipe":
        os.mkfifo(folder / name)
    no_files.clear()
    with pytest.raises(UserError, match=r"leads out|not a regular file") as error:
        resolve(folder, TABLE, config=vars(tiny_config(exit_config_path=name)))
    assert "word" not in str(error.value)
    assert not any("secret" in name or "zero" in name for name in no_files)


def test_a_file_of_any_size_is_not_read_whole(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_JSON + 1)
    with pytest.raises(UserError, match="at most"):
        read_json(path)


@pytest.mark.parametrize(
    "keys",
    [
        {"my_out_dir": "../elsewhere"},
        {"my_out_dir": "{}/elsewhere"},
        {"model_name": "../../elsewhere"},
        {"model_name": "{}/elsewhere"},
        {"my_out_dir": "link"},
        {"my_out_dir": "a\0b"},
    ],
)
def test_statistics_stay_in_the_models_folder(keys, tmp_path, caplog):
    model = tmp_path / "out/RTE"
    model.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (model / "link").symlink_to(tmp_path / "elsewhere")
    config = tiny_config(**{key: value.format(tmp_path) for key, value in keys.items()})
    place = ResultPaths(model).statistics(config, RTE)
    assert place == model / "stat_out/rte" or place == model / "stat_out" / RTE.name
    assert "leads out" in caplog.text
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("directory", ["stat_out", "link", "loop", "a\0b", "../elsewhere"])
def test_a_new_training_removes_nothing_outside_the_model(directory, tmp_path):
    """What was derived from the old weights goes, but not through a link."""
    model, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for folder in (model / "stat_out/sample/rte", elsewhere / "sample/rte"):
        folder.mkdir(parents=True)
        (folder / "layers_exit.csv").write_text("mine")
    (model / "link").symlink_to(elsewhere)
    (model / "loop").symlink_to(model / "loop")
    (model / "stat_out/sample/evil").symlink_to(elsewhere / "sample/rte")
    (model / "model.safetensors").write_bytes(b"")
    config = {"my_out_dir": directory, "model_name": "sample"}
    (model / "config.json").write_text(json.dumps(config))
    remove_results(model)
    assert (elsewhere / "sample/rte/layers_exit.csv").read_text() == "mine"
    own = model / "stat_out/sample/rte/layers_exit.csv"
    assert own.exists() == (directory != "stat_out")


def test_inside_follows_links(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "here").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "here")
    assert resolve_within(tmp_path, "there/x") == tmp_path / "here/x"
    assert resolve_within(tmp_path, "..") is None
    assert resolve_within(tmp_path, "x/../../y") is None


@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
@pytest.mark.parametrize("value", ["org/kernel", {"": "org/kernel"}, "flash_attention_2", 5])
def test_no_attention_is_loaded_that_a_file_names(name, value, model):
    path = model / "config.json"
    before = path.read_bytes()
    edit_json(path, **{name: value})
    try:
        assert answer(model).shape == (1, 2)
        assert load_config(model)._attn_implementation in (None, "sdpa")
    finally:
        path.write_bytes(before)


def test_no_attention_is_loaded_that_a_call_names():
    with pytest.raises(UserError, match="org/kernel: names foreign code"):
        ElbertConfig(attn_implementation="org/kernel")


def test_a_seed_that_numpy_does_not_take_is_refused(albert_dir, rte, tmp_path, script):
    command = flags(albert_dir, rte, tmp_path / "out", "RTE", "--do_train", "--seed", 2**32)
    ended = script(run_glue.main, *command)
    ended.refused("--seed", "4294967295")


def test_a_number_that_float32_does_not_hold_is_refused(glue, tmp_path):
    glue(tmp_path / "out", "--do_train", "--set", "w_init=1e300").refused("w_init", "3.4e+38")


# Tokenizers.

TEXTS = ("a man sings", "the dog \0 é 猫", "")


def tokenised(folder: Path) -> list[int]:
    tokenizer = load_tokenizer(folder)
    return [piece for text in TEXTS for piece in tokenizer(text, "red cat")["input_ids"]]


NAMES = st.sampled_from(["tokenizer.json", "tokenizer_config.json"])


def check_tokenizer(model: Path, name: str, content: bytes) -> None:
    path = model / name
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        found = tried(tokenised, model)
        assert refused(found) or all(isinstance(piece, int) for piece in found)
    finally:
        path.write_bytes(before)


@given(NAMES, st.lists(st.integers(0, 99), max_size=5), JSON)
def test_any_value_in_a_tokenizer(model, name, path, value):
    content = json.loads((model / name).read_text())
    check_tokenizer(model, name, json.dumps(replaced(content, path, value)).encode())


@given(NAMES, st.integers(0, 10**6), st.integers(0, 20), st.binary(max_size=8))
def test_any_damage_to_a_tokenizer(model, name, start, length, new):
    content = (model / name).read_bytes()
    start %= len(content)
    check_tokenizer(model, name, content[:start] + new + content[start + length :])


def test_a_tokenizers_code_is_neither_run_nor_asked_for(model, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit_json(folder / "tokenizer_config.json", tokenizer_class="Evil")
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("it asked"))
    tried(load_tokenizer, folder)
    assert not (tmp_path / "ran").exists()
