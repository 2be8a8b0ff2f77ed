"""ALBERT: embeddings, the encoder of shared layers, pooler; `layer.py` has the layer pass.

Depth is a run-time choice: the callers decide how often a layer group runs, and for whom.

A linear map takes its input in the type of its weights, and a sum has the wider type of its two
parts. So a model whose layers alone are cast (`cast_layers`) keeps states, sums and norms in
float32 while the matrix products run in half precision.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization
from transformers import AlbertConfig, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert import modeling_albert as hf_albert

from elbert_base.errors import UserError

from .layer import AlbertLayer


class AlbertPreTrainedModel(hf_albert.AlbertPreTrainedModel):
    """HF's loading, saving and initialisation; embeddings are in `albert` or the model itself."""

    # What `loading.weights` reads: the patterns of a checkpoint's names and what takes their place,
    # prefixes of names that a checkpoint may lack, and of those that belong to one task.
    tensor_names: ClassVar[Mapping[str, str]] = {}
    new_parts: ClassVar[tuple[str, ...]] = ()
    task_parts: ClassVar[tuple[str, ...]] = ()
    optional_parts: ClassVar[tuple[str, ...]] = ()  # that even a trained model's may lack
    class_weights: Tensor | None = None  # of the task's loss in train(), (num_labels,)
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # of HF's Trainer; `forward` hands what it does not know on
    # What HF's `capture_outputs` reads, and where.
    _can_record_outputs = {"hidden_states": AlbertLayer, "attentions": nn.Softmax}  # noqa: RUF012
    # Published checkpoints hold the position numbers 0, 1, 2, …, too.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]  # noqa: RUF012 (HF's own)

    def post_init(self) -> None:
        share_matrices(self)
        super().post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Pooler):
            init.normal_(module.weight, std=self.config.initializer_range)
            init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        encoder: Any = getattr(self, "albert", self)
        return encoder.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        encoder: Any = getattr(self, "albert", self)
        encoder.embeddings.word_embeddings = value


def wants_states(
    config: PreTrainedConfig, output_hidden_states: bool | None, output_attentions: bool | None
) -> bool:
    """Tell whether a call asks for the states or attentions of every layer, so that all must run.

    None is what the configuration says. HF's `capture_outputs` around an early-exit model's
    `forward` then adds them to the output: hidden_states are (batch, length, hidden), before the
    first layer and after each; attentions (batch, heads, length, length) of each, with
    attn_implementation="eager".
    """
    if output_hidden_states is None:
        output_hidden_states = config.output_hidden_states
    if output_attentions is None:
        output_attentions = config.output_attentions
    return bool(output_hidden_states or output_attentions)


class AlbertEmbeddings(hf_albert.AlbertEmbeddings):
    """HF's embeddings, summed in the published order: float32 sums depend on it in the last bit.

    With `config.positions_skip_padding` as RoBERTa's, whose positions count no padding.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.separator = None  # [SEP]; a foreign file may hold anything
        if isinstance(config.eos_token_id, int) and 0 <= config.eos_token_id < config.vocab_size:
            self.separator = config.eos_token_id
        skips_padding = getattr(config, "positions_skip_padding", False)
        self.skipped = config.pad_token_id if skips_padding else None

    def _load_from_state_dict(
        self, state_dict: dict, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        state_dict.pop(f"{prefix}position_ids", None)  # of published checkpoints
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Embed ids (batch, length), or their words, to (batch, length, embedding).

        Without `token_type_ids`, ids are in the second segment from behind their first [SEP] on,
        as ALBERT's pairs are, and words are in the first.

        Raises UserError for a text of more tokens than there are positions.
        """
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        length, longest = words.shape[1], self.position_embeddings.num_embeddings
        if length > longest:
            raise UserError(
                f"{length} tokens in a text: allowed are at most max_position_embeddings"
                f" = {longest}; cut it, with the tokenizer's truncation=True and max_length"
            )
        if token_type_ids is None and input_ids is not None and self.separator is not None:
            is_separator = (input_ids == self.separator).long()
            separators_before = is_separator.cumsum(1) - is_separator
            last_type = self.token_type_embeddings.num_embeddings - 1
            token_type_ids = separators_before.clamp(max=last_type)
        elif token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        if position_ids is None:
            positions = self.positions(input_ids, length)
        else:
            positions = self.position_embeddings(position_ids)
        embedded = words + positions + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embedded))

    def positions(self, input_ids: Tensor | None, length: int) -> Tensor:
        """Embed the positions 0, 1, …: (batch or 1, length, embedding)."""
        if self.skipped is None or input_ids is None:
            return self.position_embeddings(self.position_ids[:, :length])
        real = input_ids != self.skipped
        numbers = (real.long().cumsum(1) - 1).clamp(min=0)
        return self.position_embeddings(numbers) * real[..., None]


class AlbertLayerGroup(GradientCheckpointingLayer):
    """The layers that one pass applies in a row (`inner_group_num` of them, one as published)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(
            AlbertLayer(config) for _ in range(config.inner_group_num)
        )

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.albert_layers:
            hidden = layer(hidden, mask)
        return hidden


class ExitLinear(nn.Linear):
    """A small linear map of an exit, which sees one row of an example: (..., in) -> (..., out).

    A single example's is a matrix-vector product: after a layer pass nothing is in the caches, and
    a matrix product runs more code.
    """

    def forward(self, input: Tensor) -> Tensor:
        states = input.to(self.weight.dtype)
        if states.numel() != self.in_features:
            return super().forward(states)
        row = torch.addmv(self.bias, self.weight, states.reshape(-1))
        return row.view(*states.shape[:-1], -1)


class Pooler(nn.Module):
    """tanh of a linear map, (..., hidden) -> (..., size), under HF's name for it.

    It is no nn.Linear: PEFT's all-linear would add an adapter behind the tanh.
    """

    def __init__(self, config: AlbertConfig, size: int) -> None:
        super().__init__()
        self.config = config
        linear = nn.Linear(config.hidden_size, size)  # for its initial values
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states.to(self.weight.dtype), self.weight, self.bias).tanh()


def pool(hidden: Tensor, mask: Tensor | None, pooler_input: str) -> Tensor:
    """Pool a layer for an exit or a head: (batch, length, hidden) -> (batch, hidden).

    `mask` is (batch, 1, 1, length) bool, None without padding. Means and maxima run over real
    tokens only. A name with a hyphen is the sum of its two parts, as published.
    """
    first, _, second = pooler_input.partition("-")
    if second:
        return pool(hidden, mask, first) + pool(hidden, mask, second)
    if first == "cls":
        return hidden[:, 0]
    real = None if mask is None else mask[:, 0, 0, :, None]  # (batch, length, 1)
    if first == "mean":
        return hidden.mean(1) if real is None else (hidden * real).sum(1) / real.sum(1)
    if real is not None:
        hidden = hidden.masked_fill(~real, torch.finfo(hidden.dtype).min)
    return hidden.amax(1)


class AlbertBackbone(nn.Module):
    """Embeddings, encoder and pooler under HF ALBERT's names."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.num_layers = config.num_hidden_layers
        self.num_groups = config.num_hidden_groups
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = nn.Module()
        self.encoder.embedding_hidden_mapping_in = nn.Linear(
            config.embedding_size, config.hidden_size
        )
        self.encoder.albert_layer_groups = nn.ModuleList(
            AlbertLayerGroup(config) for _ in range(config.num_hidden_groups)
        )
        self.pooler = Pooler(config, config.hidden_size)

    def group_of(self, layer: int) -> int:
        """Tell whose weights layer `layer` (0-based) uses: groups share the depth evenly."""
        # In floats, as HF does: for a few odd shapes it rounds differently from whole numbers.
        return int(layer / (self.num_layers / self.num_groups))


class LowRank(nn.Module):
    """A pass's own part of a matrix that all passes share: W + up·down (Bae et al. 2024)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) / rank)
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def share_matrices(model: PreTrainedModel) -> None:
    """Let the layer groups share their matrices, but for corrections of rank `correction_rank`.

    Biases and norms stay each group's own. A rank of 0 changes nothing.
    """
    rank = getattr(model.config, "correction_rank", 0)
    if not rank:
        return
    for name, linear in list(model.named_modules()):
        if "albert_layer_groups" in name and isinstance(linear, nn.Linear):
            register_parametrization(linear, "weight", LowRank(linear.weight, rank), unsafe=True)
    shared = r"albert_layer_groups\.{}\..*parametrizations\.weight\.original$"
    model._tied_weights_keys = {".*" + shared.format(r"(?!0\.)\d+"): ".*" + shared.format(0)}
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys()
    model.tie_weights()


def attention_mask_of(attention_mask: Tensor | None) -> Tensor | None:
    """Turn a mask (batch, length), 1 for real tokens, into the layers': (batch, 1, 1, length) bool.

    None, which says that there is no padding, stays None.
    """
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]
