"""ALBERT: embeddings, the encoder of shared layers, and pooler; `layer.py` has the layer pass.

Depth is a run-time choice: the callers decide how often a layer group runs, and for which examples.

A linear map takes its input in the type of its weights, and a sum has the wider type of its two
parts. So a model whose layers alone are cast (`cast_layers`) keeps states, sums and norms in
float32 while the matrix products run in half precision.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization
from transformers import AlbertConfig, PreTrainedConfig, PreTrainedModel, initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert import modeling_albert as hf_albert

from .errors import UserError
from .files import check_hub_name
from .layer import AlbertLayer


class AlbertPreTrainedModel(hf_albert.AlbertPreTrainedModel):
    """A model with HF's loading, saving and initialisation: an ALBERT, or a BERT read as one.

    `families.py` says how. Its embeddings are in `albert`, or in the model itself.

    Attributes:
        tensor_names: regular expressions of a checkpoint's names, and what takes their place; read,
            as the next four are, by `loading.weights`.
        new_parts: prefixes of names of tensors that a checkpoint may lack.
        task_parts: prefixes of names of tensors that belong to one task.
        label_rows: regular expression of the names of tensors with a row for each label.
        optional_parts: names of tensors that even a trained model's checkpoint may lack.
        class_weights: (num_labels,), of the task's loss in train(); None for equal ones.
    """

    tensor_names: ClassVar[Mapping[str, str]] = {}
    new_parts: ClassVar[tuple[str, ...]] = ()
    task_parts: ClassVar[tuple[str, ...]] = ()
    label_rows: ClassVar[str] = ""
    optional_parts: ClassVar[tuple[str, ...]] = ()
    class_weights: Tensor | None = None
    supports_gradient_checkpointing = True
    # HF's Trainer gives a `forward` with **options num_items_in_batch, which encoders do not take.
    accepts_loss_kwargs = False
    # The modules whose outputs HF's `capture_outputs` collects.
    _can_record_outputs = {"hidden_states": AlbertLayer, "attentions": nn.Softmax}  # noqa: RUF012
    # The submodule in which PEFT's prefix tuning looks for past_key_values, and says that there are
    # none: the model itself, since the encoder within is no PreTrainedModel.
    transformer_backbone_name: ClassVar[str] = ""
    # Published checkpoints also hold the position numbers 0, 1, 2, …
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$"]  # noqa: RUF012 (HF's own)

    @classmethod
    def from_pretrained(  # pyrefly: ignore[bad-override]  # HF's named options arrive in options
        cls, pretrained_model_name_or_path: Any = None, *arguments: Any, **options: Any
    ) -> Any:
        """Load by HF's `from_pretrained`; UserError for a hub name that the hub does not give."""
        check_hub_name(pretrained_model_name_or_path, options)
        return super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)

    def post_init(self) -> None:
        """Initialise as HF does, with the layer groups tied that the configuration ties."""
        tie_layers(self)
        super().post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Pooler):
            init.normal_(module.weight, std=self.config.initializer_range)
            init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings."""
        encoder: Any = getattr(self, "albert", self)
        if hasattr(encoder, "embeddings"):
            return encoder.embeddings.word_embeddings
        return encoder.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        encoder: Any = getattr(self, "albert", self)
        if hasattr(encoder, "embeddings"):
            encoder.embeddings.word_embeddings = value
        else:
            encoder.model.set_input_embeddings(value)


def wants_states(
    config: PreTrainedConfig, output_hidden_states: bool | None, output_attentions: bool | None
) -> bool:
    """Tell whether a call asks for the states or attentions of every layer, so that all must run.

    None stands for what the configuration says. HF's `capture_outputs` around an early-exit model's
    `forward` then adds them to the output: `hidden_states`, (batch, length, hidden), before the
    first layer and after each; and, with attn_implementation="eager", `attentions`, (batch, heads,
    length, length), of each.
    """
    if output_hidden_states is None:
        output_hidden_states = config.output_hidden_states
    if output_attentions is None:
        output_attentions = config.output_attentions
    return bool(output_hidden_states or output_attentions)


def check_text_length(length: int, longest: int) -> None:
    """Raise UserError for a text of more tokens than there are positions."""
    if length > longest:
        raise UserError(
            f"a text has {length} tokens: allowed are at most max_position_embeddings"
            f" = {longest}; cut it by the tokenizer, with truncation=True and max_length"
        )


def refuse_tracing() -> None:
    """Raise UserError where torch records a call: a file would have the depth of one example."""
    if torch.jit.is_tracing() or torch.compiler.is_exporting():
        raise UserError(
            "torch.export and torch.jit.trace record the layers of the example that they are given,"
            " and other examples exit elsewhere: export_onnx.py writes a file whose loop over the "
            "layers stops by itself"
        )


class AlbertEmbeddings(hf_albert.AlbertEmbeddings):
    """HF's embeddings, summed in the published order: float32 sums depend on it in the last bit.

    With `config.positions_skip_padding` they are RoBERTa's, whose positions leave out padding.

    Attributes:
        separator: the id of [SEP], or None where the configuration names none.
        skipped_id: the id of the padding that has no position, or None where padding has positions.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.separator: int | None = None
        # A foreign file may hold anything as eos_token_id.
        if isinstance(config.eos_token_id, int) and 0 <= config.eos_token_id < config.vocab_size:
            self.separator = config.eos_token_id
        skips_padding = getattr(config, "positions_skip_padding", False)
        self.skipped_id = config.pad_token_id if skips_padding else None

    def _load_from_state_dict(
        self, state_dict: dict, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        state_dict.pop(f"{prefix}position_ids", None)  # which published checkpoints hold
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Embed a batch of texts: (batch, length, embedding).

        Args:
            input_ids: (batch, length) int64.
            token_type_ids: (batch, length) int64, the segments. By default the second one begins
                behind the first [SEP] of the ids, as in ALBERT's pairs; `inputs_embeds` are all in
                the first.
            position_ids: (batch, length) int64; 0, 1, … by default.
            inputs_embeds: (batch, length, embedding), words in place of `input_ids`.

        Raises:
            UserError: a text has more tokens than there are positions.
        """
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        length = words.shape[1]
        check_text_length(length, self.position_embeddings.num_embeddings)
        if token_type_ids is None:
            token_type_ids = self.segments(input_ids, words)
        if position_ids is None:
            positions = self.positions(input_ids, length)
        else:
            positions = self.position_embeddings(position_ids)
        embedded = words + positions + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embedded))

    def segments(self, input_ids: Tensor | None, words: Tensor) -> Tensor:
        """Number the segments by the separators before each token: (batch, length) int64."""
        if input_ids is None or self.separator is None:
            return torch.zeros(words.shape[:2], dtype=torch.long, device=words.device)
        is_separator = (input_ids == self.separator).long()
        separators_before = is_separator.cumsum(1) - is_separator
        last_segment = self.token_type_embeddings.num_embeddings - 1
        return separators_before.clamp(max=last_segment)

    def positions(self, input_ids: Tensor | None, length: int) -> Tensor:
        """Embed the positions 0, 1, …: (batch or 1, length, embedding)."""
        if self.skipped_id is None or input_ids is None:
            return self.position_embeddings(self.position_ids[:, :length])
        is_real = input_ids != self.skipped_id
        numbers = (is_real.long().cumsum(1) - 1).clamp(min=0)
        return self.position_embeddings(numbers) * is_real[..., None]


class AlbertLayerGroup(GradientCheckpointingLayer):
    """The layers that one pass applies in a row: `inner_group_num` of them, one as published."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(
            AlbertLayer(config) for _ in range(config.inner_group_num)
        )

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, score_bias: Tensor | None = None
    ) -> Tensor:
        """Run the pass on states (batch, length, hidden); arguments as `AlbertLayer.forward`'s."""
        for layer in self.albert_layers:
            hidden = layer(hidden, mask, score_bias)
        return hidden


# Added to scores of padding: e to this power is 0, and unlike −∞ it leaves numbers where a text is
# all padding. Half precision has it, too.
PADDING_SCORE = -3e4


class RelativeAttentionBias(nn.Embedding):
    """What MPNet adds to attention scores by the distance of two tokens, the same in all layers.

    As in T5 (Raffel et al., 2020, section 2.1), distances share numbers by buckets: half of them
    are for keys before the query. The first half of each side has a bucket for every distance; in
    the other, buckets grow with the logarithm of the distance, up to FARTHEST.
    """

    FARTHEST = 128

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config.relative_attention_num_buckets, config.num_attention_heads)

    def forward(self, input: Tensor) -> Tensor:
        """Look up the numbers of positions 0, 1, …, (length,): (1, heads, length, length)."""
        length = input.shape[0]  # not its len, which an export would take for a constant
        distances = torch.arange(1 - length, length, device=input.device)  # from query to key
        by_distance = super().forward(self.bucket(distances))  # (2·length − 1, heads)
        index = input[None, :] - input[:, None] + length - 1  # (length, length)
        return by_distance[index].permute(2, 0, 1)[None]

    def bucket(self, distances: Tensor) -> Tensor:
        """Number the buckets of distances, of any shape: int64."""
        buckets_of_side = self.num_embeddings // 2
        exact = buckets_of_side // 2
        absolute = distances.abs()
        growth = torch.log(absolute.clamp(min=exact).float() / exact)
        growth = growth / math.log(self.FARTHEST / exact) * (buckets_of_side - exact)
        coarse = (exact + growth.long()).clamp(max=buckets_of_side - 1)
        return torch.where(absolute < exact, absolute, coarse) + (distances > 0) * buckets_of_side


class ExitLinear(nn.Linear):
    """A small linear map of an exit, which reads one row of each example: (..., in) -> (..., out).

    For a single example it is a matrix-vector product, which runs less code than a matrix product:
    after a layer pass that code is no longer in the processor's caches.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map states in the type of the weights."""
        states = input.to(self.weight.dtype)
        if states.numel() != self.in_features:
            return super().forward(states)
        row = torch.addmv(self.bias, self.weight, states.reshape(-1))
        return row.view(*states.shape[:-1], -1)


POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "relu": F.relu,
}


class Pooler(nn.Module):
    """The tanh of a linear map, (..., hidden) -> (..., size), with the tensor names of HF's pooler.

    It does not derive from nn.Linear: PEFT's all-linear would add an adapter behind the tanh.

    activation: another one in place of tanh, by its name in POOLER_ACTIVATIONS.
    """

    def __init__(self, config: AlbertConfig, size: int, activation: str = "tanh") -> None:
        super().__init__()
        self.config = config
        self.activation = POOLER_ACTIVATIONS[activation]
        linear = nn.Linear(config.hidden_size, size)  # for its initial values
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, states: Tensor) -> Tensor:
        """Pool states in the type of the weights."""
        return self.activation(F.linear(states.to(self.weight.dtype), self.weight, self.bias))


def pool(hidden: Tensor, mask: Tensor | None, pooler_input: str) -> Tensor:
    """Pool a layer's states for an exit or a head: (batch, length, hidden) -> (batch, hidden).

    Args:
        hidden: (batch, length, hidden).
        mask: (batch, 1, 1, length) bool, or None without padding. Means and maxima are over real
            tokens only.
        pooler_input: one of POOLER_INPUTS; one with a hyphen is the sum of its two parts, as
            published.
    """
    if pooler_input == "cls":
        return hidden.select(1, 0)
    first, _, second = pooler_input.partition("-")
    if second:
        return pool(hidden, mask, first) + pool(hidden, mask, second)
    real = None if mask is None else mask[:, 0, 0, :, None]  # (batch, length, 1)
    if first == "mean":
        return hidden.mean(1) if real is None else (hidden * real).sum(1) / real.sum(1)
    if real is not None:
        hidden = hidden.masked_fill(~real, torch.finfo(hidden.dtype).min)
    return hidden.amax(1)


class AlbertEncoder(nn.Module):
    """The layer groups, and the mapping from embedding to hidden states, under HF's names.

    It has no `forward`: `depth.py` has the loops over its layers.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(
            AlbertLayerGroup(config) for _ in range(config.num_hidden_groups)
        )
        if getattr(config, "relative_attention_num_buckets", None):
            self.relative_attention_bias = RelativeAttentionBias(config)

    def score_bias(self, hidden: Tensor, mask: Tensor | None) -> Tensor | None:
        """Make what all layers add to attention scores, PADDING_SCORE at padding; None for most.

        hidden: (batch, length, hidden). mask: (batch, 1, 1, length) bool, or None without padding.
        Returns (batch or 1, heads, length, length).
        """
        bias_by_distance = self._modules.get("relative_attention_bias")
        if bias_by_distance is None:
            return None
        bias = bias_by_distance(torch.arange(hidden.shape[1], device=hidden.device))
        return bias if mask is None else bias.masked_fill(~mask, PADDING_SCORE)


class AlbertBackbone(nn.Module):
    """Embeddings, encoder and, unless `has_pooler` is off, pooler under HF ALBERT's names."""

    def __init__(self, config: AlbertConfig, has_pooler: bool = True) -> None:
        super().__init__()
        self.num_layers = config.num_hidden_layers
        self.num_groups = config.num_hidden_groups
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertEncoder(config)
        self.pooler = Pooler(config, config.hidden_size) if has_pooler else None

    def group_of(self, layer: int) -> int:
        """Return the index of the group whose weights layer `layer` (0-based) has.

        Groups share the depth evenly.
        """
        # In floats, as HF does: for a few odd shapes it rounds differently from whole numbers.
        return int(layer / (self.num_layers / self.num_groups))

    def embed(self, *text: Tensor | None) -> Tensor:
        """Make the states at depth 0, (batch, length, hidden), from AlbertEmbeddings' inputs."""
        return self.encoder.embedding_hidden_mapping_in(self.embeddings(*text))

    def layer_extras(
        self, hidden: Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what all layers read beside the states: the mask, and `score_bias`.

        hidden: (batch, length, hidden). mask: (batch, 1, 1, length) bool, or None without padding.
        """
        return mask, self.encoder.score_bias(hidden, mask)

    def run_layer(
        self, group: int, hidden: Tensor, extras: tuple[Tensor | None, Tensor | None]
    ) -> Tensor:
        """Run the layers of group `group` on states (batch, length, hidden)."""
        mask, score_bias = extras
        return self.encoder.albert_layer_groups[group](hidden, mask, score_bias)

    def check_records(self) -> None:
        """Do nothing: states and attentions of these layers can always be recorded."""

    def finish(self, hidden: Tensor) -> Tensor:
        """Return what an exit reads of a layer's states: these themselves."""
        return hidden


class LowRankCorrection(nn.Module):
    """What one layer adds to a matrix that all layers share: W + up·down (Bae et al., 2024).

    It is a parametrization of the weight (out, in). A new one adds 0.

    Args:
        weight: (out, in), the shared matrix.
        rank: of the product.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) / rank)
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the layer's matrix, (out, in)."""
        return weight + self.up @ self.down


def tie_layers(model: PreTrainedModel) -> None:
    """Tie the matrices of the layer groups, but for corrections of rank `config.correction_rank`.

    Biases and norms stay each group's own. A rank of 0 changes nothing.
    """
    rank = getattr(model.config, "correction_rank", 0)
    if not rank:
        return
    for name, linear in list(model.named_modules()):
        if "albert_layer_groups" in name and isinstance(linear, nn.Linear):
            correction = LowRankCorrection(linear.weight, rank)
            register_parametrization(linear, "weight", correction, unsafe=True)
    # HF ties by regular expressions: each group's matrices to those of group 0.
    tensor = r".*albert_layer_groups\.{}\..*parametrizations\.weight\.original$"
    not_the_first = r"(?!0\.)\d+"
    model._tied_weights_keys = {tensor.format(not_the_first): tensor.format(0)}
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys()
    model.tie_weights()


def attention_mask_of(attention_mask: Tensor | None) -> Tensor | None:
    """Convert a mask (batch, length) to the layers', (batch, 1, 1, length) bool.

    It is 1 for real tokens. None stands for no padding, and stays None.
    """
    return None if attention_mask is None else attention_mask.bool()[:, None, None, :]
