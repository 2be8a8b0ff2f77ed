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
from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap, to_hex

from evaluation.figures import INK, LINE, SOFT
from modeling.loading.tokenizers import WORD_START

# Darker is more, for every kind of colour vision and in grey; the darkest still carries dark text.
UPDATE_COLOURS = LinearSegmentedColormap.from_list(
    "updates", plt.get_cmap("YlGnBu")(np.linspace(0, 0.55, 256))
)
EDGE = "#c3ccd7"
FILTER = """<fieldset><strong>Texts</strong>
<label><input type="radio" name="texts" checked> all {all}</label>
<label><input type="radio" name="texts" id="wrong"> {wrong} answered wrongly</label></fieldset>"""


class TokenExample(NamedTuple):
    """A text as the model read it."""

    tokens: Sequence[str]  # pieces, without padding
    updates: Sequence[float]  # of each token, 0 to `maximum`
    maximum: int  # the most updates a token may take
    answer: str
    label: str
    wrong: bool = False


def tokens_html(examples: Sequence[TokenExample], counts: Mapping[int, int]) -> str:
    """Format a page that needs nothing else: each token over its number of updates, and the scale.

    examples: one at least. counts: all tokens of the data set by their number of updates.
    """
    maximum = examples[0].maximum
    numbers = [number for number, count in counts.items() if count]
    low, high, wrong = min(numbers), max(numbers), sum(example.wrong for example in examples)
    template = Path(__file__).with_name("tokens_template.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        ink=INK,
        soft=SOFT,
        edge=EDGE,
        red=LINE,
        fitted=colour_variables(low, high, maximum),
        whole=colour_variables(0, maximum, maximum),
        classes="\n".join(f".u{n} {{ background: var(--u{n}); }}" for n in range(maximum + 1)),
        low=low,
        high=high,
        maximum=maximum,
        filter=FILTER.format(all=len(examples), wrong=wrong) if wrong else "",
        scale="".join(bar(number, counts) for number in range(maximum + 1)),
        examples="\n".join(map(section, examples)),
    )


def colour_variables(low: int, high: int, maximum: int) -> str:
    """Format CSS variables: the palest colour at `low`, the darkest at `high`, white beyond."""
    colours = {
        n: to_hex(UPDATE_COLOURS((n - low) / max(1, high - low))) for n in range(maximum + 1)
    }
    shown = {n: colour if low <= n <= high else "#fff" for n, colour in colours.items()}
    return " ".join(f"--u{number}: {colour};" for number, colour in shown.items())


def bar(number: int, counts: Mapping[int, int]) -> str:
    """Format one step of the scale, under a bar as high as it is frequent."""
    share = counts.get(number, 0) / sum(counts.values())
    height = 5 * counts.get(number, 0) / max(counts.values())
    text = f"{100 * share:.0f}%" if share else ""
    column = f'<i style="height:{height:.2f}rem"></i>'
    return f'<div>{text}{column}<strong class="u{number}">{number}</strong></div>'


def section(example: TokenExample) -> str:
    """Format an example: a heading with answer, label and cost; each token over its updates."""
    spans = "".join(
        token_span(token, number, example.maximum)
        for token, number in zip(example.tokens, example.updates, strict=True)
    )
    heading = html.escape(
        f"answer: {example.answer}, label: {example.label}; "
        f"{np.mean(example.updates):.1f} of {example.maximum} updates a token"
    )
    kind = ' class="wrong"' if example.wrong else ""
    return f"<section{kind}>\n<h2>{heading}</h2>\n<div>{spans}</div>\n</section>"


def token_span(token: str, number: float, maximum: int) -> str:
    text = token.removeprefix(WORD_START)
    word = " word" if text != token or token.startswith("[") else ""
    return (
        f'<span class="u{number:g}{word}" title="{number:g} of {maximum} updates">'
        f"{html.escape(text or token)}<small>{number:g}</small></span>"
    )
