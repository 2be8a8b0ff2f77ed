"""Read a checkpoint's tensors, rename them as this suite's models do, and copy them into a model.

A source is a directory or a hub name with an HF ALBERT (bare or with any head), a checkpoint of
ELBERT's published code or of this suite, an encoder of `modeling/families.py`, or any other encoder
of transformers, which `hf_layers.loading` reads.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AlbertConfig,
    PreTrainedModel,
)

from ..configuration import AdaptiveConfig, config_class_of
from ..encoder import AlbertPreTrainedModel
from ..errors import UserError
from ..families import (
    FAMILIES,
    FAMILY_NAMES,
    LAYER_NAMES,
    MAPPING,
    NO_SEGMENTS,
    SKIP_PADDING,
    family_of,
)
from ..files import find_file, local_folder, read_json
from ..hf_layers.loading import HEAD, read_by_transformers
from ..labels import match_labels, stored_labels
from .configs import as_albert, label_names, load_config, mode_in, read_encoder_config
from .tensors import WORDS, TensorDict, read_tensor_files, read_tensors

ModelT = TypeVar("ModelT", bound=AlbertPreTrainedModel)

# Regular expressions of tensors' names, and what takes their place, in this order.
MODERN_NAMES = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}  # older BERTs have gamma and beta
SHARED_LAYER = r"encoder\.albert_layer_groups\.0\.albert_layers\.0\."
ELBERT_NAMES = {r"^classifier\.": "albert.encoder.exit_out_layer.classifier."}  # of HF's head
# Of a fine-tuned classifier whose pooler and classifier become the last exit.
KEPT_HEAD_NAMES = {
    r"^(kept_head\.|(?=classifier\.))": "albert.encoder.kept_head.",
    r"^albert\.pooler\.": "albert.encoder.kept_head.pooler.",
}
ACT_NAMES = {
    SHARED_LAYER: "encoder.albert_layer.",
    r"encoder\.albert_layer\.attention\.LayerNorm\.": "encoder.albert_layer.LayerNorm.",
}
# Weights of an encoder that no model may leave unread; the numbers of positions are no weights.
ENCODER_WEIGHTS = (
    r"(^|\.)(embeddings\.(?!position_ids|token_type_ids)|albert_layer|crossattention"
    r"|relative_attention_bias)"
)
PONDER_NAMES = {r"^albert\.": "", f"^{SHARED_LAYER}": "albert_layer.", r"^encoder\.": ""}


def rename_tensors(tensors: TensorDict, names: Mapping[str, str]) -> TensorDict:
    """Return the tensors under the names that a table of regular expressions gives."""
    return {new_name(name, names): tensor for name, tensor in tensors.items()}


def new_name(name: str, names: Mapping[str, str]) -> str:
    """Rename a tensor by a table of regular expressions, applied in order."""
    for pattern, replacement in names.items():
        name = re.sub(pattern, replacement, name)
    return name


def read_weights(source: str | Path, names: Mapping[str, str]) -> TensorDict:
    """Read an encoder's tensors under the names of ALBERT with a head, `albert.*`.

    Args:
        source: a model's folder.
        names: regular expressions of these names, and what takes their place.

    Raises:
        UserError: there are no weights, or not those of an ALBERT or of a family.
    """
    tensors = rename_tensors(read_tensors(source), MODERN_NAMES)
    path = find_file(source, "config.json")
    config = as_albert(read_encoder_config(path)) if path else {}
    named = family_of(tensors, config)
    if named is None:
        raise UserError(
            f"{source}: the weights are not of {FAMILY_NAMES}; their first tensors are "
            f"{', '.join(sorted(tensors)[:4])}"
        )
    stated = config.get("model_type")
    family = stated if stated in FAMILIES else named
    if family in FAMILIES:
        tensors = to_untied_albert(tensors, family, config)
    is_disguised = stated == "albert" and named in FAMILIES
    if is_disguised or (family in FAMILIES and WORDS not in tensors):
        raise UserError(
            f"{path}: model_type = {stated!r}, but the weights beside it are named as those of "
            f"model_type {named!r}: correct it, or fetch the weights again"
        )
    return rename_tensors(tensors, {r"^(embeddings|encoder|pooler)\.": r"albert.\1.", **names})


def to_untied_albert(tensors: TensorDict, family: str, config: Mapping[str, Any]) -> TensorDict:
    """Turn the tensors of a family into those of an ALBERT with untied layers.

    config: the encoder's configuration, by `as_albert`; {} where there is none.
    """
    tensors = rename_tensors(tensors, {**FAMILIES[family], **LAYER_NAMES})
    positions = "embeddings.position_embeddings.weight"
    if family in SKIP_PADDING and positions in tensors:
        # The family numbers tokens from pad_token_id + 1 on, an ALBERT from 0.
        tensors[positions] = tensors[positions][config["pad_token_id"] + 1 :]
    words = tensors.get(WORDS, torch.empty(0, 0))
    size = words.shape[1]
    if family in NO_SEGMENTS:
        segments = "embeddings.token_type_embeddings.weight"
        tensors[segments] = torch.zeros(config["type_vocab_size"], size)
    identity = {f"{MAPPING}.weight": torch.eye(size), f"{MAPPING}.bias": torch.zeros(size)}
    return {**identity, **tensors}  # an ELECTRA may have a mapping of its own


@dataclass
class LoadReport:
    """Report of which weights a model took from a checkpoint.

    Attributes:
        source: the checkpoint's folder or hub name.
        loaded: names of the model's tensors that were loaded.
        ignored: names of the checkpoint's tensors that the model does not use.
        initialised: names of the model's tensors that are new, since the checkpoint lacks them.
    """

    source: str
    loaded: list[str]
    ignored: list[str]
    initialised: list[str]

    def lines(self) -> list[str]:
        """Return the report as three lines of text."""
        return [
            f"Weights loaded from {self.source}: {len(self.loaded)} tensors",
            f"Weights ignored: {abbreviate(self.ignored)}",
            f"Weights newly initialised: {abbreviate(self.initialised)}",
        ]


def abbreviate(names: Iterable[str]) -> str:
    """List the first six names in alphabetical order, and the number of the others."""
    ordered = sorted(names)
    if not ordered:
        return "none"
    text = ", ".join(ordered[:6])
    if len(ordered) > 6:
        text += f" and {len(ordered) - 6} more"
    return text


def load_model(
    model_class: type[ModelT],
    source: str | Path,
    config: AlbertConfig | None = None,
    *,
    other_task: bool = False,
    head_labels: Sequence[str] | None = None,
    labels_in_order: bool = False,
    **keys: Any,
) -> tuple[ModelT, LoadReport]:
    """Build a model with the weights of a checkpoint; return it with a report of what was loaded.

        model, report = elbert.load_model(
            elbert.ElbertForSequenceClassification, "albert/albert-base-v2", num_labels=3
        )

    The model is in train mode, as every new module of torch: call `model.eval()` before inference.
    Random numbers are drawn only for weights that the checkpoint lacks.

    Args:
        model_class: class of the model, of any mode.
        source: folder or hub name of the checkpoint.
        config: configuration that replaces the checkpoint's.
        other_task: whether the checkpoint was fine-tuned on another task. What belongs to that
            task, such as a classifier (the class's `task_parts`), is then left out.
        head_labels: names of the checkpoint's classes; default: those in its config.json. The rows
            of its head are put into the order of the configuration's labels, by name.
        labels_in_order: whether labels that have no name in common match by position.
        keys: configuration keys to change, for example exit_thres=0.3, where no `config` is given.
            A num_labels other than the checkpoint's means another task.

    Returns:
        The model and a `LoadReport`.

    Raises:
        UserError: weights are missing, damaged, or of another shape than the configuration asks
            for; or the labels of the checkpoint's head are not those of the configuration.
    """
    folder = local_folder(source)
    config_class = cast(type[AdaptiveConfig], model_class.config_class)
    if config is None:
        config = load_config(folder, config_class, **keys)
    if keys:
        stored = load_config(folder, config_class)
        other_task = other_task or config.num_labels != stored.num_labels
    excluded = model_class.task_parts if other_task else ()
    # A model on torch's "meta" device has shapes alone: what fails does so before memory is taken.
    with torch.device("meta"):
        outline = model_class(config)
    tensors = read_tensors_for(outline, folder)
    order = None
    if not other_task:
        order = label_order(outline, tensors, folder, head_labels, labels_in_order)
    if order:
        tensors = move_rows(tensors, outline.label_rows, order)
    outlook = load_into(outline, tensors, folder, model_class.new_parts, excluded)
    draws_weights = not set(outlook.initialised) <= set(model_class.optional_parts)
    with nullcontext() if draws_weights else torch.random.fork_rng(cuda_device()):
        model = model_class(config)
    report = load_into(model, tensors, folder, model_class.new_parts, excluded)
    check_layers(model, folder)
    return model, report


def cuda_device() -> list[int]:
    """List the CUDA device on which new modules may draw random numbers; [] without CUDA."""
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def check_layers(model: AlbertPreTrainedModel, source: str | Path) -> None:
    """Raise UserError for an encoder of transformers that cannot run one layer at a time.

    source: where its weights or its configuration come from, for the error.
    """
    stored = getattr(model.config, "encoder_config", None)
    if not stored:
        return
    backbone: Any = model.albert
    try:
        backbone.check()
    except UserError as error:
        raise UserError(
            f"{source}: model_type = {stored.get('model_type')!r} cannot have exits after its "
            f"layers: {error}. docs/encoders.md lists the encoders that can"
        ) from error


def load_trained_model(
    source: str | Path,
    config: AlbertConfig | None = None,
    head_labels: Sequence[str] | None = None,
) -> Any:
    """Load the trained model in a folder, whatever its mode, in eval mode.

    config: configuration that replaces the folder's. head_labels: see `load_model`.

    Raises UserError for weights that were not trained on a task.
    """
    # HF's annotation of this mapping knows HF's configurations only.
    model_classes: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    model_class = model_classes[config_class_of(mode_in(source))]
    model, report = load_model(model_class, source, config, head_labels=head_labels)
    untrained = [name for name in report.initialised if name not in model.optional_parts]
    if untrained:
        raise UserError(
            f"{source} is not a trained model of this project: no weights for "
            f"{abbreviate(untrained)}; train it first with run_glue.py --do_train"
        )
    return model.eval()


def read_tensors_for(model: AlbertPreTrainedModel, folder: str | Path) -> TensorDict:
    """Read a checkpoint's tensors under the names of a model of any mode.

    A classifier of HF's with another number of classes is not the model's: it gets a name that no
    model has.
    """
    if getattr(model.config, "encoder_config", None):
        return read_general(model, Path(folder))
    tensors = read_weights(folder, {})
    classifier = tensors.get("classifier.weight")
    if classifier is not None and len(classifier) != model.config.num_labels:
        tensors = rename_tensors(tensors, {r"^classifier\.": "other_classifier."})
    tensors = rename_tensors(tensors, model.tensor_names)
    keeps_head = getattr(model.config, "keep_head", False)
    if keeps_head and "albert.encoder.kept_head.classifier.weight" not in tensors:
        raise no_head(model, folder)
    return tensors


def no_head(model: AlbertPreTrainedModel, folder: str | Path) -> UserError:
    """Make the error for a checkpoint without a head that could be kept."""
    return UserError(
        f"{folder}: keep_head = true keeps the head of a fine-tuned classifier of "
        f"{model.config.num_labels} labels, and this folder has none. Fine-tune a classifier "
        "first, or train new exits on all layers with --recipe recommended"
    )


def read_general(model: AlbertPreTrainedModel, folder: Path) -> TensorDict:
    """Read the tensors of an encoder that runs by transformers' layers, under the model's names.

    A model that this suite saved has these names; any other checkpoint is read by transformers.
    """
    if is_saved_here(folder):
        return read_tensor_files(folder)
    tensors = read_by_transformers(model.config, folder)
    if any(name.startswith(HEAD) and name not in tensors for name in model.state_dict()):
        raise no_head(model, folder)
    return tensors


def is_saved_here(folder: Path) -> bool:
    """Tell whether the model in a folder is one of this suite's."""
    path = find_file(folder, "config.json")
    return path is not None and config_class_of(read_json(path).get("model_type")) is not None


def label_order(
    model: AlbertPreTrainedModel,
    tensors: TensorDict,
    folder: str | Path,
    head_labels: Sequence[str] | None,
    in_order: bool,
) -> list[int] | None:
    """Match the labels of a model with those of a checkpoint's head; see `match_labels`.

    Returns the row of the head for each label of the model, or None where the checkpoint has no
    head of this number of classes, or only one class.
    """
    label_count = model.config.label_count
    names = [name for name in model.state_dict() if re.search(model.label_rows, name)]
    rows = [len(tensors[name]) for name in names if name in tensors]
    if label_count == 1 or label_count not in rows:
        return None
    if head_labels is None:
        path = find_file(folder, "config.json")
        head_labels = stored_labels(read_json(path)) if path else []
    return match_labels(
        label_names(model.config),
        head_labels or [f"LABEL_{number}" for number in range(label_count)],
        wanted_by="the task",
        given_by=f"the head of {folder}",
        in_order=in_order,
    )


def move_rows(tensors: TensorDict, names: str, order: Sequence[int]) -> TensorDict:
    """Return the tensors with the rows of those that match a regular expression in another order.

    order: for each new row, the old one.
    """
    rows = list(order)
    return {name: x[rows] if re.search(names, name) else x for name, x in tensors.items()}


def load_into(
    model: PreTrainedModel,
    tensors: TensorDict,
    source: str | Path,
    new_parts: tuple[str, ...],
    excluded: tuple[str, ...] = (),
) -> LoadReport:
    """Copy into `model` the tensors that it has; report what became of each.

    Args:
        model: changed in place.
        tensors: by the model's names.
        source: where they come from, for errors and the report.
        new_parts: prefixes of names that a checkpoint may lack; such tensors stay newly
            initialised.
        excluded: prefixes of names that are not loaded, even where the checkpoint has them.

    Raises:
        UserError: a tensor is missing, is not finite, or has another shape than the model's; or a
            layer or an embedding of the checkpoint has no place in the model.
    """
    state = model.state_dict()
    tied_names: dict[str, str] = model.all_tied_weights_keys
    for name in tied_names.keys() - tensors:
        del state[name]  # the same tensor stands there under another name
    loaded = [name for name in state if name in tensors and not name.startswith(excluded)]
    ignored = [name for name in tensors if name not in loaded]
    initialised = [name for name in state if name not in loaded]
    for name in loaded:
        check_tensor(name, tensors[name], state[name], source)
    missing = [name for name in initialised if not name.startswith(new_parts)]
    if missing:
        raise UserError(
            f"{source}: no weights for {abbreviate(missing)}, which the configuration asks for. It "
            f"has {describe_architecture(model.config)}; the weights are named "
            f"{abbreviate(ignored)}: give the config.json that belongs to them"
        )
    lost = [name for name in ignored if re.search(ENCODER_WEIGHTS, name)]
    if lost:
        raise UserError(
            f"{source}: the configuration has no place for the weights {abbreviate(lost)}; without "
            f"them, answers would mean nothing. It has {describe_architecture(model.config)}: "
            "give the config.json that belongs to the weights, with their model_type"
        )
    with torch.no_grad():
        for name in loaded:
            state[name].copy_(tensors[name])
    return LoadReport(str(source), loaded, ignored, initialised)


def describe_architecture(config: Any) -> str:
    """Write what decides how many layers a model has, for errors."""
    names = ("model_type", "num_hidden_layers", "num_hidden_groups", "inner_group_num")
    return ", ".join(f"{name} = {getattr(config, name, None)}" for name in names)


def check_tensor(name: str, tensor: Tensor, expected: Tensor, source: str | Path) -> None:
    """Raise UserError unless a checkpoint's tensor is finite and has the shape of the model's."""
    shape = tuple(tensor.shape)
    expected_shape = tuple(expected.shape)
    if shape != expected_shape:
        raise UserError(
            f"{source}: {name} has shape {shape}, the configuration asks for {expected_shape}; "
            "is the config.json that of another model, or has the task another number of labels?"
        )
    if not expected.is_floating_point():
        return  # numbers of positions, which some encoders of transformers save
    # In float32, as the model will hold it: 1e300 is infinite there.
    if not tensor.is_floating_point() or not tensor.float().isfinite().all():
        raise UserError(
            f"{source}: {name} is {tensor.dtype} and not floating-point, or holds NaN or "
            "infinite weights, so no answer would mean anything: take another checkpoint"
        )
