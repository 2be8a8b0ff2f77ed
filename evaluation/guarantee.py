"""What --pick risk guarantees: recorded in exit_config.json, and repeated by each evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from evaluation.drift import Reference, histograms_like, judge, rule_fingerprint, values_of
from evaluation.measures import labels_of, predictions_of
from evaluation.predict import Predictions
from modeling.errors import UserError
from modeling.exit_settings import overriding_file, read_exit_file
from modeling.files import read_json
from runs.job import Job

RECORD = "guarantee"  # key of exit_config.json
ALARM_RATE = 0.01  # of the look whether rows are of the same kind


@dataclass(frozen=True)
class Guarantee:
    """That few examples are right at full depth, but wrong at their exit.

    Attributes:
        risk: the largest share of such examples that is guaranteed.
        delta: the largest probability, over the draw of the calibration examples, that it is more.
        calibration_examples: number of examples that chose the setting.
        held_out_examples: number of others, on which the share was then measured.
        held_out_lost: how many of these are right at full depth, but wrong at their exit.
        rule: fingerprint of the exit keys.
        dtype: number type of the model.
    """

    risk: float
    delta: float
    calibration_examples: int
    held_out_examples: int
    held_out_lost: int
    rule: str
    dtype: str

    def as_json(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return asdict(self)

    @property
    def statement(self) -> str:
        """What is guaranteed, for which examples, and what was measured."""
        measured = self.held_out_lost / self.held_out_examples
        return (
            f"with a probability of at least {1 - self.delta:g} over the draw of the "
            f"{self.calibration_examples} calibration examples, at most {self.risk:g} of new "
            "examples from the same source are right at full depth, but wrong at their exit. Of "
            f"the {self.held_out_examples} held-out examples, {self.held_out_lost} are "
            f"({measured:.4f})"
        )


def lost_share(full_depth: np.ndarray, early: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of examples that are right at full depth, but wrong at their exit.

    All are class ids, (examples,).
    """
    return float(((full_depth == labels) & (early != labels)).mean())


def read_guarantee(folder: Path) -> tuple[Guarantee, Mapping[str, Any]] | None:
    """Read the guarantee of a model's folder, and the file that it stands in; None without any.

    Raises UserError for one that no --pick wrote.
    """
    path = overriding_file(read_json(folder / "config.json"), folder)
    content = read_exit_file(path) if path else {}
    if not content.get(RECORD):
        return None
    try:
        guarantee = Guarantee(**content[RECORD])
        guarantee.statement  # noqa: B018  # raises for values of other types
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"{path}: {RECORD} is not as --pick writes it ({error!r:.80}): remove it, or pick anew"
        ) from error
    return guarantee, content


def guarantee_lines(
    job: Job, folder: Path, predictions: Predictions, full_depth: Tensor | None
) -> list[str]:
    """Repeat the guarantee of a model's folder; say why it is void here, and what is measured.

    Args:
        job: the model and the data set that were evaluated.
        predictions: of the evaluation.
        full_depth: the last layer's logits, (examples, num_labels); None where they are not known.

    Returns [] where nothing is guaranteed.
    """
    recorded = read_guarantee(folder)
    if recorded is None:
        return []
    guarantee, content = recorded
    reasons = reasons_void(job, guarantee, content, predictions)
    void = f"VOID here, since {', and '.join(reasons)}; it was: " if reasons else ""
    lines = [f"guarantee: {void}{guarantee.statement}"]
    if full_depth is not None:
        labels = labels_of(job.features)
        early = predictions_of(predictions["logits"])
        lost = lost_share(predictions_of(full_depth), early, labels)
        lines.append(f"right at full depth, wrong at the exit, of these examples = {lost:.4f}")
    return lines


def reasons_void(
    job: Job, guarantee: Guarantee, content: Mapping[str, Any], predictions: Predictions
) -> Sequence[str]:
    """List why a guarantee does not hold for an evaluation; [] where it does.

    content: of the file that has the guarantee.
    """
    reasons = []
    origin = content.get("provenance")
    hashes_then = origin if isinstance(origin, dict) else {}
    hashes_now = job.origin.provenance.as_json()
    for name in ("weights", "tokenizer", "configuration"):
        if hashes_then.get(name) != hashes_now.get(name):
            reasons.append(f"the model has another {name} hash")
    if rule_fingerprint(job.config) != guarantee.rule:
        reasons.append("the exit rule is another")
    if job.file or job.origin.dtype != guarantee.dtype:
        reasons.append(f"it is for number type {guarantee.dtype}")
    is_other_data = hashes_then.get("data") != hashes_now.get("data")
    stored = content.get("reference")
    if is_other_data and not reasons and isinstance(stored, dict):
        try:
            calibrated = Reference.from_json(stored)
        except (AttributeError, KeyError, TypeError, ValueError):
            return [*reasons, "its reference cannot be read"]
        values = values_of(job, predictions["logits"], predictions["exit_layer"].numpy())
        verdict = judge(calibrated, histograms_like(calibrated, values), ALARM_RATE)
        if verdict.alarms:
            names = ", ".join(change.measure for change in verdict.alarms)
            reasons.append(f"these examples are of another kind ({names})")
    return reasons
