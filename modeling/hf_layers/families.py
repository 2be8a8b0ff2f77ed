"""Families of encoders that do more than call their layers one after another."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .steps import EncoderSteps


class DebertaV2Steps(EncoderSteps):
    """DeBERTa-v2 and -v3: a convolution over the embedded tokens may stand behind the first layer.

    It reads the neighbours of every token, so the embeddings of padding are 0, as in transformers.
    """

    def extras(self, encoder: PreTrainedModel, hidden: Tensor, mask: Tensor | None) -> Any:
        """Return what the layers read, and the mask."""
        if mask is None:
            mask = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        return super().extras(encoder, hidden, mask), mask

    def run_layer(
        self, encoder: PreTrainedModel, number: int, hidden: Tensor, extras: Any
    ) -> Tensor:
        """Run a layer, and behind the first one the convolution."""
        calls, mask = extras
        if number > 0:
            return super().run_layer(encoder, number, hidden, calls)
        embedded = hidden * mask[..., None].to(hidden.dtype)
        states = super().run_layer(encoder, number, embedded, calls)
        convolution: Any = encoder.get_submodule("encoder").conv
        return states if convolution is None else convolution(embedded, states, mask)


# By model_type; every other encoder is an `EncoderSteps`.
STEPS: dict[str, type[EncoderSteps]] = {"deberta-v2": DebertaV2Steps}


def steps_of(model_type: str) -> EncoderSteps:
    """Make the steps of an encoder by its model_type."""
    return STEPS.get(model_type, EncoderSteps)()
