"""Sentences as an Adaptive-Depth model reads them: each token coloured by its number of updates.

Colours go from the lowest to the highest number of updates that any token has; the page also offers
the whole range, from 0 to the most that the model may take. The scale is a histogram of all tokens.
"""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np

from modeling.loading.tokenizers import WORD_START

FILTER = """<fieldset><strong>Texts</strong>
<label><input type="radio" name="texts" checked> all {all}</label>
<label><input type="radio" name="texts" id="wrong"> {wrong} answered wrongly</label></fieldset>"""


class TokenExample(NamedTuple):
    """A text as the model read it."""

    tokens: Sequence[str]  # pieces, without padding
    updates: Sequence[float]  # of each token
    answer: str
    label: str
    wrong: bool = False


def tokens_html(examples: Sequence[TokenExample], counts: Mapping[int, int], maximum: int) -> str:
    """Format a page that needs nothing else: each token over its number of updates, and the scale.

    counts: all tokens of the data set by their updates; maximum: the most that a token may take.
    """
    numbers = [number for number, count in counts.items() if count]
    wrong, scale = sum(example.wrong for example in examples), []
    for number in range(maximum + 1):
        count = counts.get(number, 0)
        share = f"{100 * count / sum(counts.values()):.0f}%" if count else ""
        bar = f'<i style="height:{5 * count / max(counts.values()):.2f}rem"></i>'
        step = f'<strong style="--n:{number}">{number}</strong>'
        scale.append(f"<div>{share}{bar}{step}</div>")
    template = Path(__file__).with_name("tokens_template.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        low=min(numbers),
        high=max(numbers),
        maximum=maximum,
        filter=FILTER.format(all=len(examples), wrong=wrong) if wrong else "",
        scale="".join(scale),
        examples="\n".join(section(example, maximum) for example in examples),
    )


def section(example: TokenExample, maximum: int) -> str:
    """Format an example: a heading with answer, label and cost; each token over its updates."""
    spans = []
    for token, number in zip(example.tokens, example.updates, strict=True):
        text = token.removeprefix(WORD_START)
        word = ' class="word"' if text != token or token.startswith("[") else ""
        spans.append(
            f'<span{word} style="--n:{number:g}" title="{number:g} of {maximum} updates">'
            f"{html.escape(text or token)}<small>{number:g}</small></span>"
        )
    heading = html.escape(
        f"answer: {example.answer}, label: {example.label}; "
        f"{np.mean(example.updates):.1f} of {maximum} updates a token"
    )
    kind = ' class="wrong"' if example.wrong else ""
    return f"<section{kind}>\n<h2>{heading}</h2>\n<div>{''.join(spans)}</div>\n</section>"
