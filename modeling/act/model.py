"""Adaptive Depth ALBERT: every token decides how often the shared layer updates it.

After each update a token gives a halting probability. It stops when these add up to 1 − ε, or at
`num_hidden_layers` updates. A token that has stopped keeps its state, which others still read.

Sources: adaptive computation time, Graves (2016); "How Many Layers and Why? An Analysis of the
Model Depth in Transformers", Simoulin and Crabbé (2021), whose state-dict names these are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert import modeling_albert as hf_albert
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from modeling.albert import (
    KEY_VALUE,
    QUERY,
    QUERY_KEY_VALUE,
    AlbertEmbeddings,
    AlbertLayer,
    AlbertPreTrainedModel,
    SelfAttention,
    attention_mask_of,
    the_input,
)
from modeling.configuration import ACT_KEYS, AlbertActConfig, checked
from modeling.cpu_packing import PackedLayer
from modeling.elbert.model import task_loss
from modeling.flops import layer_pass_flops
from modeling.loading.weights import LoadReport, Tensors, adopt, load_config, read_as, suite_names

# The work of a layer pass that takes as long as gathering and scattering the running tokens: a
# fixed time, so more work where work is faster. Measured on a CPU, estimated for accelerators.
COMPACTION_FLOPS = {"cpu": 1e7, "cuda": 5e9}


@dataclass
class AlbertActModelOutput(ModelOutput):
    """What the encoder answers.

    last_hidden_state: (batch, length, hidden).
    pooler_output: (batch, hidden), of the first token; None without a pooler.
    updates: (batch, 1, 1, length), how often each token was updated; 0 on padding.
    ponder_cost: (batch,), Σ over real tokens of updates + remainder (`Halting`).
    hidden_states: if asked for, the states (batch, length, hidden) before the first update and
        after each until all tokens had halted: at most num_hidden_layers + 1 of them.
    """

    last_hidden_state: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None

    def carried(self) -> dict[str, Any]:
        """What a head's output has of the encoder's."""
        names = ("updates", "ponder_cost", "hidden_states")
        return {name: getattr(self, name) for name in names}


@dataclass
class AlbertActOutput(ModelOutput):
    """What a model with one head answers.

    loss: scalar, task loss + τ · mean over examples of ponder_cost.
    logits: (batch, num_labels), (batch, length, num_labels), (batch, length, vocabulary) or
        (batch, choices), by the task.
    updates, ponder_cost, hidden_states: as the encoder's.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


@dataclass
class AlbertActQuestionAnsweringOutput(ModelOutput):
    """AlbertActOutput with start_logits and end_logits, (batch, length) each, for logits."""

    loss: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None
    updates: torch.Tensor | None = None
    ponder_cost: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


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
    mlm_loss: torch.Tensor | None = None
    sop_loss: torch.Tensor | None = None


def halting_weight(
    probability: torch.Tensor, spent: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight of a running token's newest state, and whether the token halts (Graves 2016, eq. 6).

    With h = `spent`, the sum of the token's weights so far: it halts when h + p > 1 − ε, and then
    the weight is what is left, 1 − h; otherwise the weight is p.
    """
    halts = spent + probability > 1 - epsilon
    return torch.where(halts, 1 - spent, probability), halts


class Halting:
    """How far each token is on its way to halting; all tensors have one shape.

    running: bool, is the token still updated?
    spent: the sum of its halting weights.
    updates: how often it was updated.
    remainder: what was left of 1 before its last update, R of Graves; for a token that the maximum
        stopped, what is left after it. The published code has 0 there, with which a model that
        never halts would not learn to.
    """

    def __init__(self, running: torch.Tensor, dtype: torch.dtype, epsilon: float) -> None:
        self.running = running
        self.epsilon = epsilon
        self.spent = torch.zeros(running.shape, dtype=dtype, device=running.device)
        self.updates = torch.zeros_like(self.spent)
        self.remainder = torch.zeros_like(self.spent)

    def advance(self, probability: torch.Tensor) -> torch.Tensor:
        """Account for one update; returns the weight of the new states, 0 for halted tokens."""
        weight, halts = halting_weight(probability, self.spent, self.epsilon)
        weight = weight.masked_fill(~self.running, 0.0)
        self.spent = self.spent + weight
        left = torch.where(halts, weight, 1 - self.spent)
        self.remainder = torch.where(self.running, left, self.remainder)
        self.updates = self.updates + self.running
        self.running = self.running & ~halts
        return weight


class AlbertAct(nn.Module):
    """The halting head."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """New states (..., hidden) -> halting probabilities (...), at least float32.

        Probabilities are added up to a threshold, which half precision is too coarse for.
        """
        score = self.dense(state).squeeze(-1)
        return score.to(torch.promote_types(score.dtype, torch.float)).sigmoid()


class AlbertActLayer(GradientCheckpointingLayer, AlbertLayer):
    """The shared layer under the published names, with the halting head."""

    attention_class = SelfAttention

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.act = AlbertAct(config)

    @property
    def attention_norm(self) -> nn.LayerNorm:
        return self.LayerNorm

    def pieces(self) -> "AlbertActLayer | PackedLayer":
        """What runs `project` and `finish`: packed weights inside `packed_weights`."""
        return self if torch.compiler.is_compiling() else self.packed or self

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """New states of all tokens, (batch, length, hidden), before they are mixed with the old."""
        pieces, flat = self.pieces(), hidden.flatten(0, 1)
        projected = pieces.project(flat, QUERY_KEY_VALUE).view(*hidden.shape[:2], -1)
        context = self.attention.attend(*self.attention.split_heads(projected), mask)
        return pieces.finish(flat, context.transpose(1, 2).reshape(flat.shape)).view_as(hidden)

    def project(self, flat: torch.Tensor, parts: slice) -> torch.Tensor:
        """(tokens, hidden) -> (tokens, parts·hidden), as `SelfAttention.project`."""
        return self.attention.project(flat, parts)

    def finish(self, flat: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """The pass after attention: states and contexts (tokens, hidden) -> new states."""
        (context,) = self.attention.split_heads(context[None])
        attended = self.LayerNorm(flat + self.attention.output(context)[0])
        return self.full_layer_layer_norm(self.dropout(self.feed_forward(attended)) + attended)


def mix(new: torch.Tensor, old: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """weight · new + (1 − weight) · old: states (..., hidden), weights (...)."""
    weight = weight[..., None]
    return (new * weight + old * (1 - weight)).to(old.dtype)


def keep(trail: list[torch.Tensor] | None, states: torch.Tensor) -> None:
    """Add a copy of the states, which a later pass may overwrite, to a trail that is wanted."""
    if trail is not None:
        trail.append(states.clone())


def grid_slots(running: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where the running tokens of (batch, length) go in a (batch, width) grid, and its width.

    An example's tokens stand side by side at the left of its row of the grid. Returns their flat
    positions in the grid (running,), and the largest number of tokens that an example has.
    """
    place = running.cumsum(1)  # counted from 1
    width = int(place[:, -1].max())
    row_start = torch.arange(len(running), device=running.device)[:, None] * width
    return (row_start + place - 1)[running], width


class AlbertActEncoder(nn.Module):
    """Applies the shared layer to each token until the token halts.

    `compact` says whether a pass without gradients leaves out halted tokens: None, where it pays;
    True or False, always or never.
    """

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.compact: bool | None = None

    def forward(
        self,
        embedded: torch.Tensor,
        mask: torch.Tensor | None,
        trail: list[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, Halting]:
        """Embeddings (batch, length, embedding) -> final states (batch, length, hidden).

        `mask` is (batch, 1, 1, length) bool, or None without padding. As published, every pass
        computes all tokens and gives halted ones the weight 0; from where it pays, `compacted`
        takes over. The states before the first pass and after each are added to `trail`.
        """
        # Under autocast the mapping answers in half precision; states are kept as the weights are.
        hidden = self.embedding_hidden_mapping_in(embedded)
        hidden = hidden.to(self.embedding_hidden_mapping_in.weight.dtype)
        halting = self.start(hidden, mask)
        keep(trail, hidden)
        maximum = self.config.num_hidden_layers
        for step in range(maximum):
            running = int(halting.running.sum())
            if running == 0:
                break
            if self.compaction_pays(hidden, running):
                return self.compacted(hidden, mask, halting, maximum - step, trail), halting
            new = self.albert_layer(hidden, mask)
            hidden = mix(new, hidden, halting.advance(self.albert_layer.act(new)))
            keep(trail, hidden)
        return hidden, halting

    def start(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> Halting:
        """Every real token runs; padding has halted before the first update."""
        running = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        if mask is not None:
            running = running & mask[:, 0, 0]
        dtype = torch.promote_types(hidden.dtype, torch.float)
        return Halting(running, dtype, checked("act_epsilon", self.config.act_epsilon, ACT_KEYS))

    def compaction_pays(self, hidden: torch.Tensor, running: int) -> bool:
        """Is leaving out the halted tokens of (batch, length, hidden) worth its overhead?"""
        if self.training or torch.is_grad_enabled():
            return False  # autograd needs the keys and values that compaction overwrites
        if self.compact is not None:
            return self.compact
        batch, length, _ = hidden.shape
        flops_per_token = layer_pass_flops(self.config, length) / length
        saved = (batch * length - running) * flops_per_token
        return saved > COMPACTION_FLOPS.get(hidden.device.type, COMPACTION_FLOPS["cuda"])

    def compacted(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        halting: Halting,
        passes: int,
        trail: list[torch.Tensor] | None,
    ) -> torch.Tensor:
        """At most `passes` more passes over the running tokens alone; returns all states.

        A halted token's state is constant and all passes share their weights, so its keys and
        values are constant too: they are kept, and everything else is left out for it.
        """
        layer, (batch, length, _) = self.albert_layer, hidden.shape
        pieces = layer.pieces()
        states = hidden.flatten(0, 1).clone()  # (batch · length, hidden)
        kept = pieces.project(states, KEY_VALUE)  # (batch · length, 2·hidden)
        rows = halting.running.flatten().nonzero().squeeze(1)  # flat positions, as in `states`
        state = states[rows]
        for _ in range(passes):
            new = self.running_pass(state, halting.running, kept.view(batch, length, -1), mask)
            probability = halting.spent.new_zeros(batch * length)
            probability[rows] = layer.act(new)
            weight = halting.advance(probability.view(batch, length)).flatten()[rows]
            states[rows] = state = mix(new, state, weight)
            keep(trail, states.view_as(hidden))
            still = halting.running.flatten()[rows].nonzero().squeeze(1)
            if len(still) == 0:
                break
            kept[rows] = pieces.project(state, KEY_VALUE)
            state, rows = state[still], rows[still]
        return states.view_as(hidden)

    def running_pass(
        self,
        state: torch.Tensor,
        running: torch.Tensor,
        key_value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """New states of the running tokens, (running, hidden), from theirs now, `state`.

        running (batch, length) bool; key_value (batch, length, 2·hidden) of all tokens. Every query
        meets the keys of its own example; the linear layers see running tokens only.
        """
        attention, batch = self.albert_layer.attention, len(running)
        pieces = self.albert_layer.pieces()
        slots, width = grid_slots(running)
        query = pieces.project(state, QUERY)
        grid = query.new_zeros(batch * width, query.shape[-1])
        grid[slots] = query
        (query,) = attention.split_heads(grid.view(batch, width, -1))
        key, value = attention.split_heads(key_value)
        context = attention.attend(query, key, value, mask)  # (batch, heads, width, head_size)
        return pieces.finish(state, context.transpose(1, 2).reshape(grid.shape)[slots])


class AlbertActPreTrainedModel(AlbertPreTrainedModel):
    """Loading, saving and initialisation, as HF ALBERT's."""

    config_class = AlbertActConfig
    config: AlbertActConfig
    supports_gradient_checkpointing = True
    # Published checkpoints hold the position numbers 0, 1, 2, …, too.
    _keys_to_ignore_on_load_unexpected = (r"embeddings\.position_ids$",)

    def get_input_embeddings(self) -> nn.Embedding:
        return getattr(self, "albert", self).embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        getattr(self, "albert", self).embeddings.word_embeddings = value


def drop_position_ids(
    module: nn.Module, state_dict: dict[str, torch.Tensor], prefix: str, *_: Any
) -> None:
    """Lets `load_state_dict` take a published checkpoint as it is."""
    state_dict.pop(f"{prefix}embeddings.position_ids", None)


class AlbertActModel(AlbertActPreTrainedModel):
    """The encoder: embeddings, the shared layer, and a pooler unless `add_pooling_layer` is off."""

    def __init__(self, config: AlbertActConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertActEncoder(config)
        self.pooler = None
        if add_pooling_layer:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.register_load_state_dict_pre_hook(drop_position_ids)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> AlbertActModelOutput:
        """Encode a batch, as HF ALBERT does; `return_dict=False` answers with a tuple.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64.
            inputs_embeds: (batch, length, embedding), in place of input_ids.
            output_hidden_states: return the states of every depth; None is the configuration's.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        trail = [] if output_hidden_states else None
        embedded = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        hidden, halting = self.encoder(embedded, attention_mask_of(attention_mask), trail)
        return AlbertActModelOutput(
            last_hidden_state=hidden,
            pooler_output=None if self.pooler is None else self.pooler(hidden[:, 0]).tanh(),
            updates=halting.updates[:, None, None],
            ponder_cost=(halting.updates + halting.remainder).sum(1),
            hidden_states=None if trail is None else tuple(trail),
        )


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

    def encode(self, *inputs: torch.Tensor | bool | None) -> AlbertActModelOutput:
        """The encoder's answer to its inputs by names, whatever `config.return_dict` says."""
        return self.albert(*inputs, return_dict=True)

    def logits_of(self, encoded: AlbertActModelOutput) -> torch.Tensor:
        features = encoded.pooler_output if self.reads_pooler else encoded.last_hidden_state
        return self.classifier(self.dropout(features))

    def task_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return mean_cross_entropy(logits, labels)

    def penalised(
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
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> AlbertActOutput:
        """Inputs as the encoder's; labels as the class says."""
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        encoded = self.encode(*inputs, output_hidden_states)
        logits = self.logits_of(encoded)
        loss = None if labels is None else self.task_loss(logits, labels)
        return AlbertActOutput(self.penalised(loss, encoded), logits, **encoded.carried())


class AlbertActForSequenceClassification(AlbertActTask):
    """Classification of a text or pair, or regression with num_labels = 1; labels (batch,)."""

    reads_pooler = True

    def task_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return task_loss(logits, labels)


def load_act(
    source: str | Path,
    config: AlbertActConfig | None = None,
    cache_dir: str | None = None,
    other_task: bool = False,
) -> tuple[AlbertActForSequenceClassification, LoadReport]:
    """A classifier with the weights of `source`, an ALBERT or ACT model, and what was loaded.

    A plain ALBERT has no halting head. `other_task`: the source was fine-tuned on another task, so
    its classifier is left out, as is one of another number of labels. Raises UserError when other
    weights have another shape than the configuration asks for.
    """
    config = config or load_config(source, cache_dir, AlbertActConfig)
    model = AlbertActForSequenceClassification(config)
    tensors = read_as(act_names, source, cache_dir)
    ours, theirs = model.classifier.weight, tensors.get("classifier.weight")
    foreign = other_task or (theirs is not None and theirs.shape != ours.shape)
    heads = ("albert.pooler.", "albert.encoder.albert_layer.act.", "classifier.")
    return model, adopt(model, tensors, source, heads, ("classifier.",) if foreign else ())


def act_names(tensors: Tensors) -> Tensors:
    """An ALBERT or ACT checkpoint's tensors under the names of `AlbertActTask`."""
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    renamed = {}
    for name, tensor in suite_names(tensors).items():
        if name.startswith(layer):
            inner = name.removeprefix(layer).replace("attention.LayerNorm.", "LayerNorm.")
            name = f"albert.encoder.albert_layer.{inner}"
        renamed[name] = tensor
    return renamed


class AlbertActForTokenClassification(AlbertActTask):
    """A class for every token; labels (batch, length), −100 for a token without one."""


class AlbertActForMultipleChoice(AlbertActTask):
    """Which of several texts is right; labels (batch,)."""

    reads_pooler = True

    def add_head(self, config: AlbertActConfig) -> None:
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> AlbertActOutput:
        """Inputs (batch, choices, length), or inputs_embeds (batch, choices, length, embedding).

        updates is (batch · choices, 1, 1, length), hidden states likewise; an example's
        ponder_cost is its choices' sum.
        """
        batch, choices = the_input(input_ids, inputs_embeds).shape[:2]
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        flat = (None if x is None else x.flatten(0, 1) for x in inputs)
        encoded = self.encode(*flat, output_hidden_states)
        encoded.ponder_cost = encoded.ponder_cost.view(batch, choices).sum(1)
        logits = self.logits_of(encoded).view(batch, choices)
        loss = None if labels is None else self.task_loss(logits, labels)
        return AlbertActOutput(self.penalised(loss, encoded), logits, **encoded.carried())


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
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> AlbertActQuestionAnsweringOutput:
        """Inputs as the encoder's; start_positions, end_positions: (batch,).

        Positions beyond the text do not count. Logits of padding are the smallest number, so that
        no answer lies there.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        encoded = self.encode(*inputs, output_hidden_states)
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
            loss=self.penalised(loss, encoded),
            start_logits=start,
            end_logits=end,
            **encoded.carried(),
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
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> AlbertActForPreTrainingOutput:
        """Predict masked pieces and the order of two segments.

        Args:
            input_ids, attention_mask, token_type_ids: (batch, length) int64.
            labels: (batch, length), the piece at a masked position, −100 elsewhere.
            sentence_order_label: (batch,), 0 in order, 1 swapped, −100 for no pair.
            inputs_embeds, output_hidden_states: as the encoder's.

        The loss is the sum of the parts whose labels are given, and the ponder cost's.
        """
        inputs = (input_ids, attention_mask, token_type_ids, inputs_embeds)
        encoded = self.encode(*inputs, output_hidden_states)
        predictions, order = self.logits_of(encoded), self.sop_classifier(encoded.pooler_output)
        mlm_loss = None if labels is None else mean_cross_entropy(predictions, labels)
        sop_loss = None
        if sentence_order_label is not None:
            sop_loss = mean_cross_entropy(order, sentence_order_label)
        parts = [part for part in (mlm_loss, sop_loss) if part is not None]
        return AlbertActForPreTrainingOutput(
            loss=self.penalised(sum(parts) if parts else None, encoded),
            prediction_logits=predictions,
            sop_logits=order,
            **encoded.carried(),
            mlm_loss=mlm_loss,
            sop_loss=sop_loss,
        )
