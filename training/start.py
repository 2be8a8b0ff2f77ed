"""What a script that trains or evaluates begins with: devices, logging, a directory to write to."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from filelock import Timeout
from transformers import PreTrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as hf_logging

from modeling.cpu_packing import EMULATED, is_emulated
from modeling.errors import UserError
from modeling.runtime import keep_freed_memory, launched_processes
from training.checkpoints import check_finished
from training.pretraining_data import TEXT, read_sentences
from training.pretraining_settings import TextScript
from training.settings import RunSettings
from utils.console import StdoutHandler
from utils.files import locked

logger = logging.getLogger(__name__)

LOCK = ".training.lock"  # in --output_dir, while a run trains into it


def make_accelerator(no_cuda: bool, precision: str, **options: Any) -> Accelerator:
    """HF's device and processes. UserError for a `precision` (no, bf16, fp16) they cannot do."""
    launched_processes()  # accelerate reads them without a check
    # Without `cpu`, several processes on a machine without a GPU would not find each other.
    cpu = no_cuda or not torch.accelerator.is_available()
    try:
        if cpu and precision == "fp16":
            raise ValueError("needs a GPU")
        return Accelerator(cpu=cpu, mixed_precision=precision, **options)
    except ValueError as error:
        raise UserError(f"mixed precision {precision}: {error}; on a CPU use --bf16") from error


def start_script(accelerator: Accelerator, seed: int) -> None:
    """Send the main process's messages to stdout, keep freed memory, and set the seed."""
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s -   %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        level=logging.INFO if accelerator.is_main_process else logging.WARNING,
        handlers=[StdoutHandler()],
    )
    logging.getLogger("filelock").setLevel(logging.WARNING)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    if accelerator.mixed_precision == "bf16" and is_emulated(torch.bfloat16, accelerator.device):
        logger.warning("--bf16: %s", EMULATED)
    keep_freed_memory()
    set_seed(seed)


def check_output_dir(run: RunSettings, writes: bool) -> None:
    """Make --output_dir for what a training `writes`; without, look for its trained model."""
    directory = Path(run.output_dir)
    if not writes:
        check_finished(directory)
    welcome = not writes or run.overwrite_output_dir or run.resume_from_checkpoint
    there = os.path.isdir(directory)  # pathlib's raises for a long name
    if not welcome and there and any(path.name != LOCK for path in directory.iterdir()):
        raise UserError(
            f"--output_dir {directory} exists and is not empty; add --resume_from_checkpoint to go "
            "on with its training, --overwrite_output_dir to begin it anew, or choose another"
        )
    directory.mkdir(parents=True, exist_ok=True)


@contextmanager
def lock_output_dir(output_dir: str, accelerator: Accelerator, trains: bool) -> Iterator[None]:
    """Keep --output_dir to a run that `trains`, until it is over, for all of its processes."""
    locks = trains and accelerator.is_main_process
    try:
        with locked(Path(output_dir, "training"), timeout=0) if locks else nullcontext():
            accelerator.wait_for_everyone()  # before the main process writes into it
            yield
    except Timeout as error:
        raise UserError(
            f"--output_dir {output_dir} is being trained into by another run: wait for its end, "
            "stop it, or choose another"
        ) from error


@contextmanager
def text_session(settings: TextScript, writes: bool) -> Iterator[Accelerator]:
    """Begin a script on plain text, and end it without what it tokenised into --output_dir.

    writes: is --output_dir written anew? Reads --eval_file now: a bad one fails before training.
    """
    run, evaluation = settings.run, settings.evaluation
    options = {"gradient_accumulation_steps": settings.training.gradient_accumulation_steps}
    accelerator = make_accelerator(run.no_cuda, "bf16" if run.bf16 else "no", **options)
    start_script(accelerator, run.seed)
    if writes:
        check_output_dir(run, writes)
    if evaluation.do_eval:
        for _ in read_sentences([evaluation.eval_file], split=False):
            pass
    with lock_output_dir(run.output_dir, accelerator, writes):
        yield accelerator
        if accelerator.is_main_process:
            shutil.rmtree(Path(run.output_dir, TEXT), ignore_errors=True)


def check_vocab_size(tokenizer: Tokenizer, source: str, config: PreTrainedConfig) -> None:
    """Raise UserError for a tokenizer, from `source`, with pieces that have no embeddings."""
    pieces = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    if pieces > config.vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {pieces} pieces, vocab_size is {config.vocab_size}"
        )
