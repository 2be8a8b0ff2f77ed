"""Runs that are killed, stopped or damaged, and go on: bit by bit as if nothing had happened."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import run_glue
import training.checkpoints as checkpointing
from tests.commands import flags, no_file_above, refused
from tests.conftest import contents, write_rte
from tests.forks import assert_same_weights, run, survive_kills
from training.checkpoints import checkpoints_of, latest_checkpoint
from training.trainer import Trainer


def training(albert_dir, rte, out, *more) -> list[str]:
    common = flags(albert_dir, rte, out, "RTE", "--do_train", "--resume_from_checkpoint")
    return [*common, "--per_gpu_train_batch_size", 4, "--learning_rate", 1e-3, "--seed", 3, *more]


EPOCHS = ("--num_train_epochs", 2)  # dropout before the exits is 0.1, ALBERT's default


@pytest.fixture(scope="session")
def reference(tmp_path_factory, albert_dir, rte) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("reference") / "out"
    assert run(training(albert_dir, rte, out, "--save_steps", 0, *EPOCHS)) == 0
    return out


def test_a_run_killed_inside_its_saves_ends_with_the_same_bits(
    tmp_path, albert_dir, rte, reference
):
    command = training(albert_dir, rte, tmp_path / "out", "--save_steps", 3, *EPOCHS)
    for die_at in (8, 21):  # a run has some 50 such steps, a resumed one fewer
        assert run(command, die_at=die_at) == -signal.SIGKILL
    assert run(command) == 0
    assert_same_weights(tmp_path / "out", reference)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["albert", "ponder_albert", "albert_act"])
def test_a_run_killed_at_twenty_and_more_moments_ends_with_the_same_bits(
    mode, tmp_path, albert_dir, rte
):
    def command(out: Path, *more) -> list:
        common = training(albert_dir, rte, out, "--model_type", mode, *EPOCHS)
        return [*common, "--save_steps", 2, "--save_total_limit", 2, *more]

    reference = tmp_path / "reference"
    assert run(command(reference, "--save_steps", 0)) == 0
    survive_kills(command, reference, tmp_path, seed=len(mode))
    assert all(len(checkpoints_of(out)) <= 2 for out in tmp_path.glob("out-*"))


@pytest.fixture
def hangup() -> Iterator[Callable]:
    """`hangup(action)` sets what SIGHUP does, as nohup may have; its default to begin with."""
    old = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield partial(signal.signal, signal.SIGHUP)
    signal.signal(signal.SIGHUP, old)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_run_saves_says_so_and_goes_on(
    number, tmp_path, albert_dir, rte, reference, script, monkeypatch, hangup
):
    out = tmp_path / "out"
    command = training(albert_dir, rte, out, "--save_steps", 0, *EPOCHS)
    steps = iter(range(100))

    def interrupted(trainer: Trainer):
        if next(steps) == 5:
            os.kill(os.getpid(), number)
        return seed_batch(trainer)

    seed_batch = Trainer.seed_batch
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "seed_batch", interrupted)
        stopped = script(run_glue.main, *command)
    assert stopped.status == 128 + number
    for word in (signal.Signals(number).name, "step 6", "checkpoint-6", "--resume_from_checkpoint"):
        assert word in stopped.err
    assert [path.name for path in checkpoints_of(out)] == ["checkpoint-6"]
    assert script(run_glue.main, *command).status == 0
    assert_same_weights(out, reference)


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory, albert_dir, rte) -> Path:
    """A run of eight steps with checkpoints at 4 and 8 whose end is missing."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    command = training(albert_dir, rte, out, "--save_steps", 4, "--max_steps", 8)
    assert run(command) == 0
    for name in ("config.json", "model.safetensors"):
        (out / name).unlink()
    (out / checkpointing.IN_PROGRESS).write_text("{}")
    return out


@pytest.fixture
def stopped(tmp_path, stopped_run) -> Path:
    return Path(shutil.copytree(stopped_run, tmp_path / "out"))


@pytest.fixture
def again(tmp_path, albert_dir, rte) -> list[str]:
    """The command that takes up `stopped`."""
    return training(albert_dir, rte, tmp_path / "out", "--save_steps", 4, "--max_steps", 8)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "training_state.json", "checksums.json"]
)
def test_a_damaged_checkpoint_is_refused_and_the_newest_intact_one_offered(
    harm, name, stopped, again, script
):
    harm(stopped / "checkpoint-8" / name)
    before = contents(stopped)
    refused(script, again, "checkpoint-8 is damaged", name, f"{stopped}/checkpoint-4")
    assert contents(stopped) == before
    offered = [*again, "--resume_from_checkpoint", stopped / "checkpoint-4"]
    assert script(run_glue.main, *offered).status == 0


def test_all_checkpoints_damaged_is_said(stopped, again, script):
    for path in checkpoints_of(stopped):
        flip(path / "optimizer.safetensors")
    refused(script, again, "No other checkpoint is intact", "--overwrite_output_dir")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--learning_rate", 2e-3), ["learning_rate was 0.001, is 0.002"]),
        (("--per_gpu_train_batch_size", 8), ["train batch size was 4, is 8"]),
        (("--seed", 4), ["seed was 3, is 4"]),
        (("--bf16",), ["bf16 was False, is True"]),
        (("--max_train_samples", 9), ["max_train_samples was None, is 9"]),
    ],
)
def test_another_runs_checkpoint_is_refused(more, words, stopped, again, script):
    before = contents(stopped)
    refused(script, [*again, *more], "another run", *words)
    assert contents(stopped) == before


def test_other_data_is_refused(stopped, again, tmp_path, script):
    other = write_rte(tmp_path / "RTE")
    rows = (other / "train.tsv").read_text().splitlines()
    (other / "train.tsv").write_text("\n".join([*rows[:-1], rows[1]]) + "\n")
    refused(script, [*again, "--data_dir", other], "training examples or their tokens are others")


def test_a_path_to_nothing_names_the_latest(stopped, again, script):
    again.insert(again.index("--resume_from_checkpoint") + 1, stopped / "checkpoint-5")
    refused(script, again, "checkpoint-5: no such directory", f"{stopped}/checkpoint-8")


def test_a_finished_training_is_left_as_it_is(stopped, again, script):
    assert script(run_glue.main, *again).status == 0
    before = {path: path.stat().st_mtime_ns for path in stopped.glob("*.safetensors")}
    assert before
    assert script(run_glue.main, *again).status == 0
    assert {path: path.stat().st_mtime_ns for path in stopped.glob("*.safetensors")} == before


def test_an_unfinished_training_is_not_evaluated(stopped, albert_dir, rte, script):
    common = flags(albert_dir, rte, stopped, "RTE", "--do_eval")
    refused(script, common, "did not finish", "--resume_from_checkpoint latest", "checkpoint-8")


def test_only_the_newest_checkpoints_are_kept(tmp_path, albert_dir, rte, script):
    out = tmp_path / "out"
    command = training(albert_dir, rte, out, "--save_steps", 2, "--save_total_limit", 2)
    assert script(run_glue.main, *command, "--max_steps", 9).status == 0
    assert [path.name for path in checkpoints_of(out)] == ["checkpoint-6", "checkpoint-8"]


def test_pruning_neither_counts_nor_keeps_a_damaged_checkpoint(stopped, again, script):
    flip(stopped / "checkpoint-8/optimizer.safetensors")
    older = [*again, "--resume_from_checkpoint", stopped / "checkpoint-4"]
    few = ("--save_total_limit", 1, "--save_steps", 0)
    assert script(run_glue.main, *older, *few).status == 0
    assert [path.name for path in checkpoints_of(stopped)] == ["checkpoint-4"]


def test_pruning_leaves_all_checkpoints_where_none_is_intact(stopped):
    for path in checkpoints_of(stopped):
        flip(path / "optimizer.safetensors")
    checkpointing.prune(stopped, 1)
    assert len(checkpoints_of(stopped)) == 2


def test_a_full_disk_leaves_the_checkpoint_that_was_to_be_replaced(stopped, again, script):
    before = contents(stopped / "checkpoint-8")
    older = [*again, "--resume_from_checkpoint", stopped / "checkpoint-4"]
    with no_file_above(30_000):
        refused(script, older, "cannot write")
    assert contents(stopped / "checkpoint-8") == before


def test_a_checkpoint_holds_no_pickle(stopped):
    names = {path.suffix for path in latest_checkpoint(stopped).iterdir()}
    assert names <= {".json", ".safetensors", ".model"}
    state = json.loads((latest_checkpoint(stopped) / "training_state.json").read_text())
    assert state["position"] == {"step": 8, "epoch": 1, "batch": 2}
    assert state["arguments"]["learning_rate"] == 1e-3


@pytest.mark.parametrize("room", [0, 2_000, 30_000])
def test_a_full_disk_in_a_checkpoint_leaves_the_one_before(room, stopped, again, script):
    checkpointing.remove_checkpoint(stopped / "checkpoint-8")
    before = contents(stopped / "checkpoint-4")
    with no_file_above(room):
        refused(script, again, "cannot write")
    assert contents(stopped / "checkpoint-4") == before
    assert [path.name for path in checkpointing.checkpoints_of(stopped)] == ["checkpoint-4"]
    assert script(run_glue.main, *again).status == 0
