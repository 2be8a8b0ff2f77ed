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
from .elbert.model import ElbertForSequenceClassification
from .errors import UserError
from .loading.weights import Tensors, load_model
from .pretraining import ObjectiveOutput, Sums

LAYER = "encoder.albert_layer_groups.{}.albert_layers.0."
FEED_FORWARD = {"ffn.weight", "ffn.bias", "ffn_output.weight"}  # what its width shapes
# Keys of an architecture that the student has from its teacher.
KEPT_KEYS = (
    "vocab_size embedding_size hidden_size num_attention_heads intermediate_size hidden_act "
    "hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size "
    "initializer_range layer_norm_eps pad_token_id"
).split()


def followed_layers(passes: int, layers: int) -> list[int]:
    """List the teacher's layer (0: embeddings) that states 0 … `passes` follow, halves upwards."""
    return [(2 * k * layers + passes) // (2 * passes) for k in range(passes + 1)]


def shared_config(
    teacher: AlbertConfig, passes: int, intermediate_size: int | None = None
) -> AlbertConfig:
    """One layer of the teacher's shape, applied `passes` times; its feed-forward may be wider."""
    wide = teacher.intermediate_size
    parts, rest = divmod(intermediate_size or wide, wide)
    if rest or not 1 <= parts <= teacher.num_hidden_layers:
        raise UserError(
            f"--intermediate_size {intermediate_size}: allowed are the teacher's {wide} and its "
            f"multiples up to {wide * teacher.num_hidden_layers}, {wide} for each of its layers"
        )
    kept = {key: getattr(teacher, key) for key in KEPT_KEYS} | {"intermediate_size": wide * parts}
    return AlbertConfig(**kept, num_hidden_layers=passes, classifier_dropout_prob=0.1)


def shared_model(
    teacher: AlbertBackbone, config: AlbertConfig, initial_layer: int | None = None
) -> AlbertModel:
    """HF's ALBERT with the teacher's embeddings, mapping and pooler, and one layer for all.

    initial_layer: the layer (1-based) that the shared one begins as; None: the mean of all.
    """
    if len(teacher.encoder.albert_layer_groups[0].albert_layers) > 1:
        raise UserError(
            "the teacher applies several layers a pass (inner_group_num > 1); give a BERT, or an "
            "ALBERT of inner_group_num 1, with --model_name_or_path"
        )
    if initial_layer not in (None, *range(1, teacher.num_layers + 1)):
        raise UserError(
            f"--initial_layer {initial_layer}: allowed is a layer from 1 to {teacher.num_layers}, "
            "or none for the mean of all"
        )
    old = {name: tensor.detach() for name, tensor in teacher.state_dict().items()}
    outside = ("embeddings.", "pooler.", "encoder.embedding_hidden_mapping_in.")  # of the layers
    new = {name: tensor for name, tensor in old.items() if name.startswith(outside)}
    untied = []
    for layer in range(teacher.num_layers):
        prefix = LAYER.format(teacher.group_of(layer))
        untied.append({n.removeprefix(prefix): x for n, x in old.items() if n.startswith(prefix)})
    if initial_layer:
        shared = widened(untied[initial_layer - 1], config)
    else:
        shared = mean_layer(untied, config.intermediate_size // len(untied[0]["ffn.bias"]))
    new.update({LAYER.format(0) + name: x for name, x in shared.items()})
    model = AlbertModel(config)
    model.load_state_dict(new)
    return model


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
    """Add feed-forward units that change no output (Chen et al. 2016, "Net2Net")."""
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
        model, _ = load_model(ElbertForSequenceClassification, source)
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
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        tokens = real.sum()
        loss = (self.weights * errors / self.variances).sum() / tokens
        return ObjectiveOutput(loss, {"errors": errors.detach(), "tokens": tokens})


def squared_errors(
    states: Sequence[torch.Tensor], targets: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Σ over real tokens and features of (state − target)², for each of N+1 states: (N+1,).

    states, targets N+1 times (batch, length, hidden); mask (batch, length) of 1 for real tokens.
    """
    real = 1 if mask is None else mask
    errors = [(x.float() - y).square().sum(-1) for x, y in zip(states, targets, strict=True)]
    return torch.stack([(error * real).sum() for error in errors])
