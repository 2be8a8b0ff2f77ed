"""ELBERT: ALBERT with an exit classifier after every layer pass (Xie et al., 2021).

Training weighs the losses of all exits; inference stops each example where its exit rule fires.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..albert import AlbertBackbone, ExitLinear, Pooler, attention_mask_of, pool, records_states
from ..configuration import ElbertConfig
from ..depth import EarlyExitModel, EarlyExitOutput, ExampleState, layer_states
from ..loading.weights import ELBERT_NAMES
from ..losses import joint_loss, task_loss, taught_loss
from ..rules import LayerOutput, State, scan_answers


class ExitClassifier(nn.Module):
    """An exit: pooler, then one or two linear layers, under the published names."""

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__()
        self.pooler = None if config.use_out_pooler else Pooler(config, config.fc_size1)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        if config.use_fc2:
            self.classifier1 = ExitLinear(config.fc_size1, config.fc_size2)
            self.classifier2 = ExitLinear(config.fc_size2, config.num_labels)
        else:
            self.classifier = ExitLinear(config.fc_size1, config.num_labels)

    def forward(self, pooled: Tensor, shared_pooler: Pooler) -> Tensor:
        """(..., hidden) -> logits (..., num_labels), float32 as the thresholds are."""
        features = (self.pooler or shared_pooler)(pooled)
        if self.training:  # a call that does nothing is 3% of a check
            features = self.dropout(features)
        if hasattr(self, "classifier"):
            return self.classifier(features).float()
        return self.classifier2(self.classifier1(features).tanh()).float()


class ElbertForSequenceClassification(EarlyExitModel):
    """Sequence classification (num_labels > 1) or regression (num_labels = 1) with early exit.

    `config` is read at every call: changing `config.exit_thres` takes effect at once. An example's
    answer does not depend on the batch that it shares.
    """

    config_class = ElbertConfig
    config: ElbertConfig
    tensor_names = ELBERT_NAMES
    task_parts = ("albert.encoder.exit_out_layer", "exit_weights")
    new_parts = ("albert.pooler.", *task_parts)
    optional_parts = ("exit_weights",)  # the published code does not save it

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__(config)
        self.albert = AlbertBackbone(config)
        encoder, self.num_exits = self.albert.encoder, config.num_exit_layers
        if self.num_exits == 1:
            encoder.exit_out_layer = ExitClassifier(config)
        else:
            encoder.exit_out_layers = nn.ModuleList(
                ExitClassifier(config) for _ in range(self.num_exits)
            )
        # The published code kept W outside the model and lost it on saving.
        self.exit_weights = None
        if config.weight_name == "dyn":
            self.exit_weights = nn.Parameter(torch.full((config.num_exit,), config.w_init))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and self.exit_weights is not None:
            init.constant_(self.exit_weights, self.config.w_init)

    @records_states
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_all_exits: bool = False,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        teacher_logits: Tensor | None = None,
    ) -> EarlyExitOutput:
        """Classify a batch.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: (batch, length) int64, as HF
                ALBERT; inputs_embeds in place of input_ids (batch, length, embedding).
            labels: (batch,) class ids, or values for regression; (batch, num_labels) of 0 and 1
                where an example may have several labels (problem_type multi_label_classification).
            output_all_exits: in eval(), run full depth and return every layer's answer too.
            output_hidden_states, output_attentions: run full depth and return those of every layer.
            teacher_logits: (batch, num_labels), in train(): what the exits learn, beside labels.
        """
        if not self.training and not output_all_exits:
            text = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
            out = self.exit_early(*text)
            if labels is not None:
                out.loss = task_loss(out.logits, labels)
            return out
        hidden = self.embed(input_ids, token_type_ids, position_ids, inputs_embeds)
        mask = attention_mask_of(attention_mask)
        pool_state = partial(pool, mask=mask, pooler_input=self.config.pooler_input)
        pooled = torch.stack([*map(pool_state, layer_states(self, hidden, mask))])
        all_logits, loss = self.answer_layers(pooled), None
        if self.training:
            if labels is not None:
                how = {"labels": labels, "weights": self.class_weights}
                loss_of = partial(task_loss, **how, smoothing=self.config.label_smoothing)
                if teacher_logits is not None:
                    how |= {"teacher_logits": teacher_logits, "config": self.config}
                    loss_of = partial(taught_loss, **how)
                losses = torch.stack([loss_of(logits) for logits in all_logits])
                loss = joint_loss(losses, self.exit_weights)
            last = torch.full((len(hidden),), len(all_logits), device=hidden.device)
            return EarlyExitOutput(loss, all_logits[-1], exit_layer=last, all_logits=all_logits)
        logits, exit_layer = scan_answers(self.config.exit_rule(), {"all_logits": all_logits})
        loss = None if labels is None else task_loss(logits, labels)
        return EarlyExitOutput(loss, logits, exit_layer=exit_layer, all_logits=all_logits)

    def answer_layers(self, pooled: Tensor) -> Tensor:
        """(layers, batch, hidden) -> (layers, batch, num_labels), a classifier at a time."""
        layers_of_exits = Counter(map(self.exit_number, range(len(pooled))))
        pieces = pooled.split(list(layers_of_exits.values()))
        pairs = zip(self.exit_heads(), pieces, strict=True)
        return torch.cat([exit_(piece, self.albert.pooler) for exit_, piece in pairs])

    # The steps of depth: see EarlyExitModel.

    def exit_heads(self) -> Sequence[ExitClassifier]:
        encoder = self.albert.encoder
        return [encoder.exit_out_layer] if self.num_exits == 1 else encoder.exit_out_layers

    def exit_number(self, layer: int) -> int:
        """Index of `exit_heads` after layer `layer` (0-based): layers share in equal runs."""
        run = self.config.num_hidden_layers // self.num_exits
        return min(layer // run, self.num_exits - 1)

    def param_index(self, layer: int) -> int:
        return self.albert.group_of(layer) * self.num_exits + self.exit_number(layer)

    def embed(self, *text: Tensor | None) -> Tensor:
        return self.albert.encoder.embedding_hidden_mapping_in(self.albert.embeddings(*text))

    def layer_pass(self, hidden: Tensor, mask: Tensor | None, index: int) -> Tensor:
        return self.albert.encoder.albert_layer_groups[index // self.num_exits](hidden, mask)

    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, index: int, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        exit_ = self.exit_heads()[index % self.num_exits]
        pooled = pool(hidden, mask, self.config.pooler_input)
        return LayerOutput(exit_(pooled, self.albert.pooler)), ()
