"""sweep_exits.py on ponder models: criterion and exit_thres from one recorded pass."""

import json
from pathlib import Path

import pytest
import torch

from modeling import PonderAlbertClassifier, PonderAlbertConfig
from tests.conftest import TINY, contents, edit_json
from tests.scripts.sweeps import evaluated, head_of, rows_of, save, write_data

PONDER = ("--model_type", "ponder_albert")
THRESHOLDS = ("--grid", "exit_thres=0:1:0.1")


@pytest.fixture
def place(tmp_path, spiece) -> Path:
    """Random ponder models whose λ differ, and data: place/models/TASK and place/data/TASK."""
    for task in ("rte", "sts-b"):
        torch.manual_seed(3)
        model = PonderAlbertClassifier(PonderAlbertConfig(**TINY, **head_of(task)))
        with torch.no_grad():
            model.ponder[-1].weight.mul_(4)
        save(model, tmp_path / "models" / task, spiece)
        write_data(tmp_path / "data" / task, task)
    return tmp_path


@pytest.mark.parametrize("task", ["rte", "sts-b"])
def test_rows_of_the_sweep_are_what_real_runs_give(place, sweep, glue, task):
    sweep(place, task, "--tables_only", *THRESHOLDS).done()
    rows = rows_of(place / "models" / task / "sweep/sweep.csv")
    rules = ["threshold"] * 11 + ["sample"] + ["truncation"] * 4
    assert [row["rule"] for row in rows] == rules
    assert len({row["compute_ratio"] for row in rows}) > 3
    for row in (rows[0], rows[4], rows[8], rows[11]):
        keys = ("--exit_criteria", row["rule"], "--exit_thres", row["exit_thres"] or 0.5)
        report = evaluated(glue, place, task, *PONDER, *keys)
        assert report["exits_per_layer"] == [int(row[f"exits_{n}"]) for n in range(1, 5)]
        assert report["computation_cost"] == pytest.approx(float(row["compute_ratio"]))
        for name, value in report["metrics"].items():
            assert value == pytest.approx(float(row[name]), abs=1e-6)


def test_all_that_the_lab_offers_works_and_the_next_evaluation_uses_the_choice(place, sweep, glue):
    args = ("--verify", 4, "--compare", "--pick", "max_cost=0.7", "--batch_size", 1)
    outcome = sweep(place, "rte", *args, *THRESHOLDS).done()
    assert "verified 4 settings at batch size 1: every exit layer is equal" in outcome.out
    folder = place / "models/rte"
    names = {path.name for path in (folder / "sweep").iterdir()}
    assert {"frontier.png", "heatmap.png", "explorer.html", "compare.md"} <= names
    picked = json.loads((folder / "exit_config.json").read_text())
    picked.pop("provenance")
    assert set(picked) <= {"exit_criteria", "exit_thres"}
    report = evaluated(glue, place, "rte", *PONDER)
    assert picked.items() <= report["rule"].items()
    assert report["computation_cost"] <= 0.85  # 0.7 on the calibration half


@pytest.mark.parametrize("more", [("--rules", "expectation"), ("--vary", "exit_thres")])
def test_a_mix_of_all_layers_has_nothing_to_sweep(place, sweep, more):
    edit_json(place / "models/rte/config.json", exit_criteria="expectation")
    before = contents(place)
    outcome = sweep(place, "rte", *more)
    outcome.refused("mixes the answers of all layers")
    assert contents(place) == before
