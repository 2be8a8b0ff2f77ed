"""What the models of PonderNet and PALBERT answer."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput

from .distribution import GeneralizedGeometricDist


@dataclass
class PonderOutput(ModelOutput):
    """What the model answers; `layers` are those that ran.

    loss: scalar; train(): total loss, eval(): loss of the answers.
    logits: (layers, batch, num_labels). An example that has halted keeps its last ones.
    halt_probabilities: λ, (batch, layers); 0 once an example has halted.
    model_halt_dist, target_halt_dist: GeneralizedGeometricDist over these layers, and its prior.
    passes: number of layer passes that the batch took.
    answer: (batch, num_labels), eval() only: of the halting layer.
    exit_layer: (batch,) int64, 1-based, eval() only.
    weighted_ce_loss, kl_loss: the parts of `loss`, train() only.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    halt_probabilities: torch.Tensor | None = None
    model_halt_dist: GeneralizedGeometricDist | None = None
    target_halt_dist: GeneralizedGeometricDist | None = None
    passes: int | None = None
    answer: torch.Tensor | None = None
    exit_layer: torch.Tensor | None = None
    weighted_ce_loss: torch.Tensor | None = None
    kl_loss: torch.Tensor | None = None

    @property
    def all_logits(self) -> torch.Tensor:
        """`logits` under the name that ELBERT's output has for them."""
        return self.logits


@dataclass
class PonderSequenceClassifierOutput(ModelOutput):
    """What `PonderAlbertForSequenceClassification` answers.

    loss: scalar; train(): total loss, eval(): loss of the answers.
    logits: (batch, num_labels), of the halting layer (train(): of the last layer).
    exit_layer: (batch,) int64, 1-based, eval() only.
    all_logits: (layers, batch, num_labels), of the layers that ran.
    halt_probabilities: λ, (batch, layers); 0 once an example has halted.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    exit_layer: torch.Tensor | None = None
    all_logits: torch.Tensor | None = None
    halt_probabilities: torch.Tensor | None = None
