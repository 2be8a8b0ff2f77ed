"""What pre-training minimises and reports, for the dense ALBERT and the adaptive one alike.

Everything is a sum over a batch, so that means over several batches and processes are exact,
however the examples are distributed over them.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AlbertForPreTraining

from .act import AlbertActForPreTraining

Sums = dict[str, torch.Tensor]


def sums_by_class(values: torch.Tensor, classes: torch.Tensor, number: int) -> torch.Tensor:
    """Sum of `values` over the places of each class: (number,); both of one shape."""
    flat = classes.flatten()
    return values.new_zeros(number).index_add_(0, flat, values.flatten())


class PreTrainingSums(nn.Module):
    """A pre-training model as a function from a batch to sums over it.

    The vocabulary's logits are computed at masked positions only, which are a seventh of all.
    """

    def __init__(self, model: AlbertForPreTraining | AlbertActForPreTraining, classes: int) -> None:
        super().__init__()
        self.model = model
        self.classes = classes  # how many classes of tokens there are, the first of them padding

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        labels: torch.Tensor,
        token_classes: torch.Tensor,
        sentence_order_label: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> Sums:
        """Inputs (batch, length) int64; sentence_order_label (batch,); labels −100 for none.

        Returns scalars: examples, predictions (masked positions), pairs (examples with an order),
        mlm_loss and sop_loss (summed cross-entropy), mlm_correct and sop_correct. Of an adaptive
        model also ponder_cost, and tokens and updates, (classes,) each.
        """
        encoded = self.model.albert(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        masked = labels != -100
        targets, order = labels[masked], sentence_order_label
        words = self.model.predictions(encoded.last_hidden_state[masked])  # (predictions, words)
        orders = self.model.sop_classifier(encoded.pooler_output)  # (batch, 2)
        sums = {
            "examples": torch.tensor(len(input_ids), device=input_ids.device),
            "predictions": masked.sum(),
            "pairs": (order != -100).sum(),
            "mlm_loss": F.cross_entropy(words.float(), targets, reduction="sum"),
            "sop_loss": F.cross_entropy(orders.float(), order, reduction="sum"),
            "mlm_correct": (words.argmax(-1) == targets).sum(),
            "sop_correct": (orders.argmax(-1) == order).sum(),
        }
        if "updates" in encoded:
            updates = encoded.updates[:, 0, 0]  # (batch, length)
            sums["ponder_cost"] = encoded.ponder_cost.sum()
            sums["tokens"] = sums_by_class(torch.ones_like(updates), token_classes, self.classes)
            sums["updates"] = sums_by_class(updates, token_classes, self.classes)
        return sums


def pretraining_loss(sums: Sums, counts: Sums, tau: float) -> torch.Tensor:
    """MLM + SOP + τ · ponder cost, each a mean over its own kind of place.

    `counts` holds predictions, pairs and examples of the whole optimiser step. The losses of all
    its micro-batches, on all processes, add up to the step's loss.
    """
    loss = sums["mlm_loss"] / counts["predictions"].clamp(min=1)
    loss = loss + sums["sop_loss"] / counts["pairs"].clamp(min=1)
    if "ponder_cost" in sums:
        loss = loss + tau * sums["ponder_cost"] / counts["examples"]
    return loss


def means(sums: Sums, tau: float) -> dict[str, float]:
    """loss, its parts and accuracies, from the sums over any number of batches.

    Of an adaptive model also ponder_cost. What has no place to be measured at is left out.
    """
    values = {"loss": pretraining_loss(sums, sums, tau).item()}
    for part, number in (("mlm", "predictions"), ("sop", "pairs")):
        if sums[number]:
            values[f"{part}_loss"] = (sums[f"{part}_loss"] / sums[number]).item()
            values[f"{part}_acc"] = (sums[f"{part}_correct"] / sums[number]).item()
    if "ponder_cost" in sums:
        values["ponder_cost"] = (sums["ponder_cost"] / sums["examples"]).item()
    return values
