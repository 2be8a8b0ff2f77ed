"""The parity experiment: its vectors, its score of a model, and what run_parity.py writes."""

import json
import math

import pytest
import torch

from elbert import ParityPonderGRU
from run_parity import main
from training.parity import evaluate_parity

QUICK = ["--epochs", "2", "--n_batches", "3", "--batch_size", "16", "--n_hidden", "8"]


def test_a_run_writes_results_and_tensorboard(tmp_path, script):
    printed = script(main, *QUICK, "--extrapolate", "--output_dir", tmp_path / "out").done().out
    assert "in distribution (1 to 6 non-zero elements): accuracy = " in printed
    assert "extrapolation (7 to 8 non-zero elements): accuracy = " in printed
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["provenance"]["flags"]["n_batches"] == 3
    assert [entry["epoch"] for entry in results["history"]] == [1, 2]
    assert [row["non_zeros"] for row in results["extrapolation"]["by_non_zeros"]] == [7, 8]
    assert 0 <= results["in_distribution"]["accuracy"] <= 1
    assert 1 <= results["in_distribution"]["steps"] <= 20
    assert list((tmp_path / "out" / "runs").iterdir())


def test_two_runs_of_one_seed_are_the_same(tmp_path, script):
    histories = []
    for seed in ("1", "1", "2"):
        script(main, *QUICK, "--seed", seed, "--output_dir", tmp_path).done()
        histories.append(json.loads((tmp_path / "results.json").read_text())["history"])
    assert histories[0] == histories[1] != histories[2]


def test_a_model_that_knows_the_answer_scores_one():
    """Weights set by hand: every answer is 'odd', which is right for single ones only."""
    model = ParityPonderGRU(4, 8, 5)
    with torch.no_grad():
        model.output_layer.bias.fill_(50.0)
        model.lambda_layer.bias.fill_(-math.log(3))
        model.lambda_layer.weight.zero_()
    torch.manual_seed(0)
    scores = evaluate_parity(model, 4, range(1, 2), 4000, torch.device("cpu"))
    assert scores[0]["accuracy"] == pytest.approx(
        0.5, abs=0.03
    )  # a lone 1 is odd, a lone -1 is not
    # λ = 1/4 at every step but the last: Σ n·p_n = (1 − 0.75⁵) / 0.25
    assert scores[0]["steps"] == pytest.approx((1 - 0.75**5) / 0.25, rel=1e-5)
