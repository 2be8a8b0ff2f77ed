"""What the scripts' flags share: kinds of numbers, and a directory to write to."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from modeling.errors import UserError
from training.checkpoints import check_finished


def at_least(
    smallest: float, kind: type = int, largest: float = sys.float_info.max
) -> Callable[[str], float]:
    """An argparse type: a number from `smallest` up, or to `largest`."""
    end = "up" if largest == sys.float_info.max else f"to {largest:g}"

    def parse(text: str) -> float:
        value = kind(text)
        if not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(f"{text}: allowed is a number from {smallest:g} {end}")
        return value

    parse.__name__ = "number"  # argparse's word for what it cannot parse
    return parse


def check_output_dir(args: argparse.Namespace) -> None:
    """Raise UserError unless --output_dir can take what --do_train writes, or holds a model."""
    if args.do_train:
        check_new_output_dir(args)
        return
    check_finished(args.output_dir)
    check_writable(Path(args.output_dir))


def check_new_output_dir(args: argparse.Namespace) -> None:
    """Make --output_dir, or raise UserError where it holds something that would be written over."""
    directory = Path(args.output_dir)
    if directory.exists() and not directory.is_dir():
        raise UserError(f"--output_dir {directory} is a file")
    welcome = args.overwrite_output_dir or args.resume_from_checkpoint
    if directory.exists() and any(directory.iterdir()) and not welcome:
        raise UserError(
            f"--output_dir {directory} exists and is not empty; add --resume_from_checkpoint to go "
            "on with its training, --overwrite_output_dir to begin it anew, or choose another"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output_dir {directory} cannot be made: {error.strerror}") from error
    check_writable(directory)


def check_writable(directory: Path) -> None:
    if not os.access(directory, os.W_OK):
        raise UserError(f"--output_dir {directory} cannot be written")
