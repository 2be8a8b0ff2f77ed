"""Texts as a ponder model reads them: with a second [CLS], which feeds the halting head."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..errors import UserError

HALTING_TOKEN = 1  # position of the second [CLS]
Texts = Sequence[str] | tuple[Sequence[str], Sequence[str]]  # a list, or a pair of lists


def with_halting_token(values: list[Any] | torch.Tensor) -> list[Any] | torch.Tensor:
    """Insert the second [CLS]: the first entry twice, of one example's list or (…, length).

    For token ids, segment ids and attention masks alike; [CLS] must come first.
    """
    if isinstance(values, torch.Tensor):
        return torch.cat((values[..., :1], values), dim=-1)
    return [values[0], *values]


def has_halting_token(input_ids: torch.Tensor) -> bool:
    """Do all texts of (batch, length) begin with one token twice, as with the second [CLS]?"""
    return bool((input_ids[:, :1] == input_ids[:, HALTING_TOKEN : HALTING_TOKEN + 1]).all())


def encode_texts(
    tokenizer: PreTrainedTokenizerBase | None,
    texts: Texts,
    longest: int,
    cls_in_second_text: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Ids, attention mask and segments, (batch, length) each, of at most `longest` tokens.

    A pair is [CLS] [CLS] a [SEP] b [SEP], or [CLS] [CLS] a [SEP] [CLS] b [SEP], as PonderALBERT has
    it, with `cls_in_second_text`.

    Raises UserError for what is no batch of texts, and without a tokenizer.
    """
    first, second = check_texts(texts)
    if tokenizer is None:
        raise UserError("the model has no tokenizer: give it one, or call it with token ids")
    if cls_in_second_text and second is not None:
        second = [tokenizer.cls_token + text for text in second]
    encoded = tokenizer(
        first,
        second,
        padding=True,
        padding_side="right",
        truncation=True,
        max_length=min(tokenizer.model_max_length, longest) - 1,  # room for the second [CLS]
        return_token_type_ids=True,
        return_tensors="pt",
    )
    names = ("input_ids", "attention_mask", "token_type_ids")
    return tuple(with_halting_token(encoded[name]) for name in names)


def check_texts(texts: Texts) -> tuple[list[str], list[str] | None]:
    """The texts, and their partners when they are pairs; raises UserError for what is neither."""
    if isinstance(texts, str):
        raise UserError(f"expected a list of texts, got one text: write [{texts[:20]!r}]")
    if len(texts) == 0:
        raise UserError("the list of texts is empty: give at least one")
    if isinstance(texts[0], str) and not isinstance(texts, tuple):
        return list(texts), None
    if len(texts) != 2 or any(isinstance(part, str) for part in texts):
        raise UserError(f"expected a list of texts or a pair of lists, got {len(texts)} parts")
    first, second = map(list, texts)
    if len(first) != len(second):
        raise UserError(
            f"the pair has {len(first)} first texts and {len(second)} second ones: "
            "each first text needs its second"
        )
    return check_texts(first)[0], second
