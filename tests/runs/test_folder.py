"""A run's folder: what it wrote is listed, and only that is ever removed or written over."""

import json
import os

import pytest

from elbert import UserError
from modeling.files import file_hash
from runs import folder
from runs.files import write_json
from runs.folder import LIST_FILE, RunFolder
from tests.conftest import contents


def test_a_file_is_on_the_list_before_it_is_at_its_name(tmp_path, monkeypatch):
    """Wherever a run is killed, the list tells its files, old and new, from the user's."""
    results = RunFolder(tmp_path)
    results.write_text("scores.txt", "old")
    moves = []

    def replace(source, target):
        if os.path.basename(target) == "scores.txt":
            moves.append(results.read_list()["scores.txt"].split())
            assert moves[-1] == [file_hash(source), file_hash(target)]
        os.rename(source, target)

    monkeypatch.setattr(folder.os, "replace", replace)
    results.write_text("scores.txt", "new")
    assert len(moves) == 1
    assert results.has_own("scores.txt")


def test_a_users_file_in_the_way_is_renamed_and_a_runs_own_is_replaced(tmp_path, caplog):
    (tmp_path / "scores.json").write_text("mine")
    (tmp_path / "scores.json.1").write_text("mine, too")
    for number in range(2):
        RunFolder(tmp_path).write_json("scores.json", {"number": number})
    found = contents(tmp_path)
    assert json.loads(found.pop("scores.json")) == {"number": 1}
    assert json.loads(found.pop(LIST_FILE)).keys() == {"scores.json"}
    assert found == {"scores.json.1": b"mine, too", "scores.json.2": b"mine"}
    assert caplog.text.count("it is now") == 1


def test_a_growing_file_is_removed_whatever_it_holds(tmp_path):
    names = ["emissions.csv", "runs/events"]
    (tmp_path / "runs").mkdir()
    for name in names:
        (tmp_path / name).write_text("one line")
    RunFolder(tmp_path).list_growing([tmp_path / name for name in names])
    (tmp_path / "runs/events").write_text("one line and another")
    assert RunFolder(tmp_path).remove() == names
    assert not tmp_path.exists()  # the folder was the run's alone


def test_some_files_are_removed_and_the_list_stays(tmp_path):
    results = RunFolder(tmp_path)
    for name in ("a", "b"):
        results.write_text(name, name)
    (tmp_path / "c").write_text("mine")
    assert results.remove(["a", "c", "none"]) == ["a"]
    assert contents(tmp_path).keys() == {"b", "c", LIST_FILE}
    assert results.has_own("b")


@pytest.mark.parametrize("listed", [None, 4, {"size": 4}, ["x"], "any content or none"])
def test_a_foreign_list_removes_nothing(listed, tmp_path):
    path = tmp_path / "model/file"
    path.parent.mkdir()
    path.write_text("mine")
    outside = tmp_path / "outside"
    outside.write_text("mine")
    names = {"file": listed, "../outside": file_hash(outside), str(outside): file_hash(outside)}
    (path.parent / LIST_FILE).write_text(json.dumps(names))
    assert RunFolder(path.parent).remove() == []
    assert (path.read_text(), outside.read_text()) == ("mine", "mine")


@pytest.mark.parametrize("name", ["README.md", "runs/notes.txt", "events", "runs/../events"])
def test_a_foreign_list_says_of_no_file_but_tensorboards_that_it_may_hold_anything(name, tmp_path):
    path = tmp_path / name
    (tmp_path / "runs").mkdir()
    path.write_text("mine")
    results = RunFolder(tmp_path)
    write_json(tmp_path / LIST_FILE, {name: "any content"})
    assert results.remove() == []
    write_json(tmp_path / LIST_FILE, {name: "any content"})
    results.write_text(name, "a result")
    assert path.with_name(f"{path.name}.1").read_text() == "mine"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    def write(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    results = RunFolder(tmp_path)
    results.write_text("scores.txt", "old")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"cannot write .*scores.txt: No space left"):
        results.write("scores.txt", write)
    assert contents(tmp_path) == before
