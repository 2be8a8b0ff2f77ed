"""The parity experiment: its data, what it writes, and what it refuses."""

import json
import math
import sys

import pytest
import torch

from glue.files import run_script
from modeling import ParityPonderGRU, UserError
from modeling.ponder.parity import sampled_steps
from run_parity import main, read_settings
from training.parity import Score, evaluate, means, parity_batch
from training.parity_settings import VectorSettings
from training.settings import as_dict

QUICK = ["--epochs", "2", "--n_batches", "3", "--batch_size", "16", "--n_hidden", "8"]


@pytest.fixture
def run(monkeypatch):
    """Runs the script with the given flags, in this process."""

    def call(*flags: str) -> None:
        monkeypatch.setattr(sys, "argv", ["run_parity.py", *flags])
        run_script(main)

    threads = torch.get_num_threads()
    yield call
    torch.set_num_threads(threads)


def test_y_says_whether_the_number_of_ones_is_odd():
    torch.manual_seed(0)
    x, y = parity_batch(200, 8, range(1, 9))
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        assert set(row) <= {-1.0, 0.0, 1.0}
        assert label == row.count(1.0) % 2


def test_non_zero_counts_places_and_signs_are_all_equally_frequent():
    torch.manual_seed(0)
    x, _ = parity_batch(40_000, 5, range(2, 5))
    counts = torch.bincount((x != 0).sum(1), minlength=6) / 40_000
    assert counts[[0, 1, 5]].tolist() == [0, 0, 0]
    torch.testing.assert_close(counts[2:5], torch.full((3,), 1 / 3), atol=0.01, rtol=0)
    torch.testing.assert_close((x != 0).float().mean(0), torch.full((5,), 0.6), atol=0.01, rtol=0)
    assert (x.sum() / (x != 0).sum()).abs() < 0.01


@pytest.mark.parametrize("n_elems", [2, 8, 64])
def test_the_harder_set_has_more_non_zero_elements_than_any_training_vector(n_elems):
    known, harder = VectorSettings(n_elems=n_elems, extrapolate=True).non_zeros()
    assert [*known, *harder] == list(range(1, n_elems + 1))
    assert known
    assert harder
    assert [*VectorSettings(n_elems=n_elems).non_zeros()[0]] == list(range(1, n_elems + 1))


def test_sampled_steps_follow_p():
    p = torch.tensor([0.1, 0.4, 0.0, 0.3, 0.2])
    steps = sampled_steps(p[:, None].expand(5, 50_000), torch.linspace(0, 1, 50_001)[:-1])
    frequencies = torch.bincount(steps, minlength=6)[1:] / 50_000
    torch.testing.assert_close(frequencies, p, atol=1e-3, rtol=0)


def test_a_model_that_knows_the_answer_scores_one():
    """Weights set by hand: every answer is 'odd', which is right for single ones only."""
    model = ParityPonderGRU(4, 8, 5)
    with torch.no_grad():
        model.output_layer.bias.fill_(50.0)
        model.lambda_layer.bias.fill_(-math.log(3))
        model.lambda_layer.weight.zero_()
    torch.manual_seed(0)
    scores = evaluate(model, 4, range(1, 2), 4000, torch.device("cpu"))
    assert scores[0].accuracy == pytest.approx(0.5, abs=0.03)  # a lone 1 is odd, a lone -1 is not
    # λ = 1/4 at every step but the last: Σ n·p_n = (1 − 0.75⁵) / 0.25
    assert scores[0].steps == pytest.approx((1 - 0.75**5) / 0.25, rel=1e-5)


def test_stopping_when_all_have_halted_gives_the_answers_of_the_whole_run():
    torch.manual_seed(0)
    model, x = ParityPonderGRU(8, 16, 20), parity_batch(6, 8, range(1, 9))[0]
    with torch.no_grad():
        model.lambda_layer.bias.fill_(1.0)
        lengths = set()
        for seed in range(20):
            torch.manual_seed(seed)
            whole = model(x)
            model.is_halt = True
            torch.manual_seed(seed)
            short = model(x)
            model.is_halt = False
            lengths.add(len(short[0]))
            torch.testing.assert_close(short[3], whole[3], atol=1e-6, rtol=1e-5)
    assert max(lengths) < 20


def test_means_are_over_the_numbers_of_non_zeros():
    assert means([Score(1, 1.0, 2.0), Score(2, 0.5, 4.0)]) == {"accuracy": 0.75, "steps": 3.0}


def test_a_run_writes_results_figure_and_tensorboard(tmp_path, run, capsys):
    run(*QUICK, "--extrapolate", "--output_dir", str(tmp_path / "out"))
    printed = capsys.readouterr().out
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


def test_two_runs_of_one_seed_are_the_same(tmp_path, run):
    histories = []
    for seed in ("1", "1", "2"):
        run(*QUICK, "--seed", seed, "--output_dir", str(tmp_path))
        histories.append(json.loads((tmp_path / "results.json").read_text())["history"])
    assert histories[0] == histories[1] != histories[2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lambda_p", "0"], "--lambda_p 0.0: allowed is a number above 0, at most 1"),
        (["--lambda_p", "1.5"], "--lambda_p 1.5"),
        (["--beta", "-1"], "--beta -1.0: allowed is a number of at least 0"),
        (["--lr", "nan"], "--lr nan: allowed is a number above 0"),
        (["--n_elems", "0"], "--n_elems 0: allowed is a whole number of at least 1"),
        (["--n_elems", "1", "--extrapolate"], "raise --n_elems"),
        (["--max_steps", "-3"], "--max_steps -3"),
    ],
)
def test_flags_out_of_range_are_named_with_what_is_allowed(monkeypatch, flags, message):
    monkeypatch.setattr(sys, "argv", ["run_parity.py", *flags])
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        read_settings()


def test_the_defaults_are_the_annotated_ones(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run_parity.py"])
    named = {"n_elems": 8, "n_hidden": 64, "max_steps": 20, "lambda_p": 0.2, "beta": 0.01}
    assert named.items() <= as_dict(*read_settings()).items()


def test_an_output_directory_that_cannot_be_written_is_an_error_before_training(
    tmp_path, run, capsys
):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        run("--output_dir", str(tmp_path / "file" / "out"))
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: cannot write ")
