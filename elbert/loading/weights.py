"""Read a checkpoint's tensors, rename them as this suite's models do, and copy them into a model.

A source is a directory or a hub name with an HF ALBERT (bare or with any head), a checkpoint of
ELBERT's published code or of this suite, or an encoder of `elbert_base/families.py`.
"""

import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AlbertConfig,
    PreTrainedModel,
)

from elbert_base.errors import UserError
from elbert_base.families import FAMILIES, LAYER_NAMES, MAPPING, SKIP_PADDING
from elbert_base.files import find_file, local_folder, read_json, weight_file

from ..albert import AlbertPreTrainedModel
from ..configuration import AdaptiveConfig, config_class_of
from .configs import as_albert, load_config, mode_in

TensorDict = dict[str, Tensor]  # by name: a state dict, or a batch
ModelT = TypeVar("ModelT", bound=AlbertPreTrainedModel)

# Regular expressions of tensors' names, and what takes their place, in this order.
MODERN_NAMES = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}  # older BERTs have gamma and beta
SHARED_LAYER = r"encoder\.albert_layer_groups\.0\.albert_layers\.0\."
ELBERT_NAMES = {r"^classifier\.": "albert.encoder.exit_out_layer.classifier."}  # of HF's head
ACT_NAMES = {
    SHARED_LAYER: "encoder.albert_layer.",
    r"encoder\.albert_layer\.attention\.LayerNorm\.": "encoder.albert_layer.LayerNorm.",
}
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
    tensors = rename_tensors(read_tensor_file(weight_file(source)), MODERN_NAMES)
    has_families_names = any(".attention.self.query." in name for name in tensors)
    if has_families_names:
        path = find_file(source, "config.json")
        config = as_albert(read_json(path)) if path else {}
        tensors = to_untied_albert(tensors, config)
    if not any(name.endswith("embedding_hidden_mapping_in.weight") for name in tensors):
        raise UserError(
            f"{source}: the weights are not ALBERT's, BERT's, RoBERTa's or ELECTRA's; their first "
            f"tensors are {', '.join(sorted(tensors)[:4])}"
        )
    return rename_tensors(tensors, {r"^(embeddings|encoder|pooler)\.": r"albert.\1.", **names})


def to_untied_albert(tensors: TensorDict, config: Mapping[str, Any]) -> TensorDict:
    """Turn the tensors of BERT, RoBERTa or ELECTRA into those of an ALBERT with untied layers.

    config: the encoder's configuration, by `as_albert`; {} is taken for BERT's.
    """
    family = str(config.get("model_type"))
    names = FAMILIES.get(family, FAMILIES["bert"])
    tensors = rename_tensors(tensors, {**names, **LAYER_NAMES})
    positions = "embeddings.position_embeddings.weight"
    if family in SKIP_PADDING and positions in tensors:
        # The family numbers tokens from pad_token_id + 1 on, an ALBERT from 0.
        tensors[positions] = tensors[positions][config["pad_token_id"] + 1 :]
    words = tensors.get("embeddings.word_embeddings.weight", torch.empty(0, 0))
    size = words.shape[1]
    identity = {f"{MAPPING}.weight": torch.eye(size), f"{MAPPING}.bias": torch.zeros(size)}
    return {**identity, **tensors}  # an ELECTRA may have a mapping of its own


def read_tensor_file(path: Path) -> TensorDict:
    """Read a .safetensors or .bin file; of a .bin only tensors are read, and no code is run.

    Raises UserError for a damaged file, and for one with anything but tensors by name.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds something other than tensors, which could run code: refused. "
            "Ask its author for a safetensors file"
        ) from error
    except Exception as error:  # what is not a checkpoint fails in many ways
        raise UserError(f"{path} is damaged or not a checkpoint: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(x, Tensor) for x in loaded.values()):
        raise UserError(f"{path} is not a state dict (tensors by name)")
    return loaded


@dataclass
class LoadReport:
    """What became of a checkpoint's tensors.

    Attributes:
        source: the folder or hub name.
        loaded: names of the model's tensors that come from there.
        ignored: names of the checkpoint's tensors that the model has no use for.
        initialised: names of the model's tensors that are new.
    """

    source: str
    loaded: list[str]
    ignored: list[str]
    initialised: list[str]

    def lines(self) -> list[str]:
        """Write the report in three lines, for the user."""
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
    **keys: Any,
) -> tuple[ModelT, LoadReport]:
    """Build a model with a checkpoint's weights; return it, and what was loaded.

        model, report = elbert.load_model(
            elbert.ElbertForSequenceClassification, "albert/albert-base-v2", num_labels=3
        )

    Args:
        model_class: a model of any mode.
        source: a directory or a hub name.
        config: in place of the source's configuration.
        other_task: whether the source was fine-tuned on another task; its `task_parts`, such as a
            classifier, are then left out.
        keys: without `config`, values that replace those of the source's configuration, for example
            exit_thres=0.3. Another num_labels means another task.

    Raises:
        UserError: weights are missing, damaged, or of another shape than the configuration's.
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
    load_into(outline, tensors, folder, model_class.new_parts, excluded)
    model = model_class(config)
    report = load_into(model, tensors, folder, model_class.new_parts, excluded)
    return model, report


def load_trained_model(source: str | Path, config: AlbertConfig | None = None) -> Any:
    """Load the trained model in a folder, of whatever mode it is, in eval mode.

    config: in place of the folder's. Raises UserError for weights that were not trained on a task.
    """
    # HF's annotation of this mapping knows HF's configurations only.
    model_classes: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    model_class = model_classes[config_class_of(mode_in(source))]
    model, report = load_model(model_class, source, config)
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
    tensors = read_weights(folder, {})
    classifier = tensors.get("classifier.weight")
    if classifier is not None and len(classifier) != model.config.num_labels:
        tensors = rename_tensors(tensors, {r"^classifier\.": "other_classifier."})
    return rename_tensors(tensors, model.tensor_names)


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
        UserError: a tensor is missing, is not finite, or has another shape than the model's.
    """
    state = model.state_dict()
    tied_names: dict[str, str] = model.all_tied_weights_keys
    for name in tied_names.keys() - tensors:
        del state[name]  # the same tensor stands there under another name
    loaded = [name for name in state if name in tensors and not name.startswith(excluded)]
    ignored = [name for name in tensors if name not in loaded]
    initialised = [name for name in state if name not in loaded]
    for name in loaded:
        check_tensor(name, tensors[name], tuple(state[name].shape), source)
    missing = [name for name in initialised if not name.startswith(new_parts)]
    if missing:
        raise UserError(
            f"{source}: no weights for {abbreviate(missing)}, which the configuration asks for; "
            "compare num_hidden_groups and inner_group_num with the checkpoint's own config.json"
        )
    with torch.no_grad():
        for name in loaded:
            state[name].copy_(tensors[name])
    return LoadReport(str(source), loaded, ignored, initialised)


def check_tensor(
    name: str, tensor: Tensor, expected_shape: tuple[int, ...], source: str | Path
) -> None:
    """Raise UserError unless a checkpoint's tensor is finite and has the model's shape."""
    shape = tuple(tensor.shape)
    if shape != expected_shape:
        raise UserError(
            f"{source}: {name} has shape {shape}, the configuration asks for {expected_shape}; "
            "is the config.json of another model, or the task one of another number of labels?"
        )
    # In float32, as the model will hold it: 1e300 is infinite there.
    if not tensor.is_floating_point() or not tensor.float().isfinite().all():
        raise UserError(
            f"{source}: {name} is {tensor.dtype} and not floating-point, or holds NaN or "
            "infinite weights, so no answer would mean anything: take another checkpoint"
        )
