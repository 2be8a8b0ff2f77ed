"""New texts against a model's reference: those of tables, or those that a server has answered."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import torch

from evaluation.drift import (
    EXITS,
    Histogram,
    Reference,
    Verdict,
    histograms_like,
    judge,
    measures_of,
    read_reference,
)
from evaluation.drift_settings import DriftSettings
from evaluation.scored_tables import ErrorLog, InputTables, batches
from evaluation.scorer import Scorer
from evaluation.table_settings import ColumnSettings, ModelSettings, TableSettings
from modeling.errors import UserError
from modeling.files import read_regular_file
from runs.job import load_own_config

BATCH = 2048  # rows of a table that are read together
TIMEOUT = 10  # seconds for a server's answer


def check_drift(settings: DriftSettings) -> Verdict:
    """Compare new texts with the reference of a model; print a table and the verdict.

    Raises UserError where there is no reference, or there are no texts.
    """
    folder = Path(settings.model_dir)
    if settings.server:
        config = load_own_config(folder)
        reference = read_reference(folder, config)
        now = served_texts(settings.server, settings.since, reference)
    else:
        model = ModelSettings(
            model_dir=settings.model_dir, onnx=settings.onnx, batch_size=settings.batch_size
        )
        # The prefix: a table may have been classified before.
        columns = ColumnSettings(
            text_column_names=settings.text_column_names, prefix="now_", on_error="skip"
        )
        scorer = Scorer(model, columns)
        reference = read_reference(folder, scorer.config)
        now = texts_of_tables(settings.input_file, scorer, reference)
    verdict = judge(reference, now, settings.alarm_rate)
    print(f"{verdict.texts} texts against the {reference.examples} of the reference:\n")
    print(f"{verdict.table()}\n\n{verdict.line()}")
    return verdict


def texts_of_tables(names: list[str], scorer: Scorer, reference: Reference) -> dict[str, Histogram]:
    """Answer the texts of tables, and count them in the reference's bins."""
    classifier = scorer.classifier
    classifier.max_length = classifier.usable_length(reference.max_length or None)
    errors = ErrorLog("skip")
    tables = InputTables(TableSettings(input_file=names, output_file=""), scorer, "", errors)
    counted: dict[str, Histogram] = {}
    for rows in batches(tables.rows(errors), BATCH):
        texts = [row.text for row in rows]
        with torch.inference_mode():
            encoded = classifier.encode(texts)
            outputs = classifier.run(encoded, scorer.batch_size)
        exits = [depth.get(EXITS, 0) for _, depth in outputs]
        values = measures_of(
            torch.stack([logits.float().cpu() for logits, _ in outputs]),
            [ids for ids, _ in encoded],
            classifier.tokenizer,
            np.array(exits) if EXITS in reference.histograms else None,
            scorer.config.is_multi_label,
        )
        for name, histogram in histograms_like(reference, values).items():
            counted[name] = histogram + counted[name] if name in counted else histogram
    return counted


# A server's counters.


def served_texts(server: str, since: str | None, reference: Reference) -> dict[str, Histogram]:
    """Read what a server has counted, in the reference's bins.

    since: a file with an earlier content of its /metrics.

    Raises UserError for counters that are not there, or have other bins.
    """
    now = cumulative_counts(server, metrics_text(server))
    before = cumulative_counts(since, metrics_text(since)) if since else {}
    histograms = {}
    for measure, histogram in reference.histograms.items():
        name = f"elbert_{measure}"
        ends = [*histogram.edges, float("inf")]
        missing = [end for end in ends if end not in now.get(name, {})]
        if missing:
            raise UserError(
                f"{server}: {name} has not the bins of the reference: start the server anew on "
                "this model's folder, which has a reference"
            )
        earlier = before.get(name, {})
        counts = np.array([now[name][end] - earlier.get(end, 0) for end in ends])
        if (np.diff(counts, prepend=0) < 0).any():
            raise UserError(f"--since {since}: is not of this server, or of a later time")
        histograms[measure] = Histogram(
            histogram.edges, tuple(np.diff(counts, prepend=0).astype(int).tolist())
        )
    return histograms


def metrics_text(source: str) -> str:
    """Read a server's metrics, from its address or from a file; UserError where there are none."""
    if not source.startswith(("http://", "https://")):
        return read_regular_file(Path(source)).decode(errors="replace")
    try:
        with urlopen(source, timeout=TIMEOUT) as answer:  # the user gives it
            return answer.read().decode(errors="replace")
    except (URLError, OSError, ValueError) as error:
        raise UserError(f"--server {source}: {error}") from error


def cumulative_counts(source: str, text: str) -> dict[str, dict[float, float]]:
    """Read histograms in Prometheus's text format: by name, the texts at or below each end."""
    histograms: dict[str, dict[float, float]] = {}
    for name, end, count in buckets(source, text):
        histograms.setdefault(name, {})[end] = count
    return histograms


def buckets(source: str, text: str) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the upper end and the cumulative count of each bucket."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise UserError("--server: pip install -r requirements/serve.txt") from error
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels: Mapping[str, Any] = sample.labels
                if sample.name.endswith("_bucket") and "le" in labels:
                    yield family.name, float(labels["le"]), sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"{source} is not what a server's /metrics says: {error}") from error
