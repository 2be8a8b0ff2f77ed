"""Are new texts like those that a rule was chosen on? Told without labels, by four histograms.

They are of exit layers, scores, lengths, and shares of unknown tokens. Two samples are compared by
Pearson's chi-squared test of homogeneity. The chance of a false alarm is shared evenly among the
measures (Bonferroni), so that it holds for all of them together. The population stability index,
PSI = Σ (p − q) ln(p / q), says how large a change is; for small changes, the test's noncentrality
is PSI · n · m / (n + m) for samples of n and m texts, from which follows how many texts it needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2, chi2_contingency, ncx2
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from modeling.configuration import AdaptiveConfig
from modeling.errors import UserError
from modeling.exit_settings import overriding_file, read_exit_file
from modeling.files import read_json
from modeling.loading.tokenizers import UnknownTokens
from modeling.rules import certainty, exit_scores
from runs.console import markdown_table
from runs.fingerprint import fingerprint
from runs.job import Job

EXITS, SCORE, LENGTH, UNKNOWN = "exit_layer", "score", "length", "unknown_tokens"
DECILES = np.arange(0.1, 1, 0.1)
UNKNOWN_EDGES = (0.0, 0.1)  # shares of a text's tokens
LEAST_EXPECTED = 5  # texts in a bin, from which the test's distribution is that of chi-squared
TELLING_PSI = 0.1  # a moderate change, by the usual reading of the index
LARGE_PSI = 0.25
POWER = 0.9
RECORD = "reference"  # key of exit_config.json and eval_results.json


@dataclass(frozen=True)
class Histogram:
    """How many texts have a value in each bin.

    Attributes:
        edges: upper ends of all bins but the last; a value at an end is in the bin below it.
        counts: of each bin, one more than edges.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: np.ndarray, edges: Sequence[float]) -> "Histogram":
        """Count values, (texts,)."""
        bins = np.searchsorted(np.asarray(edges, float), values, side="left")
        counts = np.bincount(bins, minlength=len(edges) + 1)
        return cls(tuple(map(float, edges)), tuple(counts.tolist()))

    def __add__(self, other: "Histogram") -> "Histogram":
        """Count the texts of two histograms with the same bins together."""
        counts = np.add(self.counts, other.counts)
        return Histogram(self.edges, tuple(counts.tolist()))

    def as_json(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {"edges": list(self.edges), "counts": list(self.counts)}


Values = Mapping[str, np.ndarray]  # of each measure, (texts,)


@dataclass(frozen=True)
class Reference:
    """What a rule's answers to labelled dev rows look like.

    Attributes:
        histograms: of each measure, by name.
        computation_cost: mean share of layers that ran; None in a mode without exit layers.
        rule: fingerprint of the exit keys; see `rule_fingerprint`.
        max_length: number of tokens at which texts were cut.
        score_percentiles: scores that 0, 1, …, 100% of the texts are at or below.
    """

    histograms: Mapping[str, Histogram]
    computation_cost: float | None
    rule: str
    max_length: int
    score_percentiles: tuple[float, ...] = ()

    def score_at(self, share: float) -> float:
        """Return the score below which this share of the texts is; UserError where unknown."""
        if len(self.score_percentiles) != 101:
            raise UserError("the reference has no percentiles of the score: evaluate again")
        return float(np.interp(100 * share, np.arange(101), self.score_percentiles))

    @property
    def examples(self) -> int:
        """Number of texts."""
        return sum(next(iter(self.histograms.values())).counts)

    @property
    def exits_per_layer(self) -> tuple[int, ...]:
        """Number of texts that exit after each layer; () in a mode without exit layers."""
        return self.histograms[EXITS].counts if EXITS in self.histograms else ()

    def as_json(self) -> dict[str, Any]:
        """Return what a file has under `reference`."""
        values: dict[str, Any] = {
            "examples": self.examples,
            "max_length": self.max_length,
            "rule": self.rule,
        }
        if EXITS in self.histograms:
            values["computation_cost"] = self.computation_cost
            values["exits_per_layer"] = list(self.exits_per_layer)
        for name, histogram in self.histograms.items():
            if name != EXITS:
                values[name] = histogram.as_json()
        values["score_percentiles"] = list(self.score_percentiles)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Reference":
        """Read what `as_json` returned; KeyError, TypeError or ValueError for anything else."""
        histograms = {}
        exits = values.get("exits_per_layer")
        if exits:
            edges = tuple(float(layer) for layer in range(1, len(exits)))
            histograms[EXITS] = Histogram(edges, tuple(map(int, exits)))
        for name in (SCORE, LENGTH, UNKNOWN):
            if name in values:
                edges = tuple(map(float, values[name]["edges"]))
                counts = tuple(map(int, values[name]["counts"]))
                histograms[name] = Histogram(edges, counts)
        sizes = {sum(histogram.counts) for histogram in histograms.values()}
        if len(sizes) != 1 or any(len(h.counts) != len(h.edges) + 1 for h in histograms.values()):
            raise ValueError("histograms of different texts")
        return cls(
            histograms,
            values.get("computation_cost"),
            str(values["rule"]),
            int(values["max_length"]),
            tuple(map(float, values.get("score_percentiles", ()))),
        )


def make_reference(
    values: Values, config: AdaptiveConfig, max_length: int, **setting: Any
) -> Reference:
    """Make the reference of some texts' values; scores and lengths have bins of a tenth each.

    setting: exit keys in place of the configured ones.
    """
    layers = config.num_hidden_layers
    histograms = {}
    for name, column in values.items():
        if name == EXITS:
            edges: Sequence[float] = range(1, layers)
        elif name == UNKNOWN:
            edges = UNKNOWN_EDGES
        else:
            edges = np.unique(np.quantile(column, DECILES)).tolist()
        histograms[name] = Histogram.of(column, edges)
    cost = float(values[EXITS].mean() / layers) if EXITS in values else None
    percentiles: tuple[float, ...] = ()
    if SCORE in values:
        percentiles = tuple(np.percentile(values[SCORE], np.arange(101)).tolist())
    rule = rule_fingerprint(config, **setting)
    return Reference(histograms, cost, rule, max_length, percentiles)


def reference_of(
    job: Job, logits: Tensor, exit_layer: np.ndarray | None, **setting: Any
) -> Reference:
    """Make the reference of a job's examples; see `measures_of` and `make_reference`."""
    values = values_of(job, logits, exit_layer)
    return make_reference(values, job.config, job.max_length, **setting)


def values_of(job: Job, logits: Tensor, exit_layer: np.ndarray | None) -> Values:
    """Measure a job's examples; see `measures_of`."""
    token_ids = job.features.input_ids
    return measures_of(logits, token_ids, job.tokenizer, exit_layer, job.task.multi_label)


def rule_fingerprint(config: AdaptiveConfig, **setting: Any) -> str:
    """Return one hash for the exit keys that have an effect; `setting` replaces configured ones."""
    keys = dict(config.keys_read(**setting))
    keys["exit_calibration"] = {**config.exit_keys(), **setting}.get("exit_calibration") or []
    # A file may have 3 or 3.0.
    numbers = {name: float(value) for name, value in keys.items() if isinstance(value, int)}
    return fingerprint(sorted((keys | numbers).items()))[:16]


def measures_of(
    logits: Tensor,
    token_ids: Sequence[Sequence[int] | np.ndarray],
    tokenizer: PreTrainedTokenizerBase,
    exit_layer: np.ndarray | None,
    multi_label: bool,
) -> dict[str, np.ndarray]:
    """Measure texts: their exit layers, scores, lengths and shares of unknown tokens, by name.

    Args:
        logits: of the exits taken, (texts, num_labels).
        token_ids: of each text, special tokens included.
        exit_layer: (texts,), 1-based; None in a mode without exit layers.
        multi_label: whether a text may have several labels.
    """
    values = {} if exit_layer is None else {EXITS: np.asarray(exit_layer)}
    scores = exit_scores(logits.float(), multi_label)
    has_classes = logits.shape[-1] > 1 or multi_label
    answers = certainty(scores, multi_label) if has_classes else scores[..., 0]
    values[SCORE] = answers.double().numpy()
    values[LENGTH] = np.array([len(ids) for ids in token_ids], dtype=float)
    values[UNKNOWN] = UnknownTokens(tokenizer).shares(token_ids)
    return values


# Where a reference is.


def read_reference(folder: Path, config: AdaptiveConfig) -> Reference:
    """Read the reference of a model's folder, for the rule in force there.

    It is in the file of exit keys, where --pick wrote it, or in eval_results.json.

    Raises UserError where there is none, or it is of another rule.
    """
    files = []
    exit_file = overriding_file(read_json(folder / "config.json"), folder)
    if exit_file and exit_file.is_file():
        files.append((exit_file, read_exit_file(exit_file)))
    results = folder / "eval_results.json"
    if results.is_file():
        files.append((results, read_json(results)))
    of_another_rule = []
    rule = rule_fingerprint(config)
    for path, content in files:
        if RECORD not in content:
            continue
        try:
            reference = Reference.from_json(content[RECORD])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: {RECORD} is not as a command writes it ({error!r:.80}): evaluate again, "
                f"with run_glue.py --do_eval --output_dir {folder}"
            ) from error
        if reference.rule == rule:
            return reference
        of_another_rule.append(str(path))
    reason = f"has no {RECORD}"
    if of_another_rule:
        reason = f"has a {RECORD} of another exit rule, in {' and '.join(of_another_rule)}"
    raise UserError(
        f"{folder} {reason}: make one with run_glue.py --do_eval --output_dir {folder}, or with "
        f"sweep_exits.py --model_dir {folder} --pick max_drop=0.01"
    )


# The comparison.


@dataclass(frozen=True)
class Change:
    """How a measure of new texts differs from the reference.

    Attributes:
        measure: its name.
        reference, now: texts in each bin of the two samples, bins with few texts joined.
        p_value: of the chi-squared test.
        psi: population stability index.
    """

    measure: str
    reference: np.ndarray
    now: np.ndarray
    p_value: float
    psi: float

    @property
    def size(self) -> str:
        """Word for the index, by its usual reading."""
        if self.psi < TELLING_PSI:
            return "small"
        return "large" if self.psi >= LARGE_PSI else "moderate"


def compare(measure: str, reference: Histogram, now: Histogram) -> Change:
    """Compare two histograms with the same bins."""
    old, new = joined_bins(np.array(reference.counts), np.array(now.counts))
    p_value = 1.0
    if len(old) > 1:
        p_value = float(chi2_contingency([old, new], correction=False).pvalue)
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (old, new))
    return Change(measure, old, new, p_value, float(((p - q) * np.log(p / q)).sum()))


def joined_bins(reference: np.ndarray, now: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join each bin in which too few texts are expected with the next; the last with that before.

    Expected are the counts of one common distribution.
    """
    pooled = reference + now
    smaller = min(reference.sum(), now.sum()) / max(1, pooled.sum())
    groups, expected = [0], 0.0
    for number, count in enumerate(pooled):
        if expected >= LEAST_EXPECTED:
            groups.append(number)
            expected = 0.0
        expected += count * smaller
    if expected < LEAST_EXPECTED and len(groups) > 1:
        groups.pop()
    return np.add.reduceat(reference, groups), np.add.reduceat(now, groups)


@dataclass(frozen=True)
class Verdict:
    """What a comparison of all measures says.

    Attributes:
        changes: one for each measure.
        alarm_rate: the chance of an alarm where nothing has changed.
        texts: how many were compared with the reference.
        reference_texts: of the reference.
    """

    changes: Sequence[Change]
    alarm_rate: float
    texts: int
    reference_texts: int

    @property
    def alarms(self) -> list[Change]:
        """The measures that have changed."""
        level = self.alarm_rate / len(self.changes)
        return [change for change in self.changes if change.p_value < level]

    @property
    def needed(self) -> int | None:
        """Number of texts from which a moderate change shows in any measure, with POWER.

        None where the reference itself has too few texts.
        """
        most_bins = max(len(change.reference) for change in self.changes)
        effective = needed_effective(most_bins, self.alarm_rate / len(self.changes))
        remaining = 1 / effective - 1 / self.reference_texts
        return int(np.ceil(1 / remaining)) if remaining > 0 else None

    def line(self) -> str:
        """Say in words whether the texts have changed, and what the number of texts can show."""
        shown = f"a change of PSI {TELLING_PSI:g} would show with a probability of {POWER:g}"
        if self.needed is None:
            power = (
                f"The reference has {self.reference_texts} texts, too few to show a change of PSI "
                f"{TELLING_PSI:g}: label more dev rows."
            )
        else:
            power = f"From {self.needed} texts on, {shown}."
        if self.alarms:
            names = ", ".join(f"{change.measure} ({change.size})" for change in self.alarms)
            return f"CHANGED: {names}. Look at the texts, and evaluate on newly labelled ones."
        if self.is_undecided:
            return f"TOO FEW TEXTS: no change is shown by {self.texts}. {power}"
        return f"NO CHANGE is shown by {self.texts} texts. {power}"

    def table(self) -> str:
        """Format a row for each measure, as Markdown."""
        level = self.alarm_rate / len(self.changes)
        rows = []
        for change in self.changes:
            verdict = "no change shown"
            if change.p_value < level:
                verdict = f"changed, {change.size}"
            rows.append([change.measure, f"{change.psi:.3f}", f"{change.p_value:.2g}", verdict])
        columns = ["measure", "PSI", f"p (alarm below {level:.2g})", "verdict"]
        return markdown_table(columns, rows)

    @property
    def is_undecided(self) -> bool:
        """Tell whether a moderate change might have been missed for want of texts."""
        return not self.alarms and (self.needed is None or self.texts < self.needed)


def needed_effective(bins: int, level: float) -> float:
    """Compute n · m / (n + m), of samples of n and m texts, that shows TELLING_PSI with POWER.

    level: of the test.
    """
    degrees = max(1, bins - 1)
    threshold = chi2.isf(level, degrees)

    def missing_power(noncentrality: float) -> float:
        return float(ncx2.sf(threshold, degrees, noncentrality)) - POWER

    noncentrality: Any = brentq(missing_power, 1e-9, 1e4)
    return noncentrality / TELLING_PSI


def judge(reference: Reference, now: Mapping[str, Histogram], alarm_rate: float) -> Verdict:
    """Compare new texts with a reference, in every measure that both have.

    Raises UserError where they have none.
    """
    names = [name for name in reference.histograms if name in now and sum(now[name].counts)]
    if not names:
        raise UserError("there are no texts to compare with the reference")
    changes = [compare(name, reference.histograms[name], now[name]) for name in names]
    texts = max(sum(now[name].counts) for name in names)
    return Verdict(changes, alarm_rate, texts, reference.examples)


def histograms_like(reference: Reference, values: Values) -> dict[str, Histogram]:
    """Count new texts' values in the reference's bins, by measure."""
    return {
        name: Histogram.of(np.asarray(values[name]), histogram.edges)
        for name, histogram in reference.histograms.items()
        if name in values
    }
