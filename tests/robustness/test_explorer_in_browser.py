"""explorer.html in headless Chromium: what its sliders, lists and chart show."""

import json

import numpy as np
import pytest

from exit_lab.explorer import PageInfo, explorer_page
from exit_lab.tables import setting_rows
from tests.exit_lab.builders import EVIL, EXPLORED, explored
from tests.robustness.conftest import requests_of, size

pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SHOWN = """
const all = (css) => [...document.querySelectorAll(css)];
return {
  rule: all("input[name=rule]:checked")[0].value,
  keys: Object.fromEntries(all("#sliders output").map((o) => [o.id.slice(6), +o.textContent])),
  numbers: all("#numbers dd[id]").map((n) => [n.id.slice(7), +n.dataset.value, +n.textContent]),
  bars: all("#bars > div").map((bar) => +bar.dataset.count),
  listed: all("#wrong li").map((item) => +item.dataset.row),
  text: all("#wrong li p")[0].textContent,
  lines: all("#chart text").map((node) => node.textContent),
  outside: all("#chart path, #chart circle, #chart text").filter((node) => {
    const [box, chart] = [node, byId("chart")].map((one) => one.getBoundingClientRect());
    return box.top < chart.top - 1 || box.bottom > chart.bottom + 1
      || box.left < chart.left - 1 || box.right > chart.right + 1;
  }).map((node) => node.textContent || node.id || node.tagName),
  width: document.documentElement.scrollWidth,
};"""


@pytest.mark.parametrize("task", ["rte", pytest.param("sts-b", marks=pytest.mark.slow)])
def test_the_page_shows_the_sweep(browser, tmp_path, task):
    swept, *content = explored(task)
    rows, start = setting_rows(swept), 50
    path = tmp_path / "explorer.html"
    info = PageInfo(
        title=f"{task} <b>",
        start=start,
        fixed={"window_score": "lead"},
        command="python run_glue.py …",
    )
    path.write_text(explorer_page(swept, *content, info))
    size(browser, 1280, 900)
    browser.get_log("performance")
    browser.get(path.as_uri())
    WebDriverWait(browser, 30).until(
        lambda b: b.execute_script("return document.body.dataset.ready") == "yes"
    )

    def shows(number: int) -> dict:
        """The page as a setting's row of sweep.csv has it, in full and as text."""
        shown = browser.execute_script(SHOWN)
        assert {"thres_name": shown["rule"], **shown["keys"]} == swept.settings[number]
        for name, value, text in shown["numbers"]:
            assert value == rows[number][name], name
            assert text == pytest.approx(value, abs=0.0051 if "latency" in name else 0.000051)
        assert shown["bars"] == [rows[number][f"exits_{n}"] for n in range(1, 6)]
        assert shown["outside"] == []
        return shown

    shown = shows(start)
    assert browser.title == info.title
    assert {"random exits", "oracle", "full depth"} < set(shown["lines"])
    # The list: what is wrong at this setting, or, of values, worse than full depth's.
    answers = swept.predictions[swept.exit_layer[start].astype(int) - 1, np.arange(EXPLORED)]
    error = np.abs(answers - swept.labels)
    worse = error > np.abs(swept.predictions[-1] - swept.labels) + 1e-5
    wrong = worse if swept.task.is_regression else error > 0
    assert browser.find_element("id", "count").get_attribute("data-count") == str(wrong.sum())
    assert wrong[shown["listed"]].all()
    assert len(shown["listed"]) == min(30, wrong.sum()) > 5
    assert shown["text"] == f"{EVIL} first text {shown['listed'][0]}"  # as text, not as markup
    # Another rule, its sliders by keyboard; the address and the copied file hold the setting.
    rule = browser.find_element("css selector", "input[name=rule][value=bias_3]")
    browser.execute_script("arguments[0].focus()", rule)
    rule.send_keys(" ")
    for slider, key in (("cnt_thres", Keys.HOME), ("cnt_thres", Keys.ARROW_RIGHT)):
        browser.find_element("id", f"slider-{slider}").send_keys(key)
    shown = browser.execute_script(SHOWN)
    assert (shown["rule"], shown["keys"]["cnt_thres"]) == ("bias_3", 2)
    number = swept.settings.index({"thres_name": "bias_3", **shown["keys"]})
    shows(number)
    assert "thres_name=bias_3" in browser.current_url
    browser.find_element("id", "copy-config").click()
    copied = browser.find_element("id", "copied")
    WebDriverWait(browser, 5).until(lambda _: "{" in copied.text)
    copied = json.loads(copied.text[copied.text.index("{") :])
    assert copied == swept.settings[number] | info.fixed
    # A phone; and nothing was asked of the network, nothing failed.
    size(browser, 360, 800)
    shown = browser.execute_script(SHOWN)
    assert shown["width"] <= 360
    assert shown["outside"] == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert all(url.startswith("file://") for url in requests_of(browser))
