"""Where a model may be written: a training that came to its end must not be lost to its folder."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import run_glue
from evaluation.job import Place
from tests.commands import flags
from training.checkpoints import checkpoints_of, is_finished

ROOT = Path(run_glue.__file__).parent
WORK = ("--do_train", "--do_eval", "--do_predict", "--save_steps", 2, "--max_steps", 3)


def check_whole(out: Path) -> None:
    assert is_finished(out)
    assert len(checkpoints_of(out)) == 1
    names = {"model.safetensors", "tokenizer.json", "eval_results.json", "exits.png", "RTE.tsv"}
    assert names <= {path.name for path in out.iterdir()}
    assert not list(out.parent.rglob("*.partial"))


def test_the_folder_that_one_is_in(glue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    glue(Path("."), *WORK).done()
    check_whole(tmp_path)


def test_the_second_half_of_mnli_lies_beside_the_folder_that_one_is_in(tmp_path, monkeypatch):
    (tmp_path / "MNLI").mkdir()
    monkeypatch.chdir(tmp_path / "MNLI")
    assert Place(Path("."), "-MM").results == tmp_path / "MNLI-MM"


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


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["rw", "ro"])
def test_a_mount_point(parent, tmp_path, albert_dir, rte):
    """`ro`: whose parent cannot be written."""
    out, volume = tmp_path / "home/out", tmp_path / "volume"
    out.mkdir(parents=True)
    volume.mkdir()
    home = out.parent
    mounts = [
        f"mount --bind {home} {home}",
        f"mount --bind {volume} {out}",
        f"mount -o remount,bind,{parent} {home}",
    ]
    alone = ["unshare", "--map-root-user", "--mount", "bash", "-ec"]
    if subprocess.run([*alone, "; ".join(mounts)], capture_output=True, check=False).returncode:
        pytest.skip("no mounts in a user's namespace here")
    command = ["run_glue.py", *flags(albert_dir, rte, out, "RTE", *WORK)]
    done = subprocess.run(
        [*alone, "; ".join([*mounts, 'exec "$@"']), "bash", sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    check_whole(volume)
