"""reproduce.py: an entry from its weights to its table, with tiny stand-ins."""

import importlib
import shutil

import pytest

import reproduce
from tests.commands import Outcome, exit_status, report_of

SHORT = ("--max_seq_length", 32, "--max_steps", 2, "--no_cuda")


@pytest.fixture
def reproduced(script, tmp_path, monkeypatch):
    """`reproduced("parity", ...)` runs an entry, its scripts in this process."""

    def call(name: str, flags: list[str]) -> None:
        main = importlib.import_module(name.removesuffix(".py")).main
        assert exit_status(main, *flags) == 0

    monkeypatch.setattr(reproduce, "call", call)
    return lambda *entry: script(reproduce.main, *entry, "--output_dir", tmp_path / "out").done()


def row(done: Outcome, name: str) -> list[str]:
    """The published and the measured value."""
    cells = next(line for line in done.out.splitlines() if line.startswith(f"| {name} |"))
    return cells.strip("| ").split(" | ")[1:]


def test_the_list_says_what_each_entry_needs_and_whether_it_was_run(reproduced):
    printed = reproduced().out
    assert "| albert/albert-large-v2 | RTE (fetched) | 0.9 h | 0.003 h | not run |" in printed
    assert printed.count("| not run |") == len(reproduce.ENTRIES)


@pytest.mark.slow
def test_elbert_from_weights_to_table(reproduced, albert_dir, rte, tmp_path):
    done = reproduced("elbert-rte", "--weights", albert_dir, "--data_dir", rte.parent, *SHORT)
    report = report_of(tmp_path / "out/elbert-rte/RTE")
    assert row(done, "RTE acc") == ["0.8123", f"{report['metrics']['acc']:.4g}"]
    assert row(done, "RTE computation_cost")[1] == f"{report['computation_cost']:.4g}"
    assert report["rule"]["exit_thres"] == 0.1
    assert row(reproduced(), "RTE acc") == row(done, "RTE acc")
    assert reproduced().out.count("| measured |") == 1 + 1  # the list's, and a head of a table


def test_adaptive_depth_on_glue(reproduced, albert_dir, rte, tmp_path):
    data = tmp_path / "glue"
    shutil.copytree(rte, data / "RTE")
    where = ("--weights", albert_dir, "--data_dir", data, *SHORT, "--tasks", "RTE")
    done = reproduced("act-glue", *where)
    report = report_of(tmp_path / "out/act-glue/RTE")
    assert row(done, "RTE acc") == ["0.63", f"{report['metrics']['acc']:.4g}"]
    assert row(done, "CoLA mcc") == ["0.367", "–"]


@pytest.mark.slow
def test_commands_run_as_a_user_would_give_them(script, tmp_path):
    few = ("--epochs", 1, "--n_batches", 2, "--batch_size", 16, "--n_hidden", 8)
    done = script(reproduce.main, "parity", "--output_dir", tmp_path, *few).done()
    assert f"$ python run_parity.py --seed 1 --output_dir {tmp_path}/parity/vectors" in done.out
    assert row(done, "vectors steps")[0] == "figure"
