"""What a training leaves on disk: whole, or not at all."""

import math
import os
from dataclasses import replace

import pytest
import torch

from modeling import ElbertForSequenceClassification, UserError, load_tokenizer
from tests.commands import no_file_above
from tests.conftest import contents, tiny_model
from training.checkpoints import (
    Best,
    begin_training,
    check_finished,
    finish_training,
    latest_checkpoint,
    save_model,
)


@pytest.fixture
def tokenizer(albert_dir):
    return load_tokenizer(albert_dir)


def test_saving_replaces_a_model_whole(tmp_path, tokenizer):
    target = tmp_path / "out"
    save_model(target, tiny_model(1), tokenizer)
    (target / "notes.txt").write_text("mine")
    save_model(target, tiny_model(2), tokenizer)
    loaded = ElbertForSequenceClassification.from_pretrained(target)
    expected = tiny_model(2).state_dict()
    assert all(torch.equal(expected[k], v) for k, v in loaded.state_dict().items())
    assert (target / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_saved_files_have_the_permissions_that_the_umask_leaves(tmp_path, tokenizer, umask, mode):
    """safetensors makes its files private, which a model that others are to load is not."""
    before = os.umask(umask)
    try:
        save_model(tmp_path / "out", tiny_model(), tokenizer)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in modes
    assert set(modes.values()) == {mode}, modes


@pytest.mark.parametrize("room", [0, 500, 3000, 20_000])
def test_a_failed_save_leaves_the_previous_checkpoint(tmp_path, tokenizer, room):
    target = tmp_path / "out"
    save_model(target, tiny_model(1), tokenizer)
    before = contents(target)
    with no_file_above(room), pytest.raises(UserError, match="cannot write"):
        save_model(target, tiny_model(2), tokenizer)
    assert contents(target) == before
    with no_file_above(room), pytest.raises(UserError, match="cannot write"):
        save_model(tmp_path / "new", tiny_model(2), tokenizer)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, tokenizer, value):
    """A gradient can overflow under a finite loss; the next loss comes after the next save."""
    model = tiny_model()
    with torch.no_grad():
        model.albert.pooler.weight[0, 0] = value
    with pytest.raises(UserError, match=r"not finite.*--learning_rate"):
        save_model(tmp_path / "checkpoint-1", model, tokenizer)
    assert os.listdir(tmp_path) == []


def test_unfinished_training_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no trained model.*--do_train"):
        check_finished(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    check_finished(tmp_path)
    begin_training(tmp_path, {"learning_rate": 1e-5})
    with pytest.raises(UserError, match=r"did not finish.*--overwrite_output_dir"):
        check_finished(tmp_path)
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-5/config.json").write_text("{}")
    with pytest.raises(UserError, match="checkpoint-5"):
        check_finished(tmp_path)
    finish_training(tmp_path)
    check_finished(tmp_path)


def test_the_first_of_equal_values_is_the_best_and_patience_counts_from_there():
    best, seen = Best(patience=2), []
    for step, value in ((10, 0.5), (20, 0.7), (30, 0.7), (40, 0.6)):
        assert not best.should_stop
        seen.append(best.update(step, value))
    assert seen == [True, True, False, False]
    assert best.should_stop
    assert (best.step, best.value) == (20, 0.7)
    assert replace(Best(patience=2), **best.record()) == best


@pytest.mark.parametrize("name", ["checkpoint-best", "checkpoint-20"])
def test_the_latest_checkpoint_is_a_whole_one_with_the_highest_step(tmp_path, name):
    for other in ("checkpoint-5", "checkpoint-10"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "config.json").write_text("{}")
    (tmp_path / name).mkdir()  # of another name, or a save that was cut short
    assert latest_checkpoint(tmp_path).name == "checkpoint-10"
