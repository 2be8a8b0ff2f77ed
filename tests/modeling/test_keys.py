"""The tables of keys, as docs/configuration.md lists them."""

from pathlib import Path

import pytest

from modeling.keys import ACT_KEYS, ELBERT_KEYS, PONDER_KEYS


def documented_tables() -> list[dict[str, tuple[str, str]]]:
    """The tables of keys of docs/configuration.md, each as key -> (default, meaning)."""
    text = (Path(__file__).parents[2] / "docs/configuration.md").read_text(encoding="utf-8")
    tables = []
    for block in text.split("| key | default | meaning |\n|---|---|---|\n")[1:]:
        rows = [line.strip("| ").split(" | ") for line in block.split("\n\n")[0].splitlines()]
        tables.append({key.strip("`"): (default, meaning) for key, default, meaning in rows})
    return tables


# What a default is called where the model decides it.
DERIVED = {"cnt_thres": "8, or N if less", "fc_size1": "hidden_size", "fc_size2": "hidden_size"}


@pytest.mark.parametrize("number", range(3))
def test_the_page_lists_every_key_as_the_code_has_it(number):
    keys = (ELBERT_KEYS, PONDER_KEYS, ACT_KEYS)[number]
    listed = documented_tables()[number]
    assert list(listed) == list(keys)
    for name, key in keys.items():
        default, meaning = listed[name]
        assert meaning == f"{key.meaning}; {key.allowed()}"
        plain = "(none)" if key.default in ("", None) else str(key.default)
        assert default == DERIVED.get(name, plain.lower() if key.kind is bool else plain)
