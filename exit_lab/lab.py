"""A trained model on a dev set: what a sweep of it tries, and what is run for real."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.early_exit import run_early_exit
from evaluation.job import Job, load_trained
from evaluation.keys import Setting, describe, keys_in_force
from evaluation.modes import trained_mode
from evaluation.modes.base import Mode
from evaluation.results import append_results
from exit_lab.grids import RuleGrid, make_grids, parse_values
from exit_lab.metrics import at_exit
from exit_lab.recording import Recording, load_or_record
from exit_lab.settings import LabSettings, SweepSettings
from exit_lab.sweep import Sweep, scan_setting
from glue.features import encode
from glue.tasks import Example, Task, compute_metrics, read_examples
from modeling.errors import UserError
from modeling.exit_settings import PROVENANCE, resolve
from modeling.loading.files import read_json, weights_hash
from training.checkpoints import check_finished
from training.provenance import provenance
from utils.files import write_json


@dataclass(frozen=True)
class Lab:
    """What a sweep of one model works with.

    directory: of the model; output: where results go; job: the model on the dev set.
    fixed: exit keys that no grid varies, choices such as window_score.
    """

    directory: Path
    output: Path
    job: Job
    examples: list[Example]
    grids: tuple[RuleGrid, ...]
    fixed: Setting
    data: LabSettings

    @property
    def mode(self) -> Mode:
        return self.job.mode

    @property
    def task(self) -> Task:
        return self.job.task

    def own_setting(self) -> Setting:
        """The rule as the model has it configured, and the keys that it reads.

        A rule that cannot be swept gives way to the first that can.
        """
        mode, config, regression = self.mode, self.job.model.config, self.task.is_regression
        keys = config.exit_keys()
        if config.exit_rule().never_exits:
            keys[mode.rule_key] = mode.swept(regression)[0]
        return mode.named(keys, regression)

    def record(self) -> Recording:
        """The recorded pass, kept in `output`."""
        path = self.output / "all_logits.safetensors"
        return load_or_record(path, self.job, self.job.origin["weights"])

    def command(self) -> str:
        """The command that evaluates the model in its folder, on the data that the sweep has."""
        data, folder = self.data, str(self.directory)
        if data.task_name:
            names = ("data_dir", "task_name")
        else:
            names = ("validation_file", "text_column_names", "label_column_name")
        flags = {
            "model_type": self.mode.name,
            **{name: value for name in names if (value := getattr(data, name))},
            "model_name_or_path": folder,
            "output_dir": folder,
            "max_seq_length": data.max_seq_length,
        }
        lower = " --do_lower_case" if data.do_lower_case else ""
        words = [f"--{flag} {shlex.quote(str(value))}" for flag, value in flags.items()]
        return f"python run_glue.py --do_eval {' '.join(words)}{lower}"


def open_lab(
    data: LabSettings,
    wanted: SweepSettings,
    directory: Path,
    output: Path,
    task: Task,
    part: Task,
    flags: dict[str, Any],
) -> Lab:
    """Load a model trained on `task`, and the dev set of `part`: the task or its second half.

    flags: all of the run's, for the results' provenance. Raises UserError for an unknown rule, key
    or value of a grid, before minutes go into a recording.
    """
    check_finished(directory)
    cuda = torch.cuda.is_available() and not data.no_cuda
    device, mode = torch.device("cuda" if cuda else "cpu"), trained_mode(directory)
    regression = task.is_regression
    mode.rules(regression)  # raises for a mode with nothing to sweep
    model, tokenizer = load_trained(directory, mode, task, device, data.do_lower_case)
    mode.check_length(data.max_seq_length, model.config)
    examples = read_examples(part, data.data_dir, "dev", data.max_eval_samples)
    features = encode(examples, tokenizer, data.max_seq_length - mode.extra_tokens)
    features = mode.prepare(features, data.seed)
    origin = provenance(flags, weights=weights_hash(directory), data=features.digest())
    job = Job(mode, model, tokenizer, part, features, data.batch_size, origin=origin)
    rules = list(dict.fromkeys(wanted.rules or mode.swept(regression)))
    layers, keys = model.config.num_hidden_layers, model.config.exit_keys()
    choices = [name for name, key in mode.table.exit_keys.items() if key.choices]
    fixed = {name: keys[name] for name in choices if name != mode.rule_key}
    grids = make_grids(mode, rules, wanted.grid_texts(), layers, regression)
    grids = tuple(replace(grid, fixed=fixed) for grid in grids)
    return Lab(directory, output, job, examples, grids, fixed, data)


def verify(lab: Lab, recording: Recording, swept: Sweep, count: int) -> None:
    """Run random settings with early exit, one example at a time; exit layers must be equal.

    Raises UserError naming the first setting and example that differ.
    """
    job, settings = replace(lab.job, batch_size=1), len(swept.settings)
    count = min(count, settings)
    for number in np.random.default_rng(lab.data.seed).choice(settings, count, replace=False):
        setting = swept.settings[number]
        with keys_in_force(job.model.config, setting):
            predictions = run_early_exit(job)
        found, expected = predictions["exit_layer"].numpy(), swept.exit_layer[number]
        if (found != expected).any():
            row = int((found != expected).argmax())
            recorded_logits = recording.tensors["all_logits"][found[row] - 1, row]
            apart = (predictions["logits"][row] - recorded_logits).abs().max()
            raise UserError(
                f"{describe(setting, swept.name_key)}: {(found != expected).sum()} examples "
                f"exit elsewhere in a real run; example {row} at layer {found[row]}, by the "
                f"recording at {expected[row]}, with logits {apart:.1e} apart. If that is "
                "rounding, the pass was recorded on another machine or with --batch_size > 1: "
                f"delete {lab.output / 'all_logits.safetensors'} and run again"
            )
    print(f"verified {count} settings at batch size 1: every exit layer is equal")


def measured(lab: Lab, setting: Setting) -> str:
    """The latency of a real run with `setting`, one text at a time."""
    with keys_in_force(lab.job.model.config, setting):
        seconds = run_early_exit(replace(lab.job, batch_size=1))["seconds"]
    median, p95 = np.percentile(seconds * 1000, [50, 95])
    return f"Measured, one text at a time: {median:.2f} ms median, {p95:.2f} ms p95"


def write_choice(lab: Lab, setting: Setting) -> None:
    """Make `setting` what the next evaluation uses, by exit_config.json."""
    path, config_path = lab.directory / "exit_config.json", lab.directory / "config.json"
    config = read_json(config_path)
    old = read_json(path) if path.is_file() and path.read_bytes().strip() else {}
    kept = {name: value for name, value in old.items() if name not in lab.mode.table.exit_keys}
    write_json(path, {**kept, **setting, **lab.fixed, PROVENANCE: lab.job.origin})
    print(f"written to {path}; the next evaluation of {lab.directory} uses it")
    pointed = config.get("exit_config_path")
    if pointed != path.name:
        write_json(config_path, {**config, "exit_config_path": path.name})
        print(f"{config_path}: exit_config_path {pointed!r} -> {path.name!r}")


# The published loop over one key.


def varied_values(lab: Lab, request: str) -> tuple[str, tuple[float, ...]]:
    """Key and values of --vary; without values those of the published loop."""
    config = lab.job.model.config
    layers, rule = config.num_hidden_layers, config.exit_rule()
    if rule.never_exits:
        name = config.exit_keys()[lab.mode.rule_key]
        raise UserError(f"--vary {request}: {name} has no exits: {rule.never_exits}")
    key, _, text = request.partition("=")
    published = {
        "exit_thres": "0.9:0.1:-0.1",
        "cnt_thres": f"{min(2, layers)}:{min(12, layers)}",
    }
    return key, parse_values(key, text or published.get(key, ""), layers, lab.mode.table.exit_keys)


def vary(lab: Lab, key: str, values: tuple[float, ...], results: Path) -> None:
    """Write eval_results.txt anew: a row for every value of a key, the others as configured."""
    config, recording = lab.job.model.config, lab.record()
    configured = config.exit_keys()
    print(f"{key} varies; held: {resolve(lab.directory, lab.mode.table).line(without=key)}")
    for number, value in enumerate(values):
        rule = {**configured, key: value}
        exits = scan_setting(lab.mode, rule, recording)[0]
        answers = at_exit(recording.predictions, exits)
        summary = {
            "metrics": compute_metrics(lab.task, answers, recording.labels),
            "computation_cost": exits.mean(dtype=float) / config.num_hidden_layers,
            "rule": rule,
        }
        append_results(results, summary, "all" if number else "one")
        metrics = ", ".join(f"{name} = {v}" for name, v in sorted(summary["metrics"].items()))
        print(f"{key} {value:g}: Computation cost: {summary['computation_cost']:.4f}, {metrics}")
    print(f"{len(values)} rows: {results}")
