"""sweep_exits.py on ponder models: criterion and exit_thres from one recorded pass."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import run_glue
import sweep_exits
from evaluation.modes import MODES
from modeling import PonderAlbertClassifier, PonderAlbertConfig
from tests.conftest import TINY, contents, edit_json
from tests.scripts.test_sweep_exits import LABELS, flags, glue_flags, rows_of, write_data

THRESHOLDS = ("--grid", "exit_thres=0:1:0.1")


def write_model(folder: Path, task: str, spiece: Path) -> None:
    """A random ponder model that says it was trained on `task`, whose λ differ."""
    labels = LABELS[task] or ("score",)
    torch.manual_seed(3)
    config = PonderAlbertConfig(
        **TINY,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        finetuning_task=task,
    )
    model = PonderAlbertClassifier(config)
    with torch.no_grad():
        model.ponder[-1].weight.mul_(4)
    model.save_pretrained(folder)
    shutil.copy(spiece, folder / "spiece.model")


@pytest.fixture
def place(tmp_path, spiece) -> Path:
    for task in ("rte", "sts-b"):
        write_model(tmp_path / "models" / task, task, spiece)
        write_data(tmp_path / "data" / task, task)
    return tmp_path


def evaluated(place: Path, script, task: str, *more) -> dict:
    """The report of a real run."""
    args = glue_flags(place, task, *more)
    args[args.index("albert")] = "ponder_albert"
    outcome = script(run_glue.main, *args)
    assert outcome.status == 0, outcome.err
    return json.loads((place / "models" / task / "eval_results.json").read_text())


@pytest.mark.parametrize("task", ["rte", "sts-b"])
def test_rows_of_the_sweep_are_what_real_runs_give(place, script, task):
    outcome = script(sweep_exits.main, *flags(place, task, "--tables_only", *THRESHOLDS))
    assert outcome.status == 0, outcome.err
    rows = rows_of(place / "models" / task / "sweep/sweep.csv")
    assert [row["rule"] for row in rows] == ["threshold"] * 11 + ["sample"]
    assert len({row["compute_ratio"] for row in rows}) > 3
    for row in (rows[0], rows[4], rows[8], rows[-1]):
        keys = ("--exit_criteria", row["rule"], "--exit_thres", row["exit_thres"] or 0.5)
        report = evaluated(place, script, task, *keys)
        assert report["exits_per_layer"] == [int(row[f"exits_{n}"]) for n in range(1, 5)]
        assert report["computation_cost"] == pytest.approx(float(row["compute_ratio"]))
        for name, value in report["metrics"].items():
            assert value == pytest.approx(float(row[name]), abs=1e-6)


def test_everything_the_lab_offers_works_and_the_next_evaluation_uses_the_choice(place, script):
    args = ("--verify", 12, "--compare", "--pick", "max_cost=0.7", "--batch_size", 1)
    outcome = script(sweep_exits.main, *flags(place, "rte", *args, *THRESHOLDS))
    assert outcome.status == 0, outcome.err
    assert "verified 12 settings at batch size 1: every exit layer is equal" in outcome.out
    folder = place / "models/rte"
    names = {path.name for path in (folder / "sweep").iterdir()}
    assert {"frontier.png", "decisions.png", "explorer.html", "compare.md"} <= names
    picked = json.loads((folder / "exit_config.json").read_text())
    assert set(picked) <= {"exit_criteria", "exit_thres"}
    report = evaluated(place, script, "rte")
    assert picked.items() <= report["rule"].items()
    assert report["computation_cost"] <= 0.85  # 0.7 on the calibration half


def test_a_guarantee_is_tested_from_the_deepest_threshold_on(place, script):
    edit_json(place / "models/rte/config.json", exit_criteria="threshold")
    goal = ("--tables_only", "--pick", "risk=0.9", "delta=0.1")
    outcome = script(sweep_exits.main, *flags(place, "rte", *goal, *THRESHOLDS))
    assert outcome.status == 0, outcome.err
    picked = json.loads((place / "models/rte/exit_config.json").read_text())
    assert picked == {"exit_criteria": "threshold", "exit_thres": 0.0}  # a lax goal: the walk's end
    assert MODES["ponder_albert"].rules().eager_when_low == ("exit_thres",)


def test_the_recording_does_not_depend_on_the_criterion(place, script):
    expected = None
    for criterion in ("sample", "threshold", "expectation"):
        edit_json(place / "models/rte/config.json", exit_criteria=criterion)
        outcome = script(sweep_exits.main, *flags(place, "rte", "--tables_only", *THRESHOLDS))
        assert outcome.status == 0, outcome.err
        assert ("reused" in outcome.out) == (expected is not None)
        table = (place / "models/rte/sweep/sweep.csv").read_bytes()
        assert expected in (None, table)
        expected = table


def test_vary_gives_a_row_a_threshold(place, script):
    edit_json(place / "models/rte/config.json", exit_criteria="threshold")
    outcome = script(sweep_exits.main, *flags(place, "rte", "--vary", "exit_thres=0.2,0.6"))
    assert outcome.status == 0, outcome.err
    rows = rows_of(place / "models/rte/eval_results.txt")
    assert [row["exit_thres"] for row in rows] == ["0.20", "0.60"]
    for row in rows:
        keys = ("--exit_thres", row["exit_thres"], "--out_mode", "one")
        report = evaluated(place, script, "rte", *keys)
        assert f"{report['computation_cost']:.4f}" == row["compute_ratio"]


@pytest.mark.parametrize("more", [("--rules", "expectation"), ("--vary", "exit_thres")])
def test_a_mix_of_all_layers_has_nothing_to_sweep(place, script, more):
    edit_json(place / "models/rte/config.json", exit_criteria="expectation")
    before = contents(place)
    outcome = script(sweep_exits.main, *flags(place, "rte", *more))
    assert outcome.status == 2
    assert "mixes the answers of all layers" in outcome.err
    assert contents(place) == before
