"""A teacher: a fine-tuned classifier whose answers, soft labels, another model learns from."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.numpy import load_file, save
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from glue.features import sorted_batches
from glue.splits import Example, Split
from glue.tasks import Task
from modeling.configuration import AdaptiveConfig, config_class_of
from modeling.cpu_packing import packed_copy
from modeling.depth import EarlyExitModel
from modeling.errors import UserError
from modeling.files import find_file, read_json, weights_hash
from modeling.labels import match_labels, shown
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import abbreviate, load_trained_model
from runs.console import progress
from runs.fingerprint import fingerprint
from runs.folder import RunFolder
from runs.job import names_for_task

logger = logging.getLogger(__name__)

BATCH_SIZE = 32


def unlabelled_examples(task: Task, path: str) -> Iterator[Example]:
    """Yield the texts of a table as examples of `task` without a label.

    Their label says so: −100, which cross-entropy ignores, or NaN for scores.
    """
    files = {"test": str(Path(path).absolute())}
    table = replace(task, folder="", files=files, label_column="")
    no_label = float("nan") if task.is_regression else -100
    for example in Split(table, "", "test").examples():
        yield example._replace(label=no_label)


@dataclass(frozen=True)
class Teacher:
    """Any fine-tuned classifier that transformers can load, for a task.

    Attributes:
        folder: of the model and its tokenizer.
        max_seq_length: tokens of an example that it reads, at most.
        labels_in_order: whether its labels, where none has a name of the task's, mean the task's
            in their order.
    """

    folder: Path
    task: Task
    max_seq_length: int
    labels_in_order: bool = False

    def answers(self, examples: Sequence[Example], accelerator: Accelerator) -> np.ndarray:
        """Return its logits for examples at full depth, (examples, labels) float32.

        The labels are in the task's order. Answers are computed once and kept in the teacher's
        folder, under a name that follows from its weights and the tokens; where the folder cannot
        be written, they are computed at every start.

        Raises UserError for a folder that holds no fine-tuned classifier of the task's labels.
        """
        model, tokenizer = self.load()
        id2label: Any = model.config.id2label
        order = self.label_order([id2label[number] for number in range(len(id2label))])
        encoded = self.tokenise(examples, model, tokenizer)
        key = fingerprint(weights_hash(self.folder), self.folder / "config.json", dict(encoded))
        path = self.folder / f"answers-{key[:16]}.safetensors"
        with accelerator.main_process_first():
            if path.exists():
                logger.info("The teacher's answers are read from %s", path)
                answers = load_file(path)["logits"]
            else:
                answers = self.compute(model.to(accelerator.device), tokenizer, encoded)
                with suppress(UserError):
                    content = save({"logits": answers}, {"fingerprint": key})
                    RunFolder(self.folder).write(path.name, lambda file: file.write(content))
        return np.ascontiguousarray(answers[:, order])

    def load(self) -> tuple[Any, PreTrainedTokenizerBase]:
        """Load model and tokenizer; UserError for a folder without either, or with a new head."""
        path = find_file(self.folder, "config.json")
        if path and config_class_of(read_json(path).get("model_type")):
            return load_trained_model(self.folder), load_tokenizer(self.folder)
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                self.folder, output_loading_info=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"--teacher {self.folder} cannot be loaded: {reason[:300]}") from error
        if missing := report["missing_keys"]:
            raise UserError(
                f"--teacher {self.folder} is not fine-tuned: no weights for {abbreviate(missing)}"
            )
        return model.eval(), tokenizer

    def label_order(self, teacher_labels: Sequence[str]) -> list[int]:
        """Return the teacher's number of each of the task's labels; see `match_labels`.

        Raises UserError for other labels than the task's.
        """
        if self.task.is_regression:
            if len(teacher_labels) > 1:
                raise UserError(
                    f"--teacher {self.folder} answers {shown(teacher_labels)}; {self.task.name} "
                    "has scores: give a model that was fine-tuned for this task"
                )
            return [0]
        path = find_file(self.folder, "config.json")
        return match_labels(
            self.task.labels,
            names_for_task(teacher_labels, self.task, read_json(path) if path else {}),
            wanted_by=self.task.name,
            given_by=f"--teacher {self.folder}",
            in_order=self.labels_in_order,
        )

    def tokenise(
        self, examples: Sequence[Example], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Any:
        """Tokenise examples, truncated to what the teacher and `max_seq_length` allow.

        Raises UserError for tokens, segments or padding that the teacher cannot read.
        """
        longest = min(self.max_seq_length, tokenizer.model_max_length, readable_tokens(model))
        if longest < self.max_seq_length:
            logger.info("--teacher reads %d tokens of an example at most", longest)
        has_pairs = examples[0].text_b is not None
        encoded = tokenizer(
            [example.text_a for example in examples],
            [example.text_b or "" for example in examples] if has_pairs else None,
            truncation=True,
            max_length=longest,
        )
        self.check_readable(encoded, model, tokenizer)
        return encoded

    def check_readable(self, encoded: Any, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise UserError where the model has no embedding for a token, a segment or padding."""
        config = model.config
        # Models that answer at a text's last token find it by the padding token.
        if None in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None)):
            raise UserError(
                f"--teacher {self.folder} has no padding token: name one in its config.json "
                "(pad_token_id) and its tokenizer_config.json (pad_token)"
            )
        largest_id = max([tokenizer.pad_token_id, *map(max, encoded["input_ids"])])
        if largest_id >= model.get_input_embeddings().num_embeddings:
            raise UserError(
                f"--teacher {self.folder}: its tokenizer gives the token {largest_id}, vocab_size "
                f"is {model.get_input_embeddings().num_embeddings}: give the tokenizer that it was "
                "trained with"
            )
        segments = getattr(config, "type_vocab_size", None)
        largest_segment = max(map(max, encoded.get("token_type_ids", [[0]])))
        if segments and largest_segment >= segments:
            raise UserError(
                f"--teacher {self.folder}: its tokenizer gives segment {largest_segment} to a "
                f"text, type_vocab_size is {segments}: give the tokenizer that it was trained with"
            )

    @torch.inference_mode()
    def compute(self, model: Any, tokenizer: PreTrainedTokenizerBase, encoded: Any) -> np.ndarray:
        """Answer tokenised examples in batches of neighbours in length: (examples, labels).

        encoded: the tokenizer's answer, lists of the examples' values by name.
        """
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        answers = np.empty((len(lengths), model.config.num_labels), np.float32)
        has_exits = isinstance(model, EarlyExitModel)
        model = packed_copy(model)
        with progress(total=len(lengths), desc="Teacher", unit="example") as bar:
            for rows in sorted_batches(lengths, BATCH_SIZE):
                texts = {name: [column[row] for row in rows] for name, column in encoded.items()}
                batch = tokenizer.pad(texts, return_tensors="pt").to(model.device)
                if has_exits:
                    logits = model(**batch, output_all_exits=True).all_logits[-1]
                else:
                    logits = model(**batch).logits
                answers[rows] = logits.float().cpu().numpy()
                bar.update(len(rows))
        return answers


def readable_tokens(model: Any) -> int:
    """Return how many tokens of a text a model has positions for."""
    config = model.config
    longest = getattr(config, "max_position_embeddings", None)
    if not longest:
        return sys.maxsize  # positions are relative
    longest -= getattr(config, "extra_tokens", 0)
    # RoBERTa's positions begin after that of padding.
    embeddings = getattr(model.base_model, "embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    padding = getattr(positions, "padding_idx", None)
    is_own = isinstance(config, AdaptiveConfig)
    return longest if padding is None or is_own else longest - padding - 1
