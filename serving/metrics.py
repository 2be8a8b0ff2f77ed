"""What GET /metrics tells, by Prometheus's own client."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock

import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from elbert import Classifier
from evaluation.drift import (
    Histogram as Counts,
    Reference,
    judge,
    measures_of,
)

# Statuses of an answer; 499 is nginx's for a client that has gone.
STATUSES = (200, 413, 415, 422, 499, 500, 503)
TOGETHER = 64  # texts that are counted at a time: one by one, it takes a tenth of an answer
RECENT = 1000  # texts that are compared with the reference
ALARM_RATE = 0.01  # where nothing has changed
MEANINGS = {
    "score": "Score of an answer",
    "length": "Tokens of a text",
    "unknown_tokens": "Share of unknown tokens in a text",
}


class Metrics:
    """Counters and histograms of a server; each of them is there from the start.

    layers: of the model.
    """

    def __init__(self, layers: int) -> None:
        self.registry = CollectorRegistry()
        self.layers = layers
        self.layer_sum = self.answers = 0
        self.drift: DriftMetrics | None = None  # where the model has a reference
        self.requests = Counter(
            "elbert_requests", "Requests for answers", ["status"], registry=self.registry
        )
        for status in STATUSES:
            self.requests.labels(status)
        self.seconds = Histogram(
            "elbert_request_seconds",
            "Seconds from a request to its answer, waiting included",
            registry=self.registry,
        )
        self.texts = Counter("elbert_texts", "Texts answered", registry=self.registry)
        self.errors = Counter(
            "elbert_text_errors", "Texts that the model could not answer", registry=self.registry
        )
        self.exit_layers = Histogram(
            "elbert_exit_layer",
            "Layer after which a text exited",
            buckets=[*map(float, range(1, layers + 1))],
            registry=self.registry,
        )
        self.cost = self.gauge(
            "elbert_computation_cost", "Mean share of layers that ran, since the start"
        )
        self.cost.set_function(self.computation_cost)

    def gauge(self, name: str, meaning: str) -> Gauge:
        """Make a gauge."""
        return Gauge(name, meaning, registry=self.registry)

    def compare_with(self, classifier: Classifier, reference: Reference) -> None:
        """Compare the texts that are answered with a reference, from now on."""
        self.drift = DriftMetrics(self.registry, classifier, reference)

    def count(self, logits: torch.Tensor, ids: Sequence[int], exit_layer: int) -> None:
        """Count a text, or a window of one, that was answered."""
        self.exit_layers.observe(exit_layer)
        if self.drift:
            self.drift.count(logits, ids, exit_layer)
        self.layer_sum += exit_layer
        self.answers += 1

    def update(self) -> None:
        """Bring up to date what is not counted text by text."""
        if self.drift:
            self.drift.update()

    def computation_cost(self) -> float:
        """Return the mean share of layers that ran; NaN before the first answer."""
        return self.layer_sum / (self.layers * self.answers) if self.answers else float("nan")


class DriftMetrics:
    """The reference of a model, and how the texts of late differ from it.

    Args:
        registry: of the server's metrics.
        classifier: the model, or its file.
        reference: of its folder.
    """

    def __init__(
        self, registry: CollectorRegistry, classifier: Classifier, reference: Reference
    ) -> None:
        self.reference = reference
        self.classifier = classifier
        self.lock = Lock()
        self.uncounted: list[tuple[torch.Tensor, Sequence[int], int]] = []
        self.histograms = {
            name: Histogram(
                f"elbert_{name}",
                MEANINGS[name],
                buckets=reference.histograms[name].edges,
                registry=registry,
            )
            for name in reference.histograms
            if name in MEANINGS
        }
        self.recent: deque[Mapping[str, float]] = deque(maxlen=RECENT)
        registry.register(self)

    def count(self, logits: torch.Tensor, ids: Sequence[int], exit_layer: int) -> None:
        """Count a text, or a window of one, that was answered; NaN is none."""
        if not logits.isfinite().all():
            return
        with self.lock:
            self.uncounted.append((logits, ids, exit_layer))
            if len(self.uncounted) >= TOGETHER:
                self.count_all()

    def count_all(self) -> None:
        """Count the texts that wait for it; whoever calls this has the lock."""
        if not self.uncounted:
            return
        logits, ids, exit_layers = zip(*self.uncounted, strict=True)
        self.uncounted.clear()
        values = measures_of(
            torch.stack(logits).cpu(),
            ids,
            self.classifier.tokenizer,
            np.array(exit_layers),
            self.classifier.config.is_multi_label,
        )
        columns = {name: column.tolist() for name, column in values.items()}
        for name, histogram in self.histograms.items():
            for value in columns[name]:
                histogram.observe(value)
        for row in zip(*columns.values(), strict=True):
            self.recent.append(dict(zip(columns, row, strict=True)))

    def update(self) -> None:
        """Bring the histograms and the last texts up to date."""
        with self.lock:
            self.count_all()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, as Prometheus's client asks for them."""
        yield GaugeMetricFamily(
            "elbert_reference_computation_cost",
            "Computation cost of the dev rows that the exit rule was chosen or evaluated on",
            value=self.reference.computation_cost,
        )
        exits = GaugeMetricFamily(
            "elbert_reference_exits",
            "Share of these rows that exit after a layer",
            labels=["layer"],
        )
        for layer, count in enumerate(self.reference.exits_per_layer, start=1):
            exits.add_metric([str(layer)], count / self.reference.examples)
        yield exits
        yield from self.changes()

    def changes(self) -> Iterator[GaugeMetricFamily]:
        """Yield how far the last texts are from the reference."""
        psi = GaugeMetricFamily(
            "elbert_drift_psi",
            f"Population stability index of the last {RECENT} texts against the reference",
            labels=["measure"],
        )
        alarm = GaugeMetricFamily(
            "elbert_drift_alarm",
            f"1 where the last {RECENT} texts have changed, at a false-alarm rate of {ALARM_RATE}",
            labels=["measure"],
        )
        texts = list(self.recent)
        if texts:
            now = {}
            for name, histogram in self.reference.histograms.items():
                values = np.array([text[name] for text in texts])
                now[name] = Counts.of(values, histogram.edges)
            verdict = judge(self.reference, now, ALARM_RATE)
            for change in verdict.changes:
                psi.add_metric([change.measure], change.psi)
                alarm.add_metric([change.measure], float(change in verdict.alarms))
        yield psi
        yield alarm
