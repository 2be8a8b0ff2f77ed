"""Checkpoints: what a training run leaves on disk, and how another run goes on from it.

The list of what a run wrote (see `RunFolder`) tells a damaged checkpoint from an intact one.
Tensors are safetensors and the rest is JSON: reading either runs no code.
"""

import json
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_file
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE, place_of
from modeling.files import (
    TOKENIZER_FILES,
    file_hash,
    has_weights,
    joint_hash,
    read_json,
    weight_files,
)
from modeling.keys import path_keys
from modeling.loading.configs import ORIGIN_KEYS
from runs import files
from runs.fingerprint import differences
from runs.flags import fixed_flags
from runs.folder import LIST_FILE, RunFolder
from runs.output_dir import (
    FINISHED,
    IN_PROGRESS,
    checkpoints_of,
    is_finished,
    latest_checkpoint,
)
from runs.provenance import STATE, Provenance
from runs.settings import RunSettings, ScriptSettings
from training.model_folder import replace_directory, write_model
from training.score_scale import ScoreScale

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.safetensors"
BEST = "best_model"  # folder of the best model so far, while the training goes on
POSITION = ("step", "epoch", "batch")
STARTING_WEIGHTS = "starting weights"  # among the inputs of a run
Json = dict[str, Any]  # what is written as a JSON object


# What a training changes.


@dataclass
class Best:
    """The highest dev metric so far: at which step, and how many evaluations ago."""

    patience: int | None = None  # evaluations without a better one after which to stop
    keep: bool = False  # is the model of `step` the one that the training ends with?
    step: int = 0
    value: float | None = None
    since: int = 0

    @property
    def should_stop(self) -> bool:
        """Tell whether the dev metric has not become better for long enough."""
        return self.patience is not None and self.since >= self.patience

    def update(self, step: int, value: float) -> bool:
        """Count an evaluation; return whether it is better than all before."""
        if self.value is not None and value <= self.value:
            self.since += 1
            return False
        self.step = step
        self.value = value
        self.since = 0
        return True

    def state(self) -> Json:
        """Return what a checkpoint keeps."""
        return {"step": self.step, "value": self.value, "since": self.since}


@dataclass
class TrainState:
    """All that a training changes, and the tokenizer that is saved beside the model."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    objective: torch.nn.Module | None = None  # computes the loss, where the model does not
    best: Best = field(default_factory=Best)
    scale: ScoreScale = field(default_factory=ScoreScale)  # of a regression's labels
    step: int = 0  # optimiser steps done
    epoch: int = 0  # of the next batch
    batch: int = 0  # number of the next batch in its epoch
    seconds: float = 0.0  # that the training took until it was last saved


# What a run is.


@dataclass(frozen=True)
class RunFingerprint:
    """What a training run is: only the same run goes on from its checkpoints."""

    arguments: Json  # the flags that alter a step
    batch_size: int  # examples of a batch, over all processes
    inputs: Json = field(default_factory=dict)  # SHA-256 of what it reads, as `input_hashes`
    data: str = ""  # fingerprint of the training data; "" while it is unknown
    model: Json = field(default_factory=dict)  # keys of its configuration; {} while unknown

    def as_json(self) -> Json:
        """Return the fields by name, as checkpoints keep them."""
        return asdict(self)

    def changes_since(self, record: Json) -> str:
        """Describe the flags and keys of the model that differ from those in a checkpoint.

        record: what `as_json` returned then. Returns "" where none differs.
        """
        changes = differences(by_flag(record), by_flag(self.as_json()))
        return "; ".join(f"{flag} was {old!r}, is {new!r}" for flag, (old, new) in changes.items())


def by_flag(record: Json) -> Json:
    """Return what two fingerprints are compared in, by the names that a user knows."""
    return {
        **record.get("model", {}),
        **record["arguments"],
        "batch size": record["batch_size"],
    }


def run_fingerprint(
    settings: ScriptSettings,
    processes: int,
    inputs: Json,
    data: str = "",
    config: PreTrainedConfig | None = None,
) -> RunFingerprint:
    """Make the fingerprint of a run with these settings in so many processes.

    Flags that alter no step are left out, and so are the keys of a model's configuration that
    decide nothing in training: exit keys, names and paths.

    Args:
        settings: all of the script's, whose flags are compared.
        inputs: hashes of what the run reads, as `input_hashes` returns them.
        data: fingerprint of the training data, once it is known.
        config: the model's configuration, once it is known.
    """
    flags = fixed_flags(*settings)
    batch_size = settings.training.per_gpu_train_batch_size * processes
    if config is None:
        return RunFingerprint(flags, batch_size, inputs, data)
    ignored_keys = {*ORIGIN_KEYS, *path_keys(""), "dtype"}
    table = getattr(config, "table", None)  # a dense ALBERT has none
    if table:
        ignored_keys.update(table.exit_keys)
    config_keys = json.loads(config.to_json_string(use_diff=False))
    model = {name: value for name, value in config_keys.items() if name not in ignored_keys}
    return RunFingerprint(flags, batch_size, inputs, data, model)


def input_hashes(inputs: Mapping[str, Iterable[str | Path | None]]) -> Json:
    """Hash the files that a training reads, by what they are to it.

    inputs: files, and folders of models, which stand for their weights; None, and whatever is not
        there, is left out.

    Returns the hash of each; "" where nothing is there.
    """
    hashes = {}
    for name, sources in inputs.items():
        paths: list[Path] = []
        for source in sources:
            if source and has_weights(source):
                paths.extend(weight_files(source))
            elif source and os.path.isfile(source):
                paths.append(Path(source))
        hashes[name] = joint_hash([file_hash(path) for path in paths]) if paths else ""
    return hashes


# Saving and loading.


def save_checkpoint(
    directory: Path,
    state: TrainState,
    scaler: Json | None,
    run: RunFingerprint,
    origin: Provenance,
) -> None:
    """Write a checkpoint, with the exit keys that the training's folder has.

    Args:
        scaler: the state of fp16's loss scaling, if there is any.
        run: the run that the checkpoint is of.
        origin: says the flags of the training, which an evaluation of the checkpoint takes over.
    """
    optimizer = state.optimizer.state_dict()
    tensors = {}
    for parameter, parameter_tensors in optimizer["state"].items():
        for key, tensor in parameter_tensors.items():
            tensors[f"{parameter}.{key}"] = tensor.contiguous()
    record = {
        "position": {name: getattr(state, name) for name in POSITION},
        "seconds": state.seconds,
        "best": state.best.state(),
        "schedule": state.schedule.state_dict(),
        "scaler": scaler,
        **run.as_json(),
        "optimizer": {"param_groups": optimizer["param_groups"]},
        "provenance": origin.as_json(),
        "place": place_of(directory),
    }
    exit_file = directory.parent / EXIT_FILE
    if exit_file.is_file():
        record["copied"] = {str(exit_file.absolute()): file_hash(exit_file)}

    def fill(folder: Path) -> None:
        write_model(folder, state.model, state.tokenizer)
        save_file(tensors, folder / OPTIMIZER)
        files.write_json(folder / STATE, record)
        if exit_file.is_file():
            shutil.copyfile(exit_file, folder / EXIT_FILE)

    replace_directory(directory, fill)


def load_checkpoint(checkpoint: Path, state: TrainState, run: RunFingerprint) -> Json | None:
    """Put all that `save_checkpoint` wrote back into `state`; return the scaler's state.

    Raises UserError for a checkpoint of another run than `run`.
    """
    record = read_json(checkpoint / STATE)
    changes = run.changes_since(record)
    if not changes and record["data"] != run.data:
        changes = "the training examples or their tokens are others"
    # Whether other rows make other examples is known by now.
    changed_inputs = differences(record.get("inputs", {}), run.inputs)
    if not changes and STARTING_WEIGHTS in changed_inputs:
        changes = f"the {STARTING_WEIGHTS} are others"
    if changes:
        raise UserError(
            f"{checkpoint} is of another run: {changes}. Give the flags of its training, or "
            "train anew with --overwrite_output_dir"
        )
    try:
        load_model(state.model, checkpoint / SAFE_WEIGHTS_NAME)
        tensors: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in load_file(checkpoint / OPTIMIZER).items():
            parameter, key = name.split(".", 1)
            tensors[int(parameter)][key] = tensor
        groups = record["optimizer"]["param_groups"]
        state.optimizer.load_state_dict({"state": tensors, "param_groups": groups})
        state.schedule.load_state_dict(record["schedule"])
        for name in POSITION:
            setattr(state, name, record["position"][name])
        state.best = replace(state.best, **record["best"])
        state.seconds = record["seconds"]
        return record["scaler"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint} does not fit this run: {error}. Resume with the flags of its training"
        ) from error


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Remove all checkpoints but the `keep` newest intact ones.

    None keeps all, and so does a folder in which no checkpoint is intact.
    """
    if not keep:
        return
    checkpoints = checkpoints_of(output_dir)
    newest = [path for path in checkpoints if not damage(path)][-keep:]
    if not newest:
        return
    for path in checkpoints:
        if path not in newest and not path.is_symlink():
            RunFolder(path).remove()


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with the files of a checkpoint; None when it is intact."""
    folder = RunFolder(checkpoint)
    listed = folder.read_list()
    for name in (STATE, OPTIMIZER, SAFE_WEIGHTS_NAME, "config.json"):
        if not folder.has_own(name, listed):
            return f"{name} is missing, or not as {LIST_FILE} lists it (SHA-256 differs)"
    return None


# Where a training starts, and what its folder says of it.


def was_finished(run: RunSettings, fingerprint: RunFingerprint) -> bool:
    """Tell whether --resume_from_checkpoint latest finds the training finished already.

    Raises UserError where the finished training was of other flags, rows or starting weights.
    """
    output_dir = Path(run.output_dir)
    has_model = (output_dir / SAFE_WEIGHTS_NAME).exists() and is_finished(output_dir)
    if run.resume_from_checkpoint != "latest" or not has_model:
        return False
    advice = (
        "To train with these, choose another --output_dir, or give --overwrite_output_dir without "
        "--resume_from_checkpoint; to evaluate what is there, leave out --do_train"
    )
    if not (output_dir / FINISHED).exists():
        raise UserError(
            f"{output_dir} holds a model, but no {FINISHED}, which would say how it was trained. "
            f"{advice}"
        )
    record = read_json(output_dir / FINISHED)
    changes = fingerprint.changes_since(record)
    if changes:
        raise UserError(
            f"training in {output_dir} is finished, and had other flags: {changes}. {advice}"
        )
    changed_inputs = differences(record.get("inputs", {}), fingerprint.inputs)
    if changed_inputs:
        raise UserError(
            f"training in {output_dir} is finished, and had other "
            f"{' and '.join(changed_inputs)}: the files have changed since. {advice}"
        )
    logger.info("Training in %s is finished: nothing to resume", output_dir)
    remove_best(output_dir)  # a run that was killed at its very end had no time for it
    return True


def find_start(run: RunSettings, sources: Iterable[str]) -> Path | None:
    """Find the checkpoint that --resume_from_checkpoint asks for; None to train from the start.

    sources: the folders or hub names of the weights that a training then starts from. Raises
    UserError for a checkpoint that is damaged or not there, and for a source that the training
    would overwrite.
    """
    checkpoint = find_checkpoint(run)
    if checkpoint is None:
        for source in sources:
            check_not_overwritten(Path(source), Path(run.output_dir))
    return checkpoint


def find_checkpoint(run: RunSettings) -> Path | None:
    """Find the checkpoint that --resume_from_checkpoint names, or the latest; None without any.

    Raises UserError for one that is damaged or not there.
    """
    requested = run.resume_from_checkpoint
    if not requested:
        return None
    latest = latest_checkpoint(run.output_dir)
    checkpoint = Path(requested)
    if requested == "latest":
        if latest is None:
            logger.info("No checkpoint in %s yet: training from its beginning", run.output_dir)
            return None
        checkpoint = latest
    if not os.path.isdir(checkpoint):  # pathlib's raises for a long name
        offer = f"; the latest of {run.output_dir} is {latest}" if latest else ""
        raise UserError(f"--resume_from_checkpoint {requested}: no such directory{offer}")
    reason = damage(checkpoint)
    if reason:
        intact = [path for path in checkpoints_of(checkpoint.parent) if not damage(path)]
        advice = "No other checkpoint is intact; train again with --overwrite_output_dir"
        if intact:
            advice = f"The newest intact one: --resume_from_checkpoint {intact[-1]}"
        raise UserError(f"{checkpoint} is damaged: {reason}. {advice}")
    return checkpoint


def check_not_overwritten(source: Path, output_dir: Path) -> None:
    """Raise UserError for a starting model that a training into `output_dir` would replace.

    That is the folder itself, or a checkpoint in it.
    """
    output = output_dir.resolve()
    is_its_checkpoint = (source / STATE).is_file() and source.resolve().parent == output
    is_the_folder = source.is_dir() and source.resolve() == output
    if is_its_checkpoint or is_the_folder:
        raise UserError(
            f"--output_dir {output} holds the starting model {source}, which the training would "
            "replace: choose another; to continue the training of a checkpoint, leave out "
            f"--overwrite_output_dir and give --resume_from_checkpoint {source}"
        )


def begin_training(output_dir: Path, run: RunFingerprint, resumed: bool) -> None:
    """Mark `output_dir` as being trained by a run, and remove what it must not take for its own.

    These are the checkpoints of a run that this one overwrites, and what a killed save left behind.
    """
    files.write_json(output_dir / IN_PROGRESS, run.as_json())
    files.clear_partials(output_dir)
    for path in output_dir.glob("checkpoint-*"):
        # The user's copies have other names; a link may lead to another run's checkpoint.
        is_of_a_run = path.name.removeprefix("checkpoint-").isdecimal() and not path.is_symlink()
        is_of_this_run = resumed and (path / "config.json").exists()
        if is_of_a_run and not is_of_this_run:
            RunFolder(path).remove()


def keep_users_files(output_dir: Path) -> None:
    """Copy what a user has in a folder, and the trained model will take the place of, to NAME.1.

    They are a config.json, and the tokenizer beside it, in a folder that no training has marked.
    """
    is_marked = any((output_dir / name).exists() for name in (IN_PROGRESS, FINISHED))
    if is_marked or not (output_dir / "config.json").exists():
        return
    for name in ("config.json", *TOKENIZER_FILES):
        path = output_dir / name
        if path.is_file():
            copy = files.numbered(path)
            shutil.copyfile(path, copy)  # the training may still have to read it
            logger.warning("%s will be the trained model's; yours is now %s as well", path, copy)


def finish_training(output_dir: Path) -> None:
    """Mark the training as finished, then remove the best model so far."""
    with suppress(FileNotFoundError):  # somebody took it away meanwhile
        os.replace(output_dir / IN_PROGRESS, output_dir / FINISHED)
    remove_best(output_dir)


def remove_best(output_dir: Path) -> None:
    """Remove the folder with the best model so far, if it is the run's own."""
    if not (output_dir / BEST).is_symlink():  # which may lead to another run's
        RunFolder(output_dir / BEST).remove()
