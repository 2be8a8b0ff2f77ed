"""What the student begins as: an HF ALBERT whose one layer comes from all layers of a BERT."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertModel

from modeling.configuration import ElbertConfig
from modeling.encoder import tie_layers
from modeling.errors import UserError
from modeling.exits.model import ElbertForSequenceClassification
from modeling.loading.weights import TensorDict, load_into, read_weights
from training.layer_sharing.teacher import StateTeacher, followed_layers
from training.pretraining.settings import StudentSettings

LAYER = "encoder.albert_layer_groups.0.albert_layers.0"  # the shared one
COPIED = ("embeddings", "encoder.embedding_hidden_mapping_in", "pooler")  # and not trained
# The feed-forward part's tensors, and the side of each that its width shapes.
FEED_FORWARD = {"ffn.weight": 0, "ffn.bias": 0, "ffn_output.weight": 1}
# Keys of an architecture that the student has from its teacher.
KEPT_KEYS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)


def new_student(settings: StudentSettings, teacher: StateTeacher) -> AlbertModel:
    """Make the shared ALBERT; what is the teacher's is not trained.

    With --initial_student it gets the weights of that one, which may be of any number of passes,
    narrower, and without what is the teacher's. Raises UserError for a student of several layers.
    """
    student = shared_model(
        teacher.model,
        teacher.passes,
        settings.intermediate_size,
        settings.initial_layer,
        settings.rank,
    )
    for name in COPIED:
        student.get_submodule(name).requires_grad_(False)
    if settings.initial_student:
        load_student(student, settings.initial_student)
    return student


def load_student(student: AlbertModel, source: str) -> None:
    """Copy into a new student the weights of one that was trained before; see `new_student`."""
    flag = f"--initial_student {source}"
    tensors = {}
    for name, tensor in read_weights(source, {}).items():
        tensors[name.removeprefix("albert.")] = tensor
    layers = {name.split(".attention.")[0] for name in tensors if ".attention." in name}
    if len(layers) > 1:
        raise UserError(
            f"{flag}: has {len(layers)} layers, and a student one shared layer; give a model that "
            "share_layers.py made"
        )
    prefix = f"{LAYER}."
    layer = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    if layer:
        for name, tensor in with_more_units(layer, student.config).items():
            tensors[prefix + name] = tensor
    teachers = [name for name, weight in student.named_parameters() if not weight.requires_grad]
    load_into(student, tensors, flag, new_parts=tuple(teachers))


def shared_model(
    teacher: ElbertForSequenceClassification,
    passes: int,
    intermediate_size: int | None = None,
    initial_layer: int | None = None,
    rank: int = 0,
) -> AlbertModel:
    """Make HF's ALBERT with the teacher's embeddings, mapping and pooler, and one shared layer.

    Args:
        passes: how often the layer is applied.
        intermediate_size: None keeps the teacher's.
        initial_layer: the layer (1-based) that the shared one begins as; None: the mean of all.
        rank: of each pass's correction of the matrices; 0 for none.

    Raises UserError, which names the flag, for what the teacher's shape does not allow.
    """
    parts = feed_forward_parts(teacher.config, intermediate_size)
    check_shape(teacher.config, passes, parts, initial_layer, rank)
    config = student_config(teacher.config, passes, parts, rank)
    layers = teacher_layers(teacher)
    if initial_layer:
        shared_layer = with_more_units(layers[initial_layer - 1], config)
    else:
        shared_layer = mean_layer(layers, parts)
    model = AlbertModel(config)
    model.get_submodule(LAYER).load_state_dict(shared_layer)
    if rank:
        tie_layers(model)
        _, *followed = followed_layers(passes, len(layers))  # the first is the embeddings
        start_corrections(model, [layers[number - 1] for number in followed])
    for name in COPIED:
        weights = teacher.albert.get_submodule(name).state_dict()
        model.get_submodule(name).load_state_dict(weights)
    return model


def feed_forward_parts(teacher: ElbertConfig, intermediate_size: int | None) -> int:
    """Count the teacher's feed-forward parts that are side by side in a student of this width.

    Raises UserError for a width that is no multiple of the teacher's.
    """
    layers, width = teacher.num_hidden_layers, teacher.intermediate_size
    parts, rest = divmod(intermediate_size or width, width)
    if rest or not 1 <= parts <= layers:
        raise UserError(
            f"--intermediate_size {intermediate_size}: allowed are the teacher's {width} and its "
            f"multiples up to {width * layers}, {width} for each of its layers"
        )
    return parts


def check_shape(
    teacher: ElbertConfig, passes: int, parts: int, initial_layer: int | None, rank: int
) -> None:
    """Raise UserError, which names the flag, for what the teacher's shape does not allow."""
    layers = teacher.num_hidden_layers
    if teacher.inner_group_num > 1:
        raise UserError("--model_name_or_path: give a BERT, or an ALBERT of inner_group_num 1")
    if getattr(teacher, "relative_attention_num_buckets", None):
        raise UserError(
            "--model_name_or_path: an MPNet's layers read the distance of two tokens, which an "
            "ALBERT's do not: give a BERT"
        )
    if initial_layer and initial_layer > layers:
        raise UserError(f"--initial_layer {initial_layer}: allowed is a layer from 1 to {layers}")
    allows_corrections = passes > 1 and parts == 1
    if rank and (rank > teacher.hidden_size or not allows_corrections):
        raise UserError(
            f"--rank {rank}: allowed is 1 to {teacher.hidden_size}, the teacher's "
            "hidden_size, with two passes or more, and without --intermediate_size"
        )


def student_config(teacher: ElbertConfig, passes: int, parts: int, rank: int) -> AlbertConfig:
    """Make the configuration of an HF ALBERT with the teacher's shape; see `shared_model`."""
    keys = {key: getattr(teacher, key) for key in KEPT_KEYS}
    keys["num_hidden_layers"] = passes
    keys["intermediate_size"] = teacher.intermediate_size * parts
    if rank:
        keys["num_hidden_groups"] = passes
        keys["correction_rank"] = rank
    return AlbertConfig(**keys, classifier_dropout_prob=0.1)


def teacher_layers(teacher: ElbertForSequenceClassification) -> list[TensorDict]:
    """List the weights of the teacher's layers, from the first to the last."""
    groups: Any = teacher.albert.encoder.albert_layer_groups
    layers = []
    for layer in range(teacher.config.num_hidden_layers):
        group = groups[teacher.albert.group_of(layer)]
        layers.append(group.albert_layers[0].state_dict())
    return layers


def mean_layer(layers: Sequence[TensorDict], parts: int) -> TensorDict:
    """Average several layers' weights, with a feed-forward part `parts` times as wide.

    Each part is the mean of a run of layers, and the parts' outputs are averaged.
    """

    def mean(name: str, start: int, end: int) -> Tensor:
        return torch.stack([layer[name] for layer in layers[start:end]]).mean(0)

    shared = {name: mean(name, 0, len(layers)) for name in layers[0]}
    cuts = [len(layers) * part // parts for part in range(parts + 1)]
    for name, side in FEED_FORWARD.items():
        shared[name] = torch.cat([mean(name, start, end) for start, end in pairwise(cuts)], side)
    shared["ffn_output.weight"] = shared["ffn_output.weight"] / parts
    return shared


def with_more_units(layer: TensorDict, config: AlbertConfig) -> TensorDict:
    """Widen a layer to `config` by feed-forward units that change no output.

    Their outputs have weights of 0 (Chen et al. 2016, "Net2Net"). A layer as wide stays as it is.
    """
    missing = config.intermediate_size - len(layer["ffn.bias"])
    if missing <= 0:
        return layer
    inputs, outputs = layer["ffn.weight"], layer["ffn_output.weight"]
    new_inputs = torch.randn(missing, inputs.shape[1]) * config.initializer_range
    return {
        **layer,
        "ffn.weight": torch.cat([inputs, new_inputs.to(inputs)]),
        "ffn.bias": F.pad(layer["ffn.bias"], (0, missing)),
        "ffn_output.weight": F.pad(outputs, (0, missing)),
    }


@torch.no_grad()
def start_corrections(model: AlbertModel, layers: Iterable[TensorDict]) -> None:
    """Begin each pass as one of `layers`, as nearly as its corrections allow.

    They are the truncated SVD of what the shared matrix lacks of the layer's. Biases and norms,
    which are each pass's own, become the layer's.
    """
    groups: Any = model.encoder.albert_layer_groups
    for group, layer in zip(groups, layers, strict=True):
        albert_layer = group.albert_layers[0]
        for name, linear in albert_layer.named_modules():
            if isinstance(linear, nn.Linear):
                start_correction(linear, layer[f"{name}.weight"])
        vectors = {name: tensor for name, tensor in layer.items() if tensor.ndim == 1}
        albert_layer.load_state_dict(vectors, strict=False)


def start_correction(linear: nn.Module, target: Tensor) -> None:
    """Bring a corrected matrix as near to `target`, (out, in), as its rank allows."""
    parametrizations: Any = linear.parametrizations
    weight = parametrizations.weight
    correction = weight[0]  # up·down: (out, rank)·(rank, in)
    left, sizes, right = torch.linalg.svd(target.double() - weight.original, full_matrices=False)
    rank = len(correction.down)
    roots = sizes[:rank].sqrt()  # of the singular values, half on either side
    correction.up.copy_(left[:, : len(roots)] * roots)
    correction.down.copy_(roots[:, None] * right[: len(roots)])
