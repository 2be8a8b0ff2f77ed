"""Writing a folder with a model: whole or not at all, its config.json last.

A model's folder counts once its config.json is there, which comes last, when all other files are on
disk. Weights are safetensors and the rest is JSON: reading either runs no code.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import WEIGHTS_NAME

from modeling.configuration import AdaptiveConfig
from modeling.errors import UserError
from modeling.loading.tokenizers import save_tokenizer
from runs import files
from runs.folder import RunFolder

Fill = Callable[[Path], None]  # writes files into an empty folder


def write_directory(directory: Path, fill: Fill) -> None:
    """Let `fill` write files, and then move them into `directory`, which may hold others.

    Raises UserError when they cannot be written.
    """
    # Within the directory, which may be a mount point: a rename cannot leave its file system.
    with new_files(directory, fill, temporary_in=directory) as paths:
        directory.mkdir(exist_ok=True)
        move_into(directory, paths)


def replace_directory(directory: Path, fill: Fill) -> None:
    """Put the files that `fill` writes in the place of a folder that a run wrote before.

    The folder is the run's alone and keeps a list of its files (`RunFolder`). A file that an
    earlier run did not write stays where it is. Raises UserError when they cannot be written.
    """
    if directory.is_symlink():  # what it leads to may be another run's
        files.put_aside(directory, "is a link")
    with new_files(directory, fill, temporary_in=directory.parent) as paths:
        folder = RunFolder(directory)
        folder.remove()
        directory.mkdir(exist_ok=True)
        folder.list_before_move({directory / path.name: path for path in paths})
        move_into(directory, paths)


@contextmanager
def new_files(directory: Path, fill: Fill, temporary_in: Path) -> Iterator[list[Path]]:
    """Let `fill` write into a temporary folder; hand its files over, on disk, to be moved.

    They are in the order in which they are to be moved, config.json last. What is not moved is
    removed. Raises UserError, which names `directory`, for whatever goes wrong.
    """
    temporary = temporary_in / files.partial_name(directory.name)
    try:
        files.clear_partials(temporary_in, directory.name)
        temporary.mkdir(parents=True)
        fill(temporary)
        names = sorted(os.listdir(temporary), key=lambda name: name == "config.json")
        paths = [temporary / name for name in names]
        for path in paths:
            apply_umask(path)
            files.flush(path)
        yield paths
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {directory}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into(directory: Path, paths: Sequence[Path]) -> None:
    """Move files into a folder, one after the other; return when that is on disk."""
    for path in paths:
        os.replace(path, directory / path.name)
    files.flush(directory)
    files.flush(directory.parent)


def apply_umask(path: Path) -> None:
    """Give a file the permissions of any new one: safetensors makes its files private."""
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def save_model(
    directory: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spiece: Path | None = None,
) -> None:
    """Write a model and its tokenizer into `directory`, as `write_directory` does.

    spiece: a spiece.model to copy there as well, with the weights in a pytorch_model.bin that
    PyTorch of 2020 can read: ELBERT's published code reads these two.
    """

    def fill(folder: Path) -> None:
        write_model(folder, model, tokenizer)
        if spiece:
            tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
            torch.save(tensors, folder / WEIGHTS_NAME, _use_new_zipfile_serialization=False)
            shutil.copyfile(spiece, folder / spiece.name)

    write_directory(directory, fill)


def write_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model and its tokenizer into an empty folder.

    Raises UserError for weights that are not finite.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(
                f"{name} is not finite after training; the model is not written. "
                "Lower --learning_rate, add --warmup_steps, or train without --fp16"
            )
    model.save_pretrained(folder)
    try:
        config: Any = model.config
        if isinstance(config, AdaptiveConfig):
            save_tokenizer(tokenizer, folder, config)
        else:  # a plain ALBERT, pre-trained
            tokenizer.save_pretrained(str(folder))
    except Exception as error:  # the tokenizers library has no other for a full disk
        raise OSError(str(error)) from error
