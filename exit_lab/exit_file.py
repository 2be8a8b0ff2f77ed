"""Making the setting that was picked the one that the next evaluation uses."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import drift
from evaluation.exit_metrics import at_exit
from evaluation.guarantee import RECORD as GUARANTEE, Guarantee
from evaluation.scores import remarks
from evaluation.sweep import Sweep
from exit_lab.choice import Choice, Parts, is_constant, losses
from exit_lab.compare import held_out_report
from glue.metrics import positive_lines
from glue.splits import Example
from modeling.errors import UserError
from modeling.exit_settings import (
    EXIT_FILE,
    RECORDS,
    Setting,
    describe,
    named_file,
    overriding_file,
    read_exit_file,
)
from modeling.files import read_json
from modeling.keys import FITTED_KEYS
from modeling.loading.tokenizers import UnknownTokens
from modeling.rules import Tensors, scan_answers
from runs.files import locked, write_json
from runs.folder import RunFolder
from runs.job import Job

SKETCH_ROWS = 64
MOST_UNKNOWN = 0.3  # of the tokens: with more, a model sees little of the texts
MOST_SHARED = 0.1  # of the rows of a fit, among those that report: equal texts do occur


def save_choice(
    directory: Path,
    job: Job,
    swept: Sweep,
    choice: Choice,
    parts: Parts,
    seed: int,
    tensors: Tensors,
    fitted_to: Sequence[Example],
) -> None:
    """Print the setting that was chosen with a report, and write it into exit_config.json.

    Args:
        directory: of the model.
        seed: of the report's resamples.
        tensors: of the recording.
        fitted_to: the examples of a fit; none where nothing was fitted.

    Raises:
        UserError: no setting was chosen, it answers all examples alike, or the model or the data
            were changed meanwhile.
    """
    if choice.setting is None:
        raise UserError(f"no setting qualifies: {choice.reason}; exit_config.json not written")
    setting = swept.config.keys_read(**swept.settings[choice.setting])
    print(f"\nPicked: {describe(setting)}\n({choice.reason})\n")
    for line in positive_lines(swept.task):
        print(line)
    exit_layer = swept.exit_layer[choice.setting]
    answers = at_exit(swept.predictions, exit_layer)
    for remark in remarks(swept.task, answers, swept.labels, exit_layer, swept.num_layers):
        print(f"suspect: {remark}")
    guarantee = make_guarantee(job, swept, choice, parts)
    print(held_out_report(swept, choice.setting, parts, seed, choice.max_drop, guarantee))
    check_answers_differ(swept, answers, job)
    records: dict[str, Any] = {drift.RECORD: reference_record(job, swept, choice, parts, tensors)}
    if guarantee:
        records[GUARANTEE] = guarantee.as_json()
    with locked(directory / "config.json"):  # change_config.py edits both files as well
        job.check_unchanged()
        write_exit_file(directory, job, swept, setting, records, sketch(fitted_to))
        point_to_exit_file(directory)


def make_guarantee(job: Job, swept: Sweep, choice: Choice, parts: Parts) -> Guarantee | None:
    """Measure what --pick risk guarantees on the held-out examples; None for another goal."""
    if choice.risk is None or choice.setting is None:
        return None
    rows = parts.report
    exits = swept.exit_layer[choice.setting][None, rows]
    predictions, labels = swept.predictions[:, rows], swept.labels[rows]
    lost = losses(predictions, labels, exits, swept.full_depth_answers[rows])
    return Guarantee(
        risk=choice.risk.risk,
        delta=choice.risk.delta,
        calibration_examples=len(parts.calibration),
        held_out_examples=len(rows),
        held_out_lost=int(lost.sum()),
        rule=drift.rule_fingerprint(swept.config, **swept.settings[choice.setting]),
        dtype=job.origin.dtype,
    )


def reference_record(
    job: Job, swept: Sweep, choice: Choice, parts: Parts, tensors: Tensors
) -> dict[str, Any]:
    """Describe the dev rows under the chosen setting: exits, scores, lengths and unknown tokens.

    With the metrics and the cost on the held-out rows, which did not choose it.
    """
    number = choice.setting or 0
    setting = swept.config.keys_read(**swept.settings[number])
    logits, exit_layer = scan_answers(swept.config.exit_rule(**setting), tensors)
    values = drift.values_of(job, logits, exit_layer.numpy())
    reference = drift.make_reference(values, swept.config, job.max_length, **setting)
    exits = swept.exit_layer[number][None]
    metrics = swept.metrics(exits, parts.report)
    held_out = {
        "examples": len(parts.report),
        "computation_cost": float(swept.cost(exits, parts.report)[0]),
        **{name: float(value[0]) for name, value in metrics.items()},
    }
    return {**reference.as_json(), "held_out": held_out}


def check_fitted_to_others(directory: Path, job: Job, examples: Sequence[Example]) -> None:
    """Raise UserError where the model's exit keys were fitted to the examples of a guarantee.

    Without a fit, or where the file does not say to what, there is nothing to compare.
    """
    path, content = stored_fit(directory)
    fitted = [key for key in FITTED_KEYS if content.get(key)]
    origin = content.get("provenance", {})
    if not fitted:
        return
    rows_of_fit = origin.get("fitted_rows") or []
    shared = set(rows_of_fit).intersection(map(row_hash, examples))
    has_same_data = origin.get("data") == job.origin.provenance.data
    if has_same_data or len(shared) > MOST_SHARED * len(rows_of_fit):
        raise UserError(
            f"--pick risk: {path} was fitted ({', '.join(fitted)}) to rows that are among these "
            "dev rows, so there would be no guarantee. Give other labelled rows, by "
            f"--validation_file or --data_dir; or move {path} away and add --rules with a rule "
            "that is not fitted, such as entropy"
        )


def check_held_out_is_new(
    directory: Path, held_out: Sequence[Example], refitted: Collection[str]
) -> None:
    """Raise UserError where exit keys that stay were fitted to the examples that report.

    So it is if the fit had another seed, and with it another split into halves.

    Args:
        directory: of the model.
        held_out: the examples that report.
        refitted: keys that are fitted anew.
    """
    path, content = stored_fit(directory)
    kept = [key for key in FITTED_KEYS if content.get(key) and key not in refitted]
    rows_of_fit = content.get("provenance", {}).get("fitted_rows") or []
    shared = set(rows_of_fit).intersection(map(row_hash, held_out))
    if kept and len(shared) > MOST_SHARED * len(rows_of_fit):
        raise UserError(
            f"--pick: {path} was fitted ({', '.join(kept)}) to rows that are in the held-out half "
            "here, which would look better than new rows do. Give the --seed of that fit; or fit "
            "anew, by --rules optimal_stopping; or give other labelled rows, by --validation_file"
        )


def stored_fit(directory: Path) -> tuple[Path | None, dict[str, Any]]:
    """Read the model's file of exit keys; {} without one, or where it does not say its origin."""
    path = overriding_file(read_json(directory / "config.json"), directory)
    content = read_exit_file(path) if path else {}
    return path, content if isinstance(content.get("provenance"), dict) else {}


def row_hash(example: Example) -> str:
    """Hash an example's text, or pair of texts."""
    text = json.dumps([example.text_a, example.text_b])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def sketch(examples: Sequence[Example]) -> list[str]:
    """Return the smallest hashes of some examples, which tell whether others hold many of them."""
    return sorted(set(map(row_hash, examples)))[:SKETCH_ROWS]


def check_answers_differ(swept: Sweep, answers: np.ndarray, job: Job) -> None:
    """Raise UserError for one answer to all examples, where these have several labels.

    Such a setting is chosen only where no other is allowed; see `first_allowed`.

    Args:
        answers: of the setting that was chosen, (examples,), or (examples, labels) of several
            labels.
        job: the model on the examples.
    """
    if is_constant(swept.labels) or not is_constant(answers):
        return
    tokens, unknown = UnknownTokens(job.tokenizer).totals(job.features.input_ids)
    if is_constant(swept.predictions[-1]) and unknown > MOST_UNKNOWN * tokens:
        advice = (
            f"as the last layer does: {unknown} of the {tokens} tokens are unknown to the "
            "tokenizer. Train from an encoder whose vocabulary has the words of the texts"
        )
    elif is_constant(swept.predictions[-1]):
        advice = "as the last layer does: train longer, or with another --learning_rate"
    else:
        advice = "but the last layer does not: allow a higher cost or less of a drop"
    raise UserError(
        f"the chosen setting gives all examples the same answer, {advice}; {EXIT_FILE} not written"
    )


def write_exit_file(
    directory: Path,
    job: Job,
    swept: Sweep,
    setting: Setting,
    records: Mapping[str, Any],
    fitted_rows: Sequence[str],
) -> None:
    """Replace the exit keys in the model's exit_config.json by a setting; the other keys stay.

    Args:
        records: what the file says of the setting.
        fitted_rows: the sketch of the examples of a fit; without one, an earlier fit's is kept.
    """
    path = directory / EXIT_FILE
    content = {}
    if path.is_file():
        exit_keys = swept.config.table.exit_keys
        old = read_exit_file(path)
        replaced = {*exit_keys, *RECORDS}
        content = {name: value for name, value in old.items() if name not in replaced}
        earlier = old.get("provenance")
        if not fitted_rows and isinstance(earlier, dict):
            fitted_rows = earlier.get("fitted_rows") or []
    content.update(setting)
    calibration = swept.config.exit_keys().get("exit_calibration")
    if calibration:
        content["exit_calibration"] = calibration  # which all rules read
    content["provenance"] = job.origin.provenance.for_others()
    if fitted_rows and any(content.get(key) for key in FITTED_KEYS):
        content["provenance"]["fitted_rows"] = fitted_rows
    content.update(records)
    # One that a user wrote or edited is put aside.
    RunFolder(directory).write_json(EXIT_FILE, content)
    print(f"written to {path}; the next evaluation of {directory} uses it")


def point_to_exit_file(directory: Path) -> None:
    """Let a config.json that names another file of exit keys name the model's own."""
    path = directory / "config.json"
    config = read_json(path)
    exit_path = config.get("exit_config_path")
    if exit_path and exit_path != EXIT_FILE:
        write_json(path, {**config, "exit_config_path": EXIT_FILE})
        print(f"{path}: exit_config_path {exit_path!r} -> {EXIT_FILE!r}")
        earlier_file = named_file(directory, exit_path)
        if os.path.exists(earlier_file):
            print(f"{earlier_file} is no longer read, and stays as it is")
