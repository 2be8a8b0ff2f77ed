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
from transformers.models.albert import modeling_albert as hf_albert
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from ..configuration import AlbertActConfig
from ..loading.weights import ACT_NAMES
from ..losses import task_loss
from .encoder import AlbertActModel, AlbertActModelOutput, AlbertActPreTrainedModel


@dataclass
class AlbertActOutput(ModelOutput):
    """Output of a model with a head: the logits of its task, under HF's names, in HF's order.

    Attributes:
        loss: scalar, task loss + τ · mean over examples of ponder_cost.
        logits: (batch, num_labels), (batch, length, num_labels), (batch, length, vocabulary) or
            (batch, choices), by the task.
        start_logits, end_logits: (batch, length), of an answer's first and last token.
        prediction_logits, sop_logits: (batch, length, vocabulary) and (batch, 2), in pre-training.
        updates, ponder_cost, hidden_states, attentions: as in `AlbertActModelOutput`; the cost of
            an example with several choices is the sum over them.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    prediction_logits: Tensor | None = None
    sop_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    updates: Tensor | None = None
    ponder_cost: Tensor | None = None


def make_output(
    tau: float, encoded: AlbertActModelOutput, loss: Tensor | None = None, **logits: Any
) -> AlbertActOutput:
    """Make a head's output; add τ · mean of ponder_cost to its loss (Simoulin and Crabbé, 2021).

    Args:
        tau: τ of the configuration.
        encoded: the encoder's output.
        loss: of the task, a scalar; None without labels.
        logits: tensors by the names of `AlbertActOutput`.
    """
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
    """Adaptive Depth's classifier of texts or pairs; with num_labels = 1 a regression model.

    model, report = elbert.load_act("asi/albert-act-base", num_labels=2)
    """

    tensor_names = ACT_NAMES
    task_parts = ("classifier.",)
    new_parts = ("albert.pooler.", "albert.encoder.albert_layer.act.", *task_parts)
    label_rows = r"^classifier\.(weight|bias)$"

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
        """Classify a batch.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64.
            labels: (batch,), class ids, or values for regression.
            options: further arguments of `AlbertActModel.forward`.
        """
        encoded = self.albert(
            input_ids, attention_mask, token_type_ids, return_dict=True, **options
        )
        logits = self.classifier(self.dropout(encoded.pooler_output))
        weights = self.class_weights if self.training else None
        loss = None if labels is None else task_loss(logits, labels, weights=weights)
        return make_output(self.config.tau, encoded, loss, logits=logits)


def with_ponder_cost(hf_forward: Callable[..., ModelOutput]) -> Callable[..., AlbertActOutput]:
    """Wrap the `forward` of HF's head, for an output with `updates` and the ponder cost.

    Its loss then includes the ponder cost.
    """

    @can_return_tuple
    @wraps(hf_forward)  # HF's Trainer and pipelines read the inputs' names there
    def forward(self: HeadOfAlbert, *inputs: Any, **options: Any) -> AlbertActOutput:
        answers: list[AlbertActModelOutput] = []  # HF's forward hands it on to the encoder
        options |= {"return_dict": True, "answers": answers}
        out: Any = hf_forward(self, *inputs, **options)
        (encoded,) = answers
        logits = {name: value for name, value in out.items() if name.endswith("logits")}
        # Each of an example's several choices is a text of its own to the encoder.
        batch = len(next(iter(logits.values())))
        encoded.ponder_cost = encoded.ponder_cost.view(batch, -1).sum(1)
        return make_output(self.config.tau, encoded, out.loss, **logits)

    return forward


class HeadOfAlbert(AlbertActPreTrainedModel):
    """A base of models that have HF ALBERT's head for a task on the adaptive encoder.

    Inputs and labels are those of HF's class, which is the second base of each model.
    """

    albert: Any  # an AlbertActModel, in the place of HF's encoder

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.albert.pooler is not None)
        self.post_init()


class AlbertActForPreTraining(HeadOfAlbert, hf_albert.AlbertForPreTraining):
    """A model for pre-training on masked tokens (MLM) and the order of two sentences (SOP).

    `labels`, (batch, length), has the token at a masked position, and −100 elsewhere.
    `sentence_order_label`, (batch,), is 0 for sentences in order, 1 for swapped ones. The loss
    needs both.
    """

    forward = with_ponder_cost(hf_albert.AlbertForPreTraining.forward)


class AlbertActForMaskedLM(HeadOfAlbert, hf_albert.AlbertForMaskedLM):
    """A masked language model; `labels`, (batch, length): the masked tokens, −100 elsewhere."""

    forward = with_ponder_cost(hf_albert.AlbertForMaskedLM.forward)


class AlbertActForTokenClassification(HeadOfAlbert, hf_albert.AlbertForTokenClassification):
    """A classifier of tokens; `labels`, (batch, length), with −100 for a token without a label."""

    forward = with_ponder_cost(hf_albert.AlbertForTokenClassification.forward)


class AlbertActForMultipleChoice(HeadOfAlbert, hf_albert.AlbertForMultipleChoice):
    """A model that chooses among texts; inputs (batch, choices, length), `labels` (batch,)."""

    forward = with_ponder_cost(hf_albert.AlbertForMultipleChoice.forward)


class AlbertActForQuestionAnswering(HeadOfAlbert, hf_albert.AlbertForQuestionAnswering):
    """A model that finds the span that answers a question.

    `start_positions` and `end_positions`, (batch,), are the span's first and last token.
    """

    forward = with_ponder_cost(hf_albert.AlbertForQuestionAnswering.forward)


for auto_class, act_class in (
    (AutoModelForPreTraining, AlbertActForPreTraining),
    (AutoModelForMaskedLM, AlbertActForMaskedLM),
    (AutoModelForSequenceClassification, AlbertActForSequenceClassification),
    (AutoModelForTokenClassification, AlbertActForTokenClassification),
    (AutoModelForQuestionAnswering, AlbertActForQuestionAnswering),
    (AutoModelForMultipleChoice, AlbertActForMultipleChoice),
):
    auto_class.register(AlbertActConfig, act_class, exist_ok=True)
