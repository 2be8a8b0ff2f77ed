"""ALBERT: embeddings, the encoder of shared layers, pooler; `layer.py` has the layer pass.

Depth is a run-time choice: the callers decide how often a layer group runs, and for whom.

A linear map takes its input in the type of its weights, and a sum has the wider type of its two
parts. So a model whose layers alone are cast (`cast_layers`) keeps states, sums and norms in
float32 while the matrix products run in half precision.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization
from transformers import AlbertConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert import modeling_albert as hf_albert
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import capture_outputs

from elbert_base.errors import UserError

from .layer import AlbertLayer


class AlbertPreTrainedModel(hf_albert.AlbertPreTrainedModel):
    """HF's loading, saving and initialisation; embeddings are in `albert` or the model itself."""

    optional_parts: tuple[str, ...] = ()  # tensors that a trained model's checkpoint may lack
    class_weights: Tensor | None = None  # of the task's loss in train(), (num_labels,)
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # of HF's Trainer; `forward` hands what it does not know on
    # What `records_states` reads, and where.
    _can_record_outputs = {"hidden_states": AlbertLayer, "attentions": nn.Softmax}  # noqa: RUF012
    # Published checkpoints hold the position numbers 0, 1, 2, …, too.
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]  # noqa: RUF012 (HF's own)

    def post_init(self) -> None:
        relax(self)
        super().post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Pooler):
            init.normal_(module.weight, std=self.config.initializer_range)
            init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Embedding:
        return getattr(self, "albert", self).embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        getattr(self, "albert", self).embeddings.word_embeddings = value


def records_states(forward: Callable[..., ModelOutput]) -> Callable[..., ModelOutput]:
    """Let an early-exit model's `forward` answer with `hidden_states` and `attentions`, as HF's do.

    They are asked for by output_hidden_states and output_attentions, or by the configuration; all
    layers then run. hidden_states are (batch, length, hidden), before the first layer and after
    each; attentions (batch, heads, length, length) of each, with attn_implementation="eager".
    """
    recorded = capture_outputs(forward)

    @wraps(forward)
    def answer(self: AlbertPreTrainedModel, *inputs: Any, **others: Any) -> ModelOutput:
        for name in ("output_hidden_states", "output_attentions"):
            if others.get(name) is None:
                others[name] = getattr(self.config, name)
            if others[name]:
                others["output_all_exits"] = True
        return recorded(self, *inputs, **others)

    return answer


class AlbertEmbeddings(hf_albert.AlbertEmbeddings):
    """HF's embeddings, summed in the published order: float32 sums depend on it in the last bit.

    With `config.positions_skip_padding` as RoBERTa's, whose positions count no padding.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        end = config.eos_token_id  # [SEP]; a foreign file may hold anything
        self.separator = end if isinstance(end, int) and 0 <= end < config.vocab_size else None
        skips_padding = getattr(config, "positions_skip_padding", False)
        self.skipped = config.pad_token_id if skips_padding else None

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}position_ids", None)  # of published checkpoints
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Ids (batch, length) or their words (batch, length, embedding) -> the latter's shape.

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
            ends = (input_ids == self.separator).long()
            before = ends.cumsum(1) - ends  # how many [SEP] stand before each token
            token_type_ids = before.clamp(max=self.token_type_embeddings.num_embeddings - 1)
        elif token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        if position_ids is None:
            positions = self.positions(input_ids, length)
        else:
            positions = self.position_embeddings(position_ids)
        embedded = words + positions + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embedded))

    def positions(self, input_ids: Tensor | None, length: int) -> Tensor:
        """The embeddings of positions 0, 1, …: (batch or 1, length, embedding)."""
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

    def forward(self, states: Tensor) -> Tensor:
        states = states.to(self.weight.dtype)
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
        self.config, linear = config, nn.Linear(config.hidden_size, size)
        self.weight, self.bias = linear.weight, linear.bias

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
        """Group whose weights layer `layer` (0-based) uses: groups share the depth evenly."""
        # In floats, as HF does: for a few odd shapes it rounds differently from whole numbers.
        return int(layer / (self.num_layers / len(self.encoder.albert_layer_groups)))


class LowRank(nn.Module):
    """A pass's own part of a matrix that all passes share: W + up·down (Bae et al. 2024)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) / rank)
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def relax(model: PreTrainedModel) -> None:
    """Let the layer groups share their matrices, but for corrections of rank `correction_rank`.

    Biases and norms stay each group's own. A rank of 0 changes nothing.
    """
    if not (rank := getattr(model.config, "correction_rank", 0)):
        return
    for name, linear in [*model.named_modules()]:
        if "albert_layer_groups" in name and isinstance(linear, nn.Linear):
            register_parametrization(linear, "weight", LowRank(linear.weight, rank), unsafe=True)
    shared = r"albert_layer_groups\.{}\..*parametrizations\.weight\.original$"
    model._tied_weights_keys = {".*" + shared.format(r"(?!0\.)\d+"): ".*" + shared.format(0)}
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys()
    model.tie_weights()


def attention_mask_of(attention_mask: Tensor | None) -> Tensor | None:
    """(batch, length) of 1 for real tokens -> (batch, 1, 1, length) bool; None without padding."""
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]
