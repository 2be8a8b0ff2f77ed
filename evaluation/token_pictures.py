"""Sentences as an Adaptive-Depth model reads them: each token coloured by its number of updates.

`tokens_html` is a page that stands alone, `tokens_figure` the same picture for print. Colours go
from the lowest to the highest number of updates that any token has; the page also offers the whole
range, from 0 to the most that the model may take. The scale is a histogram of all tokens.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from typing import NamedTuple
from unicodedata import east_asian_width

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evaluation.figures import INK, LINE, SOFT
from modeling.loading.tokenizers import WORD_START

# Darker is more, for every kind of colour vision and in grey; the darkest still carries dark text.
UPDATE_COLOURS = LinearSegmentedColormap.from_list(
    "updates", plt.get_cmap("YlGnBu")(np.linspace(0, 0.55, 256))
)
EDGE = "#c3ccd7"

# Of the figure. A monospaced text has as many columns as characters.
FONT = "DejaVu Sans Mono"
COLUMNS = 88
COLUMN, HEIGHT = 0.0775, 0.4  # inches; the first is a character's width at 9 points
HEAD, PAD = 0.7, 0.5  # lines of an example's heading, columns around a token's text


class TokenExample(NamedTuple):
    """A text as the model read it."""

    tokens: Sequence[str]  # pieces, without padding
    updates: Sequence[float]  # of each token, 0 to `maximum`
    maximum: int  # the most updates a token may take
    answer: str
    label: str
    wrong: bool = False


class Colours(NamedTuple):
    """A number of updates -> its colour; `low` has the palest and `high` the darkest."""

    low: int
    high: int

    def __call__(self, number: float) -> str:
        share = (number - self.low) / max(1, self.high - self.low)
        return to_hex(UPDATE_COLOURS(min(1.0, max(0.0, share))))


def fitted(counts: Mapping[int, int]) -> Colours:
    """From the lowest to the highest number that a token has."""
    found = [number for number, count in counts.items() if count]
    return Colours(min(found), max(found))


def counted(examples: Sequence[TokenExample]) -> dict[int, int]:
    """How many tokens have each number of updates."""
    numbers, counts = np.unique(
        np.concatenate([np.asarray(example.updates) for example in examples]), return_counts=True
    )
    return dict(zip(numbers.astype(int).tolist(), counts.tolist(), strict=True))


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
  font: 16px/1.4 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  $fitted }
body:has(#whole:checked) { $whole }
body:has(#wrong:checked) section:not(.wrong) { display: none; }
h1 { font-size: 1.35rem; margin: 0 0 .6rem; }
h2 { font-size: .95rem; font-weight: 600; margin: 0 0 .4rem; }
section { border-top: 1px solid $edge; padding: .8rem 0 .4rem; break-inside: avoid;
  overflow-wrap: anywhere; }
.wrong h2 { color: $red; }
fieldset { border: 0; margin: 0 0 .5rem; padding: 0; display: flex; flex-wrap: wrap;
  gap: .2rem 1rem; }
fieldset strong { font-weight: 600; min-width: 3.5rem; }
label { cursor: pointer; }
figure { margin: .8rem 0 1rem; }
figcaption { color: $soft; font-size: .85rem; margin-bottom: .3rem; }
.scale { display: flex; align-items: flex-end; gap: 2px; max-width: 40rem; }
.scale div { flex: 1; min-width: 0; text-align: center; font-size: .72rem; color: $soft; }
.scale i { display: block; background: $edge; margin: 0 15%; }
.scale strong { display: block; border: 1px solid $edge; border-radius: 4px; color: $ink;
  font-size: .85rem; }
span { display: inline-block; margin: 0 1px .4rem 0; padding: .05rem .3rem; text-align: center;
  border: 1px solid $edge; border-radius: 4px; white-space: pre-wrap; unicode-bidi: isolate;
  max-width: 100%; }
.word { margin-left: .45rem; }
small { display: block; font-size: .68rem; line-height: 1.1; font-variant-numeric: tabular-nums; }
$classes
</style>
</head>
<body>
<h1>Updates per token</h1>
<fieldset><strong>Scale</strong>
<label><input type="radio" name="scale" checked> fitted, $low to $high</label>
<label><input type="radio" name="scale" id="whole"> whole, 0 to $maximum</label></fieldset>
$filter
<figure><figcaption>Updates and the share of all tokens that have so many</figcaption>
<div class="scale">$scale</div></figure>
$examples
</body>
</html>
""")
FILTER = """<fieldset><strong>Texts</strong>
<label><input type="radio" name="texts" checked> all {all}</label>
<label><input type="radio" name="texts" id="wrong"> {wrong} answered wrongly</label></fieldset>"""


def tokens_html(examples: Sequence[TokenExample], counts: Mapping[int, int] | None = None) -> str:
    """A page that needs nothing else: each token over its number of updates, and the scale.

    counts: tokens by number of updates, where more than these examples count.
    """
    maximum = checked_maximum(examples)
    counts = counts or counted(examples)
    numbers, near = range(maximum + 1), fitted(counts)
    wrong = sum(example.wrong for example in examples)
    return PAGE.substitute(
        ink=INK,
        soft=SOFT,
        edge=EDGE,
        red=LINE,
        fitted=variables(near, numbers),
        whole=variables(Colours(0, maximum), numbers),
        classes="\n".join(f".u{n} {{ background: var(--u{n}); }}" for n in numbers),
        low=near.low,
        high=near.high,
        maximum=maximum,
        filter=FILTER.format(all=len(examples), wrong=wrong) if wrong else "",
        scale="".join(bar(number, counts) for number in numbers),
        examples="\n".join(map(section, examples)),
    )


def variables(colours: Colours, numbers: Sequence[int]) -> str:
    """The colours as CSS variables, one a number of updates; white for those that none has."""
    shown = {n: colours(n) if colours.low <= n <= colours.high else "#fff" for n in numbers}
    return " ".join(f"--u{number}: {colour};" for number, colour in shown.items())


def bar(number: int, counts: Mapping[int, int]) -> str:
    """One step of the scale, under a bar as high as it is frequent."""
    share = counts.get(number, 0) / sum(counts.values())
    height = 5 * counts.get(number, 0) / max(counts.values())
    text = f"{100 * share:.0f}%" if share else ""
    column = f'<i style="height:{height:.2f}rem"></i>'
    return f'<div>{text}{column}<strong class="u{number}">{number}</strong></div>'


def section(example: TokenExample) -> str:
    spans = []
    for token, number in zip(example.tokens, example.updates, strict=True):
        text, opens = word_piece(token)
        spans.append(token_span(text, number, example.maximum, opens))
    title, kind = html.escape(heading(example)), ' class="wrong"' if example.wrong else ""
    return f"<section{kind}>\n<h2>{title}</h2>\n<div>{''.join(spans)}</div>\n</section>"


def token_span(text: str, number: float, maximum: int, opens: bool) -> str:
    """A token over its number, with the number in words as its tooltip."""
    return (
        f'<span class="u{number:g}{" word" if opens else ""}"'
        f' title="{number:g} of {maximum} updates">'
        f"{html.escape(text)}<small>{number:g}</small></span>"
    )


# The figure.


def tokens_figure(
    examples: Sequence[TokenExample], counts: Mapping[int, int] | None = None
) -> Figure:
    """The examples below each other, tokens in wrapped lines over their numbers of updates.

    counts: tokens by number of updates, where more than these examples count.
    """
    maximum = checked_maximum(examples)
    counts = counts or counted(examples)
    colours = fitted(counts)
    rows = [list(wrapped(example.tokens)) for example in examples]
    heights = [HEAD + placed[-1][1] + 1.3 for placed in rows]  # in lines; 0.3 of air
    above = 1.35  # inches, of the scale
    width, height = COLUMNS * COLUMN, sum(heights) * HEIGHT + above
    figure = plt.figure(figsize=(width, height))
    panel = figure.add_axes((0, 0, 1, 1 - above / height))
    panel.set(xlim=(0, COLUMNS), ylim=(sum(heights), 0))
    panel.set_axis_off()
    top = 0.0
    for example, placed, lines in zip(examples, rows, heights, strict=True):
        draw_example(panel, example, placed, top, colours)
        top += lines
    scale = figure.add_axes((0.01, 1 - 0.85 / height, 0.6, 0.6 / height))
    draw_scale(scale, counts, colours, maximum)
    return figure


def draw_scale(panel: Axes, counts: Mapping[int, int], colours: Colours, maximum: int) -> None:
    """A bar a number of updates, in its colour: the share of tokens that have so many."""
    numbers, total = range(maximum + 1), sum(counts.values())
    shares = [counts.get(number, 0) / total for number in numbers]
    bars = panel.bar(
        numbers, shares, color=[colours(n) for n in numbers], edgecolor=EDGE, linewidth=0.8
    )
    panel.bar_label(bars, [f"{100 * s:.0f}%" if s else "" for s in shares], fontsize=7, color=SOFT)
    panel.set_xticks(numbers, [str(number) for number in numbers], fontsize=8)
    panel.set_yticks([])
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.set_xlabel("updates of a token; the share of all tokens that have so many", fontsize=8)


def columns_of(text: str) -> int:
    """How many columns a text takes in a monospaced font."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def shortened(text: str, columns: int) -> str:
    """`text`, cut where it would not fit a line."""
    while columns_of(text) > columns:
        text = text.removesuffix("…")[:-1] + "…"
    return text


def wrapped(tokens: Sequence[str]) -> Iterator[tuple[str, int, float]]:
    """Each token's text, its line from 0 and its first column."""
    line, column = 0, 0.0
    for token in tokens:
        text, opens = word_piece(token)
        text = shortened(text, COLUMNS - round(2 * PAD))
        column += 1.0 if opens and column else 0.0
        if column and column + columns_of(text) + 2 * PAD > COLUMNS:
            line, column = line + 1, 0.0
        yield text, line, column
        column += columns_of(text) + 2 * PAD


def draw_example(
    panel: Axes,
    example: TokenExample,
    placed: Sequence[tuple[str, int, float]],
    top: float,
    colours: Colours,
) -> None:
    """One example from line `top` on: its heading, then its tokens as `wrapped` placed them."""
    style = {"va": "center"}
    title, ink = shortened(heading(example), COLUMNS), LINE if example.wrong else INK
    panel.text(0, top + HEAD / 2, title, fontsize=9, color=ink, **style)
    style["color"] = INK
    for (text, line, column), number in zip(placed, example.updates, strict=True):
        y, width = top + HEAD + line, columns_of(text) + 2 * PAD
        box = Rectangle((column, y), width, 0.9, linewidth=0.5, edgecolor=EDGE, clip_on=False)
        box.set_facecolor(colours(number))
        panel.add_patch(box)
        middle = column + width / 2
        panel.text(middle, y + 0.32, text, fontsize=9, family=FONT, ha="center", **style)
        panel.text(middle, y + 0.71, f"{number:g}", fontsize=6, ha="center", **style)
