"""`explorer.html`: a sweep as one self-contained page, with a slider a key.

The page holds results only: exit layers, metrics and texts. It knows no rule.
"""

import base64
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from answers.sweep import COIN, ORACLE, TRUNCATION, Sweep
from exit_lab.tables import best_rows, rows_of
from glue.metrics import bootstrap_weights, concave_hull, frontier, interval
from glue.tasks import Example, label_text

PARTS = {  # of the page, by their place in the template
    "page": "explorer_template.html",
    "style": "explorer.css",
    "data_script": "explorer_data.js",
    "chart_script": "explorer_chart.js",
    "page_script": "explorer_page.js",
}
RESAMPLES = 200  # of the intervals
LARGEST = 40_000_000  # settings × listed examples, bytes before compression


def explorer_page(
    swept: Sweep,
    examples: Sequence[Example],
    confidence: np.ndarray,
    about: Mapping[str, Any],
    seed: int = 42,
) -> str:
    """The page's HTML.

    confidence: (layers, examples) probability of the class answered; unused for regression.
    about: title; start, number of the setting that is shown first; fixed, exit keys that are the
    same in all; command, that evaluates the model, but for the exit keys; remarks, on what is
    suspect.
    seed: of the bootstrap, and of the sample that is listed of too many examples.
    """
    most = max(1, LARGEST // len(swept.settings))
    listed = np.arange(len(examples))
    if len(listed) > most:
        listed = np.sort(np.random.default_rng(seed).permutation(listed)[:most])
    full_depth = swept.metrics(swept.truncations[-1:])
    data = {
        **about,
        "metric": swept.task.primary_metric,
        "regression": swept.task.is_regression,
        "layers": swept.num_layers,
        "examples": len(examples),
        "listed": len(listed),
        "rule_key": swept.config.rule_key,
        "rules": rules(swept),
        "settings": settings_columns(swept, seed),
        **baselines(swept, seed),
        "full": {name: float(v[0]) for name, v in full_depth.items()},
        **example_columns(swept, examples, confidence, listed),
    }
    # "<" would let a text end the script element that carries the data.
    text, here = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"), Path(__file__).parent
    parts = {name: (here / file).read_text(encoding="utf-8") for name, file in PARTS.items()}
    parts |= {"title": html.escape(about["title"]), "data": text}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], parts["page"])


def rules(swept: Sweep) -> list[dict[str, Any]]:
    """Each rule's keys with their values, its first setting's number, and its frontier."""
    metric, cost = swept.main_metric(swept.exit_layer), swept.cost(swept.exit_layer)
    result = []
    for rule, grid in swept.grids.items():
        own = swept.of_rule(rule)
        keys = [{"name": key, "values": values} for key, values in grid.items()]
        best = (frontier(cost[own], metric[own]) + own.start).tolist()
        about = {"name": rule, "keys": keys, "first": own.start, "count": own.stop - own.start}
        result.append({**about, "frontier": best})
    return result


def intervals(swept: Sweep, exit_layer: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The main metric's 95% interval of each setting, (settings,) twice; equal exits once."""
    weights = bootstrap_weights(len(swept.labels), RESAMPLES, seed)
    different, which = np.unique(exit_layer, axis=0, return_inverse=True)
    low, high = interval(swept.main_metric(different, weights=weights))[:, which.reshape(-1)]
    return low, high


def baselines(swept: Sweep, seed: int) -> dict[str, list[dict[str, float]]]:
    """Stopping everyone at layer 1, 2, …; the points that the coin and the oracle go between."""
    metric, points = swept.task.primary_metric, {}
    for name in (TRUNCATION, COIN, ORACLE):
        rows = rows_of(swept, name)
        rows = rows if name == TRUNCATION else best_rows(rows, metric, concave_hull)
        points[name] = [
            {"layer": row["layer"], "cost": row["compute_ratio"], "value": row[metric]}
            for row in rows
        ]
    ends = intervals(swept, swept.truncations, seed)
    for point, low, high in zip(points[TRUNCATION], *ends, strict=True):
        point |= {"low": float(low), "high": float(high)}
    return points


def settings_columns(swept: Sweep, seed: int) -> dict[str, str]:
    """The numbers of sweep.csv and the main metric's interval, packed; exits (settings, layers)."""
    low, high = intervals(swept, swept.exit_layer, seed)
    columns = {**swept.columns(swept.exit_layer), "low": low, "high": high}
    packed_columns = {name: packed(values.astype("<f8")) for name, values in columns.items()}
    exits = swept.exits_per_layer(swept.exit_layer)
    return {**packed_columns, "exits": packed(exits.astype("<u4"))}


def example_columns(
    swept: Sweep, examples: Sequence[Example], confidence: np.ndarray, listed: np.ndarray
) -> dict[str, Any]:
    """Columns of the list of examples, packed: (settings, listed) and (layers, listed)."""
    regression = swept.task.is_regression
    kind, percent = "<f4" if regression else "<u2", (confidence[:, listed] * 100).round()
    answers, labels = swept.predictions[:, listed], swept.labels[listed]
    classes = list(swept.task.labels)
    if swept.task.multi_label:  # every set of labels is a class
        both = np.concatenate((answers, labels[None])).reshape(-1, len(classes))
        sets, ids = np.unique(both, axis=0, return_inverse=True)
        ids = ids.reshape(-1, len(listed))
        answers, labels = ids[:-1], ids[-1]
        classes = [label_text(swept.task, one) or "none" for one in sets]
    return {
        "classes": classes,
        "exit_layer": packed(swept.exit_layer[:, listed].astype("<u1")),
        "predictions": packed(answers.astype(kind)),
        "labels": packed(labels.astype(kind)),
        "confidence": "" if regression else packed(percent.astype("<u1")),
        "rows": listed.tolist(),
        "texts": [[t for t in examples[row][1:3] if t is not None] for row in listed],
    }


def packed(values: np.ndarray) -> str:
    """Little-endian bytes, deflated, in base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()
