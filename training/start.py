"""What a training script begins with: devices, logging, a directory to write to, signals; and
scripts as processes of their own."""

import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import parse_flag_from_env, set_seed
from filelock import FileLock, Timeout
from transformers import PreTrainedConfig
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.utils import logging as hf_logging

from modeling.cpu_packing import EMULATED, is_emulated
from modeling.errors import UserError
from modeling.runtime import keep_freed_memory, launched_processes
from training.checkpoints import check_finished
from training.pretraining_data import TEXT, read_sentences
from training.pretraining_settings import TextScript
from training.provenance import ROOT
from training.settings import RunSettings
from utils.console import StdoutHandler

logger = logging.getLogger(__name__)

LOCK = ".training.lock"  # in --output_dir; says who trains into it


def make_accelerator(no_cuda: bool, precision: str, **options: Any) -> Accelerator:
    """HF's device and processes. UserError for a `precision` (no, bf16, fp16) they cannot do."""
    for name in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            raise UserError(f"ACCELERATE_USE_{name}: every process holds the whole model; unset it")
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
    """Make --output_dir for what a training `writes`; without, look for the trained model in it."""
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
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output_dir {directory} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.W_OK):
        raise UserError(f"--output_dir {directory} cannot be written")


@contextmanager
def lock_output_dir(output_dir: str, accelerator: Accelerator, trains: bool) -> Iterator[None]:
    """Keep --output_dir to a run that `trains`, until it is over, for all of its processes."""
    locks = trains and accelerator.is_main_process
    with lock_of(Path(output_dir)) if locks else nullcontext():
        accelerator.wait_for_everyone()  # before the main process writes into it
        yield


@contextmanager
def lock_of(directory: Path) -> Iterator[None]:
    path = directory / LOCK
    try:
        lock = FileLock(path).acquire(timeout=0)
    except Timeout as error:
        holder = path.read_text(encoding="utf-8", errors="replace")[:200] or "another run"
        raise UserError(
            f"--output_dir {directory} is being trained into by {holder}: wait for its end, stop "
            "it, or choose another"
        ) from error
    except OSError as error:
        raise UserError(f"--output_dir {directory} cannot be locked: {error}") from error
    with lock:
        with suppress(OSError):  # a full disk: the lock holds without a name in it
            path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        try:
            yield
        finally:
            with suppress(OSError):  # the folder may be gone, or a file by now
                path.unlink()  # who waits for it sees that, and makes another


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


class StopSignal:
    """SIGTERM, Ctrl-C and a closed terminal as a wish, granted after the step at hand.

    Only a second Ctrl-C acts at once. Other signals may well come twice: launchers such as torchrun
    pass on, Ctrl-C too, what their workers have already received.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "StopSignal":
        wanted = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup a terminal may close
            wanted.append(signal.SIGHUP)
        self.old = {number: signal.signal(number, self.receive) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        if number == signal.SIGINT and "LOCAL_RANK" not in os.environ:  # which launchers set
            signal.signal(number, self.old[number])

    def on_any_rank(self, accelerator: Accelerator) -> int:
        """Number of a signal that any of the processes received; 0 for none."""
        number = self.received or 0
        if accelerator.num_processes == 1:
            return number
        asked = torch.tensor([number], device=accelerator.device)
        return int(accelerator.gather(asked).max())


def call(script: str, flags: Sequence[str], log: Path | None = None) -> None:
    """Run a script of the project's root to its end, with its output in `log`; UserError where that
    is an error. A signal to stop is passed on to it, as SIGTERM; when it has saved and is gone, a
    KeyboardInterrupt with the signal's number follows."""
    with StopSignal() as stop, log.open("a") if log else nullcontext() as output:
        # A session of its own: a terminal's Ctrl-C would reach it twice, and so at once.
        child = subprocess.Popen(
            [sys.executable, str(ROOT / script), *flags],
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            start_new_session=True,
        )
        try:
            while child.poll() is None and not stop.received:
                time.sleep(0.1)
            if stop.received:
                child.terminate()
            status = child.wait()
        finally:
            child.kill()  # at a second Ctrl-C
    if stop.received:
        raise KeyboardInterrupt(stop.received)
    if status:
        last = log.read_text(errors="replace").strip().rpartition("\n")[2] if log else ""
        said = f": {last} (see {log})" if log else ""
        raise UserError(f"{script} ended with status {status}{said}")
