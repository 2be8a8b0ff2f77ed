"""What sweep_exits.py refuses: bad input is named, and nothing is written."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.conftest import contents, edit_json


def no_model(place: Path) -> None:
    shutil.rmtree(place / "models/rte")
    (place / "models/rte").mkdir()


def bare_albert(place: Path) -> None:
    path = place / "models/rte/model.safetensors"
    tensors = {name: t for name, t in load_file(path).items() if "exit" not in name}
    save_file(tensors, path, metadata={"format": "pt"})


def other_task(place: Path) -> None:
    shutil.rmtree(place / "models/rte")
    shutil.copytree(place / "models/mnli", place / "models/rte")


def no_data(place: Path) -> None:
    (place / "data/rte/dev.tsv").unlink()


def broken_exit_config(place: Path) -> None:
    edit_json(place / "models/rte/config.json", exit_config_path="exit_config.json")
    (place / "models/rte/exit_config.json").write_text('{"exit_thres": ')


def nothing(place: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        (no_model, (), "no trained model in"),
        (bare_albert, (), "is not a trained model of this project: no weights for"),
        (other_task, (), "was trained on mnli (3 labels), not on rte (2 labels)"),
        (no_data, (), "no dev.tsv in"),
        (broken_exit_config, (), "not valid JSON"),
        (nothing, ("--grid", "exit_tres=0:1:0.1"), "did you mean exit_thres"),
        (nothing, ("--grid", "exit_thres"), "expected KEY=VALUES"),
        (nothing, ("--rules", "entropie"), "rule entropie: did you mean entropy"),
        (nothing, ("--pick", "max_coast=1"), "did you mean max_cost"),
        (nothing, ("--pick", "risk=0.02"), "or risk=… with delta=…"),
        (nothing, ("--pick", "max_p95_ms=1", "--batch_size", "2"), "one text at a time"),
        (nothing, ("--pick", "risk=2", "delta=0.1"), "allowed is a number between 0 and 1"),
        (nothing, ("--pick", "max_cost=cheap"), "'cheap' is not a number"),
        (nothing, ("--compare", "--calibration_fraction", "1"), "calibration_fraction = 1 of 70"),
        (nothing, ("--verify", "-1"), "--verify: -1: allowed is 0 or more"),
        (nothing, ("--vary", "range_tmp"), "grid range_tmp="),
        (nothing, ("--max_seq_length", "2000"), "--max_seq_length 2000: allowed is 3 to"),
        (nothing, ("--task_name", "rtf"), "unknown task 'rtf'"),
        (nothing, ("--model_dir", "a", "b", "--vary", "exit_thres"), "take one --model_dir"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(place, sweep, change, more, message):
    change(place)
    before = contents(place)
    outcome = sweep(place, "rte", *more)
    outcome.refused(message)
    assert contents(place) == before


def test_an_output_directory_that_cannot_be_written_is_named(place, sweep):
    (place / "full").write_text("a file")
    outcome = sweep(place, "rte", "--output_dir", place / "full/sweep", "--tables_only")
    outcome.refused("cannot write")
