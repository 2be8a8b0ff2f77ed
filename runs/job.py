"""A trained model opened for a data set: what is evaluated, swept, exported."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AlbertConfig, PreTrainedTokenizerBase

from elbert.albert import AlbertPreTrainedModel
from elbert.configuration import ElbertConfig, config_class_of
from elbert.cpu_packing import DTYPES, cast_layers, dtype_of
from elbert.loading.configs import load_config, mode_in, trained_labels
from elbert.loading.tokenizers import load_tokenizer
from elbert.loading.weights import load_trained_model
from elbert.onnx_file import OnnxFile
from elbert_base.errors import UserError
from elbert_base.exit_settings import NOTHING, KeyValues, resolve
from elbert_base.keys import keys_of
from elbert_base.runtime import environment
from glue.custom import custom_task
from glue.features import Features, encode
from glue.tables import read_lines
from glue.tasks import Split, Task, get_task
from runs.folder import UsedFiles
from runs.provenance import Provenance, provenance
from runs.settings import DataSettings, DevSettings


@dataclass(frozen=True)
class Origin:
    """What a result belongs to, and how it was computed."""

    provenance: Provenance = field(default_factory=partial(provenance, {}))
    # Of each exit key: a file, a flag.
    rule_sources: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""  # of the matrix products
    onnx: Mapping[str, str] = field(default_factory=dict)  # of a file: its path, the runtime
    environment: Mapping[str, str] = field(default_factory=dict)  # processor, threads, versions

    def as_json(self) -> dict[str, Any]:
        """Give what is known, by the names that eval_results.json has."""
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
    """A trained model and a data set, tokenised for it."""

    model: AlbertPreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task
    features: Features
    batch_size: int = 1  # never pads; larger ones give the same answers
    file: OnnxFile | None = None  # answers in place of the model, which it was exported from
    origin: Origin = field(default_factory=Origin)  # of its results
    used: UsedFiles | None = None  # of which a change makes its results untrue

    @property
    def config(self) -> Any:
        """The configuration of the model, of its mode's class."""
        return self.model.config

    def check_unchanged(self) -> None:
        """Raise UserError where what the job was made from was changed since."""
        if self.used:
            self.used.check()

    def in_type(self, dtype: str) -> "Job":
        """Give the job in the number type of --dtype, with a copy of the model; its origin says so.

        An exported file keeps its own type.
        """
        model, device = self.model, self.model.device
        onnx = {}
        if self.file:
            name = self.file.dtype
            onnx = self.file.about
            device = torch.device("cpu")
        else:
            layer_type = dtype_of(dtype, device)
            name = next(name for name, known in DTYPES.items() if known == layer_type)
            if layer_type != torch.float32:
                model = copy.deepcopy(model)
                cast_layers(model, layer_type)
        origin = replace(self.origin, dtype=name, onnx=onnx, environment=environment(device))
        return replace(self, model=model, origin=origin)


def find_task(data: DevSettings, trained: Path | None) -> Task:
    """Find the GLUE task, or make the user's own from its files.

    trained: the folder of a trained model, whose labels the user's task gets. The first line of a
    title.txt beside a task's files says what figures call them. Raises UserError where flags are
    missing, or the model was trained for another kind of labels.
    """
    files: dict[str, str | None] = {"dev": data.validation_file}
    if isinstance(data, DataSettings):
        files = {"train": data.train_file, **files, "test": data.test_file}
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
    several = bool(data.label_separator) or "," in (data.label_column_name or "")
    if trained and load_config(trained).is_multi_label != several:
        raise UserError(
            f"{trained} was trained for {'one label' if several else 'several labels'} an example; "
            "--label_separator, or several columns in --label_column_name, mean several"
        )
    return custom_task(
        files,
        labels=labels,
        text_columns=data.text_column_names,
        label_column=data.label_column_name,
        separator=data.label_separator,
    )


def load_finished(directory: Path, keys: KeyValues | None = None) -> Any:
    """Load a trained model of any mode, in eval mode, with the exit `keys` or its own.

    Raises UserError if it is not a trained model.
    """
    config_class = config_class_of(mode_in(directory)) or ElbertConfig
    return load_trained_model(directory, load_config(directory, config_class, keys))


def check_vocab_size(tokenizer: PreTrainedTokenizerBase, source: str, config: AlbertConfig) -> None:
    """Raise UserError for a tokenizer, from `source`, with pieces that have no embeddings."""
    pieces = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0))
    if pieces > config.vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {pieces} pieces, vocab_size is {config.vocab_size}"
        )


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
    keys: KeyValues = NOTHING,
    onnx: str | None = None,
    batch_size: int = 1,
) -> Job:
    """Load the model that was trained on `task` in `directory`, and a split to run it on.

    Args:
        split: of the task, or of its second half.
        data: says where texts are cut, and how many dev examples are read.
        seed: of the numbers that examples bring.
        flags: all of the command's, for the provenance of its results.
        keys: exit keys of flags, over those of the folder.
        onnx: a file exported from the model, which answers in its place.

    Raises UserError for a model of another task, a tokenizer or length that does not fit it, and
    for whatever is wrong with the data.
    """
    used = UsedFiles(directory, split.path, *([onnx] if onnx else []))
    resolved = resolve(directory, keys_of(mode_in(directory)), keys)
    model = load_finished(directory, resolved)
    check_trained_on(directory, task, model.config)
    tokenizer = load_tokenizer(directory, do_lower_case)
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
        file=OnnxFile(onnx, model.config, used.weights) if onnx else None,
        origin=Origin(
            provenance=provenance(flags, weights=used.weights, data=features.digest()),
            rule_sources=resolved.sources,
        ),
        used=used,
    )
