"""Runs that are killed, stopped or damaged, and go on: bit by bit as if nothing had happened."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import run_glue
import training.checkpoints as checkpointing
from tests.commands import flags, no_file_above, refused
from tests.conftest import contents, edit_json, slow, write_rte
from tests.forks import assert_same_weights, run, survive_kills
from tests.robustness.small_trainings import TRAININGS
from training.checkpoints import checkpoints_of, is_finished, latest_checkpoint
from training.trainer import Trainer

# Killed and stopped.


@pytest.mark.parametrize("name", ["elbert", *map(slow, list(TRAININGS)[1:])])
def test_a_run_killed_inside_its_saves_ends_with_the_same_bits(
    name, tmp_path, small_training, undisturbed
):
    run_of = small_training(name)
    command = run_of.command(tmp_path / "out", "--save_steps", 3)
    for die_at in (8, 21):  # a run has some 50 such steps, a resumed one fewer
        assert run(command, main=run_of.main, die_at=die_at) == -signal.SIGKILL
    assert run(command, main=run_of.main) == 0
    assert_same_weights(tmp_path / "out", undisturbed(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elbert", "ponder", "act", "pretraining", "sharing"])
def test_a_run_killed_at_twenty_and_more_moments_ends_with_the_same_bits(
    name, tmp_path, small_training, undisturbed
):
    run_of = small_training(name, "--save_steps", 2, "--save_total_limit", 2)
    survive_kills(run_of.command, undisturbed(name), tmp_path, seed=len(name), main=run_of.main)
    assert all(len(checkpoints_of(out)) <= 2 for out in tmp_path.glob("out-*"))


def test_a_run_killed_amid_its_end_has_lost_nothing(
    tmp_path, small_training, undisturbed, albert_dir
):
    """The best model stands aside until the finished one does, at every step towards the disk."""
    best = small_training("elbert", "--load_best_model_at_end", "--save_steps", 6)
    whole = tmp_path / "whole"
    assert run(best.command(whole)) == 0
    assert not (whole / checkpointing.BEST).exists()
    killed = 0
    for die_at in range(200, 0, -20):
        out = tmp_path / str(die_at)
        killed += run(best.command(out), die_at=die_at) == -signal.SIGKILL
        assert is_finished(out) or not killed or run(best.command(out)) == 0
        assert_same_weights(out, whole)
        if killed == 3:
            break
    assert killed


STOPS = [
    ("elbert", signal.SIGTERM, 6),
    ("elbert", signal.SIGINT, 6),
    ("elbert", signal.SIGHUP, 6),
    slow("ponder", signal.SIGTERM, 6),
    slow("act", signal.SIGTERM, 6),
    ("pretraining", signal.SIGTERM, 2),  # amid an epoch
    ("pretraining", signal.SIGTERM, 6),  # at the end of the first phase
    slow("pretraining", signal.SIGTERM, 7),  # in the second
    ("dense", signal.SIGTERM, 3),
    ("sharing", signal.SIGTERM, 5),
    slow("narrow sharing", signal.SIGTERM, 5),
]


@pytest.mark.parametrize(("name", "number", "step"), STOPS)
def test_a_stopped_run_saves_says_so_and_goes_on(
    name, number, step, tmp_path, small_training, undisturbed, script, monkeypatch
):
    if name == "dense":
        pytest.importorskip("pytorch_optimizer")
    out, run_of = tmp_path / "out", small_training(name)
    command = run_of.command(out, "--save_steps", 0)
    seed_batch = Trainer.seed_batch

    def interrupted(trainer: Trainer) -> None:
        if trainer.state.step == step - 1:
            os.kill(os.getpid(), number)
        seed_batch(trainer)

    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "seed_batch", interrupted)
        stopped = script(run_of.main, *command)
    signal.signal(signal.SIGHUP, hangup)
    assert stopped.status == 128 + number
    saved = f"checkpoint-{step}"
    for word in (signal.Signals(number).name, f"step {step}", saved, "--resume_from_checkpoint"):
        assert word in stopped.err
    assert [path.name for path in checkpoints_of(out)] == [saved]
    resumed = script(run_of.main, *command).done()
    assert min(json.loads(x)["step"] for x in resumed.out.splitlines() if x[:1] == "{") == step + 1
    assert_same_weights(out, undisturbed(name))


# What a run goes on from.


def training(albert_dir, rte, out, *more) -> list[str]:
    common = flags(albert_dir, rte, out, "RTE", "--do_train", "--resume_from_checkpoint")
    return [*common, "--per_gpu_train_batch_size", 4, "--learning_rate", 1e-3, "--seed", 3, *more]


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
    flip(stopped / "checkpoint-4/optimizer.safetensors")
    refused(script, again, "No other checkpoint is intact", "--overwrite_output_dir")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--learning_rate", 2e-3), ["learning_rate was 0.001, is 0.002"]),
        (("--per_gpu_train_batch_size", 8), ["batch size was 4, is 8"]),
        (("--seed", 4), ["seed was 3, is 4"]),
        (("--bf16",), ["bf16 was False, is True"]),
        (("--max_train_samples", 9), ["max_train_samples was None, is 9"]),
    ],
)
def test_another_runs_checkpoint_is_refused(more, words, stopped, again, script):
    before = contents(stopped)
    refused(script, [*again, *more], "another run", *words)
    assert contents(stopped) == before


def test_another_models_configuration_is_refused_and_other_exit_keys_are_not(
    stopped, again, albert_dir, tmp_path, script
):
    (tmp_path / "config").mkdir()
    config = Path(shutil.copy(albert_dir / "config.json", tmp_path / "config"))
    edit_json(config, hidden_act="relu", exit_thres=0.5)
    before = contents(stopped)
    other = [*again, "--config_name", config]
    refused(script, other, "is of another model", "hidden_act was", "is 'relu'")
    assert contents(stopped) == before
    edit_json(config, hidden_act=json.loads((albert_dir / "config.json").read_text())["hidden_act"])
    assert script(run_glue.main, *other).status == 0


def test_other_data_or_a_path_to_nothing_is_refused(stopped, again, tmp_path, script):
    other = write_rte(tmp_path / "RTE")
    rows = (other / "train.tsv").read_text().splitlines()
    (other / "train.tsv").write_text("\n".join([*rows[:-1], rows[1]]) + "\n")
    refused(script, [*again, "--data_dir", other], "training examples or their tokens are others")
    again.insert(again.index("--resume_from_checkpoint") + 1, stopped / "checkpoint-5")
    refused(script, again, "checkpoint-5: no such directory", f"{stopped}/checkpoint-8")


def test_a_finished_training_is_left_as_it_is_and_an_unfinished_one_not_evaluated(
    stopped, again, albert_dir, rte, script
):
    evaluation = flags(albert_dir, rte, stopped, "RTE", "--do_eval")
    refused(script, evaluation, "did not finish", "--resume_from_checkpoint latest", "checkpoint-8")
    assert script(run_glue.main, *again).status == 0
    before = {path: path.stat().st_mtime_ns for path in stopped.glob("*.safetensors")}
    assert before
    assert script(run_glue.main, *again).status == 0
    assert {path: path.stat().st_mtime_ns for path in stopped.glob("*.safetensors")} == before
    refused(script, [*again, "--seed", 4], "is finished", "seed was 3, is 4")


def test_only_the_newest_checkpoints_are_kept(tmp_path, albert_dir, rte, script):
    out = tmp_path / "out"
    command = training(albert_dir, rte, out, "--save_steps", 2, "--save_total_limit", 2)
    assert script(run_glue.main, *command, "--max_steps", 9).status == 0
    assert [path.name for path in checkpoints_of(out)] == ["checkpoint-6", "checkpoint-8"]


def test_pruning_neither_counts_nor_keeps_a_damaged_checkpoint(stopped):
    flip(stopped / "checkpoint-8/optimizer.safetensors")
    checkpointing.prune(stopped, 1)
    assert [path.name for path in checkpoints_of(stopped)] == ["checkpoint-4"]
    flip(stopped / "checkpoint-4/optimizer.safetensors")
    checkpointing.prune(stopped, 1)  # none is intact
    assert len(checkpoints_of(stopped)) == 1


def test_a_checkpoint_holds_no_pickle(stopped):
    names = {path.suffix for path in latest_checkpoint(stopped).iterdir()}
    assert names <= {".json", ".safetensors", ".model"}
    state = json.loads((latest_checkpoint(stopped) / "training_state.json").read_text())
    assert state["position"] == {"step": 8, "epoch": 1, "batch": 2}
    assert state["arguments"]["learning_rate"] == 1e-3


@pytest.mark.parametrize("room", [0, 2_000, 30_000])
def test_a_full_disk_leaves_the_checkpoints_that_were_there(room, stopped, again, script):
    before = contents(stopped / "checkpoint-8")
    older = [*again, "--resume_from_checkpoint", stopped / "checkpoint-4"]
    with no_file_above(room):
        refused(script, older, "cannot write")
    assert contents(stopped / "checkpoint-8") == before
    assert script(run_glue.main, *again).status == 0
