"""Tokens coloured by their updates: the numbers, the colours, and what a text may not do."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from evaluation.figures import save_figure
from evaluation.token_pictures import (
    COLUMNS,
    INK,
    UPDATE_COLOURS,
    TokenExample,
    columns_of,
    tokens_figure,
    tokens_html,
    wrapped,
)

FILM = TokenExample(
    ["[CLS]", "▁a", "▁thrill", "ing", "▁", "<b>&\"'", "$x$", "[SEP]"],
    [6, 0, 3, 1, 2, 5, 4, 6],
    6,
    "positive",
    "<negative>",
)


class Spans(HTMLParser):
    """The spans of a page, in order: class, tooltip and text of each; and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page, self.spans, self.tags, self.inside = page, [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "span":
            given, self.inside = dict(attributes), True
            self.spans.append([given["class"].split()[0], given["title"], ""])

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "span"

    def handle_data(self, data):
        if self.inside:
            self.spans[-1][2] += data

    def colours(self, scale: int = 0) -> dict[str, str]:
        """The colour of each class: of the fitted scale, or (1) of the whole one."""
        names = re.findall(r"\.(u\d+) \{ background: var\(--\1\); \}", self.page)
        return {name: re.findall(rf"--{name}: (#\w+);", self.page)[scale] for name in names}


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.2."""
    channels = np.array(to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def test_every_token_stands_over_its_number_of_updates():
    page = Spans(tokens_html([FILM]))
    texts = ["[CLS]6", "a0", "thrill3", "ing1", "▁2", "<b>&\"'5", "$x$4", "[SEP]6"]
    assert [text for _, _, text in page.spans] == texts
    assert [title for _, title, _ in page.spans] == [f"{n} of 6 updates" for n in FILM.updates]
    colours = [page.colours()[kind] for kind, _, _ in page.spans]
    assert colours == [to_hex(UPDATE_COLOURS(number / 6)) for number in FILM.updates]


def test_the_scale_is_fitted_or_whole():
    page = Spans(tokens_html([FILM._replace(updates=[2, 3, 3, 2, 2, 3, 2, 4])]))
    assert page.colours() == {
        **{f"u{n}": "#fff" for n in (0, 1, 5, 6)},  # that no token has
        **{f"u{n}": to_hex(UPDATE_COLOURS((n - 2) / 2)) for n in (2, 3, 4)},
    }
    assert page.colours(1) == {f"u{n}": to_hex(UPDATE_COLOURS(n / 6)) for n in range(7)}
    assert "fitted, 2 to 4" in page.page
    assert "whole, 0 to 6" in page.page


def test_the_scale_counts_all_tokens():
    page = tokens_html([FILM._replace(updates=[1] * 8)], {1: 10, 2: 30})
    assert re.findall(r"<div>(\d+%)", page) == ["25%", "75%"]
    assert re.findall(r"height:([\d.]+)rem", page) == ["0.00", "1.67", "5.00", *["0.00"] * 4]


def test_wrong_answers_can_be_shown_alone():
    page = tokens_html([FILM, FILM._replace(wrong=True)])
    assert page.count('<section class="wrong">') == 1
    assert "all 2</label>" in page
    assert "1 answered wrongly</label>" in page
    assert "answered wrongly" not in tokens_html([FILM])  # nothing to choose


def test_text_is_never_markup_and_the_page_loads_nothing():
    page = tokens_html([FILM])
    assert "b" not in Spans(page).tags
    assert "negative" not in Spans(page).tags
    assert not {"script", "img", "link"} & set(Spans(page).tags)
    assert "http:" not in page
    assert "https:" not in page


def test_examples_share_the_scale_of_the_largest_maximum():
    page = Spans(tokens_html([FILM, TokenExample(["x"], [12], 12, "a", "b")]))
    assert list(page.colours()) == [f"u{number}" for number in range(13)]
    assert page.spans[-1][0] == "u12"
    assert page.colours()["u12"] == to_hex(UPDATE_COLOURS(1.0))


def test_colours_darken_evenly_and_carry_dark_text():
    lights = [luminance(to_hex(UPDATE_COLOURS(share))) for share in np.linspace(0, 1, 25)]
    assert (np.diff(lights) < 0).all()
    assert min(lights) + 0.05 >= 4.5 * (luminance(INK) + 0.05)  # WCAG's contrast for text


def test_a_line_holds_what_fits_and_every_token_is_placed_once():
    tokens = ["▁word", "s"] * 60
    placed = list(wrapped(tokens))
    assert [text for text, _, _ in placed] == ["word", "s"] * 60
    ends = {}
    for text, line, column in placed:
        assert column >= ends.get(line, 0.0)
        ends[line] = column + len(text) + 1
    assert max(ends.values()) <= COLUMNS
    assert list(ends) == list(range(len(ends)))
    assert min(list(ends.values())[:-1]) > COLUMNS - 7  # the next word has 5 columns and a gap


def test_nothing_is_wider_than_a_line():
    for token in ("▁" + "m" * 200, "漢" * 60):
        ((text, line, column),) = wrapped([token])
        assert (line, column) == (0, 0)
        assert columns_of(text) + 1 <= COLUMNS
        assert text.endswith("…")


@pytest.mark.usefixtures("close_figures")
def test_the_figure_shows_the_tokens_as_they_are(tmp_path):
    figure = tokens_figure([FILM, FILM])
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown[0] == "answer: positive, label: <negative>; 3.4 of 6 updates a token"
    assert shown[1:5] == ["[CLS]", "6", "a", "0"]
    assert shown.count("$x$") == 2
    colors = [to_hex(patch.get_facecolor()) for patch in figure.axes[0].patches[:8]]
    assert colors == [to_hex(UPDATE_COLOURS(number / 6)) for number in FILM.updates]
    save_figure(figure, tmp_path / "tokens.png")
    assert (tmp_path / "tokens.png").stat().st_size > 5000


@pytest.mark.usefixtures("close_figures")
def test_a_token_is_as_wide_as_its_box_in_the_figure():
    figure = tokens_figure([TokenExample(["▁" + "m" * 16], [1], 2, "a", "b")])
    figure.canvas.draw()
    panel = figure.axes[0]
    text, box = panel.texts[1].get_window_extent(), panel.patches[0].get_window_extent()
    assert box.x0 <= text.x0
    assert text.x1 <= box.x1
    assert text.width > 0.85 * box.width


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "no examples"),
        ([FILM._replace(updates=[1])], "example 0: 8 tokens, 1 updates"),
        ([FILM, FILM._replace(tokens=[], updates=[])], "example 1: 0 tokens"),
        ([FILM._replace(maximum=5)], "not all in 0…5"),
        ([FILM._replace(updates=[-1] * 8)], "not all in 0…6"),
    ],
)
@pytest.mark.parametrize("picture", [tokens_html, tokens_figure])
def test_examples_that_cannot_be_shown_are_named(picture, examples, message):
    with pytest.raises(ValueError, match=message):
        picture(examples)
