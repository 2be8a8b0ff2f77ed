"""ELBERT: ALBERT with an exit classifier after every layer pass (Xie et al., 2021).

Training weighs the losses of all exits; inference stops each example where its exit rule fires.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.output_capturing import capture_outputs

from ..configuration import ElbertConfig
from ..depth import (
    NO_EXIT,
    EarlyExitModel,
    EarlyExitOutput,
    ExampleState,
    Extras,
    LayerWeights,
    layer_states,
)
from ..encoder import (
    AlbertBackbone,
    AlbertPreTrainedModel,
    ExitLinear,
    Pooler,
    attention_mask_of,
    pool,
    wants_states,
)
from ..hf_layers.backbone import HfBackbone, HfHead, hf_backbone
from ..loading.weights import ELBERT_NAMES, KEPT_HEAD_NAMES
from ..losses import (
    distillation_loss,
    joint_loss,
    self_distillation_losses,
    task_loss,
    with_self_distillation,
)
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
    optional_parts = ("exit_weights",)  # the published code does not save it
    # The published code has ALBERT's pooler even where exits have poolers of their own.
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012 (HF's own)
        r"embeddings\.position_ids$",
        r"^albert\.pooler\.",
    ]

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__(config)
        self.albert: Any
        if config.encoder_config:
            self.albert, kept_head = hf_backbone(config, has_pooler=config.use_out_pooler)
        else:
            self.albert = AlbertBackbone(config, has_pooler=config.use_out_pooler)
            kept_head = KeptHead(config) if config.keep_head else None
        self.num_exits = config.num_exit_layers
        encoder = self.albert.encoder
        if self.num_exits == 1:
            encoder.exit_out_layer = ExitClassifier(config)
        else:
            encoder.exit_out_layers = nn.ModuleList(
                ExitClassifier(config) for _ in range(self.num_exits)
            )
        encoder.register_module("kept_head", kept_head)
        # The published code kept W outside the model and lost it on saving.
        self.exit_weights = None
        if config.weight_name == "dyn":
            self.exit_weights = nn.Parameter(torch.full((config.num_exit,), config.w_init))
        self.post_init()

    @property
    def tensor_names(self) -> Mapping[str, str]:  # pyrefly: ignore[bad-override]  # by the keys
        """Names of HF's heads, and the exit that has their tensors."""
        return KEPT_HEAD_NAMES if self.config.keep_head else ELBERT_NAMES

    @property
    def label_rows(self) -> str:  # pyrefly: ignore[bad-override]  # by the head's own names
        """Names of the last linear maps of the exits, and of transformers' head."""
        suite = r"\.(exit_out_layers?(\.\d+)?|kept_head)\.classifier2?"
        head = self.albert.encoder.kept_head
        theirs = re.escape(head.label_map) if isinstance(head, HfHead) else suite
        return rf"({suite}|{theirs})\.(weight|bias)$"

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and self.exit_weights is not None:
            init.constant_(self.exit_weights, self.config.w_init)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as HF does; tensors of transformers' layers under the names that they have here.

        HF's default would save some families' under older names of their checkpoints.
        """
        if self.config.encoder_config:
            kwargs.setdefault("save_original_format", False)
        super().save_pretrained(*args, **kwargs)

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
            self.albert.check_records()
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

        `all_logits` (layers, batch, num_labels), and each of `layer_signals` (batch, layers), with
        0 for a layer without an exit.
        """
        pooled_exits = []
        finished = hidden
        for layer, states in enumerate(layer_states(self, hidden, mask)):
            number = self.exit_number(layer)
            if number != NO_EXIT:
                finished = self.albert.finish(states)
                pooled_exits.append(self.pool_for_exit(finished, mask, number))
        pooled = torch.stack(pooled_exits)
        logits = self.answer_exits(pooled, finished, mask)
        signals = self.layer_signals(pooled)
        return {
            "all_logits": self.spread_over_layers(logits),
            **{name: self.spread_over_layers(signal).T for name, signal in signals.items()},
        }

    def spread_over_layers(self, values: Tensor) -> Tensor:
        """Put the exits' values (exits, …) at their layers: (layers, …), 0 at the others."""
        layers = self.config.num_hidden_layers
        if len(values) == layers:
            return values
        spread = values.new_zeros(layers, *values.shape[1:])
        spread[self.exit_rows] = values
        return spread

    @property
    def exit_rows(self) -> list[int]:
        """The layers that have an exit, counted from 0."""
        return [layer - 1 for layer in self.config.exits]

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
        all_logits = recorded["all_logits"]
        if self.config.exit_layers:
            all_logits = all_logits[self.exit_rows]
        losses = torch.stack([self.exit_loss(x, labels, teacher_logits) for x in all_logits])
        share = self.config.self_distillation
        if share:
            taught_losses = self_distillation_losses(all_logits, self.config).mean(1)
            losses = with_self_distillation(losses, taught_losses, share)
        return joint_loss(losses, self.exit_weights)

    def exit_loss(self, logits: Tensor, labels: Tensor, teacher_logits: Tensor | None) -> Tensor:
        """Compute one exit's loss, a scalar, from its logits (batch, num_labels)."""
        if teacher_logits is not None:
            return distillation_loss(
                logits, labels, teacher_logits, self.config, weights=self.class_weights
            )
        smoothing = self.config.label_smoothing
        return task_loss(logits, labels, smoothing=smoothing, weights=self.class_weights)

    def answer_exits(self, pooled: Tensor, last: Tensor, mask: Tensor | None) -> Tensor:
        """Classify at all exits, a classifier at a time: (exits, batch, num_labels).

        pooled: (exits, batch, hidden). last: the last layer's states, (batch, length, hidden).
        """
        exits_of_classifiers = Counter(map(self.exit_number, self.exit_rows))
        runs_of_exits = pooled.split(list(exits_of_classifiers.values()))
        answers = [
            self.answer(exit_number, states, last, mask)
            for exit_number, states in enumerate(runs_of_exits)
        ]
        return torch.cat(answers)

    def answer(
        self, exit_number: int, pooled: Tensor, hidden: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Classify by one of `exit_heads`: (..., num_labels), float32.

        pooled: (..., hidden). hidden: (batch, length, hidden), which a head of transformers reads
        in place of pooled states.
        """
        exit_classifier = self.exit_heads()[exit_number]
        if isinstance(exit_classifier, HfHead):
            return exit_classifier(hidden, mask).view(*pooled.shape[:-1], -1)
        return exit_classifier(pooled, self.albert.pooler)

    # The steps of depth: see EarlyExitModel.

    def exit_heads(self) -> Sequence[ExitClassifier | HfHead]:
        """List the exit classifiers, from the first layers' to the last ones'."""
        encoder: Any = self.albert.encoder
        new_exits = [encoder.exit_out_layer] if self.num_exits == 1 else encoder.exit_out_layers
        return new_exits if encoder.kept_head is None else [*new_exits, encoder.kept_head]

    def exit_number(self, layer: int) -> int:
        """Tell which of `exit_heads` layer `layer` (0-based) has, or NO_EXIT.

        Layers with an exit share in equal runs; the last classifier also has those that are left
        over. A kept head is the last one, and the last layer's alone.
        """
        exits = self.config.exits
        if layer + 1 not in exits:
            return NO_EXIT
        place = exits.index(layer + 1)
        count = len(exits) - int(self.config.keep_head)
        if place == count:
            return self.num_exits
        return min(place // (count // self.num_exits), self.num_exits - 1)

    def pool_for_exit(self, hidden: Tensor, mask: Tensor | None, exit_number: int) -> Tensor:
        """Pool states (batch, length, hidden) for one of `exit_heads`: (batch, hidden)."""
        is_kept_head = exit_number == self.num_exits
        return pool(hidden, mask, "cls" if is_kept_head else self.config.pooler_input)

    def layer_weights(self, layer: int) -> LayerWeights:
        return LayerWeights(group=self.albert.group_of(layer), exit=self.exit_number(layer))

    def embed(self, *text: Tensor | None) -> Tensor:
        return self.albert.embed(*text)

    def layer_extras(self, hidden: Tensor, mask: Tensor | None) -> Extras:
        return self.albert.layer_extras(hidden, mask)

    def layer_pass(self, hidden: Tensor, extras: Extras, weights: LayerWeights) -> Tensor:
        return self.albert.run_layer(weights.group, hidden, extras)

    def layer_output(
        self, hidden: Tensor, mask: Tensor | None, weights: LayerWeights, state: ExampleState
    ) -> tuple[LayerOutput, State]:
        finished = self.albert.finish(hidden)
        pooled = self.pool_for_exit(finished, mask, weights.exit)
        logits = self.answer(weights.exit, pooled, finished, mask)
        return LayerOutput(logits, self.layer_signals(pooled)), ()


class ElbertModel(AlbertPreTrainedModel):
    """An ELBERT's encoder at full depth, without exits, as transformers' AutoModel loads it.

        states = AutoModel.from_pretrained("out/reviews/model")(**inputs).last_hidden_state

    Sentence Transformers and HF's feature-extraction pipeline read a trained folder by it.
    """

    config_class = ElbertConfig
    config: ElbertConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012 (HF's own)
        r"embeddings\.position_ids$",
        r"(^|\.)pooler\.",
        r"encoder\.(exit_out_layers?|kept_head)\.",
        r"^exit_weights$",
    ]

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__(config)
        self.albert: HfBackbone | None = None
        self.encoder: Any = None
        if config.encoder_config:
            self.albert, _ = hf_backbone(config, has_pooler=config.use_out_pooler)
            self.post_init()
            return
        backbone = AlbertBackbone(config, has_pooler=config.use_out_pooler)
        self.group_of = backbone.group_of
        self.embeddings = backbone.embeddings
        self.encoder = backbone.encoder
        self.pooler = backbone.pooler
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Run all layers; arguments are as `ElbertForSequenceClassification.forward`'s.

        Returns:
            `last_hidden_state`, (batch, length, hidden), and `pooler_output`, (batch, hidden): what
            the last exit's classifier reads, or None where every exit has a pooler of its own.
        """
        mask = attention_mask_of(attention_mask)
        if self.albert is not None:
            if wants_states(self.config, output_hidden_states, output_attentions):
                self.albert.check_records()
            hidden = self.albert.embed(input_ids, token_type_ids, position_ids, inputs_embeds)
            return self.with_pooled(self.albert.run_all(hidden, mask), mask, self.albert.pooler)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        hidden = self.encoder.embedding_hidden_mapping_in(embedded)
        score_bias = self.encoder.score_bias(hidden, mask)
        for layer in range(self.config.num_hidden_layers):
            group = self.encoder.albert_layer_groups[self.group_of(layer)]
            hidden = group(hidden, mask, score_bias)
        return self.with_pooled(hidden, mask, self.pooler)

    def with_pooled(
        self, hidden: Tensor, mask: Tensor | None, pooler: nn.Module | None
    ) -> BaseModelOutputWithPooling:
        """Return the last states (batch, length, hidden), and what a pooler makes of them."""
        pooled = None
        if pooler is not None:
            pooled = pooler(pool(hidden, mask, self.config.pooler_input))
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=pooled)


AutoModel.register(ElbertConfig, ElbertModel, exist_ok=True)
