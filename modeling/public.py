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
from .keys import mode_name
from .loading.configs import load_config
from .loading.files import find_file, local_folder, read_json
from .loading.tokenizers import load_tokenizer
from .loading.weights import abbreviate, load_model
from .losses import PonderClassificationLoss
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


def classify(
    source: str | Path,
    texts: Sequence[str] | Sequence[tuple[str, str]],
    batch_size: int = 32,
    max_length: int = 128,
) -> list[dict[str, Any]]:
    """Classify texts, or pairs of texts, with early exit; longer ones are cut.

    Args:
        source: the folder of a trained model of any mode, or a hub name.
        texts: in any order; neighbours in length share a batch, and no answer depends on it.

    Returns:
        For each text, in the order given: its `label` and that class's probability as `score`, or
        for a model of values the value as `score`; and its `exit_layer`, 1-based, or of Adaptive
        Depth `updates`, the mean of its tokens.

    Raises:
        UserError: there is no model of this project in `source`.
    """
    folder = local_folder(source)
    path = find_file(folder, "config.json")
    kind = mode_name(read_json(path).get("model_type") if path else None)
    model, report = load_model(CLASSES[kind], folder)
    if new := [name for name in report.initialised if name != "exit_weights"]:
        raise UserError(f"{source} is not a trained model of this project: no {abbreviate(new)}")
    model, tokenizer = model.eval(), load_tokenizer(folder)
    order = sorted(range(len(texts)), key=lambda row: len("".join(texts[row])))
    answers: list[dict[str, Any]] = [{} for _ in texts]
    how = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    with packed_weights(model), torch.inference_mode():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = tokenizer([texts[row] for row in rows], return_token_type_ids=True, **how)
            out = model(**batch)
            updates = out.updates.flatten(1) if kind == "albert_act" else None
            scores, numbers = exit_scores(out.logits).max(-1)
            for i, row in enumerate(rows):
                if model.config.num_labels > 1:
                    answers[row]["label"] = model.config.id2label[int(numbers[i])]
                answers[row]["score"] = float(scores[i])
                if updates is None:
                    answers[row]["exit_layer"] = int(out.exit_layer[i])
                else:
                    answers[row]["updates"] = float(updates[i][updates[i] > 0].mean())
    return answers
