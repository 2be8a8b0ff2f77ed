"""tokens.html: the numbers, the colours, and what a text may not do."""

import re
from collections import Counter
from html.parser import HTMLParser

from evaluation.token_pictures import TokenExample, tokens_html

FILM = TokenExample(
    ["[CLS]", "▁a", "▁thrill", "ing", "▁", "<b>&\"'", "$x$", "[SEP]"],
    [6, 0, 3, 1, 2, 5, 4, 6],
    "positive",
    "<negative>",
)


class Spans(HTMLParser):
    """The spans of a page, in order: style, tooltip and text of each; and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.spans, self.tags, self.inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "span":
            given, self.inside = dict(attributes), True
            self.spans.append([given["style"], given["title"], ""])

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "span"

    def handle_data(self, data):
        if self.inside:
            self.spans[-1][2] += data


def page_of(*examples: TokenExample) -> str:
    """With the scale that these examples' own tokens make."""
    return tokens_html(examples, Counter(n for example in examples for n in example.updates), 6)


def test_every_token_stands_over_its_number_of_updates():
    page = Spans(page_of(FILM))
    texts = ["[CLS]6", "a0", "thrill3", "ing1", "▁2", "<b>&\"'5", "$x$4", "[SEP]6"]
    assert [text for _, _, text in page.spans] == texts
    assert [title for _, title, _ in page.spans] == [f"{n} of 6 updates" for n in FILM.updates]
    assert [style for style, _, _ in page.spans] == [f"--n:{n}" for n in FILM.updates]


def test_the_scale_is_fitted_or_whole_and_counts_all_tokens():
    fitted = page_of(FILM._replace(updates=[2, 3, 3, 2, 2, 3, 2, 4]))
    assert re.findall(r"--low: (\d+); --high: (\d+);", fitted) == [("2", "4"), ("0", "6")]
    assert re.findall(r"<div>(\d+%)", fitted) == ["50%", "38%", "12%"]
    given = tokens_html([FILM._replace(updates=[1] * 8)], {1: 10, 2: 30}, 6)
    assert re.findall(r"<div>(\d+%)", given) == ["25%", "75%"]


def test_wrong_answers_can_be_shown_alone():
    page = page_of(FILM, FILM._replace(wrong=True))
    assert page.count('<section class="wrong">') == 1
    assert "1 answered wrongly</label>" in page
    assert "answered wrongly" not in page_of(FILM)  # nothing to choose


def test_text_is_never_markup_and_the_page_loads_nothing():
    page = page_of(FILM)
    assert not {"b", "negative", "script", "img", "link"} & set(Spans(page).tags)
    assert not re.findall("https?:", page)
