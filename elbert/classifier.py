"""Classifying texts with a trained model of any mode: `classify`, `Classifier`, a pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import TextClassificationPipeline
from transformers.utils import ModelOutput

from elbert_base.errors import UserError
from elbert_base.files import local_folder
from elbert_base.runtime import noticing_contention

from .cpu_packing import cast_layers, dtype_of, packed_copy
from .depth import EarlyExitModel
from .depth_batching import DepthBatcher
from .loading.tokenizers import load_tokenizer
from .loading.weights import load_trained_model
from .rules import exit_scores

Text = str | tuple[str, str]  # a text, or a pair of texts
Answer = dict[str, Any]  # of one text; see `Classifier.__call__`
Depth = dict[str, float]  # how deep a text went: its exit_layer, or its tokens' mean updates
Tokens = tuple[list[int], list[int]]  # a text's token ids, and its segment ids

# Characters of a text to read for each token. English has 4 or 5. HF's tokenizers take memory that
# grows with the product of a pair's lengths.
CHARACTERS_PER_TOKEN = 16


class Classifier:
    """A trained model of any mode and its tokenizer, kept loaded to classify texts.

        classify = elbert.Classifier("out/reviews/model")
        classify("A moving, funny film.")  # {"label": "positive", "score": 0.98, "exit_layer": 1}

    On a CPU its weights are packed (`packed_copy`). It is for inference alone: `model.config` may
    change, and the next call honours it; whatever would change weights raises an error. To train,
    cast or move a model, load it by `load_model`, and make another classifier of what you saved.

    Args:
        source: the folder of a trained model, or a hub name.
        max_length: tokens at which a text is cut. Default: the tokenizer's limit, which is the
            training's, at most the model's.
        dtype: number type of the matrix products: fp32, bf16, fp16, or auto, which is bf16 where
            the processor has instructions for it.
        device: where the model runs, for example "cuda".

    Raises:
        UserError: there is no trained model of this project in `source`.
    """

    def __init__(
        self,
        source: str | Path,
        max_length: int | None = None,
        dtype: str = "fp32",
        device: str | torch.device = "cpu",
    ) -> None:
        self.arguments = (source, max_length, dtype, device)
        folder = local_folder(source)
        model = load_trained_model(folder).requires_grad_(False).to(device)
        cast_layers(model, dtype_of(dtype, model.device))
        self.model = packed_copy(model)
        self.tokenizer = load_tokenizer(folder)
        config = model.config
        wanted_length = max_length or self.tokenizer.model_max_length
        self.max_length = min(wanted_length, config.max_position_embeddings)
        # HF's tokenizers set their truncation at the first call, and threads may only read it.
        self.encode(["a text"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what it was made from: whoever unpickles it loads the folder again."""
        return Classifier, self.arguments

    def __call__(
        self, texts: Text | Sequence[Text], batch_size: int = 32, top_k: int | None = 1
    ) -> Answer | list[Answer]:
        """Classify a text or a pair, or a list of texts or pairs.

        Args:
            texts: one text; one pair, a tuple; or a list of these, where no answer depends on the
                others.
            batch_size: how many texts share a layer pass; they may be at different depths.
            top_k: how many classes to list, the most probable first; None for all. With another
                value than 1, each answer also has `classes`, a list of label and score.

        Returns:
            For one text or pair its answer, for a list the list of answers in its order. An answer
            is a dict with `label`, and the probability of that class as `score`; of a model that
            predicts a value it has the value as `score` alone. Of a model of several labels it has
            `labels`, those with a probability above 0.5, the most probable first, and their
            `scores`. All have `exit_layer`, counted from 1, or of Adaptive Depth `updates`, the
            mean over the text's tokens.

        Raises:
            UserError: `texts` holds something other than texts and pairs, or a number is below 1.
        """
        for name, value in (("batch_size", batch_size), ("top_k", top_k)):
            if value is not None and value < 1:
                raise UserError(f"{name} = {value}: allowed is 1 or more")
        if isinstance(texts, str) or is_lone_pair(texts):
            return self.classify_all([cast(Text, texts)], batch_size, top_k)[0]
        return self.classify_all(cast(Sequence[Text], texts), batch_size, top_k)

    def classify_all(
        self, texts: Sequence[Text], batch_size: int, top_k: int | None
    ) -> list[Answer]:
        """Classify a list of texts or pairs; see `__call__`."""
        for number, text in enumerate(texts):
            check_text(text, number)
        if not texts:
            return []
        with torch.inference_mode(), noticing_contention(self.model.device):
            outputs = list(self.run(self.encode(texts), batch_size))
        return [self.answer(logits, depth, top_k) for logits, depth in outputs]

    def encode(self, texts: Sequence[Text]) -> list[Tokens]:
        """Tokenise texts, or pairs, as `DepthBatcher` takes them; longer ones are cut."""
        config = self.model.config
        end = CHARACTERS_PER_TOKEN * self.max_length
        encoded = self.tokenizer(
            [x[:end] if isinstance(x, str) else (x[0][:end], x[1][:end]) for x in texts],
            truncation=True,
            max_length=self.max_length - config.extra_tokens,
            return_token_type_ids=True,
        )
        ids = map(config.with_extra_tokens, encoded["input_ids"])
        segments = map(config.with_extra_tokens, encoded["token_type_ids"])
        return list(zip(ids, segments, strict=True))

    def run(self, examples: list[Tokens], batch_size: int) -> Iterator[tuple[Tensor, Depth]]:
        """Yield each text's logits, (num_labels,), and its depth, in the order of `examples`."""
        is_alone = len(examples) == 1
        if is_alone or not isinstance(self.model, EarlyExitModel):
            for start in range(0, len(examples), batch_size):
                yield from self.run_batch(examples[start : start + batch_size])
            return
        batcher = DepthBatcher(
            self.model, slots=batch_size, pad_token_id=self.tokenizer.pad_token_id
        )
        batcher.submit(examples)
        for answer in sorted(batcher.answers(), key=lambda answer: answer.row):
            yield answer.logits, {"exit_layer": answer.exit_layer}

    def run_batch(self, examples: list[Tokens]) -> Iterator[tuple[Tensor, Depth]]:
        """Answer texts as one batch: a text alone, or texts that all run to the end."""
        ids, segments = zip(*examples, strict=True)
        is_padded = len({len(text) for text in ids}) > 1
        inputs = self.tokenizer.pad(
            {"input_ids": list(ids), "token_type_ids": list(segments)},
            return_tensors="pt",
            return_attention_mask=is_padded,
        ).to(self.model.device)
        exits = isinstance(self.model, EarlyExitModel)
        out = self.model.exit_early(**inputs) if exits else self.model(**inputs)
        name = "exit_layer" if exits else "updates"
        for logits, depth in zip(out.logits, out[name], strict=True):
            yield logits, depth_of({name: depth})

    def answer(self, logits: Tensor, depth: Depth, top_k: int | None = 1) -> Answer:
        """Say what one text's logits, (num_labels,), mean; see `__call__`."""
        config = self.model.config
        scores = exit_scores(logits.float().cpu(), config.is_multi_label)
        if config.num_labels == 1:
            return {"score": float(scores[0]), **depth}
        order = scores.argsort(descending=True, stable=True).tolist()
        ranked = [{"label": config.id2label[i], "score": float(scores[i])} for i in order]
        if config.is_multi_label:
            present = [label for label in ranked if label["score"] > 0.5]
            labels = [label["label"] for label in present]
            answer = {"labels": labels, "scores": [label["score"] for label in present], **depth}
        else:
            answer = {**ranked[0], **depth}
        return answer if top_k == 1 else {**answer, "classes": ranked[:top_k]}


def is_lone_pair(texts: Any) -> bool:
    """Tell whether `texts` is one pair: a tuple of strings. Several texts are a list."""
    return isinstance(texts, tuple) and all(isinstance(part, str) for part in texts)


def check_text(text: Any, number: int) -> None:
    """Raise UserError unless `text` is a text or a pair; number: its place in a list, from 0."""
    has_two_parts = isinstance(text, tuple | list) and len(text) == 2
    is_pair = has_two_parts and all(isinstance(part, str) for part in text)
    if not isinstance(text, str) and not is_pair:
        raise UserError(
            f"text {number} is {text!r:.80}: expected a string, or a tuple of two strings for a "
            "pair; several texts are given as a list"
        )


def classify(
    source: str | Path,
    texts: Text | Sequence[Text],
    batch_size: int = 32,
    max_length: int | None = None,
    top_k: int | None = 1,
    dtype: str = "fp32",
) -> Answer | list[Answer]:
    """Classify one text or pair, or a list of texts or pairs, with early exit; longer ones are cut.

        elbert.classify("out/reviews/model", ["A moving, funny film.", "Not bad at all!"])

    To keep the model loaded, make a `Classifier` and call it: it has the same arguments, and says
    what is returned and raised.
    """
    return Classifier(source, max_length, dtype)(texts, batch_size, top_k)


class EarlyExitPipeline(TextClassificationPipeline):
    """HF's text classification pipeline, which also says how deep a text went.

        pipeline("text-classification", folder, pipeline_class=elbert.EarlyExitPipeline)

    Its answers have `exit_layer`, or of Adaptive Depth `updates`. Other models' answers stay as
    they are.
    """

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        out = super()._forward(model_inputs)
        # HF takes a batch apart along the first dimension of everything that it gets here.
        return {name: out[name] for name in ("logits", "exit_layer", "updates") if name in out}

    def postprocess(  # pyrefly: ignore[bad-override]  # HF's named options arrive in options
        self, model_outputs: ModelOutput, **options: Any
    ) -> Any:
        answers = super().postprocess(model_outputs, **options)
        depth = depth_of(model_outputs)
        for answer in [answers] if isinstance(answers, dict) else answers:
            answer.update(depth)
        return answers


def depth_of(out: Mapping[str, Any]) -> Depth:
    """Say of one text's output where it exits, or how often its tokens are updated (the mean)."""
    if "exit_layer" in out:
        return {"exit_layer": int(out["exit_layer"])}
    if "updates" in out:
        updates = out["updates"]
        return {"updates": float(updates[updates > 0].mean())}
    return {}
