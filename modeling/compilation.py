"""Regional compilation: the layer pass and the exit check's tensors, not the loop over depth.

The exit check's tensors are pooling, classifier and scores; the rule's decision, on a few numbers,
stays as it is. All depths share the compiled code, so compile time does not grow with depth, and
lengths are dynamic. On a CPU the weights are frozen into the code.
"""

import logging
import shutil

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .albert import attention_mask_of
from .depth import EarlyExitModel, iter_layers

logger = logging.getLogger(__name__)


def layer_groups(model: nn.Module) -> list[nn.Module]:
    """The modules that make a layer pass, in every mode."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def compile_for_training(model: EarlyExitModel) -> None:
    """Compile the layer groups of `model` in place; the first step takes the time."""
    for group in layer_groups(model):
        group.compile(dynamic=True)


@torch.inference_mode()
def compile_for_inference(model: EarlyExitModel) -> bool:
    """Compile the layer groups and exits of `model` in place; returns whether that worked.

    Without a working compiler the model stays as it is, with one warning line.
    """
    if model.device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        logger.warning("no C++ compiler on this machine: running without --compile")
        return False
    options = {"freezing": True} if model.device.type == "cpu" else {}
    regions = [*layer_groups(model), *model.exit_heads()]
    for region in regions:
        region.compile(dynamic=True, options=options)
    try:
        # Every layer and exit once for each kind of call: one text without mask, a batch with one.
        for shape in ((1, 7), (3, 9)):
            ids = torch.ones(shape, dtype=torch.long, device=model.device)
            mask = None if shape[0] == 1 else attention_mask_of(torch.tril(torch.ones_like(ids), 6))
            list(iter_layers(model, model.embed(ids), mask, {}, allow_exit=False))
    except Exception as error:  # whatever a compiler's tool chain may raise
        for region in regions:
            region._compiled_call_impl = None
        torch.compiler.reset()
        logger.warning("compilation failed (%s): running without", str(error).splitlines()[0])
        return False
    return True
