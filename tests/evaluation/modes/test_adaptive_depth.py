"""tokens.html: the texts as Adaptive Depth read them."""

import re
from html import unescape

from evaluation.modes.adaptive_depth import token_section


def test_every_token_stands_over_its_number_of_updates_and_is_never_markup():
    tokens = ["[CLS]", "▁a", "▁thrill", "ing", "▁", "<b>&\"'", "$x$", "[SEP]"]
    updates = [6, 0, 3, 1, 2, 5, 4, 6]
    page = token_section(tokens, updates, maximum=6, answer="positive", label="<negative>")
    spans = re.findall(r'style="--n:(.)" title="(.*?)">(.*?)<small>(.)</small></span>', page)
    texts = ["[CLS]", "a", "thrill", "ing", "▁", "<b>&\"'", "$x$", "[SEP]"]
    assert [tuple(map(unescape, span)) for span in spans] == [
        (f"{n}", f"{n} of 6 updates", text, f"{n}") for n, text in zip(updates, texts, strict=True)
    ]
    assert not re.search(r"<(b|negative)\b", page)
