"""Reading a checkpoint's tensors, naming them as this suite's models do, and copying them there.

A source is a directory or a hub name holding an HF ALBERT (bare or with any head), an ELBERT
checkpoint of the published code or of this suite, or an encoder of `families.py`.
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

Tensors = dict[str, Tensor]  # by name
Model = TypeVar("Model", bound=AlbertPreTrainedModel)

# Regular expressions of names, and what takes their place, in this order.
MODERN = {r"\.gamma$": ".weight", r"\.beta$": ".bias"}  # of older BERTs
SHARED_LAYER = r"encoder\.albert_layer_groups\.0\.albert_layers\.0\."
ELBERT_NAMES = {r"^classifier\.": "albert.encoder.exit_out_layer.classifier."}  # HF's
ACT_NAMES = {
    SHARED_LAYER: "encoder.albert_layer.",
    r"encoder\.albert_layer\.attention\.LayerNorm\.": "encoder.albert_layer.LayerNorm.",
}
PONDER_NAMES = {r"^albert\.": "", f"^{SHARED_LAYER}": "albert_layer.", r"^encoder\.": ""}


def renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    """Return the tensors under the names that a table of regular expressions gives."""
    return {new_name(name, names): tensor for name, tensor in tensors.items()}


def new_name(name: str, names: Mapping[str, str]) -> str:
    """Rename a tensor by a table of regular expressions, applied in order."""
    for pattern, replacement in names.items():
        name = re.sub(pattern, replacement, name)
    return name


def read_weights(source: str | Path, names: Mapping[str, str]) -> Tensors:
    """Read an encoder's tensors, named as published, `albert.*`, and then by `names`."""
    tensors = renamed(read_tensor_file(weight_file(source)), MODERN)
    if any(".attention.self.query." in name for name in tensors):
        path = find_file(source, "config.json")
        tensors = untied(tensors, as_albert(read_json(path)) if path else {})
    if not any(name.endswith("embedding_hidden_mapping_in.weight") for name in tensors):
        raise UserError(
            f"{source}: the weights are not ALBERT's, BERT's, RoBERTa's or ELECTRA's; their first "
            f"tensors are {', '.join(sorted(tensors)[:4])}"
        )
    return renamed(tensors, {r"^(embeddings|encoder|pooler)\.": r"albert.\1.", **names})


def untied(tensors: Tensors, values: Mapping[str, Any]) -> Tensors:
    """Name an encoder's tensors as those of the ALBERT that `values`, by `as_albert`, describe."""
    kind = str(values.get("model_type"))
    tensors = renamed(tensors, {**FAMILIES.get(kind, FAMILIES["bert"]), **LAYER_NAMES})
    size = tensors.get("embeddings.word_embeddings.weight", torch.empty(0, 0)).shape[1]
    identity = {f"{MAPPING}.weight": torch.eye(size), f"{MAPPING}.bias": torch.zeros(size)}
    positions = "embeddings.position_embeddings.weight"
    if kind in SKIP_PADDING and positions in tensors:
        # No token has the rows before: ours count from 0.
        tensors[positions] = tensors[positions][values["pad_token_id"] + 1 :]
    return identity | tensors


def read_tensor_file(path: Path) -> Tensors:
    """Read a .safetensors or .bin file. A .bin is read as tensors only: no code is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds something other than tensors, which could run code: refused. "
            "Ask its author for a safetensors file"
        ) from error
    except Exception as error:  # what is not a checkpoint fails in every way there is
        raise UserError(f"{path} is damaged or not a checkpoint: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(x, Tensor) for x in loaded.values()):
        raise UserError(f"{path} is not a state dict (tensors by name)")
    return loaded


@dataclass
class LoadReport:
    """Fate of a checkpoint's tensors.

    Attributes:
        source: the folder or hub name.
        loaded: names of the tensors that the model has from there.
        ignored: names of those that the model has no use for.
        initialised: names of the model's tensors that are new.
    """

    source: str
    loaded: list[str]
    ignored: list[str]
    initialised: list[str]

    def lines(self) -> list[str]:
        """Three lines for the user."""
        return [
            f"Weights loaded from {self.source}: {len(self.loaded)} tensors",
            f"Weights ignored: {abbreviate(self.ignored)}",
            f"Weights newly initialised: {abbreviate(self.initialised)}",
        ]


def abbreviate(names: Iterable[str]) -> str:
    """List the first six names in order, and the number of the others."""
    ordered = sorted(names)
    rest = f" and {len(ordered) - 6} more" if len(ordered) > 6 else ""
    return (", ".join(ordered[:6]) or "none") + rest


def load_model(
    model_class: type[Model],
    source: str | Path,
    config: AlbertConfig | None = None,
    other_task: bool = False,
    **keys: Any,
) -> tuple[Model, LoadReport]:
    """Build a model with a checkpoint's weights; return it and what was loaded.

    Args:
        model_class: of any mode.
        source: a directory or a hub name.
        config: by default the source's own.
        other_task: the source was fine-tuned on another task, so its `task_parts` are left out.
        keys: without `config`, what replaces the source's own: exit_thres=0.3. Another num_labels
            is another task.

    Raises:
        UserError: weights are missing, damaged, or of another shape than the configuration's.
    """
    folder = local_folder(source)
    config_class = cast(type[AdaptiveConfig], model_class.config_class)
    config = config or load_config(folder, config_class, **keys)
    if keys:
        stored = load_config(folder, config_class)
        other_task |= config.num_labels != stored.num_labels
    with torch.device("meta"):
        outline = model_class(config)
    tensors = checkpoint_for(outline, folder)
    load_checkpoint(outline, tensors, folder, other_task)  # fails before memory is taken
    model = model_class(config)
    return model, load_checkpoint(model, tensors, folder, other_task)


def load_trained_model(source: str | Path, config: AlbertConfig | None = None) -> Any:
    """Load the trained model of any mode in a folder, in eval mode.

    config: in place of the folder's own. Raises UserError for weights that no task has trained.
    """
    # HF's annotation knows its own configurations only.
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


def checkpoint_for(model: AlbertPreTrainedModel, folder: str | Path) -> Tensors:
    """Read a checkpoint's tensors under the names of a model of any mode."""
    tensors = read_weights(folder, {})
    head = tensors.get("classifier.weight")
    if head is not None and len(head) != model.config.num_labels:
        tensors = renamed(tensors, {r"^classifier\.": "other_classifier."})
    return renamed(tensors, model.tensor_names)


def load_checkpoint(
    model: AlbertPreTrainedModel, tensors: Tensors, folder: str | Path, other_task: bool = False
) -> LoadReport:
    """Copy into `model` what `checkpoint_for` read in `folder`, as `load_into`.

    other_task: leave out the parts that belong to one task.
    """
    unwanted = model.task_parts if other_task else ()
    return load_into(model, tensors, folder, model.new_parts, unwanted)


def load_into(
    model: PreTrainedModel,
    tensors: Tensors,
    source: str | Path,
    heads: tuple[str, ...],
    unwanted: tuple[str, ...] = (),
) -> LoadReport:
    """Copy into `model` the tensors that it has; return the fate of each.

    heads: prefixes of the names that a checkpoint may lack: these stay newly initialised.
    unwanted: prefixes of the names that are left out even so.

    Raises UserError for tensors of another shape than the model's, NaN or missing.
    """
    wanted = model.state_dict()
    tied: dict[str, str] = model.all_tied_weights_keys
    for name in tied.keys() - tensors:
        del wanted[name]  # it is also there under another name
    loaded = [name for name in wanted if name in tensors and not name.startswith(unwanted)]
    ignored = [name for name in tensors if name not in loaded]
    initialised = [name for name in wanted if name not in loaded]
    for name in loaded:
        tensor = tensors[name]
        shape, expected = tuple(tensor.shape), tuple(wanted[name].shape)
        if shape != expected:
            raise UserError(
                f"{source}: {name} has shape {shape}, the configuration asks for {expected}; "
                "is the config.json of another model, or the task one of another number of labels?"
            )
        # As the model will hold it: 1e300 is infinite there.
        if not tensor.is_floating_point() or not tensor.float().isfinite().all():
            raise UserError(
                f"{source}: {name} is {tensor.dtype} and not floating-point, or holds NaN or "
                "infinite weights, so no answer would mean anything: take another checkpoint"
            )
    missing = [name for name in initialised if not name.startswith(heads)]
    if missing:
        raise UserError(
            f"{source}: no weights for {abbreviate(missing)}, which the configuration asks for; "
            "compare num_hidden_groups and inner_group_num with the checkpoint's own config.json"
        )
    with torch.no_grad():
        for name in loaded:
            wanted[name].copy_(tensors[name])
    return LoadReport(str(source), loaded, ignored, initialised)
