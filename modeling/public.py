"""The public names of the package; importing them makes all modes known to transformers.

`classify` answers texts with a trained model of any mode.
"""

# ruff: noqa: F401

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AlbertConfig,
    TextClassificationPipeline,
)
from transformers.utils import ModelOutput

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
from .albert import cast_layers
from .configuration import config_class_of
from .cpu_packing import StandIns, dtype_of, pack, packed_weights
from .depth import EarlyExitModel, EarlyExitOutput
from .depth_batching import DepthBatcher
from .elbert.model import ElbertConfig, ElbertForSequenceClassification
from .errors import UserError
from .loading.configs import load_config, mode_in
from .loading.files import local_folder, trained_length
from .loading.tokenizers import load_tokenizer
from .loading.weights import LoadReport, load_model, load_trained_model
from .losses import PonderClassificationLoss
from .ponder.distribution import GeneralizedGeometricDist
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
from .rules import ExitRule, exit_scores, scan, scan_answers
from .runtime import noticing_contention

Text = str | tuple[str, str]  # a text, or a pair
Answer = dict[str, Any] | list[dict[str, Any]]  # of one text; a list where `top_k` is given
Source = str | Path  # a folder, or a hub name
# Of a text that are read for each token: English has 4 or 5. HF's tokenizers take memory that grows
# with the product of a pair's lengths.
CHARACTERS = 16


def load_pretrained(
    source: Source, config: AlbertConfig | None = None, other_task: bool = False, **keys: Any
) -> tuple[ElbertForSequenceClassification, LoadReport]:
    """Load an ELBERT from any checkpoint that fits it; see `load_model`."""
    return load_model(ElbertForSequenceClassification, source, config, other_task, **keys)


def load_ponder(
    source: Source, config: AlbertConfig | None = None, other_task: bool = False, **keys: Any
) -> tuple[PonderAlbertClassifier, LoadReport]:
    """Load a ponder model from any checkpoint that fits it; see `load_model`."""
    return load_model(PonderAlbertClassifier, source, config, other_task, **keys)


def load_act(
    source: Source, config: AlbertConfig | None = None, other_task: bool = False, **keys: Any
) -> tuple[AlbertActForSequenceClassification, LoadReport]:
    """Load an Adaptive Depth model from any checkpoint that fits it; see `load_model`."""
    return load_model(AlbertActForSequenceClassification, source, config, other_task, **keys)


# The modes, by the models that scripts train; a mode's name is its configuration's model_type.
MODELS = (
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    AlbertActForSequenceClassification,
)


class Classifier:
    """A trained model of any mode and its tokenizer; called with texts, it answers as `classify`.

    max_length: longer texts are cut; None: as in the training, or at 128 tokens where the folder
    does not say. dtype: of its matrix products: fp32, bf16, fp16, or auto, which is bf16 where the
    processor has instructions for it. It is for inference: `model` may move to another device or
    type, but whoever trains it makes another classifier, as weights are packed at the first call.
    Threads that call it wait for each other.

    Raises UserError if there is no model of this project in `source`, a folder or a hub name.
    """

    def __init__(self, source: Source, max_length: int | None = None, dtype: str = "fp32") -> None:
        folder = local_folder(source)
        kind = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config_class_of(mode_in(folder))]
        self.model, self.tokenizer = load_trained_model(kind, folder), load_tokenizer(folder)
        cast_layers(self.model, dtype_of(dtype, self.model.device))
        self.stand_ins: StandIns = {}
        self.packed_at, self.lock = 0, Lock()
        config = self.model.config
        length = max_length or trained_length(folder, 128)
        self.max_length = min(length, config.max_position_embeddings - config.extra_tokens)

    def __call__(
        self, texts: Text | Sequence[Text], batch_size: int = 32, top_k: int | None = 1
    ) -> Answer | list[Answer]:
        if isinstance(texts, str):
            return self([texts], batch_size, top_k)[0]
        if not len(texts):
            return []
        with self.lock, self.packed(), noticing_contention(self.model.device):
            found = self.logits_and_depth(self.encoded(texts), batch_size)
        return [self.answer(logits, depth, top_k) for logits, depth in found]

    def packed(self) -> AbstractContextManager[None]:
        """`packed_weights`, packed at the first call, and again where the model has moved."""
        place = next(self.model.parameters()).data_ptr()
        if place != self.packed_at or not self.stand_ins:
            with torch.inference_mode():
                self.packed_at, self.stand_ins = place, pack(self.model)
        return packed_weights(self.model, self.stand_ins)

    def encoded(self, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
        """Tokenise texts, or pairs, as `DepthBatcher` takes them; longer ones are cut."""
        end = CHARACTERS * self.max_length
        encoded = self.tokenizer(
            [x[:end] if isinstance(x, str) else tuple(part[:end] for part in x) for x in texts],
            truncation=True,
            max_length=self.max_length,
            return_token_type_ids=True,
        )
        both = encoded["input_ids"], encoded["token_type_ids"]
        return list(zip(*(map(self.model.config.with_extra_tokens, x) for x in both), strict=True))

    def logits_and_depth(self, examples: list[tuple], batch_size: int) -> list[tuple]:
        """Each text's logits, (num_labels,), and where it exits, as in the answer."""
        if len(examples) == 1 or not isinstance(self.model, EarlyExitModel):
            return self.by_batches(examples, batch_size)
        batcher = DepthBatcher(self.model, batch_size, pad_token_id=self.tokenizer.pad_token_id)
        batcher.submit(examples)
        found = sorted(batcher.answers(), key=lambda answer: answer.row)
        return [(answer.logits, {"exit_layer": answer.exit_layer}) for answer in found]

    def answer(self, logits: torch.Tensor, depth: dict[str, float], top_k: int | None) -> Answer:
        """Say what an example's logits, (num_labels,), mean; its `depth` stands with each class."""
        names, several = self.model.config.id2label, self.model.config.is_multi_label
        scores = exit_scores(logits, several)
        if self.model.config.num_labels == 1:
            ranked = [{"score": float(scores[0]), **depth}]
        else:
            order = scores.argsort(descending=True, stable=True).tolist()
            ranked = [{"label": names[i], "score": float(scores[i]), **depth} for i in order]
        if several and top_k == 1:
            there = [one for one in ranked if one["score"] > 0.5]
            return {f"{x}s": [one[x] for one in there] for x in ("label", "score")} | depth
        return ranked[0] if top_k == 1 else ranked[:top_k]

    def by_batches(self, examples: list[tuple], batch_size: int) -> list[tuple]:
        """Answer without slots: one text alone, or with a model whose texts all run to the end."""
        early, found = isinstance(self.model, EarlyExitModel), []
        for start in range(0, len(examples), batch_size):
            ids, types = zip(*examples[start : start + batch_size], strict=True)
            texts = {"input_ids": ids, "token_type_ids": types}
            is_padded = len(set(map(len, ids))) > 1
            texts = self.tokenizer.pad(texts, return_tensors="pt", return_attention_mask=is_padded)
            texts = texts.to(self.model.device)
            out = self.model.exit_early(**texts) if early else self.model(**texts)
            name = "exit_layer" if early else "updates"
            rows = zip(out.logits, out[name], strict=True)
            found += [(logits, depth_of({name: depth})) for logits, depth in rows]
        return found


def classify(
    source: Source,
    texts: Text | Sequence[Text],
    batch_size: int = 32,
    max_length: int | None = None,
    top_k: int | None = 1,
) -> Answer | list[Answer]:
    """Classify one text, or a list of texts or pairs, with early exit; longer ones are cut.

    To keep the model loaded, make a `Classifier(source, max_length)` and call it.

    Args:
        source: the folder of a trained model of any mode, or a hub name.
        texts: a text; or a list in any order, in which no answer depends on the others. A pair is
            a tuple in a list.
        batch_size: how many texts share a layer pass; they may be at different depths.
        top_k: how many classes, the most probable first; None for all.

    Returns:
        For one text its answer, for a list a list of answers in its order. An answer has the
        `label` and that class's probability as `score`, or for a model of values the value as
        `score`; and its `exit_layer`, 1-based, or of Adaptive Depth `updates`, the mean of its
        tokens. Of a model of several labels it has the `labels` with a probability above 0.5, the
        most probable first, and their `scores`. With another `top_k` than 1 it is a list of
        answers, a class or label each.

    Raises:
        UserError: there is no model of this project in `source`.
    """
    return Classifier(source, max_length)(texts, batch_size, top_k)


class EarlyExitPipeline(TextClassificationPipeline):
    """HF's, which also says where a text exits: `exit_layer`, or of Adaptive Depth its `updates`.

    `pipeline("text-classification", folder, pipeline_class=EarlyExitPipeline)` makes one. Other
    models' answers stay as they are.
    """

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        out = super()._forward(model_inputs)
        # Of each example: HF takes a batch apart along the first dimension of all that there is.
        return {name: out[name] for name in ("logits", "exit_layer", "updates") if name in out}

    def postprocess(self, model_outputs: ModelOutput, **how: Any) -> Any:
        found = super().postprocess(model_outputs, **how)
        depth = depth_of(model_outputs)
        for answer in [found] if isinstance(found, dict) else found:
            answer.update(depth)
        return found


def depth_of(out: dict[str, Any]) -> dict[str, float]:
    """Say of one example's output where it exits, or how often its tokens are updated (mean)."""
    if "exit_layer" in out:
        return {"exit_layer": int(out["exit_layer"])}
    if "updates" in out:
        return {"updates": float(out["updates"][out["updates"] > 0].mean())}
    return {}
