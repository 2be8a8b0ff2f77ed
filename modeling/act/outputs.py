"""What the models of Adaptive Depth answer."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils import ModelOutput


@dataclass
class AlbertActModelOutput(ModelOutput):
    """What the encoder answers.

    last_hidden_state: (batch, length, hidden).
    pooler_output: (batch, hidden), of the first token; None without a pooler.
    updates: (batch, 1, 1, length), how often each token was updated; 0 on padding.
    ponder_cost: (batch,), Σ over real tokens of updates + remainder (`Halting`).
    hidden_states: if asked for, the states (batch, length, hidden) before the first update and
        after each until all tokens had halted: at most num_hidden_layers + 1 of them.
    attentions: if asked for, each of these updates' attention weights, (batch, heads, length,
        length): what every token read of each.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None

    def carried(self) -> dict[str, Any]:
        """What a head's output has of the encoder's."""
        names = ("updates", "ponder_cost", "hidden_states", "attentions")
        return {name: getattr(self, name) for name in names}


@dataclass
class AlbertActOutput(ModelOutput):
    """What a model with one head answers.

    loss: scalar, task loss + τ · mean over examples of ponder_cost.
    logits: (batch, num_labels), (batch, length, num_labels), (batch, length, vocabulary) or
        (batch, choices), by the task.
    updates, ponder_cost, hidden_states, attentions: as the encoder's.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class AlbertActQuestionAnsweringOutput(ModelOutput):
    """AlbertActOutput with start_logits and end_logits, (batch, length) each, for logits."""

    loss: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class AlbertActForPreTrainingOutput(ModelOutput):
    """AlbertActOutput with two heads' logits and the parts of the loss.

    prediction_logits: (batch, length, vocabulary); sop_logits: (batch, 2).
    mlm_loss, sop_loss: scalars, parts of the loss.
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    sop_logits: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    mlm_loss: torch.Tensor | None = None
    sop_loss: torch.Tensor | None = None
