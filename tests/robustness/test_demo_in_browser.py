"""docs/demo in headless Chromium: it answers as ONNX Runtime in Python does with the same file."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from scipy.special import softmax
from tokenizers import Tokenizer

from tests.robustness.conftest import requests_of, size

onnxruntime = pytest.importorskip("onnxruntime")
keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = [pytest.mark.onnx, pytest.mark.slow]
DEMO = Path(__file__).parents[2] / "docs" / "demo"
ABOUT = json.loads((DEMO / "about.json").read_text(encoding="utf-8"))


def answer(texts: list[str], settings: dict[str, float]) -> tuple[np.ndarray, int]:
    """Probabilities after every layer that is run, (layers, classes), and the exit layer."""
    text = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(*texts)
    feed = {"input_ids": text.ids, "attention_mask": text.attention_mask}
    feed = {
        name: np.array([ids]) for name, ids in (feed | {"token_type_ids": text.type_ids}).items()
    }
    for name, value in {**ABOUT["settings"], **settings}.items():
        feed[name] = np.array(value, ABOUT["types"][name])
    session = onnxruntime.InferenceSession(DEMO / "model.onnx")
    _, exit_layer, _, logits = session.run(None, feed)
    return softmax(logits[: exit_layer[0], 0], axis=-1), int(exit_layer[0])


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(node_modules, tmp_path_factory) -> Iterator[str]:
    """Of a plain server of the page's folder."""
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(node_modules)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class Page:
    """The page as a user meets it."""

    def __init__(self, browser, address: str) -> None:
        self.browser = browser
        size(browser, 1280, 900)
        browser.get_log("performance")
        browser.get(address)
        self.wait("return document.body.dataset.ready === 'yes'")

    def wait(self, script: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60).until(lambda b: b.execute_script(script))

    def one(self, css: str):
        return self.browser.find_element("css selector", css)

    def do(self, css: str, *typed: str) -> None:
        """Type into it, or press it, and wait for the answer."""
        self.one(css).send_keys(*typed)
        self.wait("return document.body.dataset.ready === 'yes'")

    def texts(self) -> list[str]:
        boxes = self.browser.find_elements("css selector", "textarea")
        return [box.get_attribute("value") for box in boxes]

    def settings(self) -> dict[str, float]:
        outputs = self.browser.find_elements("css selector", "#sliders output")
        return {o.get_attribute("for")[7:]: float(o.text) for o in outputs}

    def shows_the_answer(self) -> int:
        """Asserts that the rows are the file's; returns the exit layer."""
        shares, exit_layer = answer(self.texts(), self.settings())
        rows = self.browser.find_elements("css selector", "#layers li")
        assert len(rows) == ABOUT["layers"]
        computed = [row for row in rows if row.get_attribute("class") != "rest"]
        shown = [float(row.get_attribute("data-share")) for row in computed]
        assert shown == pytest.approx(shares.max(-1).tolist(), abs=1e-3)
        label = ABOUT["labels"][shares[-1].argmax()]
        assert computed[-1].get_attribute("class") == "stops"
        said = f"{label}, after layer {exit_layer} of {ABOUT['layers']}"
        assert self.one("#answer").text == said
        return exit_layer


@pytest.fixture
def page(browser, address):
    return Page(browser, address)


def test_it_stops_where_the_file_does(page):
    """Over examples, and over every slider's ends."""
    assert page.settings() == {row["key"]: row["value"] for row in ABOUT["sliders"]}
    exits = set()
    for _ in range(4):
        exits.add(page.shows_the_answer())
        for row in ABOUT["sliders"]:
            for key in (keys.HOME, keys.END):
                page.do(f"#slider-{row['key']}", key)
                exits.add(page.shows_the_answer())
        page.do("#slider-exit_thres", keys.HOME)
        page.do("#next", " ")
    assert len(exits) > 2


def test_it_asks_no_other_host_and_has_no_errors(page, address):
    assert [e for e in page.browser.get_log("browser") if e["level"] == "SEVERE"] == []
    asked = requests_of(page.browser)
    assert len(asked) > 5
    assert all(url.startswith((address, "data:")) for url in asked)
