"""sweep_exits.py in a test's hands."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sweep_exits
from tests.commands import Outcome
from tests.conftest import tiny_model
from tests.scripts.sweeps import LABELS, flags, head_of, save, write_data


@pytest.fixture
def sweep(script) -> Callable[..., Outcome]:
    """`sweep(place, "rte", "--tables_only", ...)` sweeps the model of a task."""

    def run(place: Path, task: str, *more) -> Outcome:
        return script(sweep_exits.main, *flags(place, task, *more))

    return run


@pytest.fixture(scope="session")
def originals(tmp_path_factory, spiece) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    for task in LABELS:
        model = tiny_model(seed=3, cnt_thres=3, **head_of(task))
        with torch.no_grad():  # sharper answers than random weights give, so that exits differ
            model.albert.encoder.exit_out_layer.classifier.weight.mul_(4)
        save(model, folder / "models" / task, spiece)
        write_data(folder / "data" / task, task)
    return folder


@pytest.fixture
def place(originals, tmp_path) -> Path:
    """A fresh copy of models and data: place/models/TASK and place/data/TASK."""
    return Path(shutil.copytree(originals, tmp_path / "lab"))
