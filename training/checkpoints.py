"""Saving and resuming: what a training run leaves on disk, and how another goes on from it.

A directory appears by a rename, after every file in it is on disk, or not at all. A checkpoint
lists the size and SHA-256 of each of its files, so that a damaged one is told from an intact one.
Tensors are kept as safetensors and the rest as JSON: reading either runs no code.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from torch.optim.lr_scheduler import LRScheduler
from transformers import AlbertConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from modeling.errors import UserError
from modeling.keys import path_keys
from modeling.loading.configs import ORIGIN_KEYS, make_config
from modeling.loading.files import read_json
from training.settings import RunSettings, as_dict, entries
from utils.files import apply_umask, write_json
from utils.fingerprint import differences, file_fingerprint

logger = logging.getLogger(__name__)

IN_PROGRESS = "training_in_progress.json"  # what is trained; renamed at the end to
FINISHED = "training_finished.json"
MANIFEST = "checksums.json"
STATE = "training_state.json"
OPTIMIZER = "optimizer.safetensors"
BEST = "best"  # the best model so far, while the training goes on
PARTIAL = ".partial"  # ends the name of what is not whole yet

# The state of a training.


@dataclass
class Progress:
    """Steps done, and the batch of the epoch that comes next."""

    step: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass
class Best:
    """The highest dev metric so far: at which step, and how many evaluations ago.

    patience: stop after so many evaluations without a better one; None: never.
    keep: is the model of `step` wanted at the end?
    """

    patience: int | None = None
    keep: bool = False
    step: int = 0
    value: float | None = None
    since: int = 0

    @property
    def wanted(self) -> bool:
        return self.keep or self.patience is not None

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

    def record(self) -> dict[str, Any]:
        """Describe it for checkpoints and training.json."""
        return {"step": self.step, "value": self.value, "since": self.since}


@dataclass
class TrainState:
    """All that a training changes, and the tokenizer that is saved beside the model.

    objective: what gives a batch its loss, when that is not the model itself.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    optimizer: torch.optim.Optimizer
    schedule: LRScheduler
    objective: torch.nn.Module | None = None
    progress: Progress = field(default_factory=Progress)
    best: Best = field(default_factory=Best)
    seconds: float = 0.0  # that the training took until it was last saved


@dataclass(frozen=True)
class RunFingerprint:
    """A run's identity: only the same run goes on from its checkpoints.

    arguments: the values of all flags. Those in `free` may change, for they alter no step.
    batch_size: examples of a batch, over all processes.
    data: fingerprint of the training data; "" where it is not known yet.
    """

    arguments: dict[str, Any]
    free: frozenset[str]
    batch_size: int
    data: str

    @classmethod
    def of(cls, settings: Sequence[Any], batch_size: int, data: str = "") -> "RunFingerprint":
        """Take the fingerprint of a run with these dataclasses of settings."""
        free = frozenset(name for name, _, allowed in entries(*settings) if allowed.resuming)
        return cls(as_dict(*settings), free, batch_size, data)

    def record(self) -> dict[str, Any]:
        """Give what is kept of it, as JSON."""
        return {"arguments": self.arguments, "batch_size": self.batch_size, "data": self.data}

    def changes(self, record: dict[str, Any]) -> str:
        """Say which flags are not as in `record`; "" where none is."""
        before = {**record["arguments"], "train batch size": record["batch_size"]}
        now = {**self.arguments, "train batch size": self.batch_size}
        changed = differences(before, now, self.free)
        return "; ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())

    def check(self, checkpoint: Path, record: dict[str, Any]) -> None:
        """Raise UserError where `record`, that of `checkpoint`, is of another run."""
        changed = self.changes(record)
        if not changed and record["data"] != self.data:
            changed = "the training examples or their tokens are others"
        if changed:
            raise UserError(
                f"{checkpoint} is of another run: {changed}. Give the flags of its training, or "
                "train anew with --overwrite_output_dir"
            )


# Whole directories.


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
                apply_umask(path)
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


# Models.


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
    """Write pytorch_model.bin and spiece.model beside a finished model, for ELBERT's published
    code: in the file format that its PyTorch of 2020 reads."""
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


def load_best(output_dir: Path, state: TrainState) -> None:
    """Make the best model the one that is kept, where that is wanted."""
    if state.best.keep and state.best.step:
        load_model(state.model, output_dir / BEST / SAFE_WEIGHTS_NAME)


# Checkpoints.


def save_checkpoint(
    directory: Path, state: TrainState, scaler: dict[str, Any] | None, run: dict[str, Any]
) -> None:
    """Write `checkpoint-STEP`, from which training goes on as if it had never stopped.

    scaler: state of fp16's loss scaling. run: the record of a RunFingerprint.
    """
    check_finite(state.model, directory)
    optimizer = state.optimizer.state_dict()
    tensors = {
        f"{parameter}.{key}": tensor.contiguous()
        for parameter, tensors in optimizer["state"].items()
        for key, tensor in tensors.items()
    }
    record = {
        "position": asdict(state.progress),
        "seconds": state.seconds,
        "best": state.best.record(),
        "schedule": state.schedule.state_dict(),
        "scaler": scaler,
        **run,
        "optimizer": {"param_groups": optimizer["param_groups"]},
    }

    def fill(temporary: Path) -> None:
        state.model.save_pretrained(temporary)
        state.tokenizer.save_pretrained(temporary)
        save_file(tensors, temporary / OPTIMIZER)
        write_json(temporary / STATE, record)
        files = {path.name: file_fingerprint(path) for path in sorted(temporary.iterdir())}
        write_json(temporary / MANIFEST, files)

    # A run that ended here may be trained on, or go on from before a damaged one.
    write_directory(directory, fill, in_place_of_old=True)


def load_checkpoint(
    checkpoint: Path, state: TrainState, run: RunFingerprint
) -> dict[str, Any] | None:
    """Put everything that `save_checkpoint` kept back into `state`; the scaler's state.

    Raises UserError when the flags or the data are not those of the run that wrote it.
    """
    record = read_json(checkpoint / STATE)
    try:
        run.check(checkpoint, record)
        check_config(checkpoint, state.model.config)
        load_model(state.model, checkpoint / SAFE_WEIGHTS_NAME)
        tensors: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in load_file(checkpoint / OPTIMIZER).items():
            parameter, key = name.split(".", 1)
            tensors.setdefault(int(parameter), {})[key] = tensor
        groups = record["optimizer"]["param_groups"]
        state.optimizer.load_state_dict({"state": tensors, "param_groups": groups})
        state.schedule.load_state_dict(record["schedule"])
        state.progress = Progress(**record["position"])
        state.best = replace(state.best, **record["best"])
        state.seconds = record["seconds"]
        return record["scaler"]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint} does not fit this run: {error}. Resume with the flags of its training"
        ) from error


def check_config(checkpoint: Path, config: AlbertConfig) -> None:
    """Raise UserError where the model that the flags name computes otherwise than the checkpoint's.

    Exit keys and names of files decide nothing in training: they may differ.
    """
    path = checkpoint / "config.json"
    table = getattr(config, "table", None)  # a dense ALBERT has none
    free = {*ORIGIN_KEYS, *path_keys(""), *(table.exit_keys if table else ()), "dtype"}
    written, given = make_config(path, read_json(path), type(config)).to_dict(), config.to_dict()
    changed = [
        f"{key} was {written[key]!r}, is {value!r}"
        for key, value in given.items()
        if key not in free and key in written and written[key] != value
    ]
    if changed:
        raise UserError(
            f"{path} is of another model: {'; '.join(changed)}. Give the configuration of its "
            "training, or train anew with --overwrite_output_dir"
        )


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    """List the checkpoints of a run, in order of their steps."""
    found = {
        int(path.name.removeprefix("checkpoint-")): path
        for path in Path(output_dir).glob("checkpoint-*")
        if re.fullmatch("checkpoint-[0-9]+", path.name) and (path / "config.json").exists()
    }
    return [found[step] for step in sorted(found)]


def latest_checkpoint(output_dir: str | Path) -> Path | None:
    """Find the checkpoint-STEP of `output_dir` with the highest step."""
    return (checkpoints_of(output_dir) or [None])[-1]


def prune(output_dir: str | Path, keep: int | None) -> None:
    """Leave only the `keep` newest intact checkpoints; all for None, or where none is intact."""
    if keep is None:
        return
    newest_first = checkpoints_of(output_dir)[::-1]
    kept = list(islice((path for path in newest_first if not damage(path)), keep))
    for path in newest_first if kept else []:
        if path not in kept:
            remove_checkpoint(path)


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with the files of a checkpoint; None when it is intact."""
    try:
        manifest = read_json(checkpoint / MANIFEST)
    except UserError as error:
        return f"{MANIFEST} cannot be read ({error})"
    if not manifest.keys() >= {STATE, OPTIMIZER, SAFE_WEIGHTS_NAME}:
        return f"{MANIFEST} does not list a checkpoint's files"
    for name, known in manifest.items():
        path = checkpoint / Path(name).name
        if not path.is_file():
            return f"{name} is missing"
        if file_fingerprint(path) != known:
            return f"{name} is not what was written (size or SHA-256 differ)"
    return None


# Going on.


def is_trained(settings: Any, batch_size: int) -> bool:
    """Tell whether --resume_from_checkpoint finds its training finished.

    settings: a NamedTuple of dataclasses, of which `run` is a RunSettings. batch_size: over all
    processes. Raises UserError for a training that is finished, but was one of other flags.
    """
    output_dir = Path(settings.run.output_dir)
    weights = (output_dir / SAFE_WEIGHTS_NAME).exists()
    latest = settings.run.resume_from_checkpoint == "latest"
    if not (latest and weights and is_finished(output_dir)):
        return False
    record = read_json(output_dir / FINISHED) if (output_dir / FINISHED).exists() else {}
    if record and (changed := RunFingerprint.of(settings, batch_size).changes(record)):
        raise UserError(
            f"training in {output_dir} is finished, and was of other flags: {changed}. To train "
            "with these, choose another --output_dir, or give --overwrite_output_dir without "
            "--resume_from_checkpoint; to evaluate what is there, leave out --do_train"
        )
    logger.info("Training in %s is finished: nothing to resume", output_dir)
    return True


def find_checkpoint(run: RunSettings) -> Path | None:
    """Find the checkpoint to resume from: a path, the latest of the run, or None to begin.

    Raises UserError for a damaged one, naming the newest that is intact.
    """
    output_dir, wanted = run.output_dir, run.resume_from_checkpoint
    if wanted is None:
        return None
    latest = latest_checkpoint(output_dir)
    checkpoint = latest if wanted == "latest" else Path(wanted)
    if checkpoint is None:
        logger.info("No checkpoint in %s yet: training from its beginning", output_dir)
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
    """Say what to type where the `source` of starting weights is a checkpoint amid a training.

    The published code goes on with the training of such a --model_name_or_path. Here its weights
    start a new one: a warning, or a UserError where that would overwrite the checkpoint.
    """
    checkpoint = Path(source)
    if not (checkpoint / STATE).is_file():
        return
    step = checkpoint.name.removeprefix("checkpoint-")
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


# Begun and finished.


def begin_training(output_dir: str | Path, run: dict[str, Any], resumed: bool = False) -> None:
    """Mark `output_dir` as being trained, so that an evaluation can tell an unfinished run.

    run: the record of a RunFingerprint. Checkpoints of a run that this one overwrites go: they
    would pass for its own. What a killed save left behind goes too.
    """
    write_json(Path(output_dir) / IN_PROGRESS, run)
    for partial in Path(output_dir).glob(f".*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)
    for stale in [] if resumed else checkpoints_of(output_dir):
        remove_checkpoint(stale)


def finish_training(output_dir: str | Path, kept_best: bool = False) -> None:
    """Say that the training came to its end and keep what was trained, then remove its `BEST`."""
    directory = Path(output_dir)
    with suppress(FileNotFoundError):  # somebody took it away meanwhile
        os.replace(directory / IN_PROGRESS, directory / FINISHED)
    if kept_best:
        shutil.rmtree(directory / BEST, ignore_errors=True)


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
