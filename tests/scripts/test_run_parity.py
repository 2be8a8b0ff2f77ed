"""run_parity.py: what it writes, and what it refuses."""

import json
import sys

import pytest
import torch

from run_parity import main, read_settings
from training.settings import as_dict

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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lambda_p", "0"], "--lambda_p: 0: allowed is"),
        (["--lambda_p", "1.5"], "--lambda_p: 1.5"),
        (["--beta", "-1"], "--beta: -1: allowed is 0 or more"),
        (["--lr", "nan"], "--lr: nan: allowed is"),
        (["--n_elems", "0"], "--n_elems: 0: allowed is 1 or more"),
        (["--n_elems", "1", "--extrapolate"], "raise --n_elems"),
        (["--max_steps", "-3"], "--max_steps: -3"),
    ],
)
def test_flags_out_of_range_are_named_with_what_is_allowed(script, flags, message):
    script(main, *flags).refused(message)


def test_the_defaults_are_the_annotated_ones(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_parity.py"])
    named = {"n_elems": 8, "n_hidden": 64, "max_steps": 20, "lambda_p": 0.2, "beta": 0.01}
    assert named.items() <= as_dict(read_settings()).items()


def test_an_output_directory_that_cannot_be_written_is_an_error_before_training(tmp_path, script):
    (tmp_path / "file").write_text("")
    outcome = script(main, "--output_dir", tmp_path / "file/out")
    outcome.refused()
    assert outcome.err.startswith("error: cannot write ")


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
