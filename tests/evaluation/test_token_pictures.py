"""tokens.html: the numbers, the colours, and what a text may not do."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from evaluation.token_pictures import INK, UPDATE_COLOURS, TokenExample, tokens_html

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


def test_the_scale_is_fitted_or_whole_and_counts_all_tokens():
    fitted = tokens_html([FILM._replace(updates=[2, 3, 3, 2, 2, 3, 2, 4])])
    assert Spans(fitted).colours() == {
        **{f"u{n}": "#fff" for n in (0, 1, 5, 6)},  # that no token has
        **{f"u{n}": to_hex(UPDATE_COLOURS((n - 2) / 2)) for n in (2, 3, 4)},
    }
    assert Spans(fitted).colours(1) == {f"u{n}": to_hex(UPDATE_COLOURS(n / 6)) for n in range(7)}
    assert re.findall(r"<div>(\d+%)", fitted) == ["50%", "38%", "12%"]
    given = tokens_html([FILM._replace(updates=[1] * 8)], {1: 10, 2: 30})
    assert re.findall(r"<div>(\d+%)", given) == ["25%", "75%"]


def test_wrong_answers_can_be_shown_alone():
    page = tokens_html([FILM, FILM._replace(wrong=True)])
    assert page.count('<section class="wrong">') == 1
    assert "1 answered wrongly</label>" in page
    assert "answered wrongly" not in tokens_html([FILM])  # nothing to choose


def test_text_is_never_markup_and_the_page_loads_nothing():
    page = tokens_html([FILM])
    assert not {"b", "negative", "script", "img", "link"} & set(Spans(page).tags)
    assert not re.findall("https?:", page)


def test_colours_darken_evenly_and_carry_dark_text():
    lights = [luminance(to_hex(UPDATE_COLOURS(share))) for share in np.linspace(0, 1, 25)]
    assert (np.diff(lights) < 0).all()
    assert min(lights) + 0.05 >= 4.5 * (luminance(INK) + 0.05)  # WCAG's contrast for text


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "no examples"),
        ([FILM._replace(updates=[1])], "example 0: 8 tokens, 1 updates"),
        ([FILM, FILM._replace(tokens=[], updates=[])], "example 1: 0 tokens"),
        ([FILM._replace(maximum=5)], "not all in 0…5"),
    ],
)
def test_examples_that_cannot_be_shown_are_named(examples, message):
    with pytest.raises(ValueError, match=message):
        tokens_html(examples)
