"""`explorer.html`: a sweep as one self-contained page, with a slider for each key.

The page holds results only: exit layers, metrics and texts. It knows no rule.
"""

import base64
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.exit_metrics import bootstrap_weights, interval
from evaluation.frontier import concave_hull, frontier
from evaluation.sweep import ORACLE, RANDOM_MIXTURE, TRUNCATION, Sweep
from exit_lab.tables import Row, baseline_rows, best_rows
from glue.splits import Example
from glue.submission import label_text

# What the page is made of: the file for each place {{name}} in the template, which is "page".
PAGE_FILES = {
    "page": "explorer_template.html",
    "style": "explorer.css",
    "data_script": "explorer_data.js",
    "chart_script": "explorer_chart.js",
    "page_script": "explorer_page.js",
}
RESAMPLES = 200  # of the intervals
LARGEST = 40_000_000  # settings × listed examples, bytes before compression


@dataclass(frozen=True)
class PageInfo:
    """What the page says beside the sweep."""

    title: str
    start: int = 0  # number of the setting that is shown first
    fixed: Mapping[str, Any] = field(default_factory=dict)  # exit keys that are the same in all
    command: str = ""  # that evaluates the model, but for the exit keys
    remarks: Sequence[str] = ()  # on what is suspect


def explorer_page(
    swept: Sweep,
    examples: Sequence[Example],
    confidence: np.ndarray,
    info: PageInfo,
    seed: int = 42,
) -> str:
    """Make the page's HTML.

    Args:
        confidence: probability of the class answered, (layers, examples); unused for regression.
        seed: of the bootstrap, and of the sample of examples that is listed if there are too many.
    """
    listed = listed_examples(len(examples), len(swept.settings), seed)
    full_depth = swept.metrics(swept.truncations[-1:])
    data = {
        **asdict(info),
        "metric": swept.task.primary_metric,
        "regression": swept.task.is_regression,
        "layers": swept.num_layers,
        "examples": len(examples),
        "listed": len(listed),
        "rule_key": swept.config.rule_key,
        "rules": rules_of(swept),
        "settings": setting_columns(swept, seed),
        **baseline_points(swept, seed),
        "full": {name: float(values[0]) for name, values in full_depth.items()},
        **example_columns(swept, examples, confidence, listed),
    }
    # "<" would let a text end the script element that carries the data.
    script_data = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    folder = Path(__file__).parent
    parts = {
        place: (folder / name).read_text(encoding="utf-8") for place, name in PAGE_FILES.items()
    }
    parts["title"] = html.escape(info.title)
    parts["data"] = script_data
    # All places at once, so that a text with {{data}} in it stays a text.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], parts["page"])


def listed_examples(examples: int, settings: int, seed: int) -> np.ndarray:
    """Return the numbers of the examples that the page lists: all, or a sample of too many."""
    most = max(1, LARGEST // settings)
    numbers = np.arange(examples)
    if examples <= most:
        return numbers
    return np.sort(np.random.default_rng(seed).permutation(numbers)[:most])


def rules_of(swept: Sweep) -> list[dict[str, Any]]:
    """List each rule's keys with their values, its first setting's number, and its frontier."""
    metric, cost = swept.main_metric(swept.exit_layer), swept.cost(swept.exit_layer)
    rules = []
    for rule, grid in swept.grids.items():
        settings = swept.of_rule(rule)
        best = frontier(cost[settings], metric[settings]) + settings.start
        rules.append(
            {
                "name": rule,
                "keys": [{"name": key, "values": values} for key, values in grid.items()],
                "first": settings.start,
                "count": settings.stop - settings.start,
                "frontier": best.tolist(),
            }
        )
    return rules


def metric_intervals(swept: Sweep, exit_layer: np.ndarray, seed: int) -> np.ndarray:
    """Return the ends of the main metric's 95% interval of each setting: (2, settings).

    exit_layer: (settings, examples), 1-based. seed: of the resamples.
    """
    weights = bootstrap_weights(len(swept.labels), RESAMPLES, seed)
    # Many settings have the same exits, and a bootstrap is slow: each is drawn once.
    distinct, number = np.unique(exit_layer, axis=0, return_inverse=True)
    ends = interval(swept.main_metric(distinct, weights=weights))
    return ends[:, number.reshape(-1)]


def baseline_points(swept: Sweep, seed: int) -> dict[str, list[dict[str, float]]]:
    """List the points of each baseline: truncation's layers, and those that the others go between.

    Truncation's have their interval as well.
    """
    metric = swept.task.primary_metric
    truncations = [baseline_point(row, metric) for row in baseline_rows(swept, TRUNCATION)]
    lows, highs = metric_intervals(swept, swept.truncations, seed).tolist()
    for point, low, high in zip(truncations, lows, highs, strict=True):
        point["low"] = low
        point["high"] = high
    points = {TRUNCATION: truncations}
    for baseline in (RANDOM_MIXTURE, ORACLE):
        rows = best_rows(baseline_rows(swept, baseline), metric, concave_hull)
        points[baseline] = [baseline_point(row, metric) for row in rows]
    return points


def baseline_point(row: Row, metric: str) -> dict[str, float]:
    """Select from a baseline's row what the chart draws."""
    return {"layer": row["layer"], "cost": row["compute_ratio"], "value": row[metric]}


def setting_columns(swept: Sweep, seed: int) -> dict[str, str]:
    """Pack the numbers of sweep.csv and the main metric's interval, a value for each setting.

    `exits` has (settings, layers) numbers.
    """
    low, high = metric_intervals(swept, swept.exit_layer, seed)
    columns = {**swept.columns(swept.exit_layer), "low": low, "high": high}
    packed = {name: pack(values.astype("<f8")) for name, values in columns.items()}
    packed["exits"] = pack(swept.exits_per_layer(swept.exit_layer).astype("<u4"))
    return packed


def example_columns(
    swept: Sweep, examples: Sequence[Example], confidence: np.ndarray, listed: np.ndarray
) -> dict[str, Any]:
    """Collect the columns of the list of examples.

    Exit layers are packed as (settings, listed), answers and confidences as (layers, listed).

    listed: numbers of the examples. confidence: (layers, examples).
    """
    task = swept.task
    answers, labels = swept.predictions[:, listed], swept.labels[listed]
    classes = list(task.labels)
    if task.multi_label:
        classes, answers, labels = sets_as_classes(swept, answers, labels)
    number_type = "<f4" if task.is_regression else "<u2"
    packed_confidence = ""
    if not task.is_regression:
        percent = (confidence[:, listed] * 100).round()
        packed_confidence = pack(percent.astype("<u1"))
    texts = []
    for row in listed:
        example = examples[row]
        texts.append([text for text in (example.text_a, example.text_b) if text is not None])
    return {
        "classes": classes,
        "exit_layer": pack(swept.exit_layer[:, listed].astype("<u1")),
        "predictions": pack(answers.astype(number_type)),
        "labels": pack(labels.astype(number_type)),
        "confidence": packed_confidence,
        "rows": listed.tolist(),
        "texts": texts,
    }


def sets_as_classes(
    swept: Sweep, answers: np.ndarray, labels: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Number the sets of labels that occur, since the page knows classes alone.

    Args:
        answers: (layers, listed, labels) of 0 and 1.
        labels: (listed, labels) of 0 and 1.

    Returns: the name of each set; the answers as numbers of sets, (layers, listed); the labels so,
    (listed,).
    """
    layers, listed, label_count = answers.shape
    answers_and_labels = np.concatenate((answers, labels[None]))
    sets, numbers = np.unique(
        answers_and_labels.reshape(-1, label_count), axis=0, return_inverse=True
    )
    numbers = numbers.reshape(layers + 1, listed)
    names = [label_text(swept.task, label_set) or "none" for label_set in sets]
    return names, numbers[:-1], numbers[-1]


def pack(values: np.ndarray) -> str:
    """Write an array's bytes deflated, in base64; the caller makes them little-endian."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
