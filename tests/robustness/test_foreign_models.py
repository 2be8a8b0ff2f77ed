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

from evaluation.job import ResultPaths, load_finished
from evaluation.modes import trained_mode
from glue.tasks import get_task
from modeling import ElbertConfig, UserError, load_config, load_tokenizer
from modeling.elbert.keys import TABLE
from modeling.exit_settings import resolve
from tests.conftest import edit_json, tiny_config
from tests.hostile import KNOWN, VALUES, refused, tried
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


@pytest.mark.parametrize("kind", ["file", "link", "device", "pipe", "absolute"])
def test_an_exit_config_outside_the_model_is_not_read(kind, tmp_path, monkeypatch):
    folder, outside = tmp_path / "model", tmp_path / "secret.json"
    folder.mkdir()
    outside.write_text('{"secret": "word"}')
    paths = {"file": "../secret.json", "absolute": str(outside), "device": "/dev/zero"}
    name = paths.get(kind, "x")
    if kind == "link":
        (folder / name).symlink_to(outside)
    if kind == "pipe":
        os.mkfifo(folder / name)
    monkeypatch.setattr(Path, "read_bytes", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(UserError, match=r"leads out|not a regular file"):
        resolve(folder, TABLE, config=vars(tiny_config(exit_config_path=name)))


@pytest.mark.parametrize(
    "keys",
    [
        {"my_out_dir": "../elsewhere"},
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


@pytest.mark.parametrize("value", ["org/kernel", {"": "org/kernel"}, "flash_attention_2", 5])
def test_no_attention_is_loaded_that_a_file_names(value, model):
    path = model / "config.json"
    before = path.read_bytes()
    edit_json(path, _attn_implementation=value)
    try:
        assert answer(model).shape == (1, 2)
        assert load_config(model)._attn_implementation in (None, "sdpa")
    finally:
        path.write_bytes(before)


def test_no_attention_is_loaded_that_a_call_names():
    with pytest.raises(UserError, match="org/kernel: names foreign code"):
        ElbertConfig(attn_implementation="org/kernel")


# Tokenizers.

TEXTS = ("a man sings", "the dog \0 é 猫", "")


def tokenised(folder: Path) -> list[int]:
    tokenizer = load_tokenizer(folder)
    return [piece for text in TEXTS for piece in tokenizer(text, "red cat")["input_ids"]]


NAMES = st.sampled_from(["tokenizer.json", "tokenizer_config.json"])


@given(NAMES, st.integers(0, 10**6), st.integers(0, 20), st.binary(max_size=8))
def test_any_damage_to_a_tokenizer(model, name, start, length, new):
    path = model / name
    before = path.read_bytes()
    start %= len(before)
    path.write_bytes(before[:start] + new + before[start + length :])
    try:
        found = tried(tokenised, model)
        assert refused(found) or all(isinstance(piece, int) for piece in found)
    finally:
        path.write_bytes(before)


def test_a_tokenizers_code_is_neither_run_nor_asked_for(model, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit_json(folder / "tokenizer_config.json", tokenizer_class="Evil")
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("it asked"))
    tried(load_tokenizer, folder)
    assert not (tmp_path / "ran").exists()
