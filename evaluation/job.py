"""A trained model, a data set, and how the one is to run over the other."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AlbertConfig, PreTrainedModel, PreTrainedTokenizerBase

from evaluation.onnx_file import OnnxFile
from evaluation.settings import EvaluationSettings
from glue.custom import custom_task
from glue.features import Features
from glue.tables import read_lines
from glue.tasks import Task, get_task
from modeling.albert import cast_layers
from modeling.cpu_packing import DTYPES, dtype_of
from modeling.errors import UserError
from modeling.exit_settings import KeyValues
from modeling.loading.configs import load_config, trained_labels
from modeling.loading.files import UsedFiles, resolve_within
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import load_trained_model
from modeling.runtime import environment
from training.settings import DevSettings
from training.start import check_vocab_size

if TYPE_CHECKING:
    from evaluation.modes.base import Mode

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A model, its data and its settings."""

    mode: Mode
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    features: Features
    batch_size: int = 1  # never pads; larger ones give the same answers
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    file: OnnxFile | None = None  # answers in place of the model, which it was exported from
    origin: Mapping[str, Any] = field(default_factory=dict)  # for reports: `provenance`, …
    used: UsedFiles | None = None  # of which a change makes its results untrue

    def check_unchanged(self) -> None:
        """Raise UserError where what the job was made from was changed since."""
        if self.used:
            self.used.check()

    def for_inference(self) -> Job:
        """The job with a copy of the model in --dtype; its `origin` says so."""
        model, device = self.model, self.model.device
        if self.file:
            about, device = self.file.about, torch.device("cpu")
        else:
            dtype = dtype_of(self.evaluation.dtype, device)
            about = {"dtype": next(name for name, known in DTYPES.items() if known == dtype)}
            if dtype != torch.float32:
                model = copy.deepcopy(model)
                cast_layers(model, dtype)
        origin = {**self.origin, **about, "environment": environment(device)}
        return replace(self, model=model, origin=origin)


def results_folder(model: Path, suffix: str) -> Path:
    """Folder of an evaluation's results: that of the trained model, with `suffix` for the
    second half of a task."""
    # As text: "." has no name to add to.
    return Path(os.path.abspath(model) + suffix)


def statistics_folder(model: Path, config: AlbertConfig, task: Task) -> Path:
    """`my_out_dir`/model/task, in the model's folder; if it cannot be made, stat_out, or none."""
    for name in (Path(config.my_out_dir, config.model_name), Path("stat_out")):
        folder = model / name / task.name
        try:
            if resolve_within(model, folder.absolute()) is None:  # a foreign config.json or link
                raise OSError(None, f"leads out of {model}")
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        except OSError as error:
            used = "stat_out in the model's folder, or --statistics_dir FOLDER"
            logger.warning("my_out_dir %s: %s; instead: %s", name, error.strerror, used)
    return model


def find_task(data: DevSettings, trained: Path | None) -> Task:
    """The GLUE task, or the user's own from its files, with the labels of a `trained` model.

    The first line of a title.txt beside a task's files says what figures call them."""
    names = {"train": "train_file", "dev": "validation_file", "test": "test_file"}
    files = {split: getattr(data, name, None) for split, name in names.items()}
    if not any(files.values()):
        if not data.task_name:
            raise UserError("--task_name is missing; give one of GLUE's, or a file of your own")
        if not data.data_dir:
            raise UserError("--data_dir is missing: the folder with the task's .tsv files")
        task, title = get_task(data.task_name), Path(data.folder, "title.txt")
        if title.is_file() and (first := next(read_lines(title), None)):
            return replace(task, title=first[1].strip()[:100])
        return task
    labels = trained_labels(trained) if trained else None
    columns = data.text_column_names, data.label_column_name, data.label_separator
    several = bool(data.label_separator) or "," in (data.label_column_name or "")
    if trained and load_config(trained).is_multi_label != several:
        raise UserError(
            f"{trained} was trained for {'one label' if several else 'several labels'} an example; "
            "--label_separator, or several columns in --label_column_name, mean several"
        )
    return custom_task(files, labels, *columns)


def load_finished(directory: Path, mode: Mode, keys: KeyValues | None = None) -> PreTrainedModel:
    """A model trained in `mode`, in eval mode, with the exit `keys` or its own.

    Raises UserError if it is not a trained model.
    """
    config = load_config(directory, mode.config_class, keys)
    return load_trained_model(mode.model_class, directory, config)


def load_trained(
    directory: Path,
    mode: Mode,
    task: Task,
    device: torch.device,
    do_lower_case: bool = True,
    keys: KeyValues | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A finished model on `device`, and its tokenizer; UserError for a model of another task."""
    model = load_finished(directory, mode, keys)
    # The published code leaves it null; the user's own files may be for any model.
    trained_on = getattr(model.config, "finetuning_task", None) or task.name
    own = not task.folder
    if not (own or trained_on == task.name) or model.config.num_labels != task.num_labels:
        raise UserError(
            f"{directory} was trained on {trained_on} ({model.config.num_labels} labels), not on "
            f"{task.name} ({task.num_labels} labels)"
        )
    tokenizer = load_tokenizer(directory, do_lower_case)
    check_vocab_size(tokenizer, str(directory), model.config)
    return model.to(device), tokenizer
