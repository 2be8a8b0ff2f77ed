"""Classifying texts with a trained model of any mode: `classify`, `Classifier`, a pipeline."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import groupby, islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from transformers import TextClassificationPipeline
from transformers.utils import ModelOutput

from modeling.configuration import AdaptiveConfig, EarlyExitConfig, ElbertConfig, config_class_of
from modeling.cpu_packing import DTYPES, cast_layers, dtype_of
from modeling.depth import EarlyExitModel
from modeling.depth_batching import DepthBatcher
from modeling.errors import UserError
from modeling.exit_settings import warn_of_exit_file
from modeling.files import local_folder, model_hashes, weights_hash
from modeling.graphs import inference_copy
from modeling.loading.configs import label_names, load_config, mode_in
from modeling.loading.tokenizers import (
    UnknownTokens,
    check_vocab_size,
    encode_texts,
    load_tokenizer,
)
from modeling.loading.weights import load_trained_model
from modeling.rules import exit_scores
from modeling.runtime import keep_to_quota, noticing_contention

from .long_texts import combine, split_into_windows
from .onnx_file import OnnxFile, find_onnx_file

Text = str | tuple[str, str]  # a text, or a pair of texts
Answer = dict[str, Any]  # of one text; see `Classifier.__call__`
Depth = dict[str, float]  # how deep a text went: its exit_layer, or its tokens' mean updates
Tokens = tuple[list[int], list[int]]  # a text's token ids, and its segment ids
Output = tuple[Tensor, Depth]  # a text's logits, (num_labels,), and its depth

READ_AHEAD = 2048  # texts of an iterator that are read and tokenised at a time
LEAST_UNKNOWN = 10  # unknown tokens before a warning: a text may have an emoji or two


class Classifier:
    """A trained model, of any mode, and its tokenizer, kept in memory to classify texts.

        classify = elbert.Classifier("out/reviews/model")
        classify("A moving, funny film.")  # {"label": "positive", "score": 0.98, "exit_layer": 1}

    With `onnx`, an ONNX file answers in place of the model:

        classify = elbert.Classifier("out/reviews/model", onnx="classifier-int8.onnx")

    Exit keys may be changed at any time: `classify.config.exit_thres = 0.3` takes effect at the
    next call. With an ONNX file, this holds for the keys that are inputs of the file; another key
    raises an error.

    A classifier is for inference alone. On a CPU the model's weights are packed (`packed_copy`), so
    training them, changing their type or moving them to another device raises an error. Load the
    model by `load_model` for that, save it, and make another classifier. On a GPU its layers are
    replayed as CUDA graphs (`graphed_copy`): the first texts of a length take longer.

    It computes in its own `dtype`, also where the caller has switched on torch.autocast. (A model
    that `load_model` returns follows torch.autocast, as every module of torch does.) Making one
    draws no random numbers, so that the caller's seeds give what they gave before.

    It may be called from several threads. In a forked process it computes with one thread. A
    pickled classifier holds its arguments, with absolute paths, and its exit keys; unpickling it
    loads the folder again.

    Args:
        source: folder of a trained model, or a name on the Hugging Face hub.
        max_length: number of tokens at which a text is cut. Default: the limit of the training,
            which is saved with the tokenizer, at most the limit of the model.
        dtype: number type of the matrix products: "fp32", "bf16", "fp16", or "auto", which is bf16
            where the processor has instructions for it. An ONNX file has a type of its own.
        device: device of the model, for example "cuda"; "auto" is CUDA where there is a GPU. An
            ONNX file runs on the CPU.
        long_texts: what to do with a text that is longer than `max_length`. "cut" leaves out its
            end. "windows" reads the whole text in windows of that length, each of which repeats a
            quarter of the one before. The answer's probabilities are then the mean over the
            windows, weighted by their numbers of tokens; for a model of several labels, the largest
            for each label. `exit_layer` is that of the deepest window, `updates` the mean, and
            `windows` the number of windows that were run.
        stop_score: with windows, the score from which one window is enough: the answer is that of
            the first window that reaches it, and the windows behind are not run. Default: all
            windows are run.
        compile: on a GPU, whether torch.compile makes the layer pass: it takes seconds for every
            shape of a batch, and answers are faster.
        onnx: ONNX file, float32 or int8, that export_onnx.py made of this model: its path, or its
            name in the folder. The folder then needs no weights.

    Raises:
        UserError: `source` has no trained model of this project, an argument has a value that is
            not allowed, or `onnx` was not made of this model.
    """

    def __init__(
        self,
        source: str | Path,
        max_length: int | None = None,
        dtype: str = "fp32",
        device: str | torch.device = "cpu",
        onnx: str | Path | None = None,
        long_texts: str = "cut",
        stop_score: float | None = None,
        compile: bool = False,
    ) -> None:
        # Absolute, since a copy may be made elsewhere.
        path = os.path.expanduser(source)
        self.source = os.path.abspath(path) if os.path.exists(path) else source
        self.dtype = dtype
        self.compile = compile
        self.device = usable_device(device)
        self.onnx: str | None = None  # the path of the file, where one answers
        if dtype not in (*DTYPES, "auto"):
            raise UserError(f"dtype = {dtype!r}: allowed are {', '.join(DTYPES)} and auto")
        keep_to_quota()
        self.process = os.getpid()
        folder = local_folder(source, weights=onnx is None)
        self.model: Any = self.load_model(folder) if onnx is None else self.open_file(folder, onnx)
        self.tokenizer = load_tokenizer(folder)
        self.config: AdaptiveConfig = self.model.config
        check_vocab_size(self.tokenizer, str(folder), self.config)
        self.unknown = UnknownTokens(self.tokenizer, LEAST_UNKNOWN)
        self.max_length = self.usable_length(max_length)
        self.long_texts = long_texts
        self.stop_score = stop_score
        self.check_windows()

    def load_model(self, folder: Path) -> Any:
        """Load the model in `folder`, cast and on its device; packed, or with graphs."""
        model = load_trained_model(folder).requires_grad_(False).to(self.device)
        warn_of_exit_file(folder, partial(weights_hash, folder))
        cast_layers(model, dtype_of(self.dtype, self.device))
        return inference_copy(model, self.compile)

    def open_file(self, folder: Path, onnx: str | Path) -> OnnxFile:
        """Open an ONNX file in place of the model in `folder`."""
        if self.dtype != "fp32" or self.device.type != "cpu":
            raise UserError(
                f"onnx = {onnx} with dtype = {self.dtype}, device = {self.device}: an ONNX file "
                "has a type of its own, and runs on the CPU; leave both out"
            )
        self.onnx = os.path.abspath(find_onnx_file(folder, onnx))
        config = load_config(folder, config_class_of(mode_in(folder)) or ElbertConfig)
        return OnnxFile(self.onnx, config, model_hashes(folder))

    def usable_length(self, max_length: int | None) -> int:
        """Return the number of tokens at which a text is cut; raises UserError for too few."""
        special = self.tokenizer.num_special_tokens_to_add(pair=False) + self.config.extra_tokens
        is_enough = isinstance(max_length, Integral) and max_length > special
        if max_length is not None and not is_enough:
            raise UserError(
                f"max_length = {max_length!r}: allowed is {special + 1} or more, since every text "
                f"has {special} special tokens"
            )
        wanted = max_length or self.tokenizer.model_max_length
        return min(wanted, self.config.max_position_embeddings)

    def check_windows(self) -> None:
        """Raise UserError for values of long_texts and stop_score that are not allowed."""
        if self.long_texts not in ("cut", "windows"):
            raise UserError(f"long_texts = {self.long_texts!r}: allowed are cut and windows")
        if self.stop_score is None:
            return
        has_one_class = self.config.label_count > 1 and not self.config.is_multi_label
        is_number = isinstance(self.stop_score, Real) and not isinstance(self.stop_score, bool)
        is_share = is_number and 0 < self.stop_score <= 1
        if self.long_texts == "cut" or not has_one_class or not is_share:
            raise UserError(
                f"stop_score = {self.stop_score!r}: allowed is a probability, above 0 and at most "
                "1, with long_texts='windows', for a model whose texts have one class each"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments that make the same classifier, and its exit keys."""
        return {
            "arguments": {
                "source": self.source,
                "max_length": self.max_length,
                "dtype": self.dtype,
                "device": self.device,
                "onnx": self.onnx,
                "long_texts": self.long_texts,
                "stop_score": self.stop_score,
                "compile": self.compile,
            },
            "exit_keys": self.config.exit_keys(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the folder again, and set the exit keys."""
        self.__init__(**state["arguments"])
        self.config.update(state["exit_keys"])

    @overload
    def __call__(
        self, texts: Text | Mapping[str, str], batch_size: int = 32, top_k: int | None = 1
    ) -> Answer: ...

    @overload
    def __call__(
        self, texts: Iterator[Any], batch_size: int = 32, top_k: int | None = 1
    ) -> Iterator[Answer]: ...

    @overload
    def __call__(
        self, texts: Sequence[Any], batch_size: int = 32, top_k: int | None = 1
    ) -> list[Answer]: ...

    def __call__(
        self, texts: Any, batch_size: int = 32, top_k: int | None = 1
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """Classify one text or pair, a list of them, or all that an iterator yields.

        Args:
            texts: a text; or a pair, as a tuple, or as a dict with `text` and `text_pair`, which
                HF's pipeline takes as well; or a list, an array or a table's column of these; or an
                iterator. The answer to a text does not depend on the other texts.
            batch_size: number of texts that share a layer pass; they may be at different depths.
            top_k: number of classes to list, the most probable first; None lists all. With a value
                other than 1, each answer also has `classes`, a list of dicts with label and score.

        Returns:
            The answer to one text or pair; a list of answers, in order, for a list; an iterator of
            answers, in order, for an iterator. The iterator reads 2,048 texts at a time, so that
            memory does not grow with the number of texts.

            An answer is a dict with `label`, and the probability of that class as `score`. A model
            that predicts a value gives the value as `score`, and no label. A model of several
            labels gives `labels`, those with a probability above 0.5, the most probable first, and
            their `scores`. Every answer has `exit_layer`, counted from 1; with Adaptive Depth
            it has `updates` instead, the mean over the text's tokens.

        Raises:
            UserError: an element of `texts` is neither a text nor a pair (the message gives its
                number, from 0); or `batch_size` or `top_k` is no whole number of at least 1. A list
                is checked before any text is answered; an iterator first yields the answers to the
                texts before the error.
        """
        check_count("batch_size", batch_size)
        if top_k is not None:
            check_count("top_k", top_k)
        if isinstance(texts, Iterator):
            return self.stream(texts, batch_size, top_k)
        if is_one_text(texts):
            return next(self.stream([texts], batch_size, top_k))
        checked = [as_text(text, number) for number, text in enumerate(rows_of(texts))]
        return list(self.stream(checked, batch_size, top_k))

    def stream(self, texts: Iterable[Any], batch_size: int, top_k: int | None) -> Iterator[Answer]:
        """Yield the answers to texts or pairs in their order; see `__call__`."""
        numbered = enumerate(texts)
        while True:
            chunk, error = read_chunk(numbered)
            yield from self.classify_all(chunk, batch_size, top_k)
            if error:
                raise error
            if len(chunk) < READ_AHEAD:
                return

    def classify_all(self, texts: list[Text], batch_size: int, top_k: int | None) -> list[Answer]:
        """Classify a list of texts or pairs, all of them tokenised at a time; see `__call__`."""
        if not texts:
            return []
        if self.process != os.getpid():
            # A fork has none of its parent's threads, and OpenMP would wait for them for ever.
            torch.set_num_threads(1)
            self.process = os.getpid()
        autocast_off = torch.autocast(self.device.type, enabled=False)
        with torch.inference_mode(), autocast_off, noticing_contention(self.device):
            if self.long_texts == "windows":
                return self.classify_windows(texts, batch_size, top_k)
            outputs = self.run(self.encode(texts), batch_size)
        return [self.answer(logits, depth, top_k) for logits, depth in outputs]

    def classify_windows(
        self, texts: list[Text], batch_size: int, top_k: int | None
    ) -> list[Answer]:
        """Classify texts or pairs of any length, in windows; see `long_texts`."""
        windows = self.encode_windows(texts)
        outputs: list[list[Output]] = [[] for _ in texts]
        open_texts = list(range(len(texts)))  # numbers of those that need more windows
        count = None if self.stop_score is None else 1  # windows to run in a round; None: all
        while open_texts:
            rounds = [windows[text][len(outputs[text]) :][:count] for text in open_texts]
            flat = iter(self.run([window for part in rounds for window in part], batch_size))
            for text, part in zip(open_texts, rounds, strict=True):
                outputs[text] += islice(flat, len(part))
            open_texts = [
                text
                for text in open_texts
                if len(outputs[text]) < len(windows[text]) and not self.is_sure(outputs[text][-1])
            ]
        return [
            self.combined_answer(*of_text, top_k) for of_text in zip(windows, outputs, strict=True)
        ]

    def is_sure(self, output: Output) -> bool:
        """Tell whether a window's score is at least `stop_score`."""
        logits, _ = output
        return self.stop_score is not None and bool(self.scores(logits).amax() >= self.stop_score)

    def combined_answer(
        self, windows: list[Tokens], outputs: list[Output], top_k: int | None
    ) -> Answer:
        """Combine the windows of one text that were run; see `long_texts`."""
        if self.is_sure(outputs[-1]):
            windows, used = windows[len(outputs) - 1 :], outputs[-1:]
        else:
            used = outputs
        lengths = [len(ids) for ids, _ in windows[: len(used)]]
        scores = [self.scores(logits) for logits, _ in used]
        combined = combine(scores, lengths, self.config.is_multi_label)
        if isinstance(self.config, EarlyExitConfig):
            depth: Depth = {"exit_layer": max(depth["exit_layer"] for _, depth in outputs)}
        else:
            updates = [torch.tensor([depth["updates"]]) for _, depth in used]
            depth = {"updates": float(combine(updates, lengths, is_multi_label=False))}
        return {**self.answer_of(combined, depth, top_k), "windows": len(outputs)}

    def encode_windows(self, texts: list[Text]) -> list[list[Tokens]]:
        """Tokenise texts, or pairs, each as one or more windows."""
        add_tokens = self.config.with_extra_tokens
        split = split_into_windows(
            self.tokenizer,
            texts,
            self.max_length - self.config.extra_tokens,
            self.config.type_vocab_size,
        )
        encoded = [
            [
                (add_tokens(tokens.input_ids), add_tokens(tokens.token_type_ids))
                for tokens in windows
            ]
            for windows in split
        ]
        self.unknown.count(ids for windows in encoded for ids, _ in windows)
        return encoded

    def encode(self, texts: Sequence[Text]) -> list[Tokens]:
        """Tokenise texts, or pairs, as `DepthBatcher` takes them; longer ones are cut."""
        config = self.config
        longest = self.max_length - config.extra_tokens
        encoded: list[Tokens] = []
        # Neighbours of a kind, texts or pairs, are tokenised together.
        for is_text, group in groupby(texts, key=lambda text: isinstance(text, str)):
            pairs: list[Any] = [(text, None) if is_text else text for text in group]
            firsts, seconds = zip(*pairs, strict=True)
            for text in encode_texts(
                self.tokenizer,
                firsts,
                None if is_text else seconds,
                longest,
                config.type_vocab_size,
            ):
                ids = config.with_extra_tokens(text.input_ids)
                encoded.append((ids, config.with_extra_tokens(text.token_type_ids)))
        self.unknown.count([np.concatenate([ids for ids, _ in encoded])])
        return encoded

    def run(self, examples: list[Tokens], batch_size: int) -> list[Output]:
        """Return each example's logits, (num_labels,), and depth, in the order of `examples`."""
        outputs: dict[int, Output] = {}
        if len(examples) > 1 and isinstance(self.model, EarlyExitModel):
            batcher = DepthBatcher(
                self.model, slots=batch_size, pad_token_id=self.tokenizer.pad_token_id
            )
            batcher.submit(examples)
            for answer in batcher.answers():
                outputs[answer.row] = answer.logits, {"exit_layer": answer.exit_layer}
        else:
            # Neighbours in length share a batch, which saves padding.
            by_length = sorted(range(len(examples)), key=lambda row: len(examples[row][0]))
            for start in range(0, len(examples), batch_size):
                rows = by_length[start : start + batch_size]
                batch = [examples[row] for row in rows]
                outputs.update(zip(rows, self.run_batch(batch), strict=True))
        return [outputs[row] for row in range(len(examples))]

    def run_batch(self, examples: list[Tokens]) -> list[Output]:
        """Answer examples as one batch, which an early-exit model gets for one example alone."""
        ids, segments = zip(*examples, strict=True)
        is_padded = len({len(text) for text in ids}) > 1
        inputs = self.tokenizer.pad(
            {"input_ids": list(ids), "token_type_ids": list(segments)},
            return_tensors="pt",
            return_attention_mask=is_padded,
        ).to(self.device)
        if isinstance(self.model, OnnxFile):
            for name in self.config.own_inputs:  # those that the file does not have are left out
                inputs[name] = torch.rand(len(examples))
        answer_batch: Any = self.model
        if isinstance(self.model, EarlyExitModel):
            answer_batch = self.model.exit_early
        out: Any = answer_batch(**inputs)
        name = "exit_layer" if isinstance(self.config, EarlyExitConfig) else "updates"
        depths = [depth_of({name: depth}) for depth in getattr(out, name)]
        return list(zip(out.logits, depths, strict=True))

    def answer(self, logits: Tensor, depth: Depth, top_k: int | None = 1) -> Answer:
        """Say what one text's logits, (num_labels,), mean; see `__call__`."""
        return self.answer_of(self.scores(logits), depth, top_k)

    def scores(self, logits: Tensor) -> Tensor:
        """Return the probabilities, or the value, of logits (num_labels,).

        Raises UserError for NaN and infinity, which would pass for an answer.
        """
        if not logits.isfinite().all():
            raise UserError(
                "the model's logits are NaN or infinite: its weights are too large for this "
                'precision; use dtype="fp32", or train again with a lower --learning_rate'
            )
        return exit_scores(logits.float().cpu(), self.config.is_multi_label)

    def answer_of(self, scores: Tensor, depth: Depth, top_k: int | None) -> Answer:
        """Say what one text's probabilities or value, (num_labels,), mean; see `__call__`."""
        config = self.config
        if config.num_labels == 1:
            return {"score": float(scores[0]), **depth}
        names = label_names(config)
        order = scores.argsort(descending=True, stable=True).tolist()
        ranked = [{"label": names[i], "score": float(scores[i])} for i in order]
        if config.is_multi_label:
            present = [label for label in ranked if label["score"] > 0.5]
            labels = [label["label"] for label in present]
            answer = {"labels": labels, "scores": [label["score"] for label in present], **depth}
        else:
            answer = {**ranked[0], **depth}
        return answer if top_k == 1 else {**answer, "classes": ranked[:top_k]}


def usable_device(device: str | torch.device) -> torch.device:
    """Return a device by its name, or "auto"; raises UserError for one that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device = {device!r}: {reason[:200]}") from error
    if named.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"device = {device}: torch finds no CUDA here; device='auto' then uses the CPU"
        )
    count = torch.cuda.device_count() if named.type == "cuda" else 0
    if named.index is not None and named.type == "cuda" and named.index >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UserError(f"device = {device}: there is no such GPU here; allowed is {there}")
    return named


def check_count(name: str, value: Any) -> None:
    """Raise UserError unless an argument is a whole number from 1 on."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} = {value!r}: allowed is a whole number of at least 1")


def is_one_text(texts: Any) -> bool:
    """Tell whether `texts` is a text, a pair as a tuple of strings or a dict, or bytes."""
    if isinstance(texts, tuple):
        return all(isinstance(part, str) for part in texts)
    return isinstance(texts, str | bytes | Mapping)


def rows_of(texts: Any) -> Iterable[Any]:
    """Return `texts` if it holds texts in an order; raises UserError for anything else."""
    has_rows = isinstance(texts, Iterable) and not isinstance(texts, Set)
    dimensions = getattr(texts, "ndim", 1)  # of arrays and data frames
    if not has_rows or dimensions != 1:
        kind = type(texts).__name__
        raise UserError(
            f"texts is of type {kind}: expected a text, a pair, or a list of these; for a table, "
            "give one column, for example list(table['text'])"
        )
    return texts


def read_chunk(numbered: Iterator[tuple[int, Any]]) -> tuple[list[Text], Exception | None]:
    """Read up to READ_AHEAD texts, up to the first error, which is returned beside them."""
    texts = []
    try:
        for number, text in islice(numbered, READ_AHEAD):
            texts.append(as_text(text, number))
    except Exception as error:  # of a text, or of the iterator itself
        return texts, error
    return texts, None


def as_text(text: Any, number: int) -> Text:
    """Return a text as a string, a pair as a tuple of two; number: its place in a list, from 0.

    Raises UserError for anything else.
    """
    parts = text
    is_pair = isinstance(text, tuple | list) and len(text) == 2
    if isinstance(text, Mapping) and set(text) in ({"text"}, {"text", "text_pair"}):
        # A batch of two texts in one dict, as a slice of a data set is, is no pair.
        is_pair = "text_pair" in text
        parts = (text["text"], text["text_pair"]) if is_pair else text["text"]
    for part in parts if is_pair else (parts,):
        if not isinstance(part, str):
            raise UserError(
                f"text {number} is {text!r:.80}: expected a string; for a pair a tuple of two "
                "strings, or a dict of text and text_pair; several texts are given as a list"
            )
        if not part.isascii():
            check_unicode(part, number)
    return (parts[0], parts[1]) if is_pair else parts


def check_unicode(text: str, number: int) -> None:
    """Raise UserError for half a character, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"text {number} has half a character ({text[error.start]!r}) at {error.start}: it was "
            "decoded wrongly; decode it with errors='replace'"
        ) from error


def classify(
    source: str | Path,
    texts: Text | Sequence[Text],
    batch_size: int = 32,
    max_length: int | None = None,
    top_k: int | None = 1,
    dtype: str = "fp32",
    device: str | torch.device = "cpu",
    onnx: str | Path | None = None,
) -> Answer | list[Answer]:
    """Classify one text or pair, or a list of them, with the trained model in a folder.

        elbert.classify("out/reviews/model", ["A moving, funny film.", "Not bad at all!"])

    Every call loads the model. For many calls, make a `Classifier`, which keeps it loaded. The
    arguments, the answers and the errors are those of `Classifier` and of its call. Texts that are
    longer than `max_length` are cut.
    """
    return Classifier(source, max_length, dtype, device, onnx)(texts, batch_size, top_k)


class EarlyExitPipeline(TextClassificationPipeline):
    """Hugging Face's text classification pipeline, whose answers also say how deep a text went.

        pipeline("text-classification", folder, pipeline_class=elbert.EarlyExitPipeline)

    An answer has `exit_layer`; with Adaptive Depth it has `updates`. For models of other projects
    it answers as HF's pipeline does.
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
