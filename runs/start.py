"""How a script that trains or evaluates begins: devices, logging, a folder to write to."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from filelock import Timeout
from transformers.utils import logging as hf_logging

from elbert.cpu_packing import EMULATED, is_emulated
from elbert_base.errors import UserError
from elbert_base.runtime import keep_freed_memory, launched_processes
from runs.console import StdoutHandler
from runs.files import locked
from runs.folder import check_output_dir
from runs.settings import RunSettings

logger = logging.getLogger(__name__)


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
def session(
    run: RunSettings, precision: str, gradient_accumulation_steps: int
) -> Iterator[Accelerator]:
    """Begin run_glue.py: devices and processes, logging, the seed, an --output_dir to write to.

    precision: no, bf16 or fp16. A training keeps the folder to itself until it is over. Raises
    UserError for a folder that must not be written to, or that holds no trained model.
    """
    accelerator = make_accelerator(
        run.no_cuda,
        precision,
        gradient_accumulation_steps=gradient_accumulation_steps,
        kwargs_handlers=[DistributedDataParallelKwargs()],
    )
    start_script(accelerator, run.seed)
    check_output_dir(run, writes=run.do_train)
    with lock_output_dir(run.output_dir, accelerator, trains=run.do_train):
        yield accelerator
