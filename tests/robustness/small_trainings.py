"""Small trainings of all three scripts, for what kills, signals and processes do to them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import run_glue
import run_pretraining
import share_layers
from tests.berts import plain_text, save, sharing_flags, tiny_bert
from tests.commands import flags, pretraining_flags
from tests.conftest import edit_json
from tests.forks import run

LAMB = ("--optimizer", "lamb")
PONDER = ("--model_type", "ponder_albert", "--lambda_lr", 0.01)
NARROW = ("--intermediate_size", 96, "--bf16")
ACT = ("--model_type", "albert_act")
# Script and flags of each.
TRAININGS = {
    "elbert": (run_glue.main, ()),
    "ponder": (run_glue.main, PONDER),
    "act": (run_glue.main, ACT),
    "pretraining": (run_pretraining.main, ()),
    "dense": (run_pretraining.main, ("--model_type", "albert", *LAMB)),
    "sharing": (share_layers.main, ()),
    "narrow sharing": (share_layers.main, NARROW),
}


class SmallTraining(NamedTuple):
    """A script and its flags, without --output_dir and with --resume_from_checkpoint."""

    main: Callable[[], None]
    flags: list

    def command(self, out: Path, *more) -> list:
        return [*self.flags, "--output_dir", out, *more]


def changed(source: Path, folder: Path, **keys) -> Path:
    """A copy of a model's folder whose config.json has other values."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    edit_json(folder / "config.json", **keys)
    return folder


@pytest.fixture(scope="session")
def small_training(tmp_path_factory, albert_dir, rte, corpus, spiece) -> Callable:
    """`small_training(name)`: 8 to 12 steps with dropout; `count`: without, and one process's share
    of so many."""
    folder = tmp_path_factory.mktemp("small")
    calm = changed(albert_dir, folder / "calm", classifier_dropout_prob=0.0)
    dropping = changed(corpus, folder / "dropping", hidden_dropout_prob=0.1) / "config.json"
    bert, text = save(tiny_bert(), folder / "bert"), plain_text(folder)

    def training(name: str, *more, count: int = 0) -> SmallTraining:
        main, own = TRAININGS[name]
        share, where = max(1, count), folder / "unused"
        if main is run_glue.main:
            size = 10 // share if count else 4
            command = flags(calm if count else albert_dir, rte, where, "RTE", "--do_train")
            command += ["--num_train_epochs", 3 if count else 2, "--learning_rate", 1e-3]
        elif main is run_pretraining.main:
            size, config = 4 // share, corpus / "config.json" if count else dropping
            command = pretraining_flags(corpus, spiece, where, "--config_name", config)
        else:
            size, command = 4 // share, sharing_flags(bert, text, where)
        command += ["--per_gpu_train_batch_size", size, "--seed", 3, "--logging_steps", 1]
        if count:  # Adam's step for a gradient that is zero up to rounding would be its sign
            command += ["--adam_epsilon", 1e-3]
        return SmallTraining(main, [*command, "--resume_from_checkpoint", *own, *more])

    return training


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, small_training) -> Callable[[str], Path]:
    """`undisturbed(name)`: what that training leaves when nothing stops it."""

    @cache
    def run_whole(name: str) -> Path:
        out, training = tmp_path_factory.mktemp("undisturbed") / "out", small_training(name)
        assert run(training.command(out, "--save_steps", 0), main=training.main) == 0
        return out

    return run_whole
