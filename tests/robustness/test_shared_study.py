"""A comparison of methods whose process is killed, and that two processes then share."""

import re
import runpy
import signal
from pathlib import Path

import pytest

import exit_lab.study
import run_glue
from tests.forks import assert_same_weights, run, start
from tests.studies import write_study_data

SCRIPT = Path(run_glue.__file__).parent / "examples/compare_methods.py"


def compare() -> None:
    exit_lab.study.POLL = 0.1
    runpy.run_path(str(SCRIPT))["main"]()


@pytest.mark.slow
def test_a_killed_study_is_finished_by_two_processes_with_the_same_bits(albert_dir, tmp_path):
    data = write_study_data(tmp_path / "data")

    def arguments(out: Path) -> list:
        text = "--tasks MNLI=MNLI-tiny --methods elbert palbert --seeds 1 2 --max_seq_length 32"
        text += " --max_steps 12 --save_steps 1 --do_lower_case --no_cuda --compile off"
        where = ("--model_name_or_path", albert_dir, "--data_dir", data, "--output_dir", out)
        return [*where, *text.split()]

    alone, out = tmp_path / "alone", tmp_path / "out"
    assert run(arguments(alone), main=compare, log=tmp_path / "log") == 0
    assert run(arguments(out), main=compare, die_at=80) == -signal.SIGKILL
    logs = [tmp_path / f"log{i}" for i in range(2)]
    both = [start(arguments(out), compare, log=log) for log in logs]
    for process in both:
        process.join(300)
        assert process.exitcode == 0
    names = {path.parent.name for path in alone.glob("*/model.safetensors")}
    taken = re.findall(r"\d of 4: .*/(\S+)", "".join(log.read_text() for log in logs))
    assert sorted(taken) == sorted(set(taken))
    assert set(taken) <= names
    assert len(names) == 4
    for name in names:
        assert_same_weights(alone / name, out / name)
    assert (alone / "mnli.csv").read_bytes() == (out / "mnli.csv").read_bytes()
