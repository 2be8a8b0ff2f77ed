"""Two processes do what one does: train, evaluate, predict, and go on with each other's runs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import run_glue
from tests.commands import flags, report_of
from tests.conftest import edit_json, slow
from tests.forks import run_together, start_together
from training.checkpoints import checkpoints_of

ROOT = Path(run_glue.__file__).parent


def losses(log: Path) -> list[float]:
    """From the JSON lines of a run's console."""
    return [json.loads(line)["loss"] for line in re.findall(r"^{.*loss.*}$", log.read_text(), re.M)]


def assert_close_weights(one: Path, other: Path) -> None:
    first, second = (load_file(out / "model.safetensors") for out in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("elbert", ()),  # 24 examples in batches of 10: the last of an epoch is not shared evenly
        slow("elbert", ("--gradient_accumulation_steps", 2)),
        slow("elbert", ("--set", "use_out_pooler=false", "num_exit_layers=2")),
        slow("ponder", ()),
        slow("act", ()),
        ("pretraining", ("--do_eval",)),
        ("sharing", ()),
    ],
)
def test_two_processes_take_the_steps_of_one(name, more, tmp_path, small_training):
    for count in (1, 2):
        log, training = tmp_path / f"log{count}", small_training(name, *more, count=count)
        command = training.command(tmp_path / f"out{count}")
        status = run_together(count, command, log, main=training.main)
        assert status == [0] * count, log.with_suffix(".0").read_text()
    one, two = losses(tmp_path / "log1.0"), losses(tmp_path / "log2.0")
    assert len(one) >= 4
    assert two == pytest.approx(one, abs=1e-5)
    assert losses(tmp_path / "log2.1") == []  # only the main process speaks
    assert_close_weights(tmp_path / "out1", tmp_path / "out2")
    if "--do_eval" in more:
        reports = [report_of(tmp_path / f"out{count}") for count in (1, 2)]
        assert reports[0]["mlm_acc"] == pytest.approx(reports[1]["mlm_acc"], abs=1e-6)
        assert reports[0]["updates"] == pytest.approx(reports[1]["updates"], abs=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "name"), [slow(1, 2, "elbert"), slow(2, 1, "elbert"), (1, 2, "ponder")]
)
def test_a_run_goes_on_with_another_number_of_processes(
    before, after, name, tmp_path, small_training
):
    whole, out, log = (tmp_path / part for part in ("whole", "out", "log"))
    assert run_together(1, small_training(name, count=1).command(whole)) == [0]
    first = small_training(name, "--save_steps", 5, count=before).command(out)
    assert run_together(before, first) == [0] * before
    assert [path.name for path in checkpoints_of(out)] == ["checkpoint-5"]
    (out / "config.json").unlink()  # as if it had been killed before its end
    assert run_together(after, small_training(name, count=after).command(out), log) == [0] * after
    assert len(losses(log.with_suffix(".0"))) == 4  # steps 6 to 9
    assert_close_weights(out, whole)


def results(out: Path) -> dict:
    found = report_of(out)
    counts = "updates_per_token_class" if "mean_updates" in found else "exits_per_layer"
    return {key: found[key] for key in ("metrics", "computation_cost", counts)}


@pytest.mark.parametrize(
    ("mode", "batch_size"),
    [
        slow("albert", 1),
        slow("albert", 3),
        slow("ponder_albert", 1),
        slow("ponder_albert", 3),
        ("albert_act", 3),
    ],
)
def test_two_processes_give_the_answers_of_one(
    mode, batch_size, tmp_path, small_training, albert_dir, rte
):
    out = tmp_path / "out"
    training = small_training("elbert", "--model_type", mode, count=1)
    assert run_together(1, training.command(out)) == [0]
    edit_json(out / "config.json", exit_thres=0.97)
    evaluation = flags(albert_dir, rte, out, "RTE", "--do_eval", "--do_predict")
    evaluation += ["--per_gpu_eval_batch_size", batch_size, "--model_type", mode]
    names = ("eval_results.txt", "predictions.tsv", "RTE.tsv")
    seen = []
    for count in (1, 2):
        assert run_together(count, evaluation, tmp_path / "log") == [0] * count
        seen.append([(out / name).read_text() for name in names] + [results(out)])
        (out / "eval_results.txt").unlink()
    assert seen[0] == seen[1]
    assert len(seen[0][1].splitlines()) == 1 + 5
    assert "Computation cost" in (tmp_path / "log.0").read_text()
    assert "Computation cost" not in (tmp_path / "log.1").read_text()


def test_a_signal_to_one_process_stops_both_with_one_checkpoint(tmp_path, small_training):
    out, log = tmp_path / "out", tmp_path / "log"
    endless = small_training("elbert", "--max_steps", 10**6, count=2).command(out)
    both = start_together(2, endless, log)
    deadline = time.monotonic() + 60
    while not (log.with_suffix(".0").exists() and losses(log.with_suffix(".0"))):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(both[1].pid, signal.SIGTERM)
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [128 + signal.SIGTERM] * 2
    assert len(checkpoints_of(out)) == 1
    assert "SIGTERM" in log.with_suffix(".0").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "launcher"),
    [
        (2, ["torch.distributed.run", "--nproc_per_node", "2"]),
        (1, ["accelerate.commands.launch", "--cpu"]),  # several CPU processes: only through MPI
    ],
)
def test_the_usual_launchers_work(count, launcher, tmp_path, small_training):
    out = tmp_path / "out"
    arguments = small_training("elbert", count=count).command(out, "--do_eval")
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "run_glue.py", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Computation cost") == 1
    assert "Total optimization steps = 9" in done.stdout
