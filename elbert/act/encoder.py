"""Adaptive Depth ALBERT: every token decides how often the shared layer updates it.

After each update a token gives a halting probability. It stops when these add up to 1 − ε, or at
`num_hidden_layers` updates. A token that has stopped keeps its state, which others still read. All
passes share their weights, so its keys and values are constant too: without gradients,
`RunningTokens` keeps them and leaves out everything else.

`act_update` says what becomes of a token's new state. published: the next pass reads its mean with
the old one, by the halting weight. graves: the next pass reads the new state, and the encoder
answers with the mean of a token's states by their weights, which add up to 1.

Sources: adaptive computation time, Graves (2016), for `Halting`; "How Many Layers and Why? An
Analysis of the Model Depth in Transformers", Simoulin and Crabbé (2021), whose state-dict names
these are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.output_capturing import capture_outputs

from elbert_base.keys import ACT_KEYS, checked

from ..albert import (
    AlbertEmbeddings,
    AlbertPreTrainedModel,
    attention_mask_of,
    pool,
)
from ..configuration import AlbertActConfig
from ..cpu_packing import PackedActLayer
from ..layer import KEY_VALUE, QUERY, AlbertLayer, SelfAttention
from ..loading.weights import ACT_NAMES


class Halting(NamedTuple):
    """State of each token on its way to halting; all tensors have one shape."""

    running: Tensor  # bool, is the token still updated?
    weight_sum: Tensor  # of its halting weights
    updates: Tensor  # how often it was updated
    # What was left of 1 before its last update, R of Graves; for a token that the maximum stopped,
    # what is left after it. The published code has 0 there, with which a model that never halts
    # would not learn to.
    remainder: Tensor

    def advance(
        self, probability: Tensor, epsilon: float | Tensor, last: bool | Tensor = False
    ) -> tuple[Tensor, "Halting"]:
        """Update once: return the weight of the new states, 0 for halted tokens, and the new state.

        A token halts when weight_sum + p > 1 − ε, and at the `last` update. Its weight is then what
        is left, 1 − weight_sum; otherwise it is p (Graves 2016, eq. 6).
        """
        halts = (self.weight_sum + probability > 1 - epsilon) | last
        weight = torch.where(halts, 1 - self.weight_sum, probability)
        weight = weight.masked_fill(~self.running, 0.0)
        weight_sum = self.weight_sum + weight
        rest = torch.where(halts, weight, 1 - weight_sum)
        after = Halting(
            running=self.running & ~halts,
            weight_sum=weight_sum,
            updates=self.updates + self.running,
            remainder=torch.where(self.running, rest, self.remainder),
        )
        return weight, after


def interpolate(new: Tensor, old: Tensor, weight: Tensor) -> Tensor:
    """Return weight · new + (1 − weight) · old, of states (..., hidden) and weights (...)."""
    column = weight[..., None]
    return (new * column + old * (1 - column)).to(old.dtype)


def share_of_new(act_update: str, weight: Tensor, running: Tensor) -> Tensor:
    """Return the part of each token's new state that the next pass reads, (...)."""
    return running.to(weight.dtype) if act_update == "graves" else weight


class HaltingScore(nn.Linear):
    """The halting head's linear map; a new one's bias is `halting_bias`."""


class AlbertAct(nn.Module):
    """The halting head, under the published names."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingScore(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Read new states (..., hidden); return halting probabilities (...), at least float32.

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
    def halting_head(self) -> nn.Module:
        return self.act

    @property
    def attention_norm(self) -> nn.LayerNorm:
        return self.LayerNorm

    def feed_forward(self, attended: Tensor) -> Tensor:
        return self.dropout(super().feed_forward(attended))

    def project(self, flat: Tensor, parts: slice) -> Tensor:
        """Project (tokens, hidden) to (tokens, parts·hidden), as `SelfAttention.project`."""
        return self.attention.project(flat, parts)

    def finish(self, flat: Tensor, context: Tensor) -> Tensor:
        """Run the pass after attention: states and contexts (tokens, hidden) -> new states."""
        (context,) = self.attention.split_heads(context[None])
        return self.feed_forward_block(flat, self.attention.output(context)[0])


class AlbertActEncoder(nn.Module):
    """Applies the shared layer to each token until the token halts.

    Once a token has halted, passes leave out halted ones unless `compact` is off, gradients are
    wanted, whose keys and values may not be overwritten, or attention is eager, of all tokens.
    """

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.compact = True

    def forward(
        self, embedded: Tensor, mask: Tensor | None, trail: list[Tensor] | None = None
    ) -> tuple[Tensor, Halting]:
        """Run embeddings (batch, length, embedding); return final states (batch, length, hidden).

        `mask` is (batch, 1, 1, length) bool, or None without padding. As published, every pass
        computes all tokens and gives halted ones the weight 0, until `RunningTokens` takes over.
        The states before the first pass and after each are added to `trail`.
        """
        # Under autocast the mapping answers in half precision; states are kept as the weights are.
        hidden = self.embedding_hidden_mapping_in(embedded)
        hidden = hidden.to(self.embedding_hidden_mapping_in.weight.dtype)
        epsilon = checked("act_epsilon", self.config.act_epsilon, ACT_KEYS)
        halting = self.start(hidden, mask)
        tokens: RunningTokens | None = None
        is_eager = self.config._attn_implementation == "eager"
        can_compact = self.compact and not torch.is_grad_enabled() and not is_eager
        graves = self.config.act_update == "graves"
        mean = torch.zeros_like(hidden)  # of a token's states by their weights, for graves
        if trail is not None:
            trail.append(hidden.clone())
        for update in range(1, self.config.num_hidden_layers + 1):
            running = int(halting.running.sum())
            if running == 0:
                break
            last = graves and update == self.config.num_hidden_layers
            if tokens is None and can_compact and running < halting.running.numel():
                tokens = RunningTokens(self.config, self.albert_layer, hidden, mask)
            if tokens is not None:
                hidden, weight, halting = tokens.update(halting, epsilon, last)
            else:
                new = self.albert_layer(hidden, mask)
                was_running = halting.running
                weight, halting = halting.advance(self.albert_layer.act(new), epsilon, last)
                share = share_of_new(self.config.act_update, weight, was_running)
                hidden = interpolate(new, hidden, share)
            if graves:
                mean = mean + (weight[..., None] * hidden).to(mean.dtype)
            if trail is not None:
                trail.append(hidden.clone())  # a later pass may overwrite the states
        return mean if graves else hidden, halting

    def start(self, hidden: Tensor, mask: Tensor | None) -> Halting:
        """Let every real token run; padding has halted before the first update."""
        running = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        if mask is not None:
            running = running & mask[:, 0, 0]
        dtype = torch.promote_types(hidden.dtype, torch.float)
        return Halting(
            running=running,
            weight_sum=torch.zeros_like(running, dtype=dtype),
            updates=torch.zeros_like(running, dtype=dtype),
            remainder=torch.zeros_like(running, dtype=dtype),
        )


class RunningTokens:
    """A batch's tokens: a pass gathers, updates and scatters those that still run.

    states: (batch · length, hidden), of all tokens; the caller's `hidden` is left as it is.
    key_value: (batch · length, 2·hidden), their keys and values.
    """

    def __init__(
        self,
        config: AlbertActConfig,
        layer: "AlbertActLayer | PackedActLayer",
        hidden: Tensor,
        mask: Tensor | None,
    ) -> None:
        self.config = config
        self.layer = layer
        self.mask = mask
        self.states = hidden.flatten(0, 1).clone()
        self.key_value = layer.project(self.states, KEY_VALUE)
        self.changed: Tensor | None = None  # rows of which key_value is out of date

    def update(
        self, halting: Halting, epsilon: float, last: bool
    ) -> tuple[Tensor, Tensor, Halting]:
        """Run one pass; return all tokens' states (batch, length, hidden), weights and halting."""
        was_running = halting.running
        rows = was_running.flatten().nonzero()[:, 0]
        if self.changed is not None:
            changed = self.states[self.changed]
            self.key_value[self.changed] = self.layer.project(changed, KEY_VALUE)
        self.changed, state = rows, self.states[rows]  # (running, hidden)
        new = self.layer_pass(state, was_running)
        probability = halting.weight_sum.new_zeros(len(self.states))
        probability[rows] = self.layer.act(new)
        weight, halting = halting.advance(probability.view_as(halting.weight_sum), epsilon, last)
        share = share_of_new(self.config.act_update, weight, was_running).flatten()
        self.states[rows] = interpolate(new, state, share[rows])
        return self.states.view(*was_running.shape, -1), weight, halting

    def layer_pass(self, state: Tensor, running: Tensor) -> Tensor:
        """Run the layer on the running tokens' states, (running, hidden).

        Every query meets the keys of its own example; the linear layers see running tokens only.
        An example's queries stand side by side at the left of its row of a (batch, width) grid.
        """
        attention, rank = self.layer.attention, running.cumsum(1)  # counted from 1
        width = int(rank[:, -1].max())
        row_start = torch.arange(len(running), device=running.device)[:, None] * width
        slots = (row_start + rank - 1)[running]  # flat positions in the grid, (running,)
        query = self.layer.project(state, QUERY)
        grid = query.new_zeros(len(running) * width, query.shape[-1])
        grid[slots] = query
        (query,) = attention.split_heads(grid.view(len(running), width, -1))
        key, value = attention.split_heads(self.key_value.view(*running.shape, -1))
        context = attention.attend(query, key, value, self.mask)  # (batch, heads, width, head_size)
        return self.layer.finish(state, context.transpose(1, 2).reshape(grid.shape)[slots])


class AlbertActPreTrainedModel(AlbertPreTrainedModel):
    """Loading, saving and initialisation, as HF ALBERT's."""

    config_class = AlbertActConfig
    config: AlbertActConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    _can_record_outputs = {"attentions": nn.Softmax}  # noqa: RUF012 (states: the encoder's trail)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HaltingScore):
            init.constant_(module.bias, self.config.halting_bias)

    @classmethod
    def from_pretrained(
        cls, *args: Any, key_mapping: dict[str, str] | None = None, **kwargs: Any
    ) -> "AlbertActPreTrainedModel":
        """HF's `from_pretrained`, of an ACT model, or of an ALBERT: its halting head is new."""
        names = ACT_NAMES | (key_mapping or {})
        return super().from_pretrained(*args, key_mapping=names, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """HF's `save_pretrained`, under the names here, whatever names the weights came under."""
        super().save_pretrained(*args, **{"save_original_format": False, **kwargs})


@dataclass
class AlbertActModelOutput(BaseModelOutputWithPooling):
    """Output of the encoder.

    last_hidden_state: (batch, length, hidden).
    pooler_output: (batch, hidden), of `pooler_input`; None without a pooler.
    updates: (batch, 1, 1, length), how often each token was updated; 0 on padding.
    ponder_cost: (batch,), Σ over real tokens of updates + remainder (`Halting`).
    hidden_states: if asked for, the states (batch, length, hidden) before the first update and
        after each until all tokens had halted: at most num_hidden_layers + 1 of them.
    attentions: if asked for, those of each update, (batch, heads, length, length).
    """

    # HF wants a default; the encoder always gives both.
    updates: Tensor = None  # pyrefly: ignore[bad-assignment]
    ponder_cost: Tensor = None  # pyrefly: ignore[bad-assignment]


class AlbertActModel(AlbertActPreTrainedModel):
    """The encoder: embeddings, the shared layer, and a pooler unless `add_pooling_layer` is off."""

    def __init__(self, config: AlbertActConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertActEncoder(config)
        self.pooler = None
        if add_pooling_layer:
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
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
        answers: list[AlbertActModelOutput] | None = None,
    ) -> AlbertActModelOutput:
        """Encode a batch, as HF ALBERT does; `return_dict=False` answers with a tuple.

        Ids, masks and segments are (batch, length) int64, inputs_embeds in place of input_ids
        (batch, length, embedding); None for an optional output is what the configuration says. The
        answer is added to `answers`, for HF's heads, which keep only a part of it.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        trail = [] if output_hidden_states else None
        mask = attention_mask_of(attention_mask)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        hidden, halting = self.encoder(embedded, mask, trail)
        answer = AlbertActModelOutput(
            last_hidden_state=hidden,
            pooler_output=self.pool(hidden, mask),
            updates=halting.updates[:, None, None],
            ponder_cost=(halting.updates + halting.remainder).sum(1),
            hidden_states=None if trail is None else tuple(trail),
        )
        if answers is not None:
            answers.append(answer)
        return answer

    def pool(self, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """Pool final states (batch, length, hidden) for a classifier, (batch, hidden).

        None without a pooler.
        """
        if self.pooler is None:
            return None
        return self.pooler(pool(hidden, mask, self.config.pooler_input)).tanh()


AutoModel.register(AlbertActConfig, AlbertActModel, exist_ok=True)
