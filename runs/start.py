"""How a script that trains or evaluates begins: devices, logging, a folder to write to."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import parse_flag_from_env, set_seed
from transformers.utils import logging as hf_logging

from modeling.cpu_packing import EMULATED, is_emulated
from modeling.errors import UserError
from modeling.runtime import keep_freed_memory, launched_processes
from runs.console import StdoutHandler
from runs.output_dir import check_output_dir, locked_for_training
from runs.settings import RunSettings, Schedule

logger = logging.getLogger(__name__)


# Variables of an accelerate configuration that spread one model over processes.
SHARDED = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
}


def make_accelerator(
    no_cuda: bool, precision: str, training: Schedule | None = None, **accelerator_arguments: Any
) -> Accelerator:
    """Make HF's accelerator, which knows the device and the processes.

    Args:
        precision: no, bf16 or fp16.
        training: of a script that trains, says how many batches a step has, and whether the model
            is compiled.

    Raises UserError for a precision that the device cannot do, for variables of a launcher that are
    no numbers, and for an accelerate configuration that spreads a model over processes.
    """
    for variable, name in SHARDED.items():
        if parse_flag_from_env(variable):
            raise UserError(
                f"{variable} asks for {name}, under which no process holds the whole model, so "
                "that none could save it. These models fit one device: run `accelerate config` for "
                "multi-GPU (data parallel) training, or use torchrun"
            )
    launched_processes()  # accelerate reads a launcher's variables without a check
    # Without `cpu`, several processes on a machine without a GPU would not find each other.
    cpu = no_cuda or not torch.accelerator.is_available()
    if training and training.torch_compile:
        accelerator_arguments["dynamo_backend"] = training.torch_compile_backend
    try:
        if cpu and precision == "fp16":
            raise ValueError("needs a GPU")
        return Accelerator(cpu=cpu, mixed_precision=precision, **accelerator_arguments)
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
    for name in ("filelock", "fontTools"):
        logging.getLogger(name).setLevel(logging.WARNING)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    if accelerator.mixed_precision == "bf16" and is_emulated(torch.bfloat16, accelerator.device):
        logger.warning("--bf16: %s", EMULATED)
    keep_freed_memory()
    set_seed(seed)


@contextmanager
def lock_output_dir(output_dir: str, accelerator: Accelerator, trains: bool) -> Iterator[None]:
    """Keep --output_dir to a run that `trains`, with all of its processes, until it is over.

    Raises UserError where another training holds it.
    """
    with ExitStack() as stack:
        if trains and accelerator.is_main_process:
            stack.enter_context(locked_for_training(output_dir))
        accelerator.wait_for_everyone()  # before the main process writes into it
        try:
            yield
        finally:
            for tracker in accelerator.trackers:
                tracker.finish()


@contextmanager
def session(run: RunSettings, precision: str, training: Schedule) -> Iterator[Accelerator]:
    """Begin run_glue.py: devices and processes, logging, the seed, an --output_dir to write to.

    precision: no, bf16 or fp16. A training keeps the folder to itself until it is over. Raises
    UserError for a folder that must not be written to, or that holds no trained model.
    """
    accelerator = make_accelerator(run.no_cuda, precision, training)
    start_script(accelerator, run.seed)
    check_output_dir(run, writes=run.do_train)
    with lock_output_dir(run.output_dir, accelerator, trains=run.do_train):
        yield accelerator
