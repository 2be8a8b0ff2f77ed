"""Regional compilation: the layer pass and the exit check's tensors, not the loop over depth.

The exit check's tensors are pooling, classifier and scores; the rule's decision, on a few numbers,
stays as it is. All depths share the compiled code, so compile time does not grow with depth, and
lengths are dynamic. On a CPU the weights are frozen into the code.
"""

import logging
import shutil
from contextlib import suppress

import torch
from torch import nn

from .albert import attention_mask_of
from .depth import EarlyExitModel, iter_layers

logger = logging.getLogger(__name__)


def regions(model: EarlyExitModel) -> list[nn.Module]:
    """What is compiled: every layer group once, and what an exit consists of."""
    return [*model.layer_groups(), *model.exit_heads()]


def compile_for_training(model: EarlyExitModel) -> None:
    """Compile the layer groups of `model` in place; the first step takes the time."""
    for group in model.layer_groups():
        group.compile(dynamic=True)


def warm_up(model: EarlyExitModel) -> None:
    """Every layer and exit once for each kind of call: one text without mask, a batch with one."""
    for shape in ((1, 7), (3, 9)):
        ids = torch.ones(shape, dtype=torch.long, device=model.device)
        mask = None if shape[0] == 1 else attention_mask_of(torch.tril(torch.ones_like(ids), 6))
        for _ in iter_layers(model, model.embed(ids), mask, {}, allow_exit=False):
            pass


@torch.inference_mode()
def compile_for_inference(model: EarlyExitModel) -> bool:
    """Compile the regions of `model` in place; returns whether that worked.

    Without a working compiler the model stays as it is, with one warning line.
    """
    if model.device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        logger.warning("no C++ compiler on this machine: running without --compile")
        return False
    options = {"freezing": True} if model.device.type == "cpu" else {}
    for region in regions(model):
        region.compile(dynamic=True, options=options)
    try:
        warm_up(model)
    except Exception as error:  # whatever a compiler's tool chain may raise
        for region in regions(model):
            region._compiled_call_impl = None
        with suppress(AttributeError):
            torch.compiler.reset()
        logger.warning("compilation failed (%s): running without", str(error).splitlines()[0])
        return False
    return True
