"""Adaptive Depth ALBERT: every token decides how often the shared layer updates it.

After each update a token gives a halting probability. It halts when these add up to 1 − ε, or at
`num_hidden_layers` updates. A token that has halted keeps its state, which the others still read.
All passes share their weights, so its keys and values are constant too: without gradients,
`RunningTokens` computes them once, and leaves the token out of all later passes.

`act_update` says what becomes of a token's new state. With `published` the next pass reads the mean
of the new state and the old one, weighted by the halting probability. With `graves` the next pass
reads the new state, and the encoder returns the weighted mean of a token's states, whose weights
add up to 1.

Sources: adaptive computation time, Graves (2016), for `Halting`; "How Many Layers and Why? An
Analysis of the Model Depth in Transformers", Simoulin and Crabbé (2021), for the model and its
state-dict names.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModel, initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils.output_capturing import capture_outputs

from ..configuration import AlbertActConfig
from ..cpu_packing import PackedActLayer
from ..encoder import (
    AlbertEmbeddings,
    AlbertPreTrainedModel,
    attention_mask_of,
    pool,
    refuse_tracing,
)
from ..keys import ACT_KEYS, checked
from ..layer import KEY_VALUE, QUERY, AlbertLayer, SelfAttention, in_type_of
from ..loading.weights import ACT_NAMES


class Halting(NamedTuple):
    """The state of each token on its way to halting; all tensors have the same shape.

    Attributes:
        running: bool, whether the token is still updated.
        weight_sum: the sum of the token's halting weights so far.
        updates: how often the token was updated.
        remainder: what was left of 1 before the token's last update (R of Graves 2016); for a token
            that stops at the maximum, what is left after it. The published code has 0 there, with
            which a model that never halts would not learn to halt.
    """

    running: Tensor
    weight_sum: Tensor
    updates: Tensor
    remainder: Tensor

    def advance(
        self, probability: Tensor, epsilon: float | Tensor, last: bool | Tensor = False
    ) -> tuple[Tensor, "Halting"]:
        """Update once: return the weight of the new states, 0 for halted tokens, and the new state.

        A token halts when weight_sum + p > 1 − ε, and at the `last` update. Its weight is then what
        is left, 1 − weight_sum; otherwise it is p (Graves 2016, eq. 6).
        """
        # Everything is (batch, length). A token that halts weighs what is left of 1, so that the
        # weights of its states add up to 1; one that had halted before weighs nothing.
        halts = (self.weight_sum + probability > 1 - epsilon) | last
        weight = torch.where(halts, 1 - self.weight_sum, probability)
        weight = weight.masked_fill(~self.running, 0.0)
        weight_sum = self.weight_sum + weight
        # Graves's remainder R: of a token that halts here, its last weight. One that still runs
        # has what is left so far, in case the layers end before it halts.
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
    """Return the share of each token's new state in what the next pass reads, (...).

    weight: of the new states, (...). running: the tokens that this pass updates, (...) bool.
    """
    return running.to(weight.dtype) if act_update == "graves" else weight


class TokenUpdate(NamedTuple):
    """What one update of a batch's tokens gives."""

    states: Tensor  # what the next pass reads, (batch, length, hidden)
    weight: Tensor  # of the new states in the mean of `graves`, (batch, length)
    halting: Halting  # after the update


class HaltingScore(nn.Linear):
    """The linear map of the halting head; the bias of a new one is `halting_bias`."""


class AlbertAct(nn.Module):
    """The halting head, under the published names."""

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.dense = HaltingScore(config.hidden_size, 1)

    def forward(self, state: Tensor) -> Tensor:
        """Read new states (..., hidden); return halting probabilities (...), at least float32.

        Half precision is too coarse for a sum of probabilities that is compared to a threshold.
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
        """The head that says how probable it is that a token halts here."""
        return self.act

    @property
    def attention_norm(self) -> nn.LayerNorm:
        """The layer norm between attention and feed-forward."""
        return self.LayerNorm

    def feed_forward(self, attended: Tensor) -> Tensor:
        """Run the feed-forward part before its residual connection, (..., hidden)."""
        return self.dropout(super().feed_forward(attended))

    def project(self, flat: Tensor, parts: slice) -> Tensor:
        """Project (tokens, hidden) to (tokens, parts·hidden), as `SelfAttention.project`."""
        return self.attention.project(flat, parts)

    def finish(self, flat: Tensor, context: Tensor) -> Tensor:
        """Run the pass after attention: states and contexts (tokens, hidden) -> new states."""
        (context,) = self.attention.split_heads(context[None])
        return self.feed_forward_block(flat, self.attention.output(context)[0])


def update_tokens(
    layer: AlbertActLayer | PackedActLayer,
    act_update: str,
    states: Tensor,
    mask: Tensor | None,
    halting: Halting,
    epsilon: float | Tensor,
    last: bool | Tensor,
) -> TokenUpdate:
    """Run one pass over all tokens, as published: halted ones are computed, and weigh 0.

    Args:
        layer: the shared layer.
        act_update: a value of that key, see this file's top.
        states: (batch, length, hidden).
        mask: (batch, 1, 1, length) bool, or None without padding.
        halting: before the update, (batch, length).
        epsilon: a token halts at 1 − epsilon.
        last: whether all tokens halt now.
    """
    new_states = layer(states, mask)
    weight, new_halting = halting.advance(layer.act(new_states), epsilon, last)
    share = share_of_new(act_update, weight, halting.running)
    return TokenUpdate(interpolate(new_states, states, share), weight, new_halting)


class AlbertActEncoder(nn.Module):
    """Applies the shared layer to each token until the token halts.

    Attributes:
        compact: whether passes leave out halted tokens, from the first one that halts on. They
            cannot with gradients, which need the keys and values of every pass, or with eager
            attention, which computes all tokens as the published code does.
    """

    def __init__(self, config: AlbertActConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer = AlbertActLayer(config)
        self.compact = True

    def forward(
        self, embedded: Tensor, mask: Tensor | None, all_states: list[Tensor] | None = None
    ) -> tuple[Tensor, Halting]:
        """Update tokens until all have halted; return their final states and how they halted.

        Args:
            embedded: (batch, length, embedding).
            mask: (batch, 1, 1, length) bool, or None without padding.
            all_states: a list to which the states before the first pass and after each are added,
                (batch, length, hidden) each.

        Returns:
            Final states (batch, length, hidden), and `Halting`, (batch, length).
        """
        refuse_tracing()
        # Under autocast the mapping answers in half precision; states have the weights' type.
        states = self.embedding_hidden_mapping_in(embedded)
        states = in_type_of(self.embedding_hidden_mapping_in, states)
        epsilon = checked("act_epsilon", self.config.act_epsilon, ACT_KEYS)
        act_update = self.config.act_update
        depth = self.config.num_hidden_layers
        halting = self.start(states, mask)
        mean = torch.zeros_like(states)  # of each token's states by their weights, for graves
        can_compact = self.can_compact()
        running_tokens: RunningTokens | None = None
        if all_states is not None:
            all_states.append(states)
        for number in range(1, depth + 1):
            running_count = int(halting.running.sum())  # the one wait for the device in a pass
            if running_count == 0:
                break
            # With graves the weights add up to 1; the published code leaves out what remains.
            last = act_update == "graves" and number == depth
            # While all tokens run, gathering would only copy. Padding has halted from the start, so
            # a padded batch is gathered from its first pass on.
            if can_compact and running_tokens is None and running_count < halting.running.numel():
                running_tokens = RunningTokens(self.config, self.albert_layer, states, mask)
            if running_tokens is None:
                update = update_tokens(
                    self.albert_layer, act_update, states, mask, halting, epsilon, last
                )
            else:
                update = running_tokens.update(halting, epsilon, last)
            states = update.states
            halting = update.halting
            if act_update == "graves":
                mean = mean + (update.weight[..., None] * states).to(mean.dtype)
            if all_states is not None:
                # A later pass may overwrite the states of `running_tokens`; others have gradients.
                all_states.append(states.clone() if running_tokens else states)
        return mean if act_update == "graves" else states, halting

    def can_compact(self) -> bool:
        """Tell whether passes may leave out halted tokens; see `compact`."""
        is_eager = self.config._attn_implementation == "eager"
        return self.compact and not is_eager and not torch.is_grad_enabled()

    def start(self, states: Tensor, mask: Tensor | None) -> Halting:
        """Let every real token run; padding has halted before the first update.

        states: (batch, length, hidden). mask: (batch, 1, 1, length) bool, or None without padding.
        """
        running = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        if mask is not None:
            running = running & mask[:, 0, 0]
        dtype = torch.promote_types(states.dtype, torch.float)
        return Halting(
            running=running,
            weight_sum=torch.zeros_like(running, dtype=dtype),
            updates=torch.zeros_like(running, dtype=dtype),
            remainder=torch.zeros_like(running, dtype=dtype),
        )


class RunningTokens:
    """The tokens of a batch: a pass gathers, updates and scatters those that still run.

    Args:
        config: the model's.
        layer: the shared layer, plain or packed.
        hidden: (batch, length, hidden), the states now; they are copied, not overwritten.
        mask: (batch, 1, 1, length) bool, or None without padding.

    Attributes:
        states: (batch · length, hidden), of all tokens.
        key_value: (batch · length, 2·hidden), their keys and values.
        stale_rows: the rows of `key_value` whose states have changed since, or None for none.
    """

    def __init__(
        self,
        config: AlbertActConfig,
        layer: AlbertActLayer | PackedActLayer,
        hidden: Tensor,
        mask: Tensor | None,
    ) -> None:
        self.config = config
        self.layer = layer
        self.mask = mask
        self.states = hidden.flatten(0, 1).clone()
        self.key_value = layer.project(self.states, KEY_VALUE)
        self.stale_rows: Tensor | None = None

    def update(self, halting: Halting, epsilon: float, last: bool) -> TokenUpdate:
        """Run one pass over the running tokens; arguments as `update_tokens` takes them.

        The states returned are a view of `self.states`, which the next update overwrites.
        """
        # The weights are shared, so a halted token's keys and values are the same in every pass.
        # Only tokens that the last pass updated have new ones.
        if self.stale_rows is not None:
            changed = self.states[self.stale_rows]  # (updated, hidden)
            self.key_value[self.stale_rows] = self.layer.project(changed, KEY_VALUE)
        running = halting.running  # (batch, length)
        rows = running.flatten().nonzero()[:, 0]  # (running,), of the flat states
        old_states = self.states[rows]  # (running, hidden)
        new_states = self.layer_pass(old_states, running)
        probability = halting.weight_sum.new_zeros(len(self.states))  # 0 for halted tokens
        probability[rows] = self.layer.act(new_states)
        weight, new_halting = halting.advance(probability.view_as(running), epsilon, last)
        share = share_of_new(self.config.act_update, weight, running).flatten()
        self.states[rows] = interpolate(new_states, old_states, share[rows])
        self.stale_rows = rows
        return TokenUpdate(self.states.view(*running.shape, -1), weight, new_halting)

    def layer_pass(self, states: Tensor, running: Tensor) -> Tensor:
        """Run the layer on the running tokens' states, (running, hidden).

        Every query meets the keys of its own example; the linear layers see running tokens only.
        For attention an example's queries stand side by side at the left of its row of a grid,
        (batch, width), as wide as the most running tokens of an example.

        running: (batch, length) bool.
        """
        attention = self.layer.attention
        batch = len(running)
        rank = running.cumsum(1)  # of a running token within its example, counted from 1
        width = int(rank[:, -1].max())
        row_start = torch.arange(batch, device=running.device)[:, None] * width
        # Examples have different numbers of running tokens, and attention wants a rectangle. The
        # cells behind an example's last one hold zero queries, whose contexts nobody reads.
        positions = (row_start + rank - 1)[running]  # in the flat grid, (running,)
        projected = self.layer.project(states, QUERY)  # (running, hidden)
        grid = projected.new_zeros(batch * width, projected.shape[-1])
        grid[positions] = projected
        (query,) = attention.split_heads(grid.view(batch, width, -1))
        # Keys and values of all tokens, halted ones too: running tokens still attend to them.
        key, value = attention.split_heads(self.key_value.view(*running.shape, -1))
        context = attention.attend(query, key, value, self.mask)  # (batch, heads, width, head_size)
        context = context.transpose(1, 2).reshape(grid.shape)  # (batch · width, hidden)
        return self.layer.finish(states, context[positions])


class AlbertActPreTrainedModel(AlbertPreTrainedModel):
    """A model with HF ALBERT's loading, saving and initialisation."""

    config_class = AlbertActConfig
    config: AlbertActConfig  # pyrefly: ignore[bad-override-mutable-attribute]  # HF's is any
    # The encoder collects hidden states itself: a halted token's stay as they are.
    _can_record_outputs = {"attentions": nn.Softmax}  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HaltingScore):
            init.constant_(module.bias, self.config.halting_bias)

    @classmethod
    def from_pretrained(
        cls, *args: Any, key_mapping: dict[str, str] | None = None, **kwargs: Any
    ) -> "AlbertActPreTrainedModel":
        """Load an ACT model, or an ALBERT with a new halting head, by HF's `from_pretrained`."""
        names = ACT_NAMES | (key_mapping or {})
        return super().from_pretrained(*args, key_mapping=names, **kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as HF does, with the tensor names of this class.

        HF's default would save weights under the names that they were loaded from, an ALBERT's.
        """
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(*args, **kwargs)


# HF requires the default None of an output's fields. The encoder always gives these a value, so
# their types do not say None.
HF_DEFAULT: Any = None


@dataclass
class AlbertActModelOutput(BaseModelOutputWithPooling):
    """Output of Adaptive Depth's encoder.

    Attributes:
        last_hidden_state: (batch, length, hidden).
        pooler_output: (batch, hidden), pooled by `pooler_input`; None without a pooler.
        updates: (batch, 1, 1, length), number of updates of each token; 0 on padding.
        ponder_cost: (batch,), Σ over real tokens of updates + remainder (`Halting`).
        hidden_states: with `output_hidden_states`, the states (batch, length, hidden) before the
            first update and after each one until all tokens have halted: at most
            num_hidden_layers + 1 of them.
        attentions: with `output_attentions`, those of each update, (batch, heads, length, length).
    """

    updates: Tensor = HF_DEFAULT
    ponder_cost: Tensor = HF_DEFAULT


class AlbertActModel(AlbertActPreTrainedModel):
    """Adaptive Depth's encoder: embeddings, the shared layer, and a pooler.

    Without `add_pooling_layer` it has no pooler.

        model = elbert.AlbertActModel.from_pretrained("asi/albert-act-base")
    """

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
        """Encode a batch, as HF ALBERT does; with `return_dict=False` the output is a tuple.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids: (batch, length) int64.
            inputs_embeds: (batch, length, embedding), in place of `input_ids`.
            output_hidden_states, output_attentions: default: what the configuration says.
            answers: a list to which the output is added. HF's heads keep only a part of an
                encoder's output, so the models of heads.py read it there.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        all_states = [] if output_hidden_states else None
        mask = attention_mask_of(attention_mask)
        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        hidden, halting = self.encoder(embedded, mask, all_states)
        output = AlbertActModelOutput(
            last_hidden_state=hidden,
            pooler_output=self.pool(hidden, mask),
            updates=halting.updates[:, None, None],
            ponder_cost=(halting.updates + halting.remainder).sum(1),
            hidden_states=None if all_states is None else tuple(all_states),
        )
        if answers is not None:
            answers.append(output)
        return output

    def pool(self, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """Pool final states (batch, length, hidden) for a classifier: (batch, hidden).

        Returns None without a pooler.
        """
        if self.pooler is None:
            return None
        return self.pooler(pool(hidden, mask, self.config.pooler_input)).tanh()


AutoModel.register(AlbertActConfig, AlbertActModel, exist_ok=True)
