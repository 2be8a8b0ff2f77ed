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


class Page(HTMLParser):
    """The spans of a page, in order: style, tooltip and text of each; and all tags."""

    def __init__(self, examples: list[TokenExample], counts: dict[int, int]) -> None:
        super().__init__()
        self.spans, self.tags, self.inside = [], set(), False
        self.text = tokens_html(examples, counts, 6)
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.inside = self.inside or tag == "span"
        if tag == "span":
            given = dict(attributes)
            self.spans.append((given["style"], given["title"], ""))

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "span"

    def handle_data(self, data):
        if self.inside:
            style, title, text = self.spans[-1]
            self.spans[-1] = style, title, text + data


def test_every_token_stands_over_its_number_of_updates_and_is_never_markup():
    page = Page([FILM], Counter(FILM.updates))
    texts = ["[CLS]6", "a0", "thrill3", "ing1", "▁2", "<b>&\"'5", "$x$4", "[SEP]6"]
    assert page.spans == [
        (f"--n:{n}", f"{n} of 6 updates", text) for n, text in zip(FILM.updates, texts, strict=True)
    ]
    assert not {"b", "negative", "script", "img", "link"} & page.tags
    assert not re.findall("https?:", page.text)  # it loads nothing


def test_the_scale_is_fitted_or_whole_and_counts_all_tokens():
    page = Page([FILM._replace(updates=[1] * 8, wrong=True)], {1: 10, 2: 30}).text
    assert re.findall(r"--low: (\d+); --high: (\d+);", page) == [("1", "2"), ("0", "6")]
    assert re.findall(r"<div>(\d+%)", page) == ["25%", "75%"]
    assert page.count('<section class="wrong">') == 1
    assert "1 answered wrongly</label>" in page
