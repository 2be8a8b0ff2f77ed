"""explorer.html in headless Chromium: what its sliders, lists and chart show."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from exit_lab.explorer import View, explorer_page, intervals
from exit_lab.tables import frontier, sweep_table
from tests.exit_lab.builders import EVIL, EXPLORED, explored
from tests.robustness.conftest import requests_of, size

pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


class Page:
    """The explorer as a user meets it: by its labels, values and keys."""

    def __init__(self, browser, path: Path) -> None:
        self.browser = browser
        size(browser, 1280, 900)
        browser.get_log("performance")
        browser.get(path.as_uri())
        WebDriverWait(browser, 30).until(
            lambda b: b.execute_script("return document.body.dataset.ready") == "yes"
        )

    def all(self, css: str) -> list:
        return self.browser.find_elements("css selector", css)

    def shown(self) -> dict:
        """Rule, sliders' values, numbers (value and text) and bars, in one look."""
        return self.browser.execute_script("""
            const all = (css) => [...document.querySelectorAll(css)];
            return {
              rule: all("input[name=rule]:checked")[0].value,
              sliders: all("#sliders output").map((o) => [o.id.slice(6), Number(o.textContent)]),
              numbers: all("#numbers dd[id]").map(
                (n) => [n.id.slice(7), Number(n.dataset.value), Number(n.textContent)]),
              bars: all("#bars > div").map((bar) => Number(bar.dataset.count)),
            };""")

    def setting(self) -> dict:
        """The rule that is checked, and the value shown at each slider."""
        shown = self.shown()
        return {"thres_name": shown["rule"], **dict(shown["sliders"])}

    def press(self, slider: str, *keys: str) -> None:
        self.all(f"#slider-{slider}")[0].send_keys(*keys)

    def choose(self, group: str, value: str) -> None:
        """With the keyboard: the radio button takes the focus, then a press of space."""
        node = self.all(f"input[name={group}][value='{value}']")[0]
        self.browser.execute_script("arguments[0].focus()", node)
        node.send_keys(" ")

    def shows(self, row: dict) -> None:
        """The numbers are this row of sweep.csv, in full and as text; so are the bars."""
        shown = self.shown()
        for name, value, text in shown["numbers"]:
            assert value == row[name], name
            digits = 2 if name.startswith("latency") else 4
            assert text == pytest.approx(value, abs=0.51 * 10**-digits)
        assert {"compute_ratio", "exit_sample_ratio"} < {name for name, *_ in shown["numbers"]}
        exits = [count for name, count in row.items() if re.fullmatch(r"exits_\d+", name)]
        assert shown["bars"] == exits


@pytest.fixture
def open_page(browser, tmp_path):
    def opened(task: str, **keywords):
        swept, *shown = explored(task)
        path = tmp_path / "explorer.html"
        path.write_text(explorer_page(swept, *shown, View(f"{task} <b>", **keywords)))
        return Page(browser, path), swept, sweep_table(swept)

    return opened


@pytest.mark.parametrize(
    "task", ["rte", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mnli", "sts-b"))]
)
def test_sliders_move_through_the_settings_of_the_sweep(open_page, task):
    page, swept, rows = open_page(task)
    visited = 0
    for rule in ("bias_3", "patience", "bias_1"):
        page.choose("rule", rule)
        assert page.setting()["thres_name"] == rule
        for slider in [node.get_attribute("data-key") for node in page.all("#sliders input")]:
            for keys in ((Keys.HOME,), (Keys.ARROW_RIGHT,), (Keys.END,), (Keys.ARROW_LEFT,)):
                before = page.setting()
                page.press(slider, *keys)
                after = page.setting()
                assert {k: v for k, v in after.items() if k != slider} == {
                    k: v for k, v in before.items() if k != slider
                }
                page.shows(rows[swept.settings.index(after)])
                visited += after != before
    assert visited > 15


def test_every_setting_of_a_rule_can_be_reached(open_page):
    page, swept, rows = open_page("rte")
    page.choose("rule", "entropy")
    page.press("exit_thres", Keys.HOME)
    shown = []
    for _ in range(11):
        shown.append(page.setting())
        page.shows(rows[swept.settings.index(shown[-1])])
        page.press("exit_thres", Keys.ARROW_RIGHT)
    assert shown == swept.settings[swept.of_rule("entropy")]


def test_it_opens_at_the_setting_asked_for(open_page):
    page, swept, rows = open_page("rte", start=333)
    assert page.setting() == swept.settings[333]
    page.shows(rows[333])


@pytest.mark.parametrize("task", ["rte", "mnli"])
def test_the_list_holds_the_examples_that_exit_wrongly(open_page, task):
    page, swept, _ = open_page(task, start=50)
    answers = swept.predictions[swept.exit_layer[50].astype(int) - 1, np.arange(EXPLORED)]
    wrong = set(np.flatnonzero(answers != swept.labels).tolist())
    while page.all("#more")[0].is_displayed():
        page.all("#more")[0].send_keys(" ")
    listed = [int(item.get_attribute("data-row")) for item in page.all("#wrong li")]
    assert len(listed) == len(wrong) > 5
    assert set(listed) == wrong
    first = page.all("#wrong li p")[0].text
    assert first == f"{EVIL} first text {listed[0]}"  # as text, not as markup
    assert page.browser.title == f"{task} <b>"
    page.choose("filter", "lost")
    lost = {i for i in wrong if swept.predictions[-1, i] == swept.labels[i]}
    assert {int(item.get_attribute("data-row")) for item in page.all("#wrong li")} == lost


def test_regression_lists_the_answers_that_got_worse(open_page):
    page, swept, _ = open_page("sts-b", start=3)
    exits = swept.exit_layer[3].astype(int) - 1
    error = np.abs(swept.predictions[exits, np.arange(EXPLORED)] - swept.labels)
    worse = set(
        np.flatnonzero(error - np.abs(swept.predictions[-1] - swept.labels) > 1e-5).tolist()
    )
    while page.all("#more")[0].is_displayed():
        page.all("#more")[0].send_keys(" ")
    listed = {int(item.get_attribute("data-row")) for item in page.all("#wrong li")}
    assert listed == worse
    assert worse
    assert not page.all("#filter")[0].is_displayed()  # full depth is not right or wrong here


def test_a_click_on_the_chart_goes_to_the_nearest_setting(open_page):
    page, swept, rows = open_page("rte")
    page.choose("rule", "entropy")
    x, y = page.browser.execute_script(
        "const box = document.getElementById('chart').getBoundingClientRect();"
        "const at = arguments[0];"
        "return [box.left + scale.x(at[0]), box.top + scale.y(at[1])];",
        [rows[4]["compute_ratio"], rows[4]["acc"]],
    )
    page.browser.execute_script(
        "document.getElementById('chart').dispatchEvent("
        "new MouseEvent('click', {clientX: arguments[0], clientY: arguments[1]}))",
        x,
        y,
    )
    shown = rows[swept.settings.index(page.setting())]
    assert shown["compute_ratio"] == rows[4]["compute_ratio"]
    assert shown["acc"] == rows[4]["acc"]


def test_another_rule_starts_at_the_nearest_cost(open_page):
    page, swept, rows = open_page("rte", start=333)
    page.choose("rule", "patience")
    here = rows[333]["compute_ratio"]
    chosen = rows[swept.settings.index(page.setting())]
    own = [rows[i]["compute_ratio"] for i in range(*swept.of_rule("patience").indices(9999))]
    costs = [row["compute_ratio"] for row in rows if row["rule"] == "patience"]
    assert sorted(own) == sorted(costs)
    best = frontier(
        np.array(costs), np.array([row["acc"] for row in rows if row["rule"] == "patience"])
    )
    assert abs(chosen["compute_ratio"] - here) == min(abs(costs[i] - here) for i in best)


def test_the_address_holds_the_setting(open_page):
    page, swept, rows = open_page("rte", start=333)
    address = page.browser.current_url
    page.choose("rule", "entropy")
    page.press("exit_thres", Keys.HOME)
    assert page.browser.current_url.endswith("#thres_name=entropy&exit_thres=0")
    page.browser.get(address)  # a new hash on the same page
    WebDriverWait(page.browser, 5).until(lambda _: page.setting() == swept.settings[333])
    page.shows(rows[333])


def test_arrow_keys_walk_along_the_best_settings(open_page):
    page, swept, rows = open_page("rte")
    page.choose("rule", "bias_1")
    chart, seen = page.all("#chart")[0], []
    chart.send_keys(Keys.HOME)
    for _ in range(40):
        seen.append(rows[swept.settings.index(page.setting())])
        chart.send_keys(Keys.ARROW_RIGHT)
    points = [(row["compute_ratio"], row["acc"]) for row in seen]
    own = [row for row in rows if row["rule"] == "bias_1"]
    cost, metric = (np.array([row[name] for row in own]) for name in ("compute_ratio", "acc"))
    best = frontier(cost, metric)
    assert list(dict.fromkeys(points)) == [(cost[i], metric[i]) for i in best]
    assert chart.get_attribute("aria-valuenow") == str(len(best))


def test_lines_are_named_and_truncation_is_one_of_them(open_page):
    page, swept, _ = open_page("sts-b")
    names = {node.text for node in page.all("#chart text")}
    assert {"truncation", "full depth"} < names
    rules = [node.get_attribute("value") for node in page.all("input[name=rule]")]
    assert rules == ["bias_1", "bias_2", "bias_3", "patience"]  # others never fire on a value
    values = page.browser.execute_script("return data.truncation.map((one) => one.value)")
    assert values == pytest.approx(swept.main_metric(swept.truncations))


def test_hovering_shows_values_with_their_interval(open_page):
    page, swept, _ = open_page("rte", start=333)
    ActionChains(page.browser).move_to_element(page.all("#point")[0]).perform()
    text = page.all("#tip")[0].text
    low, high = intervals(swept, swept.exit_layer, 42)
    found = [float(number) for number in re.search(r"\[(.*), (.*)\]", text).groups()]
    assert found in np.stack((low, high), 1).round(3).tolist()
    assert re.search(r"FLOPs 0\.\d+\n\d+\.\d ms", text)


def test_the_setting_can_be_taken_along(open_page):
    keys = {"window_score": "lead"}
    page, swept, _ = open_page("rte", start=333, fixed=keys, command="python run_glue.py --do_eval")
    shown = shown_after(page, "#copy-config")
    assert json.loads(shown[shown.index("{") :]) == swept.settings[333] | keys
    *_, command = shown_after(page, "#copy-command").partition(": ")
    words = shlex.split(command)
    assert words[:4] == ["python", "run_glue.py", "--do_eval", "--set"]
    values = dict(word.split("=") for word in words[4:])
    name = values.pop("thres_name")
    chosen = {key: float(value) for key, value in values.items()}
    assert {"thres_name": name, **chosen} == swept.settings[333]


def shown_after(page: Page, button: str) -> str:
    """What the page says once the button was pressed."""
    before = page.all("#copied")[0].text
    page.all(button)[0].click()
    WebDriverWait(page.browser, 5).until(lambda _: page.all("#copied")[0].text != before)
    return page.all("#copied")[0].text


def test_plot_and_sliders_share_a_phones_screen(open_page):
    page, _, _ = open_page("mnli")
    size(page.browser, 390, 844)
    page.browser.execute_script("scrollTo(0, 0)")
    page.choose("rule", "bias_3")  # the most sliders
    top, bottom = page.browser.execute_script(
        "return [document.getElementById('chart').getBoundingClientRect().top,"
        " document.getElementById('sliders').getBoundingClientRect().bottom]"
    )
    assert bottom - top < 844
    assert page.browser.execute_script("return document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_without_errors_or_requests(open_page, width):
    page, _, _ = open_page("mnli")
    size(page.browser, width, 800)
    assert page.browser.execute_script(
        "return document.documentElement.scrollWidth <= window.innerWidth"
    )
    assert [e for e in page.browser.get_log("browser") if e["level"] == "SEVERE"] == []
    requests = requests_of(page.browser)
    assert all(url.startswith("file://") for url in requests)
    assert len(requests) <= 1
