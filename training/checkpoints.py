"""Saving and resuming: what a training run leaves on disk, and how another goes on from it.

A model's folder counts once its config.json is there, which comes last, when all other files are on
disk. The list of what a run wrote (`utils/files.py`) tells a damaged checkpoint from an intact one.
Tensors are safetensors and the rest is JSON: reading either runs no code.
"""

import json
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedConfig
from transformers import PreTrainedModel as Model
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from elbert.loading.configs import ORIGIN_KEYS
from elbert_base.errors import UserError
from elbert_base.files import read_json
from elbert_base.keys import path_keys
from runs import files
from runs.flags import entries
from runs.folder import FINISHED, IN_PROGRESS, STATE, checkpoints_of, is_finished, latest_checkpoint
from runs.settings import RunSettings, ScriptSettings

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.safetensors"
BEST = "best_model"  # so far, while the training goes on
POSITION = ("step", "epoch", "batch")
Json = dict[str, Any]  # that is written as JSON


@dataclass
class Best:
    """The highest dev metric so far: at which step, and how many evaluations ago."""

    patience: int | None = None  # stop after so many evaluations without a better one
    keep: bool = False  # the model of `step`, to the end
    step: int = 0
    value: float | None = None
    since: int = 0

    @property
    def should_stop(self) -> bool:
        return self.patience is not None and self.since >= self.patience

    def update(self, step: int, value: float) -> bool:
        """Count an evaluation; whether it is better than all before."""
        if self.value is not None and value <= self.value:
            self.since += 1
            return False
        self.step, self.value, self.since = step, value, 0
        return True

    def state(self) -> Json:
        return {"step": self.step, "value": self.value, "since": self.since}


@dataclass
class TrainState:
    """All that a training changes, and the tokenizer that is saved beside the model."""

    model: Model
    tokenizer: Tokenizer
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    objective: torch.nn.Module | None = None  # gives a batch its loss, where the model does not
    best: Best = field(default_factory=Best)
    step: int = 0  # steps done
    epoch: int = 0  # that comes next, and its batch
    batch: int = 0
    seconds: float = 0.0  # that the training took until it was last saved


def run_fingerprint(
    settings: ScriptSettings,
    processes: int,
    data: str = "",
    config: PreTrainedConfig | None = None,
) -> Json:
    """Say, as JSON, what a run is: only the same run goes on from its checkpoints. Flags that alter
    no step are left out, and keys of the model that decide nothing in training: exit keys, names.

    data: fingerprint of the training data; config: the model's. Both if known yet.
    """
    flags = {name: value for name, value, allowed in entries(*settings) if not allowed.resuming}
    batch_size = settings.training.per_gpu_train_batch_size * processes
    keys = json.loads(config.to_json_string(use_diff=False)) if config else {}
    table = getattr(config, "table", None)  # a dense ALBERT has none
    free = {*ORIGIN_KEYS, *path_keys(""), *(table.exit_keys if table else ()), "dtype"}
    model = {name: value for name, value in keys.items() if name not in free}
    return {"arguments": flags, "batch_size": batch_size, "data": data, "model": model}


def changes(before: Json, now: Json) -> str:
    """Say what flags and keys of the model differ in two of `run_fingerprint`."""
    before, now = (
        {**x.get("model", {}), **x["arguments"], "batch size": x["batch_size"]}
        for x in (before, now)
    )
    found = files.differences(before, now).items()
    return "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in found)


def write_directory(directory: Path, fill: Callable[[Path], None], own: bool = False) -> None:
    """Let `fill` write files into a temporary directory, then move them to `directory`, its
    configuration last.

    own: it is the run's alone, lists its files, and takes the place of an earlier one.
    """
    if own and directory.is_symlink():  # what is there may be another run's
        files.put_aside(directory, "is a link")
    parent = directory.parent if own else directory  # which may be a mount point
    temporary = parent / f".{directory.name}.{os.getpid()}{files.PARTIAL}"
    try:
        files.clear_partials(parent, directory.name)
        temporary.mkdir(parents=True)
        fill(temporary)
        names = sorted(os.listdir(temporary), key=lambda name: name == "config.json")
        for name in names:
            apply_umask(temporary / name)
            files.flush(temporary / name)
        if own:
            files.RunFolder(directory).remove()
        directory.mkdir(exist_ok=True)
        if own:
            moves = {directory / name: temporary / name for name in names}
            files.RunFolder(directory).list_before_move(moves)
        for name in names:
            os.replace(temporary / name, directory / name)
        files.flush(directory)
        files.flush(directory.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {directory}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def apply_umask(path: Path) -> None:
    """Give a file the permissions of any new one: safetensors makes its files private."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def save_model(
    to: Path, model: Model, tokenizer: Tokenizer, own: bool = False, spiece: Path | None = None
) -> None:
    """Write both, see `write_directory`. spiece: is also written, with pytorch_model.bin as PyTorch
    of 2020 reads it, for ELBERT's published code."""

    def fill(temporary: Path) -> None:
        fill_model(model, tokenizer, temporary)
        if spiece:
            tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
            torch.save(tensors, temporary / WEIGHTS_NAME, _use_new_zipfile_serialization=False)
            shutil.copyfile(spiece, temporary / spiece.name)

    write_directory(to, fill, own)


def fill_model(model: Model, tokenizer: Tokenizer, directory: Path) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(
                f"{name} is not finite after training; the model is not written. "
                "Lower --learning_rate, add --warmup_steps, or train without --fp16"
            )
    model.save_pretrained(directory)
    try:
        tokenizer.save_pretrained(directory)
    except Exception as error:  # the tokenizers library has no other for a full disk
        raise OSError(str(error)) from error


def save_checkpoint(directory: Path, state: TrainState, scaler: Json | None, run: Json) -> None:
    """Write a checkpoint; scaler: state of fp16's loss scaling, run: its `run_fingerprint`."""
    optimizer = state.optimizer.state_dict()
    tensors = {
        f"{parameter}.{key}": tensor.contiguous()
        for parameter, tensors in optimizer["state"].items()
        for key, tensor in tensors.items()
    }
    record = {
        "position": {name: getattr(state, name) for name in POSITION},
        "seconds": state.seconds,
        "best": state.best.state(),
        "schedule": state.schedule.state_dict(),
        "scaler": scaler,
        **run,
        "optimizer": {"param_groups": optimizer["param_groups"]},
    }

    def fill(temporary: Path) -> None:
        fill_model(state.model, state.tokenizer, temporary)
        save_file(tensors, temporary / OPTIMIZER)
        files.write_json(temporary / STATE, record)

    write_directory(directory, fill, own=True)


def load_checkpoint(checkpoint: Path, state: TrainState, run: Json) -> Json | None:
    """Put everything that `save_checkpoint` kept back into `state`; return the scaler's state."""
    record = read_json(checkpoint / STATE)
    changed = changes(record, run)
    if not changed and record["data"] != run["data"]:
        changed = "the training examples or their tokens are others"
    if changed:
        raise UserError(
            f"{checkpoint} is of another run: {changed}. Give the flags of its training, or "
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
        state.step, state.epoch, state.batch = (record["position"][x] for x in POSITION)
        state.best = replace(state.best, **record["best"])
        state.seconds = record["seconds"]
        return record["scaler"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint} does not fit this run: {error}. Resume with the flags of its training"
        ) from error


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Leave only the `keep` newest intact checkpoints; all for None, or where none is intact."""
    found = checkpoints_of(output_dir)
    kept = [path for path in found if not damage(path)][-keep:] if keep else found
    for path in found:
        if kept and path not in kept and not path.is_symlink():
            files.RunFolder(path).remove()


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with the files of a checkpoint; None when it is intact."""
    folder = files.RunFolder(checkpoint)
    listed = folder.read_list()
    for name in (STATE, OPTIMIZER, SAFE_WEIGHTS_NAME, "config.json"):
        if not folder.has_own(name, listed):
            return f"{name} is missing, or not as {files.LIST} lists it (SHA-256 differs)"
    return None


def find_start(settings: ScriptSettings, processes: int, *sources: str) -> tuple[bool, Path | None]:
    """Find out whether a training is finished already, and the checkpoint to go on from; None to
    begin, from the weights of `sources`."""
    if is_trained(settings, processes):
        return True, None
    checkpoint = find_checkpoint(settings.run)
    output = Path(settings.run.output_dir).resolve()
    for start in map(Path, sources if checkpoint is None else ()):
        own_checkpoint = (start / STATE).is_file() and start.resolve().parent == output
        if own_checkpoint or (start.is_dir() and start.resolve() == output):
            raise UserError(
                f"--output_dir {output} holds the starting model {start}, which the training would "
                "replace: choose another; to go on with a checkpoint's training, leave out "
                f"--overwrite_output_dir and give --resume_from_checkpoint {start}"
            )
    return False, checkpoint


def is_trained(settings: ScriptSettings, processes: int) -> bool:
    """Tell whether --resume_from_checkpoint finds its training finished; see `run_fingerprint`."""
    output_dir = Path(settings.run.output_dir)
    latest = settings.run.resume_from_checkpoint == "latest"
    if not (latest and (output_dir / SAFE_WEIGHTS_NAME).exists() and is_finished(output_dir)):
        return False
    record = read_json(output_dir / FINISHED) if (output_dir / FINISHED).exists() else {}
    if record and (changed := changes(record, run_fingerprint(settings, processes))):
        raise UserError(
            f"training in {output_dir} is finished, and was of other flags: {changed}. To train "
            "with these, choose another --output_dir, or give --overwrite_output_dir without "
            "--resume_from_checkpoint; to evaluate what is there, leave out --do_train"
        )
    logger.info("Training in %s is finished: nothing to resume", output_dir)
    remove_best(output_dir)  # a killed run had no time for it
    return True


def find_checkpoint(run: RunSettings) -> Path | None:
    """Find the checkpoint to resume from: a path, the latest of the run, or None to begin."""
    wanted = run.resume_from_checkpoint
    latest = latest_checkpoint(run.output_dir)
    if wanted == "latest" and latest is None:
        logger.info("No checkpoint in %s yet: training from its beginning", run.output_dir)
    checkpoint = latest if wanted == "latest" else wanted and Path(wanted)
    if not checkpoint:
        return None
    if not os.path.isdir(checkpoint):  # pathlib's raises for a long name
        offer = f"; the latest of {run.output_dir} is {latest}" if latest else ""
        raise UserError(f"--resume_from_checkpoint {wanted}: no such directory{offer}")
    if reason := damage(checkpoint):
        advice = "No other checkpoint is intact; train again with --overwrite_output_dir"
        if intact := [path for path in checkpoints_of(checkpoint.parent) if not damage(path)]:
            advice = f"The newest intact one: --resume_from_checkpoint {intact[-1]}"
        raise UserError(f"{checkpoint} is damaged: {reason}. {advice}")
    return checkpoint


def begin_training(output_dir: str | Path, run: Json, resumed: bool = False) -> None:
    """Mark `output_dir` as being trained, by a run of this fingerprint. Checkpoints of a run that
    this one overwrites go, for they would pass for its own, and what a killed save left behind."""
    directory = Path(output_dir)
    files.write_json(directory / IN_PROGRESS, run)
    files.clear_partials(directory)
    for path in directory.glob("checkpoint-*"):
        mine = path.name[11:].isdecimal() and not path.is_symlink()  # no copy, nor another run's
        if mine and not (resumed and (path / "config.json").exists()):
            files.RunFolder(path).remove()


def finish_training(directory: Path) -> None:
    """Say that the training came to its end and keep what was trained, then remove its `BEST`."""
    with suppress(FileNotFoundError):  # somebody took it away meanwhile
        os.replace(directory / IN_PROGRESS, directory / FINISHED)
    remove_best(directory)


def remove_best(directory: Path) -> None:
    if not (directory / BEST).is_symlink():  # to another run's
        files.RunFolder(directory / BEST).remove()
