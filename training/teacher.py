"""A teacher: a fine-tuned classifier whose answers, soft labels, another model learns from."""

import logging
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

from elbert.configuration import config_class_of
from elbert.cpu_packing import packed_copy
from elbert.depth import EarlyExitModel
from elbert.loading.tokenizers import load_tokenizer
from elbert.loading.weights import abbreviate, load_trained_model
from elbert_base.errors import UserError
from elbert_base.files import find_file, read_json, weights_hash
from glue.features import sorted_batches
from glue.tasks import Example, Split, Task
from runs.console import progress
from runs.files import RunFolder, fingerprint

logger = logging.getLogger(__name__)

BATCH_SIZE = 32


def unlabelled_examples(task: Task, path: str) -> Iterator[Example]:
    """Yield the texts of a table as examples of `task` whose label says that there is none: −100,
    which cross-entropy ignores, or NaN."""
    own = replace(task, folder="", files={"test": str(Path(path).absolute())})
    label = float("nan") if task.is_regression else -100
    for example in Split(own, "", "test").examples():
        yield example._replace(label=label)


@dataclass(frozen=True)
class Teacher:
    """A folder with any fine-tuned classifier that transformers can load, and its tokenizer."""

    folder: Path
    task: Task
    max_seq_length: int

    def order(self, theirs: Sequence[str]) -> list[int]:
        """The teacher's number of each of the task's labels, matched by name; UserError where the
        two have others. Where no name is shared, both are taken in their order, with a warning."""
        labels = self.task.labels or ("score",)
        known = {name.lower(): number for number, name in enumerate(theirs)}
        found = [known[label.lower()] for label in labels if label.lower() in known]
        strange = not found
        if len(theirs) != len(labels) or len(found) not in (0, len(labels)):
            raise UserError(
                f"--teacher {self.folder} answers {', '.join(theirs[:20])}; {self.task.name} has "
                f"{', '.join(labels[:20])}: give a model that was fine-tuned for this task"
            )
        if strange and self.task.labels:
            pairs = ", ".join(f"{a} as {b}" for a, b in zip(theirs, labels, strict=True))
            logger.warning("--teacher: its labels are taken in their order: %s", pairs)
        return list(range(len(labels))) if strange else found

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

    def answers(self, examples: Sequence[Example], accelerator: Accelerator) -> np.ndarray:
        """The logits of examples at full depth, (examples, labels) float32 in the task's order.

        Computed once: they stay in the teacher's folder, or where that cannot be written they are
        computed at every start, under a name that follows from its weights and the tokens.
        """
        model, tokenizer = self.load()
        names: Any = model.config.id2label
        order = self.order([names[number] for number in range(len(names))])
        longest = min(self.max_seq_length, tokenizer.model_max_length)
        if isinstance(model, EarlyExitModel):
            longest = min(longest, model.config.max_position_embeddings - model.config.extra_tokens)
        pairs = [(x.text_a,) if x.text_b is None else (x.text_a, x.text_b) for x in examples]
        encoded = tokenizer(
            *map(list, zip(*pairs, strict=True)), truncation=True, max_length=longest
        )
        found = fingerprint(weights_hash(self.folder), self.folder / "config.json", dict(encoded))
        path = self.folder / f"answers-{found[:16]}.safetensors"
        with accelerator.main_process_first():
            if path.exists():
                logger.info("The teacher's answers are read from %s", path)
                answers = load_file(path)["logits"]
            else:
                answers = self.compute(model.to(accelerator.device), tokenizer, encoded)
                with suppress(UserError):
                    content = save({"logits": answers}, {"fingerprint": found})
                    RunFolder(self.folder).write(path.name, lambda file: file.write(content))
        return np.ascontiguousarray(answers[:, order])

    @torch.inference_mode()
    def compute(self, model: Any, tokenizer: PreTrainedTokenizerBase, encoded: Any) -> np.ndarray:
        """Answer tokenised examples, in batches of neighbours in length."""
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        answers = np.empty((len(lengths), model.config.num_labels), np.float32)
        has_exits = isinstance(model, EarlyExitModel)
        options = {"output_all_exits": True} if has_exits else {}
        model = packed_copy(model)
        with progress(total=len(lengths), desc="Teacher", unit="example") as bar:
            for rows in sorted_batches(lengths, BATCH_SIZE):
                texts = {name: [column[row] for row in rows] for name, column in encoded.items()}
                batch = tokenizer.pad(texts, return_tensors="pt").to(model.device)
                out = model(**batch, **options)
                logits = out.all_logits[-1] if has_exits else out.logits
                answers[rows] = logits.float().cpu().numpy()
                bar.update(len(rows))
        return answers
