"""A command with a trained model takes what it leaves out from the model's training."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from modeling.errors import UserError
from runs.flags import option
from runs.settings import DataSettings
from runs.trained_flags import (
    check_agreement,
    folders_of,
    name_and_folder,
    parse_with_trained_model,
)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders."""

    output_dir: str = option("", "folder of the model", alias="model_dir")
    model_name_or_path: str = option("", "folder of the weights")


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """`parsed(*flags)`: data flags and places, beside a training with these flags."""
    dev = tmp_path / "dev.csv"
    dev.write_text("sentence1,label\n")
    flags = {
        "data_dir": str(tmp_path),
        "task_name": "RTE",
        "max_seq_length": 32,
        "learning_rate": 0.5,  # no flag of these classes
        "validation_file": None,
        "test_file": str(tmp_path / "gone.csv"),
    }
    (tmp_path / "training.json").write_text(json.dumps({"provenance": {"flags": flags}}))
    (tmp_path / "config.json").write_text("{}")

    def parse(*flags) -> tuple[DataSettings, Places]:
        monkeypatch.setattr(sys, "argv", ["script", *map(str, flags)])
        return parse_with_trained_model(
            [DataSettings, Places], None, ["--output_dir", "--model_name_or_path"]
        )

    return parse


@pytest.mark.parametrize("flag", ["--output_dir", "--model_dir", "--model_name_or_path"])
def test_what_is_left_out_is_the_trainings(flag, parsed, tmp_path, capsys):
    data, places = parsed(flag, tmp_path)
    assert (data.task_name, data.data_dir, data.max_seq_length) == ("RTE", str(tmp_path), 32)
    assert data.test_file is None  # it is no longer there
    assert places.output_dir == str(tmp_path)
    line = capsys.readouterr().out
    assert line.startswith(f"{tmp_path}/training.json: flags from the training: --data_dir=")
    assert line.count("\n") == 1


@pytest.mark.parametrize("original", ["is gone", "is there", "has changed"])
@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_folder_that_was_moved_or_copied_finds_its_own_data(
    original, is_absolute, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    root = tmp_path if is_absolute else Path()
    for folder in ("old", "new"):
        (tmp_path / folder / "data").mkdir(parents=True)
        (tmp_path / folder / "model").mkdir()
        (tmp_path / folder / "data/dev.csv").write_text("sentence1,label\n")
    flags = {
        "output_dir": str(root / "old/model"),
        "validation_file": str(root / "old/data/dev.csv"),
        "test_file": str(tmp_path / "test.csv"),  # elsewhere: it stays where it is
    }
    (tmp_path / "test.csv").write_text("sentence1\n")
    new_model = tmp_path / "new/model"
    (new_model / "training.json").write_text(json.dumps({"provenance": {"flags": flags}}))
    (new_model / "config.json").write_text("{}")
    if original == "is gone":
        shutil.rmtree(tmp_path / "old")
    if original == "has changed":
        (tmp_path / "old/data/dev.csv").write_text("other rows\n")
    monkeypatch.setattr(sys, "argv", ["script", "--output_dir", "new/model"])
    data, _ = parse_with_trained_model([DataSettings, Places], None, ["--output_dir"])
    assert data.validation_file == str(tmp_path / "new/data/dev.csv")
    assert data.test_file == str(tmp_path / "test.csv")


def test_a_flag_of_the_command_wins_and_the_difference_is_told(parsed, tmp_path, capsys):
    data, _ = parsed("--output_dir", tmp_path, "--max_seq_length=64")
    assert data.max_seq_length == 64
    assert "--max_seq_length was 32 in the training, is 64 now" in capsys.readouterr().out


def test_beside_the_users_own_file_the_trainings_task_does_not_count(parsed, tmp_path):
    own = ("--validation_file", tmp_path / "dev.csv")
    data, _ = parsed("--output_dir", tmp_path, *own)
    assert (data.task_name, data.data_dir, data.max_seq_length) == (None, None, 32)


def test_a_task_of_glue_that_an_older_training_named_beside_its_file_does_not_count(
    parsed, tmp_path
):
    path = tmp_path / "training.json"
    training = json.loads(path.read_text())
    training["provenance"]["flags"]["train_file"] = "own.csv"
    path.write_text(json.dumps(training))
    data, _ = parsed("--output_dir", tmp_path)
    assert (data.task_name, data.data_dir, data.max_seq_length) == (None, None, 32)


def test_beside_a_data_set_the_trainings_task_and_files_do_not_count(parsed, tmp_path):
    path = tmp_path / "training.json"
    training = json.loads(path.read_text())
    training["provenance"]["flags"]["validation_file"] = str(tmp_path / "dev.csv")
    path.write_text(json.dumps(training))
    data, _ = parsed("--output_dir", tmp_path, "--dataset_name", "somebody/reviews")
    assert (data.task_name, data.validation_file, data.max_seq_length) == (None, None, 32)


def test_a_metric_is_the_trainings_unless_it_is_code(parsed, tmp_path, capsys):
    """A folder of someone else's would choose what runs here."""
    path = tmp_path / "training.json"
    training = json.loads(path.read_text())

    def train_with(metric: str) -> None:
        training["provenance"]["flags"]["metric_name"] = metric
        path.write_text(json.dumps(training))

    train_with("f1_macro")
    data, _ = parsed("--output_dir", tmp_path)
    assert data.metric_name == "f1_macro"
    data, _ = parsed("--output_dir", tmp_path, "--task_name", "MRPC")
    assert data.metric_name is None
    train_with("os.remove")
    with pytest.raises(UserError, match=r"--metric_name os\.remove, which is code: give the flag"):
        parsed("--output_dir", tmp_path)
    data, _ = parsed("--output_dir", tmp_path, "--metric_name", "acc")
    assert data.metric_name == "acc"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_main_process_tells(rank, parsed, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    parsed("--output_dir", tmp_path)
    assert bool(capsys.readouterr().out) == (rank == "0")


def test_without_a_model_all_flags_are_the_commands_own(parsed, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    data, places = parsed("--output_dir", tmp_path / "none", "--task_name", "MRPC")
    assert (data.task_name, data.max_seq_length) == ("MRPC", 128)
    assert places.output_dir == str(tmp_path / "none")
    assert capsys.readouterr().out == ""
    for flag in ("--output_dir", "--model_dir"):
        with pytest.raises(UserError, match="typo: no such folder"):
            parsed(flag, tmp_path / "typo")


@pytest.mark.parametrize(
    ("model_type", "length", "expected"),
    [("elbert", 32, 32), ("elbert", 10**30, 128), ("elbert", None, 128), ("albert", 512, 128)],
)
def test_a_model_from_the_hub_is_read_at_the_length_of_its_tokenizer(
    model_type, length, expected, parsed, tmp_path
):
    (tmp_path / "training.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
    for flag in ("--output_dir", "--model_name_or_path"):
        data, _ = parsed(flag, tmp_path)
        assert data.max_seq_length == expected
    data, _ = parsed("--output_dir", tmp_path, "--max_seq_length", 64)
    assert data.max_seq_length == 64


def test_models_that_are_used_together_have_the_same_data(tmp_path):
    """Copies of a file are the same data; a list of folders is also a pattern of theirs."""
    tables = {"a": "text,label\n", "b": "text,label\n", "c": "text,label\nother,1\n"}
    flags = {}
    for name, table in tables.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "dev.csv").write_text(table)
        flags[name] = {"validation_file": str(folder / "dev.csv"), "max_seq_length": 32}
        about = {"provenance": {"flags": flags[name]}}
        (folder / "training.json").write_text(json.dumps(about))
    folders = folders_of(f"{tmp_path}/*")
    assert folders == [str(tmp_path / name) for name in "abc"]
    names = {"validation_file", "max_seq_length"}
    check_agreement(folders[:2], flags["a"], names)
    check_agreement(folders, flags["a"], {"max_seq_length"})  # the command has the other one
    with pytest.raises(UserError, match=r"a was trained with --validation_file .*, .*c with"):
        check_agreement(folders, flags["a"], names)
    assert name_and_folder(f"mine={tmp_path}/*") == ("mine", f"{tmp_path}/*")
    assert folders_of(f"mine={tmp_path}/*") == folders
    run = tmp_path / "lr=0.1"
    run.mkdir()
    for path in (str(run), f"{tmp_path}/lr=*", "lr=0.2", "albert/albert-base-v2"):
        assert name_and_folder(path) == (path, path)  # no name, but a path
    bracket = tmp_path / "[abc]"
    bracket.mkdir()
    assert folders_of(str(bracket)) == [str(bracket)]
    assert folders_of("albert/albert-base-v2") == ["albert/albert-base-v2"]
