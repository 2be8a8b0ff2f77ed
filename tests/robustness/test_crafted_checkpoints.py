"""Checkpoints made by hand, with checksums that agree: what no training wrote is refused."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import training.checkpoints as checkpointing
from modeling import UserError
from tests.conftest import JSON, random_ids, tiny_model
from tests.hostile import replaced, tried
from training.checkpoints import Learner, find_checkpoint, save_checkpoint
from training.loop import Identity, Position, Training
from training.optimizer import make_optimizer, make_schedule
from training.settings import RunSettings
from utils.fingerprint import file_fingerprint

STEPS = 3


def new_training() -> Training:
    model = tiny_model().train()
    optimizer = make_optimizer(model, 1e-3, 0.01, 1e-8)
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
    learner = Learner(model, tokenizer, optimizer, make_schedule(optimizer, 2, 10))
    identity = Identity({"seed": 1}, frozenset(), 2, "data")
    return Training(Accelerator(cpu=True), learner, RunSettings(output_dir="out"), 0, identity)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """checkpoint-3 of a training of three steps."""
    training = new_training()
    for _ in range(STEPS):
        out = training.learner.model(random_ids(2, 6), labels=torch.tensor([0, 1]))
        out.loss.backward()
        training.learner.optimizer.step()
        training.schedule.step()
    training.position = Position(STEPS, 0, STEPS)
    folder = tmp_path_factory.mktemp("written") / f"checkpoint-{STEPS}"
    save_checkpoint(folder, training.learner, training.state())
    return folder


@pytest.fixture
def checkpoint(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / written.name))


def sealed(checkpoint: Path) -> Path:
    """With checksums of what it holds now."""
    names = [path.name for path in checkpoint.iterdir() if path.name != checkpointing.MANIFEST]
    stamps = {name: file_fingerprint(checkpoint / name) for name in names}
    (checkpoint / checkpointing.MANIFEST).write_text(json.dumps(stamps))
    return checkpoint


def resumed(checkpoint: Path) -> Training:
    training = new_training()
    training.resume(find_checkpoint(checkpoint.parent, str(sealed(checkpoint))))
    return training


def test_what_a_training_wrote_is_taken_up(checkpoint):
    training = resumed(checkpoint)
    assert training.position == Position(STEPS, 0, STEPS)
    weights = load_file(checkpoint / "model.safetensors")
    assert all(
        torch.equal(weights[name], x) for name, x in training.learner.model.state_dict().items()
    )


STATES = {
    "a step below 0": (("position", "step"), -1),
    "another step than its name": (("position", "step"), 4),
    "an epoch below 0": (("position", "epoch"), -1),
    "a batch that is no number": (("position", "batch"), "3"),
    "a position with more": (("position", "paragraph"), 1),
    "a schedule of another step": (("schedule", "last_epoch"), 9),
    "a schedule of other rates": (("schedule", "base_lrs"), [9.0] * 3),
    "rates that are none": (("schedule", "_last_lr"), [math.nan] * 3),
    "a schedule with more": (("schedule", "step"), 5),
    "another decay": (("optimizer", "param_groups", 0, "weight_decay"), 9.0),
    "another rate": (("optimizer", "param_groups", 0, "lr"), 1e9),
    "other betas": (("optimizer", "param_groups", 0, "betas"), [2.0, 2.0]),
    "other parameters": (("optimizer", "param_groups", 0, "params"), [0]),
    "a group less": (("optimizer", "param_groups"), []),
    "numbers of no parameter": (("optimizer", "scalars"), {"9999": {"step": 1}}),
    "numbers of a name": (("optimizer", "scalars"), {"x": {"step": 1}}),
    "other arguments": (("arguments",), {"seed": 2}),
    "no arguments": (("arguments",), []),
    "other data": (("data",), "others"),
    "an epoch without end": (("position", "epoch"), 2**70),
    "no seconds": (("seconds",), None),
    "seconds that are no number": (("seconds",), math.nan),
    "seconds without end": (("seconds",), math.inf),
    "seconds below 0": (("seconds",), -1.0),
    "no best": (("best",), None),
    "a best of nothing": (("best",), []),
    "a best that is no number": (("best", "value"), math.nan),
    "a best below step 0": (("best", "step"), -1),
    "a best long ago": (("best", "since"), 2**70),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_contradicts_itself_is_refused(name, checkpoint):
    path, value = STATES[name]
    state = json.loads((checkpoint / checkpointing.STATE).read_text())
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (checkpoint / checkpointing.STATE).write_text(json.dumps(state))
    with pytest.raises(UserError, match=checkpoint.name):
        resumed(checkpoint)


def set_all(key: str, value: float) -> Callable[[dict], dict]:
    return lambda tensors: {
        name: torch.full_like(x, value) if name.endswith(key) else x for name, x in tensors.items()
    }


TENSORS = {
    "moments that are no numbers": set_all("exp_avg", math.nan),
    "infinite moments": set_all("exp_avg_sq", math.inf),
    "squares below 0": set_all("exp_avg_sq", -1.0),
    "steps below 0": set_all("step", -1.0),
    "another shape": lambda tensors: {name: x.reshape(-1)[:1] for name, x in tensors.items()},
    "no first moments": lambda tensors: {n: x for n, x in tensors.items() if "avg_sq" in n},
    "no steps": lambda tensors: {n: x for n, x in tensors.items() if "step" not in n},
    "none at all": lambda tensors: {},
    "of no parameter": lambda tensors: {**tensors, "9999.exp_avg": torch.zeros(1)},
    "of a name": lambda tensors: {**tensors, "x.exp_avg": torch.zeros(1)},
    "without a name": lambda tensors: {**tensors, "x": torch.zeros(1)},
}


@pytest.mark.parametrize("name", TENSORS)
def test_an_optimiser_that_no_training_had_is_refused(name, checkpoint):
    path = checkpoint / checkpointing.OPTIMIZER
    save_file(TENSORS[name](load_file(path)), path)
    with pytest.raises(UserError, match=checkpoint.name):
        resumed(checkpoint)


WEIGHTS = {
    "no numbers": lambda x: x * math.nan,
    "infinite": lambda x: x / 0,
    "whole numbers": lambda x: x.to(torch.int8),
    "another shape": lambda x: x[:1],
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_no_training_had_are_refused(name, checkpoint):
    path = checkpoint / "model.safetensors"
    save_file({key: WEIGHTS[name](x) for key, x in load_file(path).items()}, path)
    with pytest.raises(UserError, match=checkpoint.name):
        resumed(checkpoint)


def test_a_list_of_files_without_the_weights_is_refused(checkpoint):
    stamps = json.loads((sealed(checkpoint) / checkpointing.MANIFEST).read_text())
    del stamps["model.safetensors"]
    (checkpoint / checkpointing.MANIFEST).write_text(json.dumps(stamps))
    with pytest.raises(UserError, match="does not list a checkpoint's files"):
        find_checkpoint(checkpoint.parent, str(checkpoint))


@given(st.lists(st.integers(0, 99), max_size=5), JSON)
def test_any_value_in_a_state(written, path, value):
    file = written / checkpointing.STATE
    before = file.read_bytes()
    file.write_text(json.dumps(replaced(json.loads(before), path, value)))
    try:
        tried(resumed, written)
    finally:
        file.write_bytes(before)
        sealed(written)
