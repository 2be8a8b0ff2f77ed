"""Making the setting that was picked the one that the next evaluation uses."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from answers.exit_metrics import at_exit
from answers.scores import remarks
from answers.sweep import Sweep
from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE, Setting, describe, read_exit_file
from elbert_base.files import read_json
from elbert_base.keys import FITTED_KEYS
from exit_lab.choice import Choice, Parts, is_constant
from exit_lab.compare import held_out_report
from glue.splits import Example
from runs.files import locked, write_json
from runs.folder import RunFolder
from runs.job import Job

SKETCH_ROWS = 64
MOST_SHARED = 0.1  # of the rows of a fit, among those of a guarantee: equal texts do occur


def save_choice(
    directory: Path,
    job: Job,
    swept: Sweep,
    choice: Choice,
    parts: Parts,
    seed: int,
    fitted_to: Sequence[Example],
) -> None:
    """Print the setting that was chosen with a report, and write it into exit_config.json.

    Args:
        directory: of the model.
        seed: of the report's resamples.
        fitted_to: the examples of a fit; none where nothing was fitted.

    Raises:
        UserError: no setting was chosen, it answers all examples alike, or the model or the data
            were changed meanwhile.
    """
    if choice.setting is None:
        raise UserError(f"no setting qualifies: {choice.reason}; exit_config.json not written")
    setting = swept.config.keys_read(**swept.settings[choice.setting])
    print(f"\nPicked: {describe(setting)}\n({choice.reason})\n")
    exit_layer = swept.exit_layer[choice.setting]
    answers = at_exit(swept.predictions, exit_layer)
    for remark in remarks(swept.task, answers, swept.labels, exit_layer, swept.num_layers):
        print(f"suspect: {remark}")
    print(held_out_report(swept, choice.setting, parts, seed, choice.max_drop))
    check_answers_differ(swept, answers)
    with locked(directory / "config.json"):  # change_config.py edits both files as well
        job.check_unchanged()
        write_exit_file(directory, job, swept, setting, sketch(fitted_to))
        point_to_exit_file(directory)


def check_fitted_to_others(directory: Path, job: Job, examples: Sequence[Example]) -> None:
    """Raise UserError where the model's exit keys were fitted to the examples of a guarantee.

    Without a fit, or where the file does not say to what, there is nothing to compare.
    """
    path = directory / EXIT_FILE
    content = read_exit_file(path)
    fitted = [key for key in FITTED_KEYS if content.get(key)]
    origin = content.get("provenance")
    if not fitted or not isinstance(origin, dict):
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


def row_hash(example: Example) -> str:
    """Hash an example's text, or pair of texts."""
    text = json.dumps([example.text_a, example.text_b])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def sketch(examples: Sequence[Example]) -> list[str]:
    """Return the smallest hashes of some examples, which tell whether others hold many of them."""
    return sorted(set(map(row_hash, examples)))[:SKETCH_ROWS]


def check_answers_differ(swept: Sweep, answers: np.ndarray) -> None:
    """Raise UserError for one answer to all examples, where these have several labels.

    Such a setting is chosen only where no other is allowed; see `first_allowed`.

    answers: of the setting that was chosen, (examples,), or (examples, labels) of several labels.
    """
    if is_constant(swept.labels) or not is_constant(answers):
        return
    if is_constant(swept.predictions[-1]):
        advice = "as the last layer does: train longer, or with another --learning_rate"
    else:
        advice = "but the last layer does not: allow a higher cost or less of a drop"
    raise UserError(
        f"the chosen setting gives all examples the same answer, {advice}; {EXIT_FILE} not written"
    )


def write_exit_file(
    directory: Path, job: Job, swept: Sweep, setting: Setting, fitted_rows: Sequence[str]
) -> None:
    """Replace the exit keys in the model's exit_config.json by a setting; the other keys stay.

    fitted_rows: the sketch of the examples of a fit; without one, an earlier fit's is kept.
    """
    path = directory / EXIT_FILE
    content = {}
    if path.is_file():
        exit_keys = swept.config.table.exit_keys
        old = read_exit_file(path)
        content = {name: value for name, value in old.items() if name not in exit_keys}
        earlier = content.get("provenance")
        if not fitted_rows and isinstance(earlier, dict):
            fitted_rows = earlier.get("fitted_rows") or []
    content.update(setting)
    calibration = swept.config.exit_keys().get("exit_calibration")
    if calibration:
        content["exit_calibration"] = calibration  # which all rules read
    content["provenance"] = job.origin.provenance.for_others()
    if fitted_rows and any(content.get(key) for key in FITTED_KEYS):
        content["provenance"]["fitted_rows"] = fitted_rows
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
