"""--verify: are swept exits those of real runs with early exit?"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from evaluation.modes.base import Mode
from evaluation.predict import run_all
from evaluation.sweep import Sweep
from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.exit_settings import Setting, describe
from runs.job import Job


def verify(job: Job, mode: Mode, swept: Sweep, count: int, seed: int, recording: Path) -> None:
    """Run some random settings with early exit, one example at a time; compare the exit layers.

    Args:
        job: the model on the examples of the sweep.
        count: number of settings, at most as many as there are.
        seed: of the draw of settings.
        recording: the file to blame.

    Raises:
        UserError: the first setting, and its first example, whose exit layers differ.
    """
    count = min(count, len(swept.settings))
    rng = np.random.default_rng(seed)
    for number in rng.choice(len(swept.settings), count, replace=False):
        setting = swept.settings[number]
        # With all exit keys of the sweep: the weights of `learnt` may have been fitted for it.
        real_exits = run_with_keys(job, mode, {**swept.config.exit_keys(), **setting})
        swept_exits = swept.exit_layer[number]
        differs = real_exits != swept_exits
        if differs.any():
            row = int(differs.argmax())
            raise UserError(
                f"{describe(setting)}: example {row} exits at layer {real_exits[row]} in a real "
                f"run, but at {swept_exits[row]} by the recording. If rounding is the reason, "
                f"delete {recording} and record again, with --batch_size 1"
            )
    print(f"verified {count} settings at batch size 1: every exit layer is equal")


def run_with_keys(job: Job, mode: Mode, keys: Setting) -> np.ndarray:
    """Run a job with other exit keys, one example at a time: its exit layers, (examples,)."""
    config: EarlyExitConfig = job.config
    own_keys = config.exit_keys()
    config.update(keys)
    try:
        predictions = run_all(replace(job, batch_size=1), mode.run)
    finally:
        config.update(own_keys)
    return predictions["exit_layer"].numpy()
