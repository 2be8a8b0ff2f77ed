"""ELBERT: ALBERT with an exit classifier after every layer pass (Xie et al., 2021).

Training weighs the losses of all exits; inference stops each example where its exit rule fires.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.output_capturing import capture_outputs

from ..albert import AlbertBackbone, ExitLinear, Pooler, attention_mask_of, pool, wants_states
from ..configuration import ElbertConfig
from ..depth import (
    EarlyExitModel,
    EarlyExitOutput,
    ExampleState,
    LayerWeights,
    layer_states,
)
from ..loading.weights import ELBERT_NAMES, KEPT_HEAD_NAMES
from ..losses import distillation_loss, joint_loss, task_loss
from ..rules import LayerOutput, State, scan_answers


class ExitClassifier(nn.Module):
    """An exit: pooler, then one or two linear layers, under the published names."""

    has_hidden_layer = False

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__()
        self.pooler = None if config.use_out_pooler else Pooler(config, config.fc_size1)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.has_hidden_layer = config.use_fc2
        if self.has_hidden_layer:
            self.classifier1 = ExitLinear(config.fc_size1, config.fc_size2)
            self.classifier2 = ExitLinear(config.fc_size2, config.label_count)
        else:
            self.classifier = ExitLinear(config.fc_size1, config.label_count)

    def forward(self, pooled: Tensor, shared_pooler: Pooler | None) -> Tensor:
        """Classify pooled states (..., hidden): logits (..., num_labels), float32.

        shared_pooler: ALBERT's own, for an exit that has none.
        """
        pooler: Any = self.pooler or shared_pooler
        features = pooler(pooled)
        if self.training:  # a call of dropout that does nothing is 3% of an exit check
            features = self.dropout(features)
        if self.has_hidden_layer:
            return self.classifier2(self.classifier1(features).tanh()).float()
        return self.classifier(features).float()


class KeptHead(ExitClassifier):
    """The head of a classifier that was fine-tuned without exits: the exit of the last layer.

    It has one linear layer behind a pooler that reads [CLS], whatever the other exits have.
    """

    def __init__(self, config: ElbertConfig) -> None:
        nn.Module.__init__(self)
        self.pooler = Pooler(config, config.hidden_size, config.head_activation)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = ExitLinear(config.hidden_size, config.label_count)


class ElbertForSequenceClassification(EarlyExitModel):
    """A classifier with an exit after every layer; with num_labels = 1 a regression model.

        model, report = elbert.load_pretrained("albert/albert-base-v2", num_labels=2)

    `config` is read at every call, so a new `config.exit_thres` takes effect at once. The answer to
    an example does not depend on the batch that it is in.
    """

    config_class = ElbertConfig
    config: ElbertConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    task_parts = ("albert.encoder.exit_out_layer", "albert.encoder.kept_head.", "exit_weights")
    new_parts = ("albert.pooler.", "albert.encoder.exit_out_layer", "exit_weights")
    label_rows = r"\.(exit_out_layers?(\.\d+)?|kept_head)\.classifier2?\.(weight|bias)$"
    optional_parts = ("exit_weights",)  # the published code does not save it
    # The published code has ALBERT's pooler even where exits have poolers of their own.
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012 (HF's own)
        r"embeddings\.position_ids$",
        r"^albert\.pooler\.",
    ]

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__(config)
        self.albert = AlbertBackbone(config, has_pooler=config.use_out_pooler)
        self.num_exits = config.num_exit_layers
        encoder = self.albert.encoder
        if self.num_exits == 1:
            encoder.exit_out_layer = ExitClassifier(config)
        else:
            encoder.exit_out_layers = nn.ModuleList(
                ExitClassifier(config) for _ in range(self.num_exits)
            )
        encoder.register_module("kept_head", KeptHead(config) if config.keep_head else None)
        # The published code kept W outside the model and lost it on saving.
        self.exit_weights = None
        if config.weight_name == "dyn":
            self.exit_weights = nn.Parameter(torch.full((config.num_exit,), config.w_init))
        self.post_init()

    @property
    def tensor_names(self) -> Mapping[str, str]:  # pyrefly: ignore[bad-override]  # by the keys
        """Names of HF's heads, and the exit that has their tensors."""
        return KEPT_HEAD_NAMES if self.config.keep_head else ELBERT_NAMES

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and self.exit_weights is not None:
            init.constant_(self.exit_weights, self.config.w_init)

    @capture_outputs
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
            input_ids, attention_mask, token_type_ids, position_ids: (batch, length) int64, as for
                HF's ALBERT; `inputs_embeds`, (batch, length, embedding), in place of `input_ids`.
            labels: (batch,) class ids, or values for regression; (batch, num_labels) of 0 and 1
                where an example may have several labels (problem_type multi_label_classification).
            output_all_exits: in eval(), run all layers and also return the answers of each.
            output_hidden_states, output_attentions: run all layers and return those of each.
            teacher_logits: (batch, num_labels), in train(): a teacher's answers, which the exits
                learn in addition to the labels.
        """
        if labels is not None:
            self.note_label_kind(labels)
        if wants_states(self.config, output_hidden_states, output_attentions):
            output_all_exits = True
        if not self.training and not output_all_exits:
            out = self.exit_early(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
            )
            if labels is not None and out.logits is not None:
                return replace(out, loss=task_loss(out.logits, labels))
            return out
        hidden = self.embed(input_ids, token_type_ids, position_ids, inputs_embeds)
        recorded = self.record(hidden, attention_mask_of(attention_mask))
        all_logits, loss = recorded["all_logits"], None
        if self.training:
            if labels is not None:
                loss = self.training_loss(recorded, labels, teacher_logits)
            last = torch.full((len(hidden),), len(all_logits), device=hidden.device)
            return EarlyExitOutput(loss, all_logits[-1], exit_layer=last, all_logits=all_logits)
        logits, exit_layer = scan_answers(self.config.exit_rule(), recorded)
        loss = None if labels is None else task_loss(logits, labels)
        return EarlyExitOutput(loss, logits, exit_layer=exit_layer, all_logits=all_logits)

    def note_label_kind(self, labels: Tensor) -> None:
        """Tell the configuration of several labels an example, as transformers does."""
        has_matrix = labels.shape == (len(labels), self.config.num_labels)
        if self.config.problem_type is None and labels.is_floating_point() and has_matrix:
            self.config.problem_type = "multi_label_classification"

    def record(self, hidden: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Run all layers from the states at depth 0, and return what a rule may read of them.

        `all_logits` (layers, batch, num_labels), and each of `layer_signals` (batch, layers).
        """
        pooled_layers = []
        for layer, states in enumerate(layer_states(self, hidden, mask)):
            pooled_layers.append(self.pool_for_exit(states, mask, self.exit_number(layer)))
        pooled = torch.stack(pooled_layers)
        signals = {name: x.T for name, x in self.layer_signals(pooled).items()}
        return {"all_logits": self.answer_layers(pooled), **signals}

    def layer_signals(self, pooled: Tensor) -> dict[str, Tensor]:
        """Compute what the model says of a layer beside its logits, by name: none here.

        pooled: (batch, hidden) of one layer, or (layers, batch, hidden); signals (batch,), or
        (layers, batch). A mode whose rule reads more than logits overrides this.
        """
        return {}

    def training_loss(
        self, recorded: dict[str, Tensor], labels: Tensor, teacher_logits: Tensor | None
    ) -> Tensor:
        """Compute the joint loss of all exits, a scalar, from what `record` returned.

        labels, teacher_logits: as `forward`'s. A mode with a loss of its own overrides this.
        """
        losses = [self.exit_loss(x, labels, teacher_logits) for x in recorded["all_logits"]]
        return joint_loss(torch.stack(losses), self.exit_weights)

    def exit_loss(self, logits: Tensor, labels: Tensor, teacher_logits: Tensor | None) -> Tensor:
        """Compute one exit's loss, a scalar, from its logits (batch, num_labels)."""
        if teacher_logits is not None:
            return distillation_loss(
                logits, labels, teacher_logits, self.config, weights=self.class_weights
            )
        smoothing = self.config.label_smoothing
        return task_loss(logits, labels, smoothing=smoothing, weights=self.class_weights)

    def answer_layers(self, pooled: Tensor) -> Tensor:
        """Classify (layers, batch, hidden), a classifier at a time: (layers, batch, num_labels)."""
        layers_of_exits = Counter(map(self.exit_number, range(len(pooled))))
        runs_of_layers = pooled.split(list(layers_of_exits.values()))
        answers = [
            exit_classifier(states, self.albert.pooler)
            for exit_classifier, states in zip(self.exit_heads(), runs_of_layers, strict=True)
        ]
        return torch.cat(answers)

    # The steps of depth: see EarlyExitModel.

    def exit_heads(self) -> Sequence[ExitClassifier]:
        """List the exit classifiers, from the first layers' to the last ones'."""
        encoder: Any = self.albert.encoder
        new_exits = [encoder.exit_out_layer] if self.num_exits == 1 else encoder.exit_out_layers
        return new_exits if encoder.kept_head is None else [*new_exits, encoder.kept_head]

    def exit_number(self, layer: int) -> int:
        """Tell which of `exit_heads` layer `layer` (0-based) has.

        Layers share in equal runs; the last exit also has those that are left over. A kept head is
        the last one, and the last layer's alone.
        """
        layers = self.config.num_hidden_layers - int(self.config.keep_head)
        if layer == layers:
            return self.num_exits
        return min(layer // (layers // self.num_exits), self.num_exits - 1)

    def pool_for_exit(self, hidden: Tensor, mask: Tensor | None, exit_number: int) -> Tensor:
        """Pool states (batch, length, hidden) for one of `exit_heads`: (batch, hidden)."""
        is_kept_head = exit_number == self.num_exits
        return pool(hidden, mask, "cls" if is_kept_head else self.config.pooler_input)

    def layer_weights(self, layer: int) -> LayerWeights:
        return LayerWeights(group=self.albert.group_of(layer), exit=self.exit_number(layer))

    def embed(self, *text: Tensor | None) -> Tensor:
        encoder: Any = self.albert.encoder
        return encoder.embedding_hidden_mapping_in(self.albert.embeddings(*text))

    def layer_pass(self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights) -> Tensor:
        encoder: Any = self.albert.encoder
        return encoder.albert_layer_groups[weights.group](hidden, mask)

    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        pooled = self.pool_for_exit(hidden, mask, weights.exit)
        exit_classifier = self.exit_heads()[weights.exit]
        logits = exit_classifier(pooled, self.albert.pooler)
        return LayerOutput(logits, self.layer_signals(pooled)), ()
