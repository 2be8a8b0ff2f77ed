"""Pre-training in processes of its own: killed at any moment, and two that share its steps."""

import json
from pathlib import Path

import pytest

import run_pretraining
from tests.commands import logged_steps, pretraining_flags
from tests.forks import run, run_together, survive_kills


@pytest.mark.slow
def test_a_run_killed_at_twenty_and_more_moments_ends_with_the_same_bits(corpus, spiece, tmp_path):
    def command(out: Path) -> list:
        return pretraining_flags(corpus, spiece, out, "--save_steps", 2, "--resume_from_checkpoint")

    reference = tmp_path / "reference"
    assert (
        run(
            pretraining_flags(corpus, spiece, reference, "--save_steps", 0),
            main=run_pretraining.main,
        )
        == 0
    )
    survive_kills(command, reference, tmp_path, seed=6, main=run_pretraining.main)


def test_two_processes_take_the_steps_of_one(corpus, spiece, tmp_path):
    logs = []
    for count in (1, 2):
        log, out = tmp_path / f"log{count}", tmp_path / f"out{count}"
        command = pretraining_flags(corpus, spiece, out, "--do_eval", "--adam_epsilon", 1e-3)
        command += ["--per_gpu_train_batch_size", 4 // count, "--per_gpu_eval_batch_size", 3]
        status = run_together(count, command, log, main=run_pretraining.main)
        assert status == [0] * count, log.with_suffix(".0").read_text()
        logs.append(logged_steps(log.with_suffix(".0").read_text()))
    for one, two in zip(*logs, strict=True):
        assert two == pytest.approx(one, abs=1e-5)
    reports = [json.loads((tmp_path / f"out{i}/eval_results.json").read_text()) for i in (1, 2)]
    assert reports[0]["examples"] == reports[1]["examples"]
    assert reports[0]["updates"] == pytest.approx(reports[1]["updates"], abs=1e-5)
    assert logged_steps((tmp_path / "log2.1").read_text()) == []  # only the main process speaks
