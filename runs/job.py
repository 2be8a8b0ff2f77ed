"""A trained model opened for a data set: what is evaluated, swept, exported."""

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AlbertConfig, PreTrainedTokenizerBase

from elbert.onnx_file import OnnxFile, find_onnx_file
from glue.custom import MULTI_LABEL, custom_task, join_column_names, task_type_of
from glue.features import Features, encode
from glue.metrics import with_scorer
from glue.splits import Split
from glue.tables import read_lines
from glue.tasks import TASKS, Task, get_task
from modeling.configuration import AdaptiveConfig, ElbertConfig, config_class_of
from modeling.cpu_packing import DTYPES, cast_layers, dtype_of
from modeling.encoder import AlbertPreTrainedModel
from modeling.errors import UserError
from modeling.exit_settings import (
    NO_KEYS,
    KeyValues,
    is_trained_here,
    named_file,
    resolve,
    warn_of_exit_file,
)
from modeling.files import file_hash, read_json
from modeling.keys import keys_of
from modeling.labels import are_placeholders, match_labels, shown
from modeling.loading.configs import label_names, load_config, mode_in, trained_labels
from modeling.loading.tokenizers import check_vocab_size, load_tokenizer
from modeling.loading.weights import load_trained_model
from modeling.runtime import environment
from runs.provenance import Provenance, provenance, training_file
from runs.settings import DataSettings, DevSettings
from runs.used_files import UsedFiles

logger = logging.getLogger(__name__)

# Exit keys that mean something else where a model's classes change places, and their values where
# they do not.
NO_ORDER = {"exit_calibration": [], "window_score": "lead"}


@dataclass(frozen=True)
class Origin:
    """What a result belongs to, and how it was computed.

    Attributes:
        provenance: command, flags, commit, versions, and the hashes of weights and data.
        rule_sources: where each exit key's value is written: a file, a flag, "default".
        dtype: number type of the matrix products: fp32, bf16 or fp16.
        onnx: of an ONNX file: its path, and the runtime.
        environment: processor, threads, versions.
    """

    provenance: Provenance = field(default_factory=partial(provenance, {}))
    rule_sources: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    onnx: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what is known, by the names that eval_results.json has."""
        values = {
            "rule_sources": dict(self.rule_sources),
            "provenance": self.provenance.as_json(),
            "dtype": self.dtype,
            **self.onnx,
            "environment": dict(self.environment),
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Job:
    """A trained model and a data set, tokenised for it.

    Attributes:
        batch_size: 1 never pads; larger ones give the same answers.
        max_length: number of tokens at which texts were cut; 0: unknown.
        file: an ONNX file, which answers in place of the model that it was exported from.
        compile: on a GPU, whether the layer passes of an evaluation are compiled.
        origin: of its results.
        used: the files that it was made from, which must not change before there are results.
    """

    model: AlbertPreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    features: Features
    batch_size: int = 1
    max_length: int = 0
    file: OnnxFile | None = None
    compile: bool = False
    origin: Origin = field(default_factory=Origin)
    used: UsedFiles | None = None

    @property
    def config(self) -> Any:
        """The configuration of the model, of its mode's class."""
        return self.model.config

    def check_unchanged(self) -> None:
        """Raise UserError where a file that the job was made from was changed since."""
        if self.used:
            self.used.check()

    def in_type(self, dtype: str) -> "Job":
        """Return the job in the number type of --dtype, which its origin then says.

        The model is a copy, unless the type is float32. An ONNX file keeps its own type, and
        runs on the CPU.
        """
        if self.file:
            origin = replace(
                self.origin,
                dtype=self.file.dtype,
                onnx=self.file.provenance,
                environment=environment(torch.device("cpu")),
            )
            return replace(self, origin=origin)
        device = self.model.device
        layer_type = dtype_of(dtype, device)
        model = self.model
        if layer_type != torch.float32:
            model = copy.deepcopy(model)
            cast_layers(model, layer_type)
        origin = replace(
            self.origin, dtype=dtype_name(layer_type), onnx={}, environment=environment(device)
        )
        return replace(self, model=model, origin=origin)


def dtype_name(layer_type: torch.dtype) -> str:
    """Return the name of a number type in --dtype: bf16 for torch.bfloat16."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    return names[layer_type]


# The task of a command's flags.


def find_task(data: DevSettings, trained: Path | None) -> Task:
    """Find the GLUE task that flags name, or make the user's own from its files.

    Its main metric is that of --metric_name, where need be of the class --positive_label.

    trained: the folder of a trained model, whose labels the user's task gets.

    Raises UserError where flags are missing, or the model was trained for another kind of labels.
    """
    return with_scorer(named_task(data, trained), data.metric_name, data.positive_label)


def named_task(data: DevSettings, trained: Path | None) -> Task:
    """Find or make the task of some flags, with its usual metric; see `find_task`."""
    files: dict[str, str | None] = {"dev": data.validation_file}
    if isinstance(data, DataSettings):
        # In this order: `custom_task` reads columns and labels from the first that there is.
        files = {"train": data.train_file, "dev": data.validation_file, "test": data.test_file}
    if not any(files.values()):
        return find_glue_task(data)
    if data.task_name:
        logger.warning("--task_name %s has no effect beside your own files", data.task_name)
    if trained:
        check_label_kind(data, trained)
    task = custom_task(
        files,
        labels=trained_labels(trained) if trained else None,
        text_columns=data.text_column_names,
        label_column=data.label_column_name,
        separator=data.label_separator,
        labels_in_order=data.labels_in_order,
        task_type=data.task_type,
        drop_incomplete=data.drop_incomplete_rows,
    )
    if trained and not data.text_column_names:
        check_text_count(task, trained)
    return task


def check_text_count(task: Task, trained: Path) -> None:
    """Raise UserError for single texts where a model was trained on a GLUE task of pairs, or so."""
    trained_on = TASKS.get(str(load_config(trained).finetuning_task))
    if trained_on and len(trained_on.text_columns) != len(task.text_columns):
        wanted = "pairs of texts" if len(trained_on.text_columns) > 1 else "single texts"
        raise UserError(
            f"{trained} was trained on {wanted} ({trained_on.name}); the file's columns are read "
            f"as {', '.join(task.text_columns)}; --text_column_names says which to read"
        )


def with_task(data: DataSettings, task: Task) -> DataSettings:
    """Return settings that say what a task of the user's own is, for the folder of its model.

    Another file is then read as this task, or refused.
    """
    if task.folder:
        return data
    return replace(
        data,
        task_name=None,
        data_dir=None,
        text_column_names=join_column_names(task.text_columns),
        task_type=task_type_of(task),
    )


def find_glue_task(data: DevSettings) -> Task:
    """Find the task of --task_name; raises UserError where it or its folder is missing.

    The first line of a title.txt beside the task's files, if any, says what figures call them.
    """
    if not data.task_name:
        raise UserError("--task_name is missing; give one of GLUE's, or a file of your own")
    if not data.data_dir:
        raise UserError("--data_dir is missing: the folder with the task's .tsv files")
    of_own_files = {
        "--text_column_names": data.text_column_names,
        "--label_column_name": data.label_column_name,
        "--label_separator": data.label_separator,
        "--task_type": data.task_type,
        "--drop_incomplete_rows": data.drop_incomplete_rows,
    }
    for flag, value in of_own_files.items():
        if value:
            raise UserError(f"{flag} is of your own files: leave it out with --task_name")
    task = get_task(data.task_name)
    title_file = Path(data.folder, "title.txt")
    if title_file.is_file():
        first_line = next(read_lines(title_file), None)
        if first_line:
            _, title = first_line
            return replace(task, title=title.strip()[:100])
    return task


def check_label_kind(data: DevSettings, trained: Path) -> None:
    """Raise UserError unless flags and the model agree: one label an example, or several."""
    has_columns = "," in (data.label_column_name or "")
    several = bool(data.label_separator) or has_columns or data.task_type == MULTI_LABEL
    if load_config(trained).is_multi_label != several:
        kind = "one label" if several else "several labels"
        raise UserError(
            f"{trained} was trained for {kind} per example; --label_separator, or several columns "
            "in --label_column_name, mean several labels"
        )


# Opening a trained model.


def load_finished(directory: Path, keys: KeyValues | None = None) -> Any:
    """Load a trained model of any mode, in eval mode, as the class of its mode.

    keys: exit keys to use in place of the folder's own.

    Raises UserError if the folder holds no trained model.
    """
    return load_trained_model(directory, load_own_config(directory, keys))


def load_own_config(directory: Path, keys: KeyValues | None = None) -> AdaptiveConfig:
    """Load the configuration of a trained model of any mode; see `load_finished`."""
    config_class = config_class_of(mode_in(directory)) or ElbertConfig
    return load_config(directory, config_class, keys)


def warn_of_changed_sources(directory: Path) -> None:
    """Warn of files that a training copied and that were edited since: the edit has no effect."""
    if not is_trained_here(directory):
        return
    copied = read_json(training_file(directory)).get("copied")
    for path, hash_then in (copied if isinstance(copied, dict) else {}).items():
        if os.path.isfile(path) and file_hash(path) != hash_then:
            logger.warning(
                "%s was changed since it was copied to %s: what was changed has no effect here",
                path,
                directory,
            )


def load_for_task(directory: Path, keys: KeyValues, task: Task, labels_in_order: bool) -> Any:
    """Load a trained model as `load_finished` does, with its classes in the order of a task's.

    labels_in_order: see `match_labels`.

    Raises UserError for a model of another task, or of other classes.
    """
    config = load_own_config(directory, keys)
    check_trained_on(directory, task, config)
    model = load_trained_model(directory, config)  # before labels: an untrained head has none
    if not task.folder or task.is_regression:
        return model  # `find_task` has matched the labels of the user's own task
    head_labels = names_for_task(label_names(config), task, read_json(directory / "config.json"))
    order = match_labels(
        task.labels,
        head_labels,
        wanted_by=task.name,
        given_by=str(directory),
        in_order=labels_in_order,
    )
    if order == sorted(order):
        return model
    for key, value in NO_ORDER.items():
        if getattr(config, key, value) != value:
            raise UserError(
                f"{directory} has the labels {shown(head_labels)}, {task.name} has "
                f"{shown(task.labels)}: the order cannot be changed, since {key} depends on it; "
                "train the model for the task"
            )
    config.id2label = dict(enumerate(task.labels))
    config.label2id = {label: number for number, label in enumerate(task.labels)}
    return load_trained_model(directory, config, head_labels)


def names_for_task(names: Sequence[str], task: Task, config: Mapping[str, Any]) -> list[str]:
    """Name a model's classes in the words of a task, where these are known.

    ELBERT's published code saves its models without names, and has GLUE's in their own order.

    config: the content of the model's config.json.
    """
    is_of_elbert = "thres_name" in config or config_class_of(config.get("model_type")) is not None
    is_complete = len(names) == len(task.labels)
    if task.folder and is_of_elbert and is_complete and are_placeholders(names):
        return list(task.labels)
    return task.in_own_words(names)


def check_trained_on(directory: Path, task: Task, config: AlbertConfig) -> None:
    """Raise UserError for a model that was trained on another task than `task`."""
    # The published code leaves it null; the user's own files may be for any model.
    trained_on = getattr(config, "finetuning_task", None) or task.name
    is_other_task = task.folder and trained_on != task.name
    if is_other_task or config.num_labels != task.num_labels:
        raise UserError(
            f"{directory} was trained on {trained_on} ({config.num_labels} labels), not on "
            f"{task.name} ({task.num_labels} labels)"
        )


def open_job(
    directory: Path,
    task: Task,
    split: Split,
    data: DevSettings,
    *,
    device: torch.device,
    do_lower_case: bool,
    seed: int,
    flags: Mapping[str, Any],
    keys: KeyValues = NO_KEYS,
    onnx: str | None = None,
    batch_size: int = 1,
) -> Job:
    """Load the model that was trained on a task, and a split of the task's data to run it on.

    Args:
        directory: the model's folder.
        task: what the model was trained on.
        split: of the task, or of its second half.
        data: says where texts are cut, and how many dev examples are read.
        device: of the model.
        do_lower_case: lower-case texts; otherwise the folder's tokenizer decides.
        seed: of the random numbers that examples bring (see `encode`).
        flags: all of the command's, for the provenance of its results.
        keys: exit keys of flags, which win over those of the folder.
        onnx: a file exported from the model, which answers in its place.
        batch_size: see `Job`.

    Raises UserError for a model of another task, a tokenizer or length that does not fit it, and
    for whatever is wrong with the data.
    """
    data_files = [split.path]
    onnx_path = find_onnx_file(directory, onnx) if onnx else None
    if onnx_path:
        data_files.append(onnx_path)
    if "exit_config_path" in keys.values:
        data_files.append(named_file(directory, keys.values["exit_config_path"], trusted=True))
    used = UsedFiles(directory, *data_files)
    resolved = resolve(directory, keys_of(mode_in(directory)), keys)
    exit_file = keys.values.get("exit_config_path")
    warn_of_exit_file(directory, lambda: used.model_hashes["weights"], exit_file)
    warn_of_changed_sources(directory)
    model = load_for_task(directory, resolved, task, data.labels_in_order)
    tokenizer = load_tokenizer(directory, do_lower_case or None)
    check_vocab_size(tokenizer, str(directory), model.config)
    model.config.check_length(data.max_seq_length)
    examples = split.examples(data.max_eval_samples if split.name == "dev" else None)
    features = encode(examples, tokenizer, data.max_seq_length, model.config, seed)
    return Job(
        model=model.to(device),
        tokenizer=tokenizer,
        task=split.task,
        features=features,
        batch_size=batch_size,
        max_length=data.max_seq_length,
        file=OnnxFile(onnx_path, model.config, used.model_hashes) if onnx_path else None,
        origin=Origin(
            provenance=provenance(flags, used.model_hashes, data=features.digest()),
            rule_sources=resolved.sources,
        ),
        used=used,
    )
