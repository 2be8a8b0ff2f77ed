"""The rows of tables, answered by a trained model: what is read of a row, and what is added."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elbert.classifier import Answer, Classifier, Text
from glue.custom import split_column_names
from glue.tables import Record, require_columns, text_cells
from glue.tasks import TWO_SENTENCES, get_task
from modeling.configuration import AdaptiveConfig
from modeling.errors import UserError
from modeling.exit_settings import resolve
from modeling.keys import keys_of
from modeling.loading.configs import label_names, mode_in
from runs.provenance import training_flags
from runs.settings import ModeSettings

from .drift import read_reference
from .table_settings import ColumnSettings, ModelSettings


class Scorer:
    """A trained model that answers the rows of tables.

    Attributes:
        classifier: the model.
        rule: its exit keys, and the source of each, in one line.
        keeps_quotes: whether quotes in a TSV are part of the text, as in those of its training.
        text_columns: names of the columns with the text, or the pair of texts.
        added: the columns that it adds, each with its type as pyarrow spells it.

    Raises:
        UserError: there is no such model, a key or column name is wrong, or the exit rule does not
            read a key.
    """

    def __init__(self, model: ModelSettings, columns: ColumnSettings) -> None:
        folder = Path(model.model_dir)
        keys, self.rule = exit_keys(folder, model.set)
        self.batch_size = model.batch_size
        self.classifier = Classifier(
            folder,
            dtype=model.dtype,
            device="cpu" if model.onnx else model.device,
            onnx=model.onnx,
            long_texts=model.long_texts,
            stop_score=model.stop_score,
            compile=model.torch_compile,
        )
        self.config: Any = self.classifier.config
        self.config.update(keys)
        idle_keys = self.config.idle_keys(keys)
        if idle_keys:
            raise UserError(
                f"--set {idle_keys[0]} has no effect: the exit rule of {folder} reads "
                f"{', '.join(self.config.keys_read())}"
            )
        self.all_scores = columns.all_scores and self.config.label_count > 1
        self.prefix = columns.prefix
        self.labels = label_names(self.config)
        self.stated_columns = text_columns(columns.text_column_names)
        self.text_columns = self.stated_columns or trained_columns(folder)
        # Only a task of GLUE is trained by its name.
        self.keeps_quotes = bool(training_flags(folder).get("task_name"))
        self.abstain_below = abstain_score(columns.abstain_below, folder, self.config)
        self.abstained = 0  # rows so far
        # An ONNX file has no input for some keys: its error should come before the work.
        self.added = self.column_types(self.classifier("a text"))

    def column_types(self, answer: Answer) -> dict[str, str]:
        """Return the type of each added column, as pyarrow spells it."""
        types = {
            "label": "string",
            "labels": "list<string>",
            "score": "double",
            "scores": "list<double>",
            "exit_layer": "int64",
            "updates": "double",
            "windows": "int64",
        }
        added = {self.prefix + name: types[name] for name in answer}
        if self.all_scores:
            added.update({self.score_column(label): "double" for label in self.labels})
        return added

    def score_column(self, label: str) -> str:
        """Return the name of the column with the probability of a class."""
        return f"{self.prefix}probability of {label}"

    def schema(self) -> Any:
        """Return the added columns and their types, a pyarrow Schema."""
        import pyarrow

        lists = {
            "list<string>": pyarrow.list_(pyarrow.string()),
            "list<double>": pyarrow.list_(pyarrow.float64()),
        }
        fields = [(name, lists.get(kind, kind)) for name, kind in self.added.items()]
        return pyarrow.schema(fields)

    def choose_columns(self, path: Path, columns: Sequence[str]) -> None:
        """Settle which columns of a table are read.

        Raises UserError for a column that is missing, stands twice, or would be added once more.
        """
        if not self.stated_columns and self.text_columns == TWO_SENTENCES:
            has_second = TWO_SENTENCES[1] in columns
            self.text_columns = TWO_SENTENCES if has_second else TWO_SENTENCES[:1]
        require_columns(path, columns, [*self.text_columns, *columns])
        taken = [name for name in self.added if name in columns]
        if taken:
            raise UserError(
                f"{path} already has a column {taken[0]!r}: give --prefix, such as --prefix "
                "predicted_, for the names of the added columns"
            )

    def text_of(self, place: str, record: Record) -> Text:
        """Return the text of a row, or its pair; raises UserError, with the place, for none."""
        cells = text_cells({name: record.get(name) for name in self.text_columns})
        for name in self.text_columns:
            if name not in cells:
                raise UserError(f"{place}: no text in column {name!r}")
        texts = [cells[name] for name in self.text_columns]
        return texts[0] if len(texts) == 1 else (texts[0], texts[1])

    def add_answers(self, records: Sequence[Record], texts: Sequence[Text]) -> list[Record]:
        """Return rows with the answers to their texts."""
        top_k = None if self.all_scores else 1
        answers = self.classifier(list(texts), self.batch_size, top_k)
        return [
            {**record, **self.cells(answer)}
            for record, answer in zip(records, answers, strict=True)
        ]

    def cells(self, answer: Answer) -> Record:
        """Return an answer as the cells of the added columns."""
        classes = answer.pop("classes", [])
        if self.abstain_below is not None and answer["score"] < self.abstain_below:
            answer["label"] = None
            self.abstained += 1
        cells = {self.prefix + name: value for name, value in answer.items()}
        if self.all_scores:
            scores = {entry["label"]: entry["score"] for entry in classes}
            cells.update({self.score_column(label): scores[label] for label in self.labels})
        return cells


def abstain_score(text: str | None, folder: Path, config: AdaptiveConfig) -> float | None:
    """Return the score of --abstain_below; None where the flag is not given.

    Raises UserError for what is neither a probability nor a share, for a share without a reference,
    and for a model whose texts do not have one class each.
    """
    if text is None:
        return None
    if config.label_count < 2 or config.is_multi_label:
        raise UserError("--abstain_below needs a model whose texts have one class each")
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if text.endswith("%") and 0 <= value < 100:
        return read_reference(folder, config).score_at(value / 100)
    if not 0 <= value <= 1:
        raise UserError(
            f"--abstain_below {text}: allowed is a probability from 0 to 1, or a share as 5%"
        )
    return value


def exit_keys(folder: Path, assignments: list[str]) -> tuple[dict[str, Any], str]:
    """Read the exit keys of --set for the model in `folder`.

    Returns them, and the whole rule as one line.
    """
    mode = mode_in(folder)
    settings = ModeSettings(model_type=mode, set=assignments)
    settings.check()
    settings.check_trained()
    keys = settings.keys
    rule = resolve(folder, keys_of(mode), keys)
    return {name: rule.values[name] for name in keys.values}, rule.line()


def text_columns(flag: str | None) -> tuple[str, ...]:
    """Return the columns that --text_column_names names; () where it is not given."""
    return split_column_names(flag) if flag else ()


def trained_columns(folder: Path) -> tuple[str, ...]:
    """Return the columns of texts that a model was trained on, as far as its folder tells."""
    flags = training_flags(folder)
    stated = text_columns(flags.get("text_column_names"))
    if stated:
        return stated
    task_name = flags.get("task_name")
    return get_task(task_name).text_columns if task_name else TWO_SENTENCES
