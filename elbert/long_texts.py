"""Overlapping windows of texts that are longer than a model reads, and one answer from them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from modeling.loading.tokenizers import TextTokens, framed, plain_backend, text_frame

OVERLAP = 0.25  # share of a window's tokens that the next one repeats


def split_into_windows(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str | tuple[str, str]],
    length: int,
    segments: int,
) -> list[list[TextTokens]]:
    """Tokenise texts, or pairs, each as one or more windows of at most `length` tokens, in order.

    A text that fits is one window. Of a pair that does not fit, the text with more tokens is split,
    and the other, cut to half of the room, stands in every window.

    Args:
        length: tokens of a window, special ones included.
        segments: the segment types that the model knows.

    Raises:
        UserError: the model has too few segment types for pairs.
    """
    backend = plain_backend(tokenizer)
    pairs = [(text,) if isinstance(text, str) else text for text in texts]
    kinds = {len(pair) for pair in pairs}
    frames = {kind: text_frame(backend, kind == 2, segments) for kind in kinds}
    flat = [part for pair in pairs for part in pair]
    encoded = iter(backend.encode_batch_fast(flat, add_special_tokens=False))
    split = []
    for pair in pairs:
        frame = frames[len(pair)]
        parts = [next(encoded).ids for _ in pair]
        room = length - sum(place.text is None for place in frame)
        longer = max(range(len(parts)), key=lambda number: len(parts[number]))
        is_long = sum(map(len, parts)) > room
        if is_long and len(parts) == 2:
            other = 1 - longer
            parts[other] = parts[other][: room // 2]
            room -= len(parts[other])
        windows = []
        for window in slide(parts[longer], room) if is_long else [parts[longer]]:
            shown = [window if number == longer else ids for number, ids in enumerate(parts)]
            windows.append(framed(frame, shown, is_long))
        split.append(windows)
    return split


def slide(ids: list[int], size: int) -> list[list[int]]:
    """Cut token ids into windows of `size`, each of which repeats the end of the one before."""
    size = max(size, 1)
    stride = size - int(OVERLAP * size)
    starts = range(0, max(1, len(ids) - size + stride), stride)
    return [ids[start : start + size] for start in starts]


def combine(scores: Sequence[Tensor], lengths: Sequence[int], is_multi_label: bool) -> Tensor:
    """Combine the probabilities of a text's windows, (num_labels,) each, into the text's.

    They are the mean over the windows, each weighted by its tokens; of a model of several labels
    the largest of all windows, since a label of a part is one of the text.
    """
    stacked = torch.stack(list(scores))  # (windows, num_labels)
    if is_multi_label:
        return stacked.amax(0)
    weights = torch.tensor(lengths, dtype=stacked.dtype)[:, None]
    return (stacked * weights).sum(0) / weights.sum()
