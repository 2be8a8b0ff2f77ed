"""A trained model on a dev set, with the recorded pass of the one over the other."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AlbertConfig

from evaluation.early_exit import run_early_exit
from evaluation.job import Job, load_trained
from evaluation.modes import trained_mode
from evaluation.modes.base import Mode, Setting, describe, keys_in_force
from evaluation.results import append_results
from exit_lab.grids import RuleGrid, make_grids, parse_values
from exit_lab.metrics import at_exit
from exit_lab.recording import Recording, flops_of, recorded
from exit_lab.settings import LabSettings, SweepSettings
from exit_lab.sweep import Sweep, scan_setting
from glue.features import encode
from glue.tasks import Example, Task, compute_metrics, read_examples
from modeling.errors import UserError
from modeling.exit_settings import PROVENANCE, Settings, resolve
from modeling.loading.files import read_json
from training.checkpoints import check_finished
from utils.files import write_json


@dataclass(frozen=True)
class Lab:
    """What a sweep of one model works with.

    directory: of the model; output: where results go; job: the model on the dev set; provenance:
    what results say of where they come from.
    """

    directory: Path
    output: Path
    job: Job
    examples: list[Example]
    data: LabSettings
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        return self.job.task

    @property
    def mode(self) -> Mode:
        return self.job.mode

    @property
    def config(self) -> AlbertConfig:
        return self.job.model.config

    @property
    def settings(self) -> Settings:
        """The model's exit keys, and where each is written."""
        return resolve(self.directory, self.mode.table)

    @property
    def own_setting(self) -> Setting:
        """The rule as the model has it configured, and the keys that it reads.

        A rule that cannot be swept gives way to the first that can.
        """
        mode, keys, regression = self.mode, self.config.exit_keys(), self.task.is_regression
        if self.config.exit_rule().never_exits:
            keys[mode.rule_key] = mode.swept(regression)[0]
        return mode.named(keys, regression)

    @property
    def fixed(self) -> Setting:
        """Exit keys that no grid varies: choices, such as window_score."""
        keys = self.config.exit_keys()
        choices = [name for name, key in self.mode.table.exit_keys.items() if key.choices]
        return {name: keys[name] for name in choices if name != self.mode.rule_key}

    def grids(self, settings: SweepSettings) -> tuple[RuleGrid, ...]:
        """What is to be swept; raises UserError for an unknown rule, key or value."""
        regression = self.task.is_regression
        rules = list(dict.fromkeys(settings.rules or self.mode.swept(regression)))
        layers, texts = self.config.num_hidden_layers, settings.grid_texts()
        grids = make_grids(self.mode, rules, texts, layers, regression)
        return tuple(replace(grid, fixed=self.fixed) for grid in grids)

    def record(self) -> Recording:
        """The recorded pass, kept in `output`."""
        found = recorded(self.output / "all_logits.safetensors", self.job)
        if self.job.batch_size > 1:
            found.tensors.pop("seconds", None)  # those of a batch are not those of a text
        return replace(found, flops=flops_of(self.job))

    @property
    def command(self) -> str:
        """Evaluates the model in its folder, on the data that the sweep has."""
        data, folder = self.data, str(self.directory)
        where = {"--data_dir": data.data_dir, "--task_name": data.task_name}
        if not data.task_name:
            names = ("validation_file", "text_column_names", "label_column_name")
            given = {name: getattr(data, name) for name in names}
            where = {f"--{name}": value for name, value in given.items() if value}
        flags = {
            "--model_type": self.mode.name,
            **where,
            "--model_name_or_path": folder,
            "--output_dir": folder,
            "--max_seq_length": data.max_seq_length,
        }
        lower = " --do_lower_case" if data.do_lower_case else ""
        words = [f"{flag} {shlex.quote(str(value))}" for flag, value in flags.items()]
        return f"python run_glue.py --do_eval {' '.join(words)}{lower}"


def open_lab(settings: LabSettings, directory: Path, task: Task, part: Task, output: Path) -> Lab:
    """Load a model trained on `task`, and the dev set of `part`: the task or its second half."""
    check_finished(directory)
    cuda = torch.cuda.is_available() and not settings.no_cuda
    device, mode = torch.device("cuda" if cuda else "cpu"), trained_mode(directory)
    mode.rules(task.is_regression)  # raises for a mode with nothing to sweep
    model, tokenizer = load_trained(directory, mode, task, device, settings.do_lower_case)
    mode.check_length(settings.max_seq_length, model.config)
    examples = read_examples(part, settings.data_dir, "dev", settings.max_eval_samples)
    features = encode(examples, tokenizer, settings.max_seq_length - mode.extra_tokens)
    features = mode.prepare(features, settings.seed)
    job = Job(mode, model, tokenizer, part, features, settings.batch_size)
    return Lab(directory, output, job, examples, settings)


def verify(lab: Lab, recording: Recording, swept: Sweep, count: int, seed: int) -> None:
    """Run random settings with early exit, one example at a time; exit layers must be equal.

    Raises UserError naming the first setting and example that differ.
    """
    job = replace(lab.job, batch_size=1)
    count = min(count, len(swept.settings))
    for number in np.random.default_rng(seed).choice(len(swept.settings), count, replace=False):
        setting = swept.settings[number]
        with keys_in_force(lab.config, setting):
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
    with keys_in_force(lab.config, setting):
        seconds = run_early_exit(replace(lab.job, batch_size=1))["seconds"]
    median, p95 = np.percentile(seconds * 1000, [50, 95])
    return f"Measured, one text at a time: {median:.2f} ms median, {p95:.2f} ms p95"


def write_choice(lab: Lab, setting: Setting) -> None:
    """Make `setting` what the next evaluation uses, by exit_config.json."""
    path = lab.directory / "exit_config.json"
    config_path = lab.directory / "config.json"
    config = read_json(config_path)
    has_text = path.is_file() and path.read_bytes().strip()
    old = read_json(path) if has_text else {}
    kept = {name: value for name, value in old.items() if name not in lab.mode.table.exit_keys}
    write_json(path, {**kept, **setting, **lab.fixed, PROVENANCE: lab.provenance})
    print(f"written to {path}; the next evaluation of {lab.directory} uses it")
    pointed = config.get("exit_config_path")
    if pointed != path.name:
        write_json(config_path, {**config, "exit_config_path": path.name})
        print(f"{config_path}: exit_config_path {pointed!r} -> {path.name!r}")


# The published loop over one key.


def varied_values(lab: Lab, request: str) -> tuple[str, Sequence[float]]:
    """Key and values of --vary; without values those of the published loop."""
    layers, rule = lab.config.num_hidden_layers, lab.config.exit_rule()
    if rule.never_exits:
        name = lab.config.exit_keys()[lab.mode.rule_key]
        raise UserError(f"--vary {request}: {name} has no exits: {rule.never_exits}")
    key, _, text = request.partition("=")
    published = {
        "exit_thres": "0.9:0.1:-0.1",
        "cnt_thres": f"{min(2, layers)}:{min(12, layers)}",
    }
    return key, parse_values(key, text or published.get(key, ""), layers, lab.mode.table.exit_keys)


def vary(lab: Lab, recording: Recording, request: str, results: Path) -> None:
    """eval_results.txt anew: a row for every value of one key, the other keys as configured."""
    configured = lab.config.exit_keys()
    key, values = varied_values(lab, request)
    print(f"{key} varies; held: {lab.settings.line(without=key)}")
    for number, value in enumerate(values):
        rule = {**configured, key: value}
        exits = scan_setting(lab.mode, rule, recording)[0]
        answers = at_exit(recording.predictions, exits)
        summary = {
            "metrics": compute_metrics(lab.task, answers, recording.labels),
            "computation_cost": exits.mean(dtype=float) / lab.config.num_hidden_layers,
            "rule": rule,
        }
        append_results(results, summary, "all" if number else "one")
        metrics = ", ".join(f"{name} = {v}" for name, v in sorted(summary["metrics"].items()))
        print(f"{key} {value:g}: Computation cost: {summary['computation_cost']:.4f}, {metrics}")
    print(f"{len(values)} rows: {results}")
