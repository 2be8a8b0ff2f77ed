"""Adaptive Depth's models for the tasks: an encoder, `albert`, below a head."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
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

from ..albert import the_input
from ..configuration import AlbertActConfig
from ..keys import ACT_KEYS, checked
from ..loading.weights import Tensors, act_names
from ..losses import task_loss
from .model import AlbertActModel, AlbertActModelOutput, AlbertActPreTrainedModel


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


def mean_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the last dimension, mean over labels other than −100; 0 without any."""
    total = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)


def position_loss(
    logits: torch.Tensor, positions: torch.Tensor, attention_mask: torch.Tensor | None
) -> torch.Tensor:
    """Mean cross-entropy of positions (batch,) in (batch, length), without those off the text."""
    nearest = positions.clamp(0, logits.shape[1] - 1)
    inside = positions == nearest
    if attention_mask is not None:
        inside = inside & attention_mask.gather(1, nearest[:, None])[:, 0].bool()
    return mean_cross_entropy(logits, positions.masked_fill(~inside, -100))


class AlbertActTask(AlbertActPreTrainedModel):
    """An encoder, `albert`, below a head that reads every token's state, or the pooler's output."""

    reads_pooler = False

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.albert = AlbertActModel(config, add_pooling_layer=self.reads_pooler)
        self.add_head(config)
        self.post_init()

    def layer_groups(self) -> Sequence[nn.Module]:
        """The modules that make a layer pass."""
        return [self.albert.encoder.albert_layer]

    def add_head(self, config: AlbertActConfig) -> None:
        """Dropout and one linear layer, as most tasks have; `num_labels` outputs."""
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def encode(
        self, *inputs: torch.Tensor | None, **others: torch.Tensor | bool | None
    ) -> AlbertActModelOutput:
        """The encoder's answer to its inputs by names, whatever `config.return_dict` says."""
        return self.albert(*inputs, return_dict=True, **others)

    def logits_of(self, encoded: AlbertActModelOutput) -> torch.Tensor:
        features = encoded.pooler_output if self.reads_pooler else encoded.last_hidden_state
        return self.classifier(self.dropout(features))

    def task_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return mean_cross_entropy(logits, labels)

    def add_ponder_cost(
        self, loss: torch.Tensor | None, encoded: AlbertActModelOutput
    ) -> torch.Tensor | None:
        """task loss + τ · mean over examples of ponder_cost (Simoulin and Crabbé 2021)."""
        if loss is None:
            return None
        return loss + checked("tau", self.config.tau, ACT_KEYS) * encoded.ponder_cost.mean()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **others: torch.Tensor | bool | None,
    ) -> AlbertActOutput:
        """Inputs as the encoder's, `others` too; labels as the class says."""
        encoded = self.encode(input_ids, attention_mask, token_type_ids, **others)
        logits = self.logits_of(encoded)
        loss = None if labels is None else self.task_loss(logits, labels)
        loss = self.add_ponder_cost(loss, encoded)
        return AlbertActOutput(loss, logits, **encoded.encoder_fields())


class AlbertActForSequenceClassification(AlbertActTask):
    """Classification of a text or pair, or regression with num_labels = 1; labels (batch,)."""

    reads_pooler = True
    task_parts = ("classifier.",)
    new_parts = ("albert.pooler.", "albert.encoder.albert_layer.act.", *task_parts)

    def rename_tensors(self, tensors: Tensors) -> Tensors:
        """Name a checkpoint's tensors as here, but for a classifier of another number of labels."""
        tensors = act_names(tensors)
        head, shape = tensors.get("classifier.weight"), self.classifier.weight.shape
        if head is None or head.shape == shape:
            return tensors
        return {re.sub("^classifier", "other_classifier", name): x for name, x in tensors.items()}

    def task_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return task_loss(logits, labels)


class AlbertActForTokenClassification(AlbertActTask):
    """A class for every token; labels (batch, length), −100 for a token without one."""


class AlbertActForMultipleChoice(AlbertActTask):
    """Which of several texts is right; labels (batch,)."""

    reads_pooler = True

    def add_head(self, config: AlbertActConfig) -> None:
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def encode(
        self,
        *ids_masks_types: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None = None,
        **others: bool | None,
    ) -> AlbertActModelOutput:
        """Inputs (batch, choices, length), or inputs_embeds (batch, choices, length, embedding).

        updates is (batch · choices, 1, 1, length), hidden states likewise; an example's
        ponder_cost is its choices' sum.
        """
        batch, choices = the_input(ids_masks_types[0], inputs_embeds).shape[:2]
        inputs = (*ids_masks_types, inputs_embeds)
        encoded = super().encode(*(x if x is None else x.flatten(0, 1) for x in inputs), **others)
        encoded.ponder_cost = encoded.ponder_cost.view(batch, choices).sum(1)
        return encoded

    def logits_of(self, encoded: AlbertActModelOutput) -> torch.Tensor:
        return super().logits_of(encoded).view(len(encoded.ponder_cost), -1)  # (batch, choices)


class AlbertActForQuestionAnswering(AlbertActTask):
    """The span of the text that answers a question."""

    def add_head(self, config: AlbertActConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **others: torch.Tensor | bool | None,
    ) -> AlbertActQuestionAnsweringOutput:
        """Inputs as the encoder's; start_positions, end_positions: (batch,).

        Positions beyond the text do not count. Logits of padding are the smallest number, so that
        no answer lies there.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, **others)
        logits = self.qa_outputs(encoded.last_hidden_state)
        if attention_mask is not None:
            padding = ~attention_mask.bool()[..., None]
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
        start, end = logits.unbind(-1)  # (batch, length) each
        loss = None
        if start_positions is not None and end_positions is not None:
            spans = ((start, start_positions), (end, end_positions))
            loss = sum(position_loss(*span, attention_mask) for span in spans) / 2
        return AlbertActQuestionAnsweringOutput(
            loss=self.add_ponder_cost(loss, encoded),
            start_logits=start,
            end_logits=end,
            **encoded.encoder_fields(),
        )


class AlbertActForMaskedLM(AlbertActTask):
    """Masked language model; labels (batch, length), the masked piece there, −100 elsewhere."""

    _tied_weights_keys = {  # noqa: RUF012 (HF's own declaration)
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }

    def add_head(self, config: AlbertActConfig) -> None:
        self.predictions = hf_albert.AlbertMLMHead(config)

    def logits_of(self, encoded: AlbertActModelOutput) -> torch.Tensor:
        return self.predictions(encoded.last_hidden_state)

    def get_output_embeddings(self) -> nn.Linear:
        return self.predictions.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.predictions.decoder = value
        self.predictions.bias = value.bias


class AlbertActForPreTraining(AlbertActForMaskedLM):
    """Masked language model and sentence-order prediction (SOP), as ALBERT is pre-trained."""

    reads_pooler = True

    def add_head(self, config: AlbertActConfig) -> None:
        super().add_head(config)
        self.sop_classifier = hf_albert.AlbertSOPHead(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        sentence_order_label: torch.Tensor | None = None,
        **others: torch.Tensor | bool | None,
    ) -> AlbertActForPreTrainingOutput:
        """Predict masked pieces and the order of two segments.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64.
            labels: (batch, length), the piece at a masked position, −100 elsewhere.
            sentence_order_label: (batch,), 0 in order, 1 swapped, −100 for no pair.
            others: as the encoder's.

        The loss is the sum of the parts whose labels are given, and the ponder cost's.
        """
        encoded = self.encode(input_ids, attention_mask, token_type_ids, **others)
        predictions, order = self.logits_of(encoded), self.sop_classifier(encoded.pooler_output)
        mlm_loss = None if labels is None else mean_cross_entropy(predictions, labels)
        sop_loss = None
        if sentence_order_label is not None:
            sop_loss = mean_cross_entropy(order, sentence_order_label)
        parts = [part for part in (mlm_loss, sop_loss) if part is not None]
        return AlbertActForPreTrainingOutput(
            loss=self.add_ponder_cost(sum(parts) if parts else None, encoded),
            prediction_logits=predictions,
            sop_logits=order,
            **encoded.encoder_fields(),
            mlm_loss=mlm_loss,
            sop_loss=sop_loss,
        )


for auto_class, act_class in (
    (AutoModelForPreTraining, AlbertActForPreTraining),
    (AutoModelForMaskedLM, AlbertActForMaskedLM),
    (AutoModelForSequenceClassification, AlbertActForSequenceClassification),
    (AutoModelForTokenClassification, AlbertActForTokenClassification),
    (AutoModelForQuestionAnswering, AlbertActForQuestionAnswering),
    (AutoModelForMultipleChoice, AlbertActForMultipleChoice),
):
    auto_class.register(AlbertActConfig, act_class, exist_ok=True)
