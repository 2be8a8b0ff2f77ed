"""Sentences as an Adaptive-Depth model reads them: each token coloured by its number of updates.

`tokens_html` is a page that stands alone, `tokens_figure` the same picture for print. Both have one
scale, from 0 to the highest number of updates that the model may take.
"""

import html
from collections.abc import Iterator, Sequence
from string import Template
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

# Darker is more, for every kind of colour vision and in grey; the darkest still carries dark text.
COLOURS = LinearSegmentedColormap.from_list(
    "updates", plt.get_cmap("YlGnBu")(np.linspace(0, 0.55, 256))
)
INK, SOFT, EDGE = "#1d2733", "#5d6a78", "#c3ccd7"
WORD_START = "▁"  # SentencePiece's mark of a piece that opens a word

# Of the figure. A monospaced text has as many columns as characters.
FONT = "DejaVu Sans Mono"
COLUMNS = 88
COLUMN, LINE = 0.0775, 0.4  # inches; the first is a character's width at 9 points
HEAD, PAD = 0.7, 0.5  # lines of an example's heading, columns around a token's text


class TokenExample(NamedTuple):
    """A text as the model read it."""

    tokens: Sequence[str]  # pieces, without padding
    updates: Sequence[float]  # of each token, 0 to `maximum`
    maximum: int  # the most updates a token may take
    answer: str
    label: str


def checked_maximum(examples: Sequence[TokenExample]) -> int:
    """The end of the common scale. ValueError when there is nothing or something odd to show."""
    if not examples:
        raise ValueError("no examples to show")
    for number, example in enumerate(examples):
        if not example.tokens or len(example.tokens) != len(example.updates):
            raise ValueError(
                f"example {number}: {len(example.tokens)} tokens, {len(example.updates)} updates; "
                "each token needs its number, and there must be one"
            )
        if not 0 <= min(example.updates) <= max(example.updates) <= example.maximum:
            raise ValueError(f"example {number}: updates are not all in 0…{example.maximum}")
    return max(example.maximum for example in examples)


def heading(example: TokenExample) -> str:
    """Answer, label and cost of an example, in one line."""
    mean = sum(example.updates) / len(example.updates)
    return (
        f"answer: {example.answer}, label: {example.label}; "
        f"{mean:.1f} of {example.maximum} updates a token"
    )


def word_piece(token: str) -> tuple[str, bool]:
    """A token's text, and whether it opens a word."""
    text = token.removeprefix(WORD_START)
    return text or token, text != token or token.startswith("[")


# The page.

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Updates per token</title>
<style>
:root { color-scheme: light; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
body { margin: 0 auto; padding: 1.2rem; max-width: 60rem; background: #fff; color: $ink;
  font: 16px/1.4 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .6rem; }
h2 { font-size: .95rem; font-weight: 600; margin: 0 0 .4rem; }
section { border-top: 1px solid $edge; padding: .8rem 0 .4rem; break-inside: avoid; }
p { margin: 0 0 .8rem; }
span { display: inline-block; margin: 0 1px .4rem 0; padding: .05rem .3rem; text-align: center;
  border: 1px solid $edge; border-radius: 4px; white-space: pre; unicode-bidi: isolate; }
.word { margin-left: .45rem; }
small { display: block; font-size: .68rem; line-height: 1.1; font-variant-numeric: tabular-nums; }
</style>
</head>
<body>
<h1>Updates per token</h1>
<p>$scale</p>
$examples
</body>
</html>
""")


def tokens_html(examples: Sequence[TokenExample]) -> str:
    """A page that needs nothing else: each token over its number of updates, and the scale."""
    maximum = checked_maximum(examples)
    scale = "".join(token_span("", number, maximum, "") for number in range(maximum + 1))
    return PAGE.substitute(
        ink=INK,
        edge=EDGE,
        scale=f"Fewest to most: {scale}",
        examples="\n".join(section(example, maximum) for example in examples),
    )


def section(example: TokenExample, maximum: int) -> str:
    spans = []
    for token, number in zip(example.tokens, example.updates, strict=True):
        text, opens = word_piece(token)
        spans.append(token_span(text, number, maximum, "word" if opens else ""))
    title = html.escape(heading(example))
    return f"<section>\n<h2>{title}</h2>\n<div>{''.join(spans)}</div>\n</section>"


def token_span(text: str, number: float, maximum: int, kind: str) -> str:
    """A token over its number, with the number in words as its tooltip."""
    return (
        f'<span class="{kind}" style="background:{to_hex(COLOURS(number / maximum))}"'
        f' title="{number:g} of {maximum} updates">'
        f"{html.escape(text)}<small>{number:g}</small></span>"
    )


# The figure.


def tokens_figure(examples: Sequence[TokenExample]) -> Figure:
    """The examples below each other, tokens in wrapped lines over their numbers of updates."""
    maximum = checked_maximum(examples)
    rows = [list(wrapped(example.tokens)) for example in examples]
    heights = [HEAD + placed[-1][1] + 1.3 for placed in rows]  # in lines; 0.3 of air
    above = 0.75  # inches, of the scale
    width, height = COLUMNS * COLUMN, sum(heights) * LINE + above
    figure = plt.figure(figsize=(width, height))
    panel = figure.add_axes((0, 0, 1, 1 - above / height))
    panel.set(xlim=(0, COLUMNS), ylim=(sum(heights), 0))
    panel.set_axis_off()
    top = 0.0
    for example, placed, lines in zip(examples, rows, heights, strict=True):
        draw_example(panel, example, placed, top, maximum)
        top += lines
    scale = figure.add_axes((0.01, 1 - 0.25 / height, 0.4, 0.2 / height))
    figure.colorbar(
        ScalarMappable(Normalize(0, maximum), COLOURS),
        cax=scale,
        orientation="horizontal",
        ticks=MaxNLocator(integer=True),
    )
    scale.set_xlabel("updates of a token", fontsize=9)
    scale.tick_params(labelsize=8)
    return figure


def wrapped(tokens: Sequence[str]) -> Iterator[tuple[str, int, float]]:
    """Each token's text, its line from 0 and its first column."""
    line, column = 0, 0.0
    for token in tokens:
        text, opens = word_piece(token)
        column += 1.0 if opens and column else 0.0
        if column and column + len(text) + 2 * PAD > COLUMNS:
            line, column = line + 1, 0.0
        yield text, line, column
        column += len(text) + 2 * PAD


def draw_example(
    panel: Axes,
    example: TokenExample,
    placed: Sequence[tuple[str, int, float]],
    top: float,
    maximum: int,
) -> None:
    """One example from line `top` on: its heading, then its tokens as `wrapped` placed them."""
    style = {"va": "center", "color": INK, "parse_math": False}  # a "$" is only a token
    panel.text(0, top + HEAD / 2, heading(example), fontsize=9, **style)
    for (text, line, column), number in zip(placed, example.updates, strict=True):
        y, width = top + HEAD + line, len(text) + 2 * PAD
        color = COLOURS(number / maximum)
        panel.add_patch(
            Rectangle((column, y), width, 0.9, facecolor=color, edgecolor=EDGE, linewidth=0.5)
        )
        middle = column + width / 2
        panel.text(middle, y + 0.32, text, fontsize=9, family=FONT, ha="center", **style)
        panel.text(middle, y + 0.71, f"{number:g}", fontsize=6, ha="center", **style)
