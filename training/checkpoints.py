"""What a training run leaves on disk: whole checkpoints, verified when read, and a finished model.

A directory appears by a rename, after every file in it is on disk, or not at all. A checkpoint
lists the size and SHA-256 of each of its files, so that a damaged one is told from an intact one.
Tensors are kept as safetensors and the rest as JSON: reading either runs no code.
"""

import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from modeling.errors import UserError
from modeling.loading.weights import check_numbers
from training.saved_state import check_optimizer, check_schedule, join_optimizer, split_optimizer
from utils.files import make_public, write_json
from utils.fingerprint import file_fingerprint

logger = logging.getLogger(__name__)

IN_PROGRESS = "training_in_progress.json"  # what is trained; renamed at the end to
FINISHED = "training_finished.json"
MANIFEST = "checksums.json"
STATE = "training_state.json"
OPTIMIZER = "optimizer.safetensors"
PARTIAL = ".partial"  # ends the name of what is not whole yet


@dataclass
class Learner:
    """What a training changes, and the tokenizer that is saved beside it.

    objective: what gives a batch its loss, when that is not the model itself.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    objective: torch.nn.Module | None = None


def checkpoint_step(path: Path) -> int:
    """STEP of `checkpoint-STEP`; -1 for any other name."""
    step = path.name.removeprefix("checkpoint-")
    return int(step) if step.isdecimal() and step.isascii() else -1


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run, in order of their steps."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if checkpoint_step(path) >= 0]
    return sorted((p for p in found if (p / "config.json").exists()), key=checkpoint_step)


def latest_checkpoint(output_dir: str | Path) -> Path | None:
    """The checkpoint-STEP of `output_dir` with the highest step."""
    return (checkpoints_of(output_dir) or [None])[-1]


def write_directory(
    directory: Path, fill: Callable[[Path], None], in_place_of_old: bool = False
) -> None:
    """Let `fill` write files into a temporary directory, then move them to `directory`.

    A new `directory`, or one `in_place_of_old`, appears whole, by a rename. Into one that exists
    the files are moved one by one, the configuration last; the temporary directory is inside, for
    it may be a mount point. Raises UserError when the disk is full or not writable.
    """
    there = directory.exists() and not in_place_of_old
    beside = directory / "model" if there else directory
    temporary = beside.with_name(f".{beside.name}{PARTIAL}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        fill(temporary)
        for path in [*temporary.rglob("*"), temporary]:
            if path.is_file():
                make_public(path)
            flush(path)
        if there:
            names = sorted(path.name for path in temporary.iterdir())
            for name in sorted(names, key=lambda name: name == "config.json"):
                os.replace(temporary / name, directory / name)
            flush(directory)
        else:
            remove_checkpoint(directory)
            os.replace(temporary, directory)
            flush(directory.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {directory}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_model(
    directory: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write model and tokenizer as one, see `write_directory`.

    Raises UserError also for weights that are not finite.
    """
    check_finite(model, directory)

    def fill(temporary: Path) -> None:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)

    write_directory(Path(directory), fill)


def save_for_published_code(directory: str | Path, model: PreTrainedModel, spiece: Path) -> None:
    """pytorch_model.bin and spiece.model beside a finished model, for ELBERT's published code.

    The weights are in the file format that its PyTorch of 2020 reads.
    """
    tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items()}

    def fill(temporary: Path) -> None:
        torch.save(tensors, temporary / WEIGHTS_NAME, _use_new_zipfile_serialization=False)
        shutil.copyfile(spiece, temporary / spiece.name)

    write_directory(Path(directory), fill)


def check_finite(model: PreTrainedModel, directory: str | Path) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(
                f"{name} is not finite after training; {directory} is not written. "
                "Lower --learning_rate, add --warmup_steps, or train without --fp16"
            )


def save_checkpoint(directory: Path, learner: Learner, state: dict[str, Any]) -> None:
    """Write `checkpoint-STEP`, from which training goes on as if it had never stopped.

    state: whatever else the run needs, as JSON.
    """
    check_finite(learner.model, directory)
    tensors, settings = split_optimizer(learner.optimizer.state_dict())

    def fill(temporary: Path) -> None:
        learner.model.save_pretrained(temporary)
        learner.tokenizer.save_pretrained(temporary)
        save_file(tensors, temporary / OPTIMIZER)
        write_json(temporary / STATE, {**state, "optimizer": settings})
        names = sorted(path.name for path in temporary.iterdir())
        write_json(
            temporary / MANIFEST, {name: file_fingerprint(temporary / name) for name in names}
        )

    # A run that ended here may be trained on, or go on from before a damaged one.
    write_directory(directory, fill, in_place_of_old=True)


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Leave only the `keep` newest intact checkpoints; all for None, or where none is intact."""
    if keep is None:
        return
    newest_first = checkpoints_of(output_dir)[::-1]
    kept = list(islice((path for path in newest_first if not damage(path)), keep))
    for path in newest_first if kept else []:
        if path not in kept:
            remove_checkpoint(path)


def remove_checkpoint(directory: Path) -> None:
    """Delete a checkpoint; killed half-way, what is left does not pass for one."""
    if not directory.exists():
        return
    doomed = directory.with_name(f".{directory.name}.old{PARTIAL}")
    shutil.rmtree(doomed, ignore_errors=True)
    try:
        os.replace(directory, doomed)
    except OSError as error:
        raise UserError(f"cannot remove {directory}: {error.strerror}") from error
    shutil.rmtree(doomed, ignore_errors=True)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None when it is intact."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    needed = {STATE, OPTIMIZER, SAFE_WEIGHTS_NAME}
    if not isinstance(manifest, dict) or not needed <= manifest.keys():
        return f"{MANIFEST} does not list a checkpoint's files"
    for name, stamp in manifest.items():
        path = checkpoint / Path(name).name
        if not path.is_file():
            return f"{name} is missing"
        if file_fingerprint(path) != stamp:
            return f"{name} is not what was written (size or SHA-256 differ)"
    return None


def find_checkpoint(output_dir: str | Path, wanted: str) -> Path | None:
    """The checkpoint to resume from: `latest` of a run (None when it has none yet), or a path.

    Raises UserError for a damaged one, naming the newest that is intact.
    """
    latest = latest_checkpoint(output_dir)
    checkpoint = latest if wanted == "latest" else Path(wanted)
    if checkpoint is None:
        return None
    if not os.path.isdir(checkpoint):  # pathlib's raises for a long name
        offer = f"; the latest of {output_dir} is {latest}" if latest else ""
        raise UserError(f"--resume_from_checkpoint {wanted}: no such directory{offer}")
    reason = damage(checkpoint)
    if reason is None:
        return checkpoint
    advice = "No other checkpoint is intact; train again with --overwrite_output_dir"
    intact = [p for p in checkpoints_of(checkpoint.parent) if p != checkpoint and not damage(p)]
    if intact:
        advice = f"The newest intact one is {intact[-1]}: --resume_from_checkpoint {intact[-1]}"
    raise UserError(f"{checkpoint} is damaged: {reason}. {advice}")


def check_start(source: str, output_dir: str | Path) -> None:
    """What to type where the `source` of starting weights is a checkpoint amid a training.

    The published code goes on with the training of such a --model_name_or_path. Here its weights
    start a new one: a warning, or a UserError where that would overwrite the checkpoint.
    """
    checkpoint = Path(source)
    if not (checkpoint / STATE).is_file():
        return
    step = checkpoint_step(checkpoint)
    if checkpoint.resolve().parent == Path(output_dir).resolve():
        raise UserError(
            f"--model_name_or_path {source} is a checkpoint of the training in --output_dir. To go "
            f"on from its step {step}, add --resume_from_checkpoint {source}; to begin anew with "
            "its weights, choose another --output_dir"
        )
    logger.warning(
        "--model_name_or_path %s stands at step %s of a training. Its weights start a new training "
        "here. To go on with that one, give its --output_dir and --resume_from_checkpoint %s",
        *(source, step, source),
    )


def load_checkpoint(checkpoint: Path, learner: Learner) -> None:
    """Put weights, optimiser and schedule of a checkpoint back, in place."""
    try:
        tensors, state = load_file(checkpoint / OPTIMIZER), read_state(checkpoint)
        optimizer = join_optimizer(tensors, state["optimizer"])
        check_optimizer(optimizer, learner.optimizer)
        step, groups = state["position"]["step"], optimizer["param_groups"]
        check_schedule(state["schedule"], learner.schedule, step, groups)
        for name, tensor in load_file(checkpoint / SAFE_WEIGHTS_NAME).items():
            check_numbers(checkpoint, name, tensor)
        load_model(learner.model, checkpoint / SAFE_WEIGHTS_NAME)
        learner.optimizer.load_state_dict(optimizer)
        learner.schedule.load_state_dict(state["schedule"])
    except UserError:
        raise
    except Exception as error:  # what was made by hand fails in every way there is
        raise UserError(
            f"{checkpoint} does not fit this run: {error}. Resume with the flags of its training"
        ) from error


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given as `state`."""
    path = checkpoint / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path} is not a training's state: it must be a JSON object")
    return state


def begin_training(output_dir: str | Path, identity: dict[str, Any], resumed: bool = False) -> None:
    """Mark `output_dir` as being trained, so that an evaluation can tell an unfinished run.

    identity: what tells the run from others. Checkpoints of a run that this one overwrites go: they
    would pass for its own. What a killed save left behind goes too.
    """
    write_json(Path(output_dir) / IN_PROGRESS, identity)
    for partial in Path(output_dir).glob(f".*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)
    for stale in [] if resumed else checkpoints_of(output_dir):
        remove_checkpoint(stale)


def finish_training(output_dir: str | Path) -> None:
    """Say that the training came to its end, and keep what was trained."""
    with suppress(FileNotFoundError):  # somebody took it away meanwhile
        os.replace(Path(output_dir) / IN_PROGRESS, Path(output_dir) / FINISHED)


def is_finished(output_dir: str | Path) -> bool:
    """Whether `output_dir` holds a model whose training came to its end."""
    directory = Path(output_dir)
    return (directory / "config.json").exists() and not (directory / IN_PROGRESS).exists()


def check_finished(output_dir: str | Path) -> None:
    """Raise UserError unless `output_dir` holds a model whose training came to its end."""
    directory, advice = Path(output_dir), "train again with --overwrite_output_dir"
    if is_finished(directory):
        return
    if not (directory / IN_PROGRESS).exists():
        raise UserError(
            f"no trained model in {directory}; run the same command with --do_train first"
        )
    if kept := latest_checkpoint(directory):
        advice = (
            "go on with its command and --resume_from_checkpoint latest, or evaluate its last "
            f"checkpoint with --output_dir {kept}"
        )
    raise UserError(f"training in {directory} did not finish; {advice}")
