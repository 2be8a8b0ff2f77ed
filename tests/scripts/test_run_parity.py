"""run_parity.py: what it writes, and what it refuses."""

import json

import pytest
import torch

from run_parity import main

QUICK = ["--epochs", "2", "--n_batches", "3", "--batch_size", "16", "--n_hidden", "8"]


@pytest.fixture(autouse=True)
def _threads():
    """As many as before: the script takes one."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_a_run_writes_results_figure_and_tensorboard(tmp_path, script):
    printed = script(main, *QUICK, "--extrapolate", "--output_dir", tmp_path / "out").done().out
    assert "in distribution (1 to 6 non-zero elements): accuracy = " in printed
    assert "extrapolation (7 to 8 non-zero elements): accuracy = " in printed
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["settings"]["n_batches"] == 3
    assert [entry["epoch"] for entry in results["history"]] == [1, 2]
    assert [row["non_zeros"] for row in results["extrapolation"]["by_non_zeros"]] == [7, 8]
    assert 0 <= results["in_distribution"]["accuracy"] <= 1
    assert 1 <= results["in_distribution"]["steps"] <= 20
    assert (tmp_path / "out" / "training.png").stat().st_size > 1000
    assert list((tmp_path / "out" / "runs").iterdir())


def test_two_runs_of_one_seed_are_the_same(tmp_path, script):
    histories = []
    for seed in ("1", "1", "2"):
        script(main, *QUICK, "--seed", seed, "--output_dir", tmp_path).done()
        histories.append(json.loads((tmp_path / "results.json").read_text())["history"])
    assert histories[0] == histories[1] != histories[2]


def test_a_constant_learning_rate_is_that_of_an_optimiser_alone(tmp_path, script, monkeypatch):
    """The annotated PonderNet's: Adam at --lr, without a schedule."""
    rates = []
    step = torch.optim.Adam.step

    def watched(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    script(main, *QUICK, "--schedule", "constant", "--output_dir", tmp_path).done()
    assert rates == [3e-4] * 6
