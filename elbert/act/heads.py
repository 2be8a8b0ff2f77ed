"""Adaptive Depth's models for the tasks: an encoder, `albert`, below a head."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.albert import modeling_albert as hf_albert
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from ..configuration import AlbertActConfig
from ..loading.weights import ACT_NAMES
from ..losses import task_loss
from .encoder import AlbertActModel, AlbertActModelOutput, AlbertActPreTrainedModel


@dataclass
class AlbertActOutput(SequenceClassifierOutput):
    """Output of a model with a head: the logits of its task, under HF's names.

    loss: scalar, task loss + τ · mean over examples of ponder_cost.
    logits: (batch, num_labels), (batch, length, num_labels), (batch, length, vocabulary) or
        (batch, choices), by the task.
    start_logits, end_logits: (batch, length), of an answer's first and last token.
    prediction_logits, sop_logits: (batch, length, vocabulary) and (batch, 2), of pre-training.
    updates, ponder_cost, hidden_states, attentions: as the encoder's.
    """

    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    prediction_logits: Tensor | None = None
    sop_logits: Tensor | None = None
    updates: Tensor | None = None
    ponder_cost: Tensor | None = None


def output(
    tau: float, encoded: AlbertActModelOutput, loss: Tensor | None = None, **logits: Any
) -> AlbertActOutput:
    """Make a head's answer; its loss gets τ · mean of ponder_cost (Simoulin and Crabbé 2021)."""
    if loss is not None:
        loss = loss + tau * encoded.ponder_cost.mean()
    return AlbertActOutput(
        loss=loss,
        updates=encoded.updates,
        ponder_cost=encoded.ponder_cost,
        hidden_states=encoded.hidden_states,
        attentions=encoded.attentions,
        **logits,
    )


class AlbertActForSequenceClassification(AlbertActPreTrainedModel):
    """Classification of a text or pair, or regression with num_labels = 1."""

    tensor_names = ACT_NAMES
    task_parts = ("classifier.",)
    new_parts = ("albert.pooler.", "albert.encoder.albert_layer.act.", *task_parts)

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.label_count)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> AlbertActOutput:
        """Classify a batch; inputs and `options` as the encoder's.

        labels: (batch,), class ids, or values.
        """
        encoded = self.albert(
            input_ids, attention_mask, token_type_ids, return_dict=True, **options
        )
        logits = self.classifier(self.dropout(encoded.pooler_output))
        weights = self.class_weights if self.training else None
        loss = None if labels is None else task_loss(logits, labels, weights=weights)
        return output(self.config.tau, encoded, loss, logits=logits)


def adaptive(hf_forward: Callable[..., ModelOutput]) -> Callable[..., AlbertActOutput]:
    """Let HF's head answer with `updates` and the ponder cost, which its loss then includes."""

    @can_return_tuple
    @wraps(hf_forward)  # HF's Trainer and pipelines read the inputs' names there
    def forward(self: HeadOfAlbert, *inputs: Any, **options: Any) -> AlbertActOutput:
        answers: list[AlbertActModelOutput] = []  # HF's forward hands it on to the encoder
        options |= {"return_dict": True, "answers": answers}
        out: Any = hf_forward(self, *inputs, **options)
        (encoded,) = answers
        logits = {name: value for name, value in out.items() if name.endswith("logits")}
        batch = len(next(iter(logits.values())))
        # Of several choices an example's cost is the sum.
        encoded.ponder_cost = encoded.ponder_cost.view(batch, -1).sum(1)
        return output(self.config.tau, encoded, out.loss, **logits)

    return forward


class HeadOfAlbert(AlbertActPreTrainedModel):
    """HF ALBERT's head for a task, with its inputs and labels, on the adaptive encoder."""

    albert: Any  # an AlbertActModel, in the place of HF's encoder

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.albert.pooler is not None)
        self.post_init()


class AlbertActForPreTraining(HeadOfAlbert, hf_albert.AlbertForPreTraining):
    """Masked language model and sentence-order prediction (SOP), as ALBERT is pre-trained.

    labels: (batch, length), the piece at a masked position, −100 elsewhere.
    sentence_order_label: (batch,), 0 in order, 1 swapped. The loss needs both.
    """

    forward = adaptive(hf_albert.AlbertForPreTraining.forward)


class AlbertActForMaskedLM(HeadOfAlbert, hf_albert.AlbertForMaskedLM):
    """Masked language model; labels (batch, length), the masked piece there, −100 elsewhere."""

    forward = adaptive(hf_albert.AlbertForMaskedLM.forward)


class AlbertActForTokenClassification(HeadOfAlbert, hf_albert.AlbertForTokenClassification):
    """A class for every token; labels (batch, length), −100 for a token without one."""

    forward = adaptive(hf_albert.AlbertForTokenClassification.forward)


class AlbertActForMultipleChoice(HeadOfAlbert, hf_albert.AlbertForMultipleChoice):
    """Choice of one of several texts; inputs (batch, choices, length), labels (batch,)."""

    forward = adaptive(hf_albert.AlbertForMultipleChoice.forward)


class AlbertActForQuestionAnswering(HeadOfAlbert, hf_albert.AlbertForQuestionAnswering):
    """The span of the text that answers a question; start_positions, end_positions (batch,)."""

    forward = adaptive(hf_albert.AlbertForQuestionAnswering.forward)


for auto_class, act_class in (
    (AutoModelForPreTraining, AlbertActForPreTraining),
    (AutoModelForMaskedLM, AlbertActForMaskedLM),
    (AutoModelForSequenceClassification, AlbertActForSequenceClassification),
    (AutoModelForTokenClassification, AlbertActForTokenClassification),
    (AutoModelForQuestionAnswering, AlbertActForQuestionAnswering),
    (AutoModelForMultipleChoice, AlbertActForMultipleChoice),
):
    auto_class.register(AlbertActConfig, act_class, exist_ok=True)
