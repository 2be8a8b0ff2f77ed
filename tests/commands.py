"""Scripts run in this process, the commands of run_glue.py, and what several tests do to them."""

import json
import logging
import os
import random
import re
import resource
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

import change_config
import run_glue
from runs.processes import run_script

ROOT = Path(run_glue.__file__).parent


class Outcome(NamedTuple):
    """How a script ended: its exit status and what it printed."""

    status: int
    out: str
    err: str

    def done(self) -> "Outcome":
        """It succeeded."""
        assert self.status == 0, self.err
        return self

    def refused(self, *words: object) -> None:
        """It ended with an error that a user can read, which holds all these words."""
        assert self.status == 2, self.out
        for word in words:
            assert str(word) in self.err
        assert "Traceback" not in self.err


def exit_status(main: Callable[[], None], *arguments: object) -> int:
    """Of a script that runs in this process, as from a shell."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._shared_state.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script", *map(str, arguments)])
        try:
            run_script(main)
        except SystemExit as error:
            return int(error.code or 0)
    return 0


def ran(*command: object, cwd: Path = ROOT, **environment: object) -> str:
    """What a command prints, in a process of its own."""
    variables = {name: str(value) for name, value in environment.items()}
    options = {"cwd": cwd, "env": os.environ | variables, "capture_output": True, "text": True}
    done = subprocess.run(list(map(str, command)), **options, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def caller_state() -> dict[str, Any]:
    """What a program may have set for itself before it loads a model."""
    return {
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "root logger": (logging.root.level, list(logging.root.handlers)),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
    }


def main_of(example: str) -> Callable[[], None]:
    """The `main` of a script of examples/, to be run in this process."""
    return runpy.run_path(str(ROOT / "examples" / example))["main"]


def flags(weights, data, out, task="RTE", *more) -> list[str]:
    """The flags that the published training and evaluation commands share."""
    text = (
        f"--model_type albert --task_name {task} --data_dir {data} --model_name_or_path {weights} "
        f"--output_dir {out} --config_name {weights} --max_seq_length 32 "
        "--per_gpu_train_batch_size 8 --per_gpu_eval_batch_size 1 --learning_rate 3e-5 "
        "--num_train_epochs 1.0 --do_lower_case --no_cuda"
    )
    return [*text.split(), *map(str, more)]


def pretraining_flags(
    corpus, spiece, out, *more, kind: str = "albert_act", do: str = "train"
) -> list[str]:
    """Of run_pretraining.py: six steps of short examples and two of longer ones, two batches of
    four each."""
    text = (
        f"--model_type {kind} --config_name {corpus}/config.json --tokenizer_name {spiece.parent} "
        f"--train_files {corpus}/train.txt --eval_file {corpus}/eval.txt --output_dir {out} "
        "--max_seq_length 16 --long_seq_length 32 --long_fraction 0.25 --max_steps 8 "
        "--warmup_steps 2 --per_gpu_train_batch_size 4 --gradient_accumulation_steps 2 "
        "--learning_rate 1e-3 --optimizer adamw --logging_steps 1 --seed 1 "
        f"--do_{do} --no_cuda"
    )
    return [*text.split(), *map(str, more)]


def logged_steps(text: str) -> list[dict]:
    """The JSON lines of a pre-training's console."""
    return [json.loads(line) for line in re.findall(r"^{.*step.*}$", text, re.M)]


def train(weights, data, out: Path, *more) -> Path:
    """A model of RTE in `out`, for fixtures that many tests share."""
    assert exit_status(run_glue.main, *flags(weights, data, out, "RTE", "--do_train", *more)) == 0
    return out


def edit_key(script, model: Path, key: str, value: object, *more) -> Outcome:
    """change_config.py on the model in OUT_DIR/TASK."""
    where = ("--task", model.name, "--model", "tiny", "--out_dir", model.parent)
    return script(change_config.main, "--key", key, "--value", value, *where, *more)


def scalars(out: Path) -> dict[str, list[float]]:
    """What a training run wrote for TensorBoard, whose reader takes long to import."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "runs")).Reload()
    return {name: [e.value for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def report_of(out: Path) -> dict:
    """What the last evaluation found."""
    return json.loads((out / "eval_results.json").read_text())


def refused(script, arguments, *words) -> None:
    script(run_glue.main, *arguments).refused(*words)


@contextmanager
def served(folder: Path):
    """A web server of a folder's files: its address, and a list of what was asked for."""
    asked = []
    handler = type(
        "Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *about: asked.append(about)}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder))
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


@contextmanager
def no_file_above(size: int):
    """What a full disk does: writing past `size` bytes fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
