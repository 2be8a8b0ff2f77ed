"""Commands of run_glue.py, and what several tests do to them."""

import resource
import signal
from contextlib import contextmanager

import run_glue


def flags(weights, data, out, task="RTE", *more) -> list[str]:
    """The flags that the published training and evaluation commands share."""
    values = {
        "model_type": "albert",
        "task_name": task,
        "data_dir": data,
        "model_name_or_path": weights,
        "output_dir": out,
        "config_name": weights,
        "max_seq_length": 32,
        "per_gpu_train_batch_size": 8,
        "per_gpu_eval_batch_size": 1,
        "learning_rate": 3e-5,
        "num_train_epochs": 1.0,
    }
    pairs = [(f"--{name}", str(value)) for name, value in values.items()]
    return [x for pair in pairs for x in pair] + ["--do_lower_case", "--no_cuda", *map(str, more)]


def refused(script, arguments, *words) -> None:
    outcome = script(run_glue.main, *arguments)
    assert outcome.status == 2
    for word in words:
        assert str(word) in outcome.err
    assert "Traceback" not in outcome.err


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
