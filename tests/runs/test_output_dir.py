"""What --output_dir says of a training, and which results go with a model's weights."""

import json

import pytest

from elbert import UserError
from runs import output_dir
from runs.files import locked
from runs.folder import RunFolder
from runs.output_dir import (
    check_finished,
    check_output_dir,
    checkpoints_of,
    latest_checkpoint,
    locked_for_sweep,
    locked_for_training,
    remove_results,
)
from runs.settings import RunSettings


def make_model(folder, task: str = "rte"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"finetuning_task": task}))
    return folder


def test_checkpoints_are_in_order_of_their_steps_and_copies_do_not_count(tmp_path):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-9-keep", "checkpoint-best"):
        make_model(tmp_path / name)
        (tmp_path / name / output_dir.STATE).write_text("{}")
    make_model(tmp_path / "checkpoint-11")  # not a run's
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12" / output_dir.STATE).write_text("{}")  # half of one
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"


def test_an_unfinished_training_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"run run_glue\.py with --do_train first"):
        check_finished(tmp_path, "run_glue.py")
    make_model(tmp_path)
    check_finished(tmp_path)
    (tmp_path / output_dir.IN_PROGRESS).write_text("{}")
    with pytest.raises(UserError, match="did not finish; train again with --overwrite_output_dir"):
        check_finished(tmp_path)
    make_model(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / output_dir.STATE).write_text("{}")
    with pytest.raises(UserError, match=r"--output_dir .*checkpoint-2"):
        check_finished(tmp_path)


def test_a_folder_with_files_is_written_only_if_a_flag_gives_them_up(tmp_path):
    out = tmp_path / "deep/out"
    check_output_dir(RunSettings(output_dir=str(out)), writes=True)  # it is made
    with locked_for_training(out):
        check_output_dir(RunSettings(output_dir=str(out)), writes=True)  # the lock alone is there
    (out / "notes").write_text("mine")
    with pytest.raises(UserError, match="exists and is not empty"):
        check_output_dir(RunSettings(output_dir=str(out)), writes=True)
    for flags in ({"overwrite_output_dir": True}, {"resume_from_checkpoint": "latest"}):
        check_output_dir(RunSettings(output_dir=str(out), **flags), writes=True)


def test_one_training_at_a_time_holds_a_folder(tmp_path):
    with (
        locked_for_training(tmp_path),
        pytest.raises(UserError, match="another run is training a model"),
        locked_for_training(tmp_path),
    ):
        pytest.fail("two held it")
    with locked_for_training(tmp_path):
        pass


def test_one_sweep_at_a_time_holds_its_folders(tmp_path):
    with (
        locked_for_sweep([tmp_path / "a", tmp_path / "b"]),
        pytest.raises(UserError, match="another run is writing a sweep"),
        locked_for_sweep([tmp_path / "c", tmp_path / "b"]),
    ):
        pytest.fail("two held it")
    with locked_for_sweep([tmp_path / "b", tmp_path / "x" / ".." / "b"]):  # the same folder
        pass


def test_a_lock_that_is_waited_for_within_a_training_is_its_own_error(tmp_path):
    """It must not read as if another run trained into the folder."""
    with (
        locked(tmp_path / "cache"),
        pytest.raises(TimeoutError),
        locked_for_training(tmp_path),
        locked(tmp_path / "cache", timeout=0),
    ):
        pytest.fail("two held it")


@pytest.mark.parametrize(("task", "second_half_goes"), [("mnli", True), ("rte", False), (5, False)])
def test_results_of_the_weights_before_are_removed_and_their_exit_keys_put_aside(
    task, second_half_goes, tmp_path
):
    model = make_model(tmp_path / "out", task)
    folders = [model, model / "sweep", tmp_path / "out-MM"]
    for folder in folders:
        RunFolder(folder).write_text("eval_results.txt", "0.5")
        (folder / "notes").write_text("mine")
    (model / "exit_config.json").write_text("{}")
    remove_results(model)
    left = [(folder / "eval_results.txt").exists() for folder in folders]
    assert left == [False, False, not second_half_goes]
    assert all((folder / "notes").exists() for folder in folders)
    assert not (model / "exit_config.json").exists()
    assert (model / "exit_config.json.1").exists()
