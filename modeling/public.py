"""The public names of the package; importing them makes all modes known to transformers.

`classify` answers texts with a trained model of any mode.
"""

# ruff: noqa: F401

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .act.heads import (
    AlbertActConfig,
    AlbertActForMaskedLM,
    AlbertActForMultipleChoice,
    AlbertActForPreTraining,
    AlbertActForQuestionAnswering,
    AlbertActForSequenceClassification,
    AlbertActForTokenClassification,
    AlbertActModel,
    AlbertActModelOutput,
    AlbertActOutput,
)
from .cpu_packing import packed_weights
from .depth import EarlyExitModel, EarlyExitOutput
from .depth_batching import DepthBatcher
from .elbert.model import ElbertConfig, ElbertForSequenceClassification
from .errors import UserError
from .loading.configs import load_config, mode_in
from .loading.files import local_folder
from .loading.tokenizers import load_tokenizer
from .loading.weights import abbreviate, load_model
from .losses import PonderClassificationLoss
from .pipelines import EarlyExitPipeline, depth_of
from .ponder.model import (
    PonderAlbertClassifier,
    PonderAlbertConfig,
    PonderAlbertForSequenceClassification,
    PonderOutput,
    with_halting_token,
)
from .ponder.pondernet import (
    ParityDataset,
    ParityPonderGRU,
    PonderNet,
    ReconstructionLoss,
    RegularizationLoss,
)
from .ponder.rules import GeneralizedGeometricDist
from .rules import ExitRule, exit_scores, scan, scan_answers

# A mode's model and a report of its weights, from any checkpoint that fits it; see `load_model`.
load_pretrained = partial(load_model, ElbertForSequenceClassification)
load_ponder = partial(load_model, PonderAlbertClassifier)
load_act = partial(load_model, AlbertActForSequenceClassification)

CLASSES = {
    "elbert": ElbertForSequenceClassification,
    "ponder_albert": PonderAlbertForSequenceClassification,
    "albert_act": AlbertActForSequenceClassification,
}


class Classifier:
    """A trained model of any mode and its tokenizer; called with texts, it answers as `classify`.

    Raises UserError if there is no model of this project in `source`, a folder or a hub name.
    """

    def __init__(self, source: str | Path, max_length: int = 128) -> None:
        folder = local_folder(source)
        model, report = load_model(CLASSES[mode_in(folder)], folder)
        if new := [name for name in report.initialised if name != "exit_weights"]:
            raise UserError(
                f"{source} is not a trained model of this project: no {abbreviate(new)}"
            )
        self.model, self.tokenizer = model.eval(), load_tokenizer(folder)
        self.max_length = max_length

    def __call__(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], batch_size: int = 32
    ) -> list[dict[str, Any]]:
        pairs = [tuple(text) if not isinstance(text, str) else text for text in texts]
        encoded = self.tokenizer(
            pairs, truncation=True, max_length=self.max_length, return_token_type_ids=True
        )
        ids, types = map(list, (encoded["input_ids"], encoded["token_type_ids"]))
        if isinstance(self.model, AlbertActForSequenceClassification):
            return self.by_batches(ids, types, batch_size)
        if isinstance(self.model, PonderAlbertClassifier):
            ids, types = ([row[:1] + row for row in rows] for rows in (ids, types))
        batcher = DepthBatcher(self.model, batch_size, pad_token_id=self.tokenizer.pad_token_id)
        batcher.submit(zip(ids, types, strict=True))
        answers: list[dict[str, Any]] = [{} for _ in ids]
        with packed_weights(self.model):
            for row, logits, exit_layer, _ in batcher.answers():
                answers[row] = {**self.answer(logits), "exit_layer": exit_layer}
        return answers

    def answer(self, logits: torch.Tensor) -> dict[str, Any]:
        """Say what an example's logits, (num_labels,), mean."""
        score, number = exit_scores(logits).max(-1)
        if self.model.config.num_labels == 1:
            return {"score": float(score)}
        return {"label": self.model.config.id2label[int(number)], "score": float(score)}

    def by_batches(self, ids: list, types: list, batch_size: int) -> list[dict[str, Any]]:
        """Answer with Adaptive Depth, whose examples all run to the last layer."""
        answers: list[dict[str, Any]] = [{} for _ in ids]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        with packed_weights(self.model):
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                texts = {"input_ids": [ids[i] for i in rows]}
                texts["token_type_ids"] = [types[i] for i in rows]
                out = self.model(**self.tokenizer.pad(texts, return_tensors="pt"))
                for row, logits, updates in zip(rows, out.logits, out.updates, strict=True):
                    answers[row] = {**self.answer(logits), **depth_of({"updates": updates})}
        return answers


def classify(
    source: str | Path,
    texts: Sequence[str] | Sequence[tuple[str, str]],
    batch_size: int = 32,
    max_length: int = 128,
) -> list[dict[str, Any]]:
    """Classify texts, or pairs of texts, with early exit; longer ones are cut.

    To keep the model loaded, make a `Classifier(source, max_length)` and call it.

    Args:
        source: the folder of a trained model of any mode, or a hub name.
        texts: in any order; no answer depends on the others.
        batch_size: how many texts share a layer pass; they may be at different depths.

    Returns:
        For each text, in the order given: its `label` and that class's probability as `score`, or
        for a model of values the value as `score`; and its `exit_layer`, 1-based, or of Adaptive
        Depth `updates`, the mean of its tokens.

    Raises:
        UserError: there is no model of this project in `source`.
    """
    return Classifier(source, max_length)(texts, batch_size)
