"""What pre-training minimises and reports, for the dense ALBERT and the adaptive one alike.

Everything is kept as a sum over a batch, so that means over several batches and processes are
exact, however the examples are distributed over them.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AlbertForPreTraining
from transformers.utils import ModelOutput

from elbert.act.heads import AlbertActForPreTraining
from training.trainer import Sums

COUNTS = {"mlm": "predictions", "sop": "pairs"}  # what each task's loss is a mean over


@dataclass
class ObjectiveOutput(ModelOutput):
    """loss: scalar. sums: without gradients, of what is reported; they add up over batches."""

    # HF wants a default; the objective always gives both.
    loss: torch.Tensor = None  # pyrefly: ignore[bad-assignment]
    sums: Sums = None  # pyrefly: ignore[bad-assignment]


class PreTrainingObjective(nn.Module):
    """MLM + SOP + τ · ponder cost of a pre-training model, and sums for its reports.

    The vocabulary's logits are computed at masked positions only, which are a seventh of all.

    classes: how many classes of tokens there are, the first of them padding.
    """

    def __init__(self, model: AlbertForPreTraining | AlbertActForPreTraining, classes: int) -> None:
        super().__init__()
        self.model = model
        self.classes = classes
        self.tau = getattr(model.config, "tau", 0.0)  # the dense model has no ponder cost

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        labels: torch.Tensor,
        token_classes: torch.Tensor,
        sentence_order_label: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **counts: torch.Tensor,
    ) -> ObjectiveOutput:
        """Compute the loss of a batch; inputs are (batch, length) int64, labels −100 for none.

        sentence_order_label: (batch,).

        `counts` are the predictions, pairs and examples to average over: those of a global batch
        of which this is a part; this batch's own when not given.
        """
        encoded = self.model.albert(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        masked = labels != -100
        words = self.model.predictions(encoded.last_hidden_state[masked])
        order = self.model.sop_classifier(encoded.pooler_output)
        sums = {
            "examples": torch.tensor(len(input_ids), device=input_ids.device),
            **answer_sums("mlm", words, labels[masked]),
            **answer_sums("sop", order, sentence_order_label),
        }
        members = F.one_hot(token_classes, self.classes)[..., 1:]  # without padding
        sums["tokens"] = members.sum((0, 1))  # (classes − 1,)
        if "updates" in encoded:
            updates = encoded.updates[:, 0, 0]  # (batch, length)
            sums["ponder_cost"] = encoded.ponder_cost.sum()
            sums["updates"] = (members * updates[..., None]).sum((0, 1))
        loss = mean_loss(sums, {**sums, **counts}, self.tau)
        return ObjectiveOutput(loss, {name: value.detach() for name, value in sums.items()})


def answer_sums(task: str, logits: torch.Tensor, labels: torch.Tensor) -> Sums:
    """Count labels that are not −100 and right answers, and sum the cross-entropy."""
    logits = logits.float()
    return {
        COUNTS[task]: (labels != -100).sum(),
        f"{task}_loss": F.cross_entropy(logits, labels, reduction="sum"),
        f"{task}_correct": (logits.argmax(-1) == labels).sum(),
    }


def mean_loss(sums: Sums, counts: Sums, tau: float) -> torch.Tensor:
    """Compute MLM + SOP + τ · ponder cost, each a mean over its own kind of place.

    With the counts of a global batch, the losses of its parts add up to its loss.
    """
    parts = [sums[f"{task}_loss"] / counts[count].clamp(min=1) for task, count in COUNTS.items()]
    loss = torch.stack(parts).sum()
    if "ponder_cost" in sums:
        loss = loss + tau * sums["ponder_cost"] / counts["examples"]
    return loss


def means(sums: Sums, tau: float) -> dict[str, float]:
    """Compute loss, its parts and accuracies, from the sums over any number of batches.

    Of an adaptive model also ponder_cost. What has no place to be measured at is left out.
    """
    values = {"loss": mean_loss(sums, sums, tau).item()}
    for part, number in COUNTS.items():
        if sums[number]:
            values[f"{part}_loss"] = (sums[f"{part}_loss"] / sums[number]).item()
            values[f"{part}_acc"] = (sums[f"{part}_correct"] / sums[number]).item()
    if "ponder_cost" in sums:
        values["ponder_cost"] = (sums["ponder_cost"] / sums["examples"]).item()
    return values
