"""explorer.html: what it carries; tests/robustness opens it in a browser."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from exit_lab.explorer import explorer_page
from exit_lab.tables import sweep_table
from tests.exit_lab.builders import EVIL, EXPLORED, explored


def data_of(page: str) -> dict:
    text = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1]
    return json.loads(text)


def unpacked(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind)


@pytest.mark.parametrize("task", ["rte", "mnli", "sts-b"])
def test_the_page_carries_the_sweep_to_the_last_bit(task):
    swept, examples, confidence = explored(task)
    data = data_of(explorer_page(swept, examples, confidence, "a title"))
    rows = sweep_table(swept)
    for name in (*data["full"], "compute_ratio", "exit_sample_ratio"):
        values = unpacked(data["settings"][name], "<f8")
        assert values.tolist() == [row[name] for row in rows]
    exits = unpacked(data["exit_layer"], "<u1").reshape(-1, EXPLORED)
    assert np.array_equal(exits, swept.exit_layer)
    kind = "<f4" if task == "sts-b" else "<u2"
    assert unpacked(data["predictions"], kind) == pytest.approx(swept.predictions.flatten())


def test_texts_and_title_are_escaped():
    page = explorer_page(*explored("rte"), "<i>" + EVIL)
    assert "default-src 'none'" in page  # the network is asked nothing
    assert page.count("</script>") == 2  # the data's and the program's own
    assert "<title>&lt;i&gt;&lt;/script&gt;" in page
    assert data_of(page)["texts"][3][0] == f"{EVIL} first text 3"
