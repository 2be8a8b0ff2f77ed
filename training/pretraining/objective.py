"""What pre-training minimises and reports, for the dense ALBERT and the adaptive one alike.

Everything is kept as a sum over a batch, so that means over several batches and processes are
exact, however the examples are distributed over them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AlbertForPreTraining
from transformers.utils import ModelOutput

from modeling.act.heads import AlbertActForPreTraining
from training.log import Sums
from training.pretraining.masking import NO_LABEL

COUNTS = {"mlm": "predictions", "sop": "pairs"}  # the sum that each task's loss is a mean over


@dataclass
class ObjectiveOutput(ModelOutput):
    """What an objective answers for a batch.

    loss: scalar. sums: what is reported, summed over the batch, without gradients.
    """

    # HF wants a default; the objective always gives both.
    loss: Tensor = None  # pyrefly: ignore[bad-assignment]
    sums: Sums = None  # pyrefly: ignore[bad-assignment]


class PreTrainingObjective(nn.Module):
    """MLM + SOP + τ · ponder cost of a pre-training model, and sums for its reports.

    The vocabulary's logits are computed at masked positions only, which are a seventh of all.

    classes: number of classes of tokens, the first of which is padding.
    """

    def __init__(self, model: AlbertForPreTraining | AlbertActForPreTraining, classes: int) -> None:
        super().__init__()
        self.model = model
        self.classes = classes
        self.tau = getattr(model.config, "tau", 0.0)  # the dense model has no ponder cost

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        labels: Tensor,
        token_classes: Tensor,
        sentence_order_label: Tensor,
        attention_mask: Tensor | None = None,
        **counts: Tensor,
    ) -> ObjectiveOutput:
        """Compute the loss of a batch.

        Args:
            input_ids, token_type_ids, attention_mask, token_classes: (batch, length) int64.
            labels: (batch, length), the piece at a masked position, elsewhere −100.
            sentence_order_label: (batch,), 0 in order, 1 swapped, −100 for a single segment.
            counts: the predictions, pairs and examples to average over: those of the global batch
                of which this is a part. By default this batch's own.
        """
        encoded = self.model.albert(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        is_masked = labels != NO_LABEL
        words = self.model.predictions(encoded.last_hidden_state[is_masked])
        order = self.model.sop_classifier(encoded.pooler_output)
        sums = {
            "examples": torch.tensor(len(input_ids), device=input_ids.device),
            **answer_sums("mlm", words, labels[is_masked]),
            **answer_sums("sop", order, sentence_order_label),
        }
        # Whether a token is of a class, without padding: (batch, length, classes − 1).
        members = F.one_hot(token_classes, self.classes)[..., 1:]
        sums["tokens"] = members.sum((0, 1))  # (classes − 1,)
        if "updates" in encoded:
            updates = encoded.updates[:, 0, 0]  # (batch, length)
            sums["ponder_cost"] = encoded.ponder_cost.sum()
            sums["updates"] = (members * updates[..., None]).sum((0, 1))  # (classes − 1,)
        loss = mean_loss(sums, {**sums, **counts}, self.tau)
        return ObjectiveOutput(loss, {name: value.detach() for name, value in sums.items()})


def answer_sums(task: str, logits: Tensor, labels: Tensor) -> Sums:
    """Count the labels of a task and its right answers, and sum its cross-entropy.

    task: mlm or sop. logits: (answers, classes). labels: (answers,), −100 for none.
    """
    logits = logits.float()
    return {
        COUNTS[task]: (labels != NO_LABEL).sum(),
        f"{task}_loss": F.cross_entropy(logits, labels, reduction="sum"),
        f"{task}_correct": (logits.argmax(-1) == labels).sum(),
    }


def mean_loss(sums: Sums, counts: Mapping[str, Tensor], tau: float) -> Tensor:
    """Compute MLM + SOP + τ · ponder cost, each a mean over its own number in `counts`.

    With the counts of a global batch, the losses of its parts add up to its loss.
    """
    task_losses = []
    for task, count in COUNTS.items():
        task_losses.append(sums[f"{task}_loss"] / counts[count].clamp(min=1))
    loss = torch.stack(task_losses).sum()
    if "ponder_cost" in sums:
        loss = loss + tau * sums["ponder_cost"] / counts["examples"]
    return loss


def means(sums: Sums, tau: float) -> dict[str, float]:
    """Compute the loss, its parts and accuracies, from the sums over any number of batches.

    An adaptive model also has a ponder_cost. A task without any label is left out.
    """
    values = {"loss": mean_loss(sums, sums, tau).item()}
    for task, count in COUNTS.items():
        if sums[count]:
            values[f"{task}_loss"] = (sums[f"{task}_loss"] / sums[count]).item()
            values[f"{task}_acc"] = (sums[f"{task}_correct"] / sums[count]).item()
    if "ponder_cost" in sums:
        values["ponder_cost"] = (sums["ponder_cost"] / sums["examples"]).item()
    return values
