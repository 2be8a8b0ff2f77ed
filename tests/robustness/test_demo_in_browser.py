"""The demo page in Chromium: it answers as ONNX Runtime in Python does with the same file."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from tokenizers import Tokenizer

from tests.commands import served
from tests.robustness.conftest import requests_of, size

onnxruntime = pytest.importorskip("onnxruntime")
keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = [pytest.mark.onnx, pytest.mark.slow]
DEMO = Path(__file__).parents[2] / "docs" / "demo"
LIBRARIES = (
    "onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
    "@huggingface/tokenizers/dist/tokenizers.min.mjs",
)
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


@pytest.fixture(scope="module")
def address(node_modules, tmp_path_factory) -> Iterator[str]:
    """Of a plain server of the page's folder, with its libraries as the built site has them."""
    folder = tmp_path_factory.mktemp("served") / "demo"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("lib"))
    (folder / "lib").mkdir()
    for name in LIBRARIES:
        shutil.copy(node_modules / name, folder / "lib")
    with served(folder) as (url, _):
        yield f"{url}/"


READY = "return document.body.dataset.ready === 'yes'"


class Page:
    """The page as a user meets it."""

    def __init__(self, browser, address: str, width: int = 1280) -> None:
        self.browser = browser
        size(browser, width, 900)
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [motion]})
        browser.get_log("performance")
        browser.get("about:blank")  # a new address after # alone would load nothing
        browser.get(address)
        self.wait(READY)

    def wait(self, script: str) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60).until(lambda b: b.execute_script(script))

    def one(self, css: str):
        return self.browser.find_element("css selector", css)

    def do(self, css: str, *typed: str) -> None:
        """Type into it, or press it, and wait for the answer."""
        self.one(css).send_keys(*typed)
        self.wait(READY)

    def texts(self, side: str) -> list[str]:
        boxes = self.browser.find_elements("css selector", f"#side-{side} textarea")
        return [box.get_attribute("value") for box in boxes]

    def settings(self) -> dict[str, float]:
        outputs = self.browser.find_elements("css selector", "#sliders output")
        return {o.get_attribute("for")[7:]: float(o.text) for o in outputs}

    def shows_the_answer(self, side: str) -> int:
        """Asserts that answer and dots are the file's; returns the exit layer."""
        shares, exit_layer = answer(self.texts(side), self.settings())
        dots = self.browser.find_elements("css selector", f"#side-{side} circle[data-share]")
        shown = [float(dot.get_attribute("data-share")) for dot in dots]
        assert shown == pytest.approx(shares.max(-1).tolist(), abs=1e-3)
        said = self.one(f"#side-{side} .answer").text
        assert said.startswith(ABOUT["labels"][shares[-1].argmax()])
        why = self.one(f"#side-{side} .why").text
        assert f"layer {exit_layer} of {ABOUT['layers']}," in why
        entropy = -(shares[-1] * np.log(shares[-1])).sum() / np.log(len(ABOUT["labels"]))
        assert ("entropy" in why) == (entropy < self.settings()["exit_thres"])
        if exit_layer < ABOUT["layers"]:
            full, _ = answer(self.texts(side), {"exit_thres": 0, "cnt_thres": ABOUT["layers"]})
            right = full[-1].argmax() == shares[-1].argmax()
            verdict = self.one(f"#side-{side} .verdict").text
            assert verdict.startswith("All ") == right
            ghosts = self.browser.find_elements("css selector", f"#side-{side} circle.ghost")
            assert len(ghosts) == ABOUT["layers"] - exit_layer
        return exit_layer


@pytest.fixture
def page(browser, address):
    return Page(browser, address)


def test_it_exits_where_the_file_does(page):
    """Over examples, and over every slider's ends; a moved slider blanks nothing."""
    assert page.settings() == {row["key"]: row["value"] for row in ABOUT["sliders"]}
    page.browser.execute_script(
        "window.blanks = 0; for (const p of document.querySelectorAll('.answer'))"
        " new MutationObserver(() => (window.blanks += p.textContent === ''))"
        ".observe(p, {childList: true})"
    )
    exits = set()
    for _ in range(3):
        exits |= {page.shows_the_answer(side) for side in "ab"}
        for row in ABOUT["sliders"]:
            for key in (keys.HOME, keys.END):
                page.do(f"#slider-{row['key']}", key)
                exits |= {page.shows_the_answer(side) for side in "ab"}
        page.do("#slider-exit_thres", keys.HOME)
        page.do("#side-a .next", " ")
    assert len(exits) > 2
    assert page.browser.execute_script("return window.blanks") == 0


def test_dragging_the_line_sets_the_threshold(page):
    from selenium.webdriver import ActionChains

    before = page.settings()["exit_thres"]
    handle = page.one("#side-b .handle")
    ActionChains(page.browser).click_and_hold(handle).move_by_offset(0, -40).release().perform()
    page.wait(READY)
    assert page.settings()["exit_thres"] > before
    layers = page.shows_the_answer("a") + page.shows_the_answer("b")
    assert page.one("#layers").text == f"{layers} of 12 layers computed for 2 texts"


def test_a_link_brings_texts_and_settings_back(page, browser, address):
    page.do("#slider-exit_thres", keys.HOME)
    page.do("#text-a-0", " fine fine")
    now = page.settings(), page.texts("a"), page.texts("b")
    again = Page(browser, browser.current_url)
    assert (again.settings(), again.texts("a"), again.texts("b")) == now


def test_what_it_cannot_read_gets_no_verdict(page):
    page.browser.execute_script("document.querySelector('#text-a-0').value = ''")
    page.do("#text-a-0", "\u4f60\u597d \u4e16\u754c")
    assert page.one("#side-a .answer").text == "No answer"
    assert "\u4f60" in page.one("#side-a .unknown").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_its_window_and_asks_no_other_host(browser, address, width, scheme):
    colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page = Page(browser, address, width)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    paper = page.one("body").value_of_css_property("background-color")
    assert (paper == "rgba(20, 24, 29, 1)") == (scheme == "dark")
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []
    asked = requests_of(browser)
    assert len(asked) > 5
    assert all(url.startswith((address, "data:", "about:")) for url in asked)
