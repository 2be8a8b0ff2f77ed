"""A BERT's layers as one shared ALBERT layer that follows the teacher's states pass by pass.

The student applies one layer N times. Its state after pass k is drawn to the teacher's state after
layer round(k·L/N), by the share of the teacher's variance that it leaves unexplained. The idea is
that of recursive transformers retrofitted from ordinary ones (Bae et al. 2024, "Relaxed Recursive
Transformers"); the targets are hidden states, as in TinyBERT (Jiao et al. 2020).
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertModel

from .albert import AlbertBackbone, attention_mask_of
from .depth import layer_states
from .errors import UserError
from .loading.models import load_pretrained
from .loading.weights import Tensors
from .pretraining import ObjectiveOutput, Sums

LAYER = "encoder.albert_layer_groups.{}.albert_layers.0."
FEED_FORWARD = {"ffn.weight", "ffn.bias", "ffn_output.weight"}  # what its width shapes
MAPPING = "encoder.embedding_hidden_mapping_in."
# Keys of an architecture that the student has from its teacher.
KEPT_KEYS = (
    *("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings"),
    *("type_vocab_size", "initializer_range", "layer_norm_eps", "pad_token_id"),
)


def followed_layers(passes: int, layers: int) -> list[int]:
    """List the teacher's state (0: embeddings, 1 … `layers`) that each student's state follows.

    State 0 follows state 0, and pass k follows layer round(k·layers/passes), halves upwards.
    """
    return [(2 * k * layers + passes) // (2 * passes) for k in range(passes + 1)]


def shared_config(
    teacher: AlbertConfig,
    passes: int,
    embedding_size: int | None = None,
    intermediate_size: int | None = None,
) -> AlbertConfig:
    """One layer of the teacher's shape, applied `passes` times.

    embedding_size, intermediate_size: widths of the embeddings and of the feed-forward part; None
    keeps the teacher's. Raises UserError for widths that `shared_model` cannot begin with.
    """
    size, wide = embedding_size or teacher.embedding_size, teacher.intermediate_size
    if size > teacher.embedding_size:
        raise UserError(
            f"--embedding_size {size}: allowed is at most the teacher's, {teacher.embedding_size}"
        )
    parts, rest = divmod(intermediate_size or wide, wide)
    if rest or not 1 <= parts <= teacher.num_hidden_layers:
        raise UserError(
            f"--intermediate_size {intermediate_size}: allowed are the teacher's {wide} and its "
            f"multiples up to {wide * teacher.num_hidden_layers}, {wide} for each of its layers"
        )
    kept = {key: getattr(teacher, key) for key in KEPT_KEYS}
    return AlbertConfig(
        **{**kept, "intermediate_size": wide * parts},
        embedding_size=size,
        num_hidden_layers=passes,
        classifier_dropout_prob=0.1,
    )


def shared_model(
    teacher: AlbertBackbone, config: AlbertConfig, initial_layer: int | None = None
) -> AlbertModel:
    """HF's ALBERT with the teacher's embeddings, mapping and pooler, and one layer for all.

    initial_layer: the layer (1-based) whose weights the shared one begins with; None takes the mean
    of all. Raises UserError for a layer that the teacher does not have.
    """
    if len(teacher.encoder.albert_layer_groups[0].albert_layers) > 1:
        raise UserError(
            "the teacher applies several layers a pass (inner_group_num > 1); give a BERT, or an "
            "ALBERT of inner_group_num 1, with --model_name_or_path"
        )
    old = {name: tensor.detach() for name, tensor in teacher.state_dict().items()}
    outside = ("embeddings.", "pooler.", MAPPING)  # of the layers
    new = {name: tensor for name, tensor in old.items() if name.startswith(outside)}
    layers = range(1, teacher.num_layers + 1)
    if initial_layer not in (None, *layers):
        raise UserError(
            f"--initial_layer {initial_layer}: allowed is a layer from 1 to {teacher.num_layers}, "
            "or none for the mean of all"
        )
    untied = [layer_tensors(teacher, old, layer) for layer in layers]
    if initial_layer:
        layer = widened(untied[initial_layer - 1], config)
    else:
        layer = mean_layer(untied, config.intermediate_size // untied[0]["ffn.weight"].shape[0])
    new.update({LAYER.format(0) + name: x for name, x in layer.items()})
    if config.embedding_size < old["embeddings.word_embeddings.weight"].shape[1]:
        new.update(factorised(teacher, config.embedding_size))
    model = AlbertModel(config)
    model.load_state_dict(new)
    return model


def layer_tensors(teacher: AlbertBackbone, tensors: Tensors, layer: int) -> Tensors:
    """Take the weights of the teacher's `layer` (1-based) by their names within it."""
    prefix = LAYER.format(teacher.group_of(layer - 1))
    return {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}


def mean_layer(layers: Sequence[Tensors], parts: int = 1) -> Tensors:
    """Average several layers' weights, with a feed-forward part `parts` times as wide.

    The layers are cut into `parts` runs. Each run's mean feed-forward is a part of the new one's
    width, and their outputs are averaged.
    """
    mean = {name: torch.stack([layer[name] for layer in layers]).mean(0) for name in layers[0]}
    cuts = [len(layers) * part // parts for part in range(parts + 1)]
    runs = [mean_layer(layers[start:end]) for start, end in pairwise(cuts)] if parts > 1 else [mean]
    for name, side in (("ffn.weight", 0), ("ffn.bias", 0), ("ffn_output.weight", 1)):
        mean[name] = torch.cat([run[name] for run in runs], side)
    mean["ffn_output.weight"] = mean["ffn_output.weight"] / parts
    return mean


def widened(layer: Tensors, config: AlbertConfig) -> Tensors:
    """Add feed-forward units to a layer up to `config.intermediate_size`.

    It computes what it did: the new units' input weights are random, and their output weights 0
    (Chen et al. 2016, "Net2Net").
    """
    rest = config.intermediate_size - len(layer["ffn.bias"])
    if rest <= 0:
        return layer
    inputs, outputs = layer["ffn.weight"], layer["ffn_output.weight"]
    drawn = torch.randn(rest, inputs.shape[1]) * config.initializer_range
    return {
        **layer,
        "ffn.weight": torch.cat([inputs, drawn.to(inputs)]),
        "ffn.bias": F.pad(layer["ffn.bias"], (0, rest)),
        "ffn_output.weight": F.pad(outputs, (0, rest)),
    }


@torch.no_grad()
def factorised(teacher: AlbertBackbone, size: int) -> Tensors:
    """Embeddings of width `size`: the best of that rank, and the mapping that suits them.

    Words, positions and types are projected onto the words' leading `size` right singular vectors.
    The mapping is the least-squares one from every word's new embedding, alone at position 0, to
    the teacher's state of that word, of a teacher in eval mode.
    """
    embeddings = teacher.embeddings
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    # float64, on a CPU: layer-normed rows sum to 0, so that least squares has one direction to drop
    words, *others = (getattr(embeddings, name).weight.double().cpu() for name in names)
    basis = torch.linalg.eigh(words.T @ words).eigenvectors.flip(1)[:, :size]  # (hidden, size)
    words, *others = (table @ basis for table in (words, *others))
    inputs = F.layer_norm(words + sum(table[:1] for table in others), (size,))
    inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)  # (vocabulary, size + 1)
    ids = torch.arange(len(words), device=embeddings.position_ids.device)[:, None]
    wanted = teacher.embed(ids)[:, 0].double().cpu()  # (vocabulary, hidden)
    mapping = torch.linalg.lstsq(inputs, wanted, driver="gelsd").solution  # (size + 1, hidden)
    new = {
        **{f"embeddings.{n}.weight": x for n, x in zip(names, (words, *others), strict=True)},
        "embeddings.LayerNorm.weight": torch.ones(size),
        "embeddings.LayerNorm.bias": torch.zeros(size),
        f"{MAPPING}weight": mapping[:-1].T,
        f"{MAPPING}bias": mapping[-1],
    }
    return {name: tensor.float().contiguous() for name, tensor in new.items()}


# What it follows.


class Teacher:
    """A BERT, and those of its states that a student of `passes` follows.

    passes: None for as many as the teacher has layers. Inside `packed_weights(teacher.backbone)`
    its states take less time. Raises UserError when `source`, a directory or hub name, holds no
    model.
    """

    def __init__(
        self, source: str | Path, passes: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        model, _ = load_pretrained(source)
        self.config, self.device = model.config, device
        self.model = model.to(device).eval()
        self.backbone = model.albert
        layers = self.backbone.num_layers
        self.followed = followed_layers(passes or layers, layers)

    @torch.no_grad()
    def states(self, inputs: Tensors) -> torch.Tensor:
        """Compute what states 0 … N are to be, (N+1, batch, length, hidden).

        inputs: input_ids, token_type_ids and, where there is padding, attention_mask.
        """
        hidden = self.model.embed(inputs["input_ids"], inputs["token_type_ids"])
        mask = attention_mask_of(inputs.get("attention_mask"))
        states = [hidden, *layer_states(self.model, hidden, mask)]
        return torch.stack([states[number] for number in self.followed])


def variance_sums(states: torch.Tensor, mask: torch.Tensor | None) -> Sums:
    """Sum what `variances` needs of a batch; sums of several batches add up.

    states (states, batch, length, hidden); mask (batch, length) of 1 for real tokens, or None.
    """
    real = states.flatten(1, 2) if mask is None else states[:, mask.bool()]
    real = real.double()  # (states, tokens, hidden)
    return {
        "tokens": torch.tensor(real.shape[1], device=real.device),
        "first": real.sum(1),  # (states, hidden)
        "second": real.square().sum((1, 2)),  # (states,)
    }


def variances(sums: Sums) -> torch.Tensor:
    """Σ over features of E[x²] − E[x]², over real tokens: (states,) in float32."""
    means = sums["first"] / sums["tokens"]
    return (sums["second"] / sums["tokens"] - means.square().sum(1)).float()


class DistillationLoss(nn.Module):
    """Weighted mean over passes of the share of the teacher's variance left unexplained.

    variances (N+1,): of the teacher's states that states 0 … N follow, summed over features.
    weights (N+1,): of these states in the loss; they sum to 1.
    """

    def __init__(self, model: AlbertModel, variances: torch.Tensor, weights: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("variances", variances, persistent=False)
        self.register_buffer("weights", weights, persistent=False)

    def train(self, mode: bool = True) -> "DistillationLoss":
        """Keep the student in eval mode, without dropout, as its teacher."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor,
        targets: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> ObjectiveOutput:
        """Ids (batch, length), targets (N+1, batch, length, hidden) of the teacher.

        sums: errors (N+1,), the squared errors of states 0 … N, and tokens, the real ones.
        """
        states = self.model(
            input_ids, attention_mask, token_type_ids, output_hidden_states=True
        ).hidden_states
        errors = squared_errors(states, targets, attention_mask)  # (N+1,)
        tokens = count_tokens(input_ids, attention_mask)
        loss = (self.weights * errors / self.variances).sum() / tokens
        return ObjectiveOutput(loss, {"errors": errors.detach(), "tokens": tokens})


def count_tokens(input_ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Real tokens of a batch, a scalar: all (batch, length) ids, or those of mask 1."""
    return torch.tensor(input_ids.numel(), device=input_ids.device) if mask is None else mask.sum()


def squared_errors(
    states: tuple[torch.Tensor, ...], targets: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Σ over real tokens and features of (state − target)², for each of N+1 states: (N+1,).

    states N+1 times (batch, length, hidden), targets (N+1, batch, length, hidden), mask (batch,
    length) of 1 for real tokens or None.
    """
    errors = []
    for state, target in zip(states, targets, strict=True):
        error = (state.float() - target).square().sum(-1)  # (batch, length)
        errors.append((error if mask is None else error * mask).sum())
    return torch.stack(errors)


def pass_weights(passes: int, last: float, embeddings: bool) -> torch.Tensor:
    """Weights of states 0 … N in the loss, (N+1,), with sum 1.

    last: how many times an inner pass's weight the last pass has. embeddings: whether state 0,
    which frozen embeddings give, counts as an inner pass does.
    """
    weights = torch.ones(passes + 1)
    weights[0], weights[-1] = float(embeddings), last
    return weights / weights.sum()
