"""Reading a checkpoint's tensors, and copying them into a model.

A source is a directory or a hub name holding an HF ALBERT (bare or with any head), an ELBERT
checkpoint of the published code or of this suite, or a BERT.
"""

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AlbertConfig

from ..errors import UserError
from .configs import load_config
from .files import local_folder, weight_files
from .names import Tensors


def read_weights(source: str | Path) -> Tensors:
    """Read all tensors of a checkpoint by name; raises UserError when there are none."""
    tensors: Tensors = {}
    for path in weight_files(source):
        tensors.update(read_tensor_file(path))
    return tensors


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
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and is_dense(tensor) for name, tensor in loaded.items()
    ):
        raise UserError(f"{path} is not a state dict (dense tensors by name)")
    return dict(loaded)


def is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta


def read_renamed(rename: Callable[[Tensors], Tensors], source: str | Path) -> Tensors:
    """Read a checkpoint's tensors under the names that `rename` gives; errors name the source."""
    try:
        return rename(read_weights(source))
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


@dataclass
class LoadReport:
    """What became of a checkpoint's tensors, by name."""

    source: str
    loaded: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    initialised: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Three lines for the user."""
        return [
            f"Weights loaded from {self.source}: {len(self.loaded)} tensors",
            f"Weights ignored: {abbreviate(self.ignored)}",
            f"Weights newly initialised: {abbreviate(self.initialised)}",
        ]


def abbreviate(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (", ".join(names[:6]) or "none") + more


class LoadableModel(Protocol):
    """What `load_model` asks of a model's class.

    new_parts: prefixes of the names that a checkpoint may lack: they stay newly initialised.
    task_parts: prefixes of the names that belong to one task.
    rename_tensors: names a checkpoint's tensors as the model does.
    """

    config_class: ClassVar[type[AlbertConfig]]
    new_parts: ClassVar[tuple[str, ...]]
    task_parts: ClassVar[tuple[str, ...]]

    def rename_tensors(self, tensors: Tensors) -> Tensors: ...


Model = TypeVar("Model", bound=LoadableModel)


def load_model(
    model_class: type[Model],
    source: str | Path,
    config: AlbertConfig | None = None,
    other_task: bool = False,
) -> tuple[Model, LoadReport]:
    """Build a model with a checkpoint's weights; return it and what was loaded.

    Args:
        source: a directory or a hub name.
        config: by default the source's own.
        other_task: the source was fine-tuned on another task, so its `task_parts` are left out.

    Raises:
        UserError: weights are missing, damaged, or of another shape than the configuration's.
    """
    folder = local_folder(source)
    model = model_class(config or load_config(folder, model_class.config_class))
    tensors = read_renamed(model.rename_tensors, folder)
    unwanted = model.task_parts if other_task else ()
    return model, load_into(model, tensors, source, model.new_parts, unwanted)


WEIGHT_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_numbers(source: str | Path, name: str, tensor: torch.Tensor) -> None:
    """Raise UserError, naming the tensor, for what would give answers that mean nothing."""
    if tensor.dtype not in WEIGHT_TYPES:
        raise UserError(
            f"{source}: {name} is {tensor.dtype}; allowed are "
            f"{', '.join(map(str, WEIGHT_TYPES))}: convert the checkpoint"
        )
    if not tensor.float().isfinite().all():  # as the model will hold it: 1e300 is infinite there
        raise UserError(
            f"{source}: {name} holds NaN or infinite weights, so no answer would mean anything; "
            "its training failed, or the file was changed: take another checkpoint"
        )


def load_into(
    model: nn.Module,
    tensors: Tensors,
    source: str | Path,
    heads: tuple[str, ...],
    unwanted: tuple[str, ...] = (),
) -> LoadReport:
    """Copy into `model` the tensors that it has; return what became of them.

    heads: prefixes of the names that a checkpoint may lack: these stay newly initialised.
    unwanted: prefixes of the names that are left out even so.

    Raises UserError for tensors of another shape than the model's, NaN or missing.
    """
    wanted = model.state_dict()
    report = LoadReport(str(source))
    report.loaded = [n for n in wanted if n in tensors and not n.startswith(unwanted)]
    report.ignored = [name for name in tensors if name not in report.loaded]
    report.initialised = [name for name in wanted if name not in report.loaded]
    for name in report.loaded:
        found, expected = tuple(tensors[name].shape), tuple(wanted[name].shape)
        if found != expected:
            raise UserError(
                f"{source}: {name} has shape {found}, the configuration asks for {expected}; "
                "is the config.json of another model, or the task one of another number of labels?"
            )
        check_numbers(source, name, tensors[name])
    lost = [name for name in report.initialised if not name.startswith(heads)]
    if lost:
        raise UserError(
            f"{source}: no weights for {abbreviate(lost)}, which the configuration asks for; "
            "compare num_hidden_groups and inner_group_num with the checkpoint's own config.json"
        )
    with torch.no_grad():
        for name in report.loaded:
            wanted[name].copy_(tensors[name])
    return report
