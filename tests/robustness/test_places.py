"""Where a model may be written: a training that came to its end must not be lost to its folder."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.job import ResultPaths
from training.checkpoints import checkpoints_of, is_finished
from training.start import lock_of

WORK = ("--do_train", "--do_eval", "--do_predict", "--save_steps", 2, "--max_steps", 3)


def check_whole(out: Path) -> None:
    assert is_finished(out)
    assert len(checkpoints_of(out)) == 1
    names = {"model.safetensors", "tokenizer.json", "eval_results.json", "exits.png", "RTE.tsv"}
    assert names <= {path.name for path in out.iterdir()}
    assert not list(out.parent.rglob("*.partial"))


def test_the_folder_that_one_is_in(glue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ResultPaths(Path("."), "-MM").results == tmp_path.parent / f"{tmp_path.name}-MM"
    for more in ((), ("--overwrite_output_dir",)):
        glue(Path("."), *WORK, *more).done()
        check_whole(tmp_path)


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[Path]:
    """A folder on another file system."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def test_a_link_to_another_file_system(glue, tmp_path, elsewhere):
    (tmp_path / "out").symlink_to(elsewhere)
    glue(tmp_path / "out", *WORK).done()
    check_whole(tmp_path / "out")


def test_a_second_run_is_told_who_holds_the_folder(glue, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    before = os.listdir(out)
    with lock_of(out):
        for more in ((), ("--overwrite_output_dir",), ("--resume_from_checkpoint",)):
            glue(out, *WORK, *more).refused(out, f"process {os.getpid()} on ", "choose another")
    assert os.listdir(out) == before
