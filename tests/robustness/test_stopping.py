"""Every way in which a run is really stopped: it saves, and its status says what stopped it."""

import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

import run_glue
from tests.commands import flags
from training.checkpoints import checkpoints_of, damage, is_finished
from training.stopping import StopRequest
from utils.files import Console

ROOT = Path(run_glue.__file__).parent
EXAMPLES = ROOT / "examples"
PATIENCE = 300  # seconds until a process counts as hung; nothing is measured


def until(happened: Callable[[], bool], process: subprocess.Popen) -> None:
    """Wait for an event of a process that runs on."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert process.poll() is None, f"it ended with status {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def takes_steps(log: Path) -> Callable[[], bool]:
    return lambda: log.exists() and '"step"' in log.read_text()


def started(command: Sequence, log: Path, **how) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **how.pop("env", {})}
    with log.open("wb") as file:
        how = {"stdout": file, "stderr": subprocess.STDOUT, **how}
        return subprocess.Popen(list(map(str, command)), cwd=ROOT, env=environment, **how)


def check_stopped(process: subprocess.Popen, out: Path, number: int, log: Path) -> None:
    assert process.wait(PATIENCE) == 128 + number, log.read_text()[-2000:]
    assert len(checkpoints_of(out)) == 1
    assert damage(checkpoints_of(out)[0]) is None
    assert not is_finished(out)


def children(pid: int) -> list[int]:
    """Processes that this one started, and those that they started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    own = [int(child) for child in path.read_text().split()]
    return own + [pid for child in own for pid in children(child)]


# The examples' own commands.

ENDLESS = "--from_scratch --no_cuda --max_steps 1000000 --logging_steps 1 --max_train_samples 40"


def study(tmp_path: Path, **more) -> dict[str, str]:
    """The environment of a run of examples/study.slurm on the bundled sample."""
    sample = str(ROOT / "configs/sample")
    common = {"TASKS": "RTE", "SEEDS": "1", "GLUE_DIR": sample, "W_DIR": sample}
    return {
        **common,
        "OUT_DIR": str(tmp_path),
        "PYTHON": sys.executable,
        "TRAIN_FLAGS": ENDLESS,
    } | more


@pytest.mark.slow
def test_kubernetes_stops_its_first_process(tmp_path):
    """The pod's own command, as process 1, which the kernel spares a signal without a handler."""
    job = yaml.safe_load((EXAMPLES / "study.k8s.yaml").read_text())
    container = job["spec"]["template"]["spec"]["containers"][0]
    pod = ["unshare", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*pod, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no processes in a user's namespace here")
    log, out = tmp_path / "log", tmp_path / "RTE/seed-1"
    environment = study(tmp_path, JOB_COMPLETION_INDEX="0")
    process = started([*pod, *container["command"], *container["args"]], log, env=environment)
    until(takes_steps(log), process)
    os.kill(children(process.pid)[0], signal.SIGTERM)
    check_stopped(process, out, signal.SIGTERM, log)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_slurm_stops_a_step_and_the_job_is_requeued(processes, tmp_path):
    """As SLURM does it: the signal goes to every process of the step, not to the job's shell."""
    tools, log, out = tmp_path / "bin", tmp_path / "log", tmp_path / "RTE/seed-1"
    executable(tools / "srun", 'shift; "$@"')
    executable(tools / "scontrol", f'echo "$@" >{tmp_path}/requeued')
    environment = study(
        tmp_path,
        GPUS=str(processes),
        SLURM_SUBMIT_DIR=str(ROOT),
        SLURM_JOB_ID="5",
        SLURM_ARRAY_JOB_ID="4",
        SLURM_ARRAY_TASK_ID="0",
        PATH=f"{tools}:{os.environ['PATH']}",
    )
    process = started(["bash", EXAMPLES / "study.slurm"], log, env=environment)
    until(takes_steps(log), process)
    _shell, _srun, *step = [process.pid, *children(process.pid)]
    for pid in step:
        os.kill(pid, signal.SIGTERM)
    check_stopped(process, out, signal.SIGTERM, log)
    assert (tmp_path / "requeued").read_text() == "requeue 4_0\n"


# Consoles that go away.


@pytest.mark.slow
def test_a_closed_terminal(tmp_path, albert_dir, rte):
    out, log = tmp_path / "out", tmp_path / "log"
    command = flags(albert_dir, rte, out, "RTE", "--do_train", "--max_steps", 10**6)
    user, terminal = pty.openpty()
    # A run goes on under nohup; these tests may well be under it.
    heeding = ["env", "--default-signal=HUP", "setsid", "--ctty"]
    process = started(
        [*heeding, sys.executable, "run_glue.py", *command, "--logging_steps", 1],
        log,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while b'"step"' not in shown:
        assert select.select([user], [], [], PATIENCE)[0], shown
        shown += os.read(user, 4096)
    os.close(user)
    try:
        check_stopped(process, out, signal.SIGHUP, log)
    finally:
        process.kill()


@pytest.mark.slow
def test_a_broken_pipe_stops_nothing(tmp_path, albert_dir, rte):
    out, log = tmp_path / "out", tmp_path / "log"
    command = flags(albert_dir, rte, out, "RTE", "--do_train", "--do_eval", "--max_steps", 30)
    process = started(
        [sys.executable, "run_glue.py", *command, "--logging_steps", 1],
        log,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert is_finished(out)
    assert (out / "eval_results.json").exists()


def without_a_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def on_a_full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("opened", [without_a_reader, on_a_full_disk])
def test_a_console_that_takes_nothing_loses_what_is_written(opened):
    writer = opened()
    with os.fdopen(writer, "w") as stream:
        console = Console(stream)
        for _ in range(3):
            print("x" * 10_000, file=console, flush=True)
        assert console.fileno() == writer


# What comes when.


@pytest.fixture
def launched(monkeypatch) -> Callable[[bool], None]:
    def launched(really: bool) -> None:
        if really:
            monkeypatch.setenv("LOCAL_RANK", "0")
        else:
            monkeypatch.delenv("LOCAL_RANK", raising=False)

    return launched


@pytest.fixture
def in_a_terminal():
    """Signals as a terminal's job has them; one in the background, or under nohup, ignores some."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    old = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("really", [True, False])
def test_a_signal_that_comes_twice_is_one(number, really, launched):
    launched(really)
    with StopRequest() as stop:
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert stop.received == number


@pytest.mark.usefixtures("in_a_terminal")
def test_a_second_ctrl_c_acts_at_once_but_under_a_launcher(launched):
    launched(True)
    with StopRequest() as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
    launched(False)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_waits_until_a_trained_model_is_saved(glue, tmp_path, monkeypatch):
    import training.loop as module

    def interrupted(*arguments) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        save_model(*arguments)

    save_model = module.save_model
    monkeypatch.setattr(module, "save_model", interrupted)
    out = tmp_path / "out"
    ended = glue(out, "--do_train", "--do_eval", "--max_steps", 2)
    assert ended.status == 128 + signal.SIGTERM
    assert "SIGTERM" in ended.err
    assert "the trained model" in ended.err
    assert is_finished(out)
    assert not (out / "eval_results.json").exists()
