"""A run of sweep_exits.py: open the models, record, sweep, pick, verify, draw, compare."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.answers import remarks
from evaluation.figures import save_figure
from evaluation.job import Job, find_task, load_trained, results_folder
from evaluation.modes import trained_mode
from evaluation.predictions import Predictions, is_main, run_early_exit
from evaluation.results import ROWS, append_results
from exit_lab.choice import Choice, Parts, choose, split
from exit_lab.compare import frontier_set, held_out_report, two_models, write_comparison
from exit_lab.explorer import explorer_page
from exit_lab.figures import frontier_figure, heatmap_figure
from exit_lab.learnt import fit_weights
from exit_lab.settings import SweepRequest
from exit_lab.sweep import (
    RECORDING,
    Grids,
    Recording,
    Sweep,
    load_or_record,
    make_grids,
    sweep,
    sweepable,
    write_tables,
)
from glue.metrics import at_exit, compute_metrics
from glue.tasks import Example, Split, Task, evaluation_tasks
from modeling.albert import cast_layers
from modeling.cpu_packing import dtype_of
from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE, Setting, describe, resolve
from modeling.loading.files import UsedFiles, read_json, resolve_within
from modeling.rules import certainty, exit_scores, scan
from training.checkpoints import check_finished
from training.provenance import check_inputs, provenance
from training.start import make_accelerator, start_script
from utils.files import read_list, remove, run_all_then_raise, write_json, write_text
from utils.flags import as_dict

BAND_RESAMPLES = 400  # of a figure's intervals


@dataclass(frozen=True)
class Lab:
    """Model, data and recording of one sweep."""

    request: SweepRequest
    directory: Path  # of the model
    output: Path  # of the results
    job: Job  # the model on the dev set
    examples: list[Example]
    grids: Grids

    @property
    def config(self) -> Any:
        return self.job.model.config

    @cached_property
    def recording(self) -> Recording:
        return load_or_record(self.output, self.job)

    @cached_property
    def swept(self) -> Sweep:
        """The sweep, of a rule `learnt` that is fitted first where --rules names it."""
        if "learnt" in (self.request.sweep.rules or ()):
            rows = self.parts.calibration
            self.config.learnt_weights = fit_weights(self.config, self.recording, rows)
        return sweep(self.config, self.grids, self.recording, self.job.task)

    @cached_property
    def parts(self) -> Parts:
        """The examples that choose, and those on which choices and comparisons are shown."""
        data, _, choice = self.request
        return split(len(self.examples), choice.calibration_fraction, data.seed)

    def own_setting(self) -> Setting:
        """The rule as the model has it configured, and the keys that it reads.

        A rule that cannot be swept gives way to the first that can.
        """
        if self.config.exit_rule().never_exits:
            return self.config.keys_read(**{self.config.rule_key: sweepable(self.config)[0]})
        return self.config.keys_read()


def run(request: SweepRequest) -> None:
    """Do what the flags ask for, on the task's dev set and, of MNLI, on its second half."""
    data = request.data
    accelerator = make_accelerator(data.no_cuda, "no")
    start_script(accelerator, data.seed)
    task = find_task(data, request.folders[0])
    for part, suffix in evaluation_tasks(task):
        run_part(request, task, part, suffix, accelerator.device)


def run_part(
    request: SweepRequest, task: Task, part: Task, suffix: str, device: torch.device
) -> None:
    """Do all of it on the dev set of `part`: the task, or its second half."""
    data, labs = request.data, []
    for number, directory in enumerate(request.folders, start=1):
        output = Path(data.output_dir + suffix if data.output_dir else "")
        if not data.output_dir:
            output = results_folder(directory, suffix) / "sweep"
            if not resolve_within(output.parent, output.name):
                raise UserError(f"{output} leads out of {output.parent}: give --output_dir")
        elif len(request.folders) > 1:
            output /= f"{number}-{directory.name}"
        check_inputs(output, {"validation_file": data.validation_file})
        labs.append(open_lab(request, directory, output, task, part, device))
    if request.sweep.vary:
        vary(labs[0], request.sweep.vary, results_folder(labs[0].directory, suffix) / ROWS)
        return
    for lab in labs:  # all processes; the main one goes on
        lab.recording  # noqa: B018
    if not is_main():
        return
    if request.choice.compare:
        found = {lab.directory: (lab.job, lab.recording) for lab in labs}
        sides = {x: [found[y] for y in ys] for x, ys in request.choice.models().items()}
        print(f"\n{two_models(sides, data.seed)}")
        return
    for lab in labs:
        sweep_model(lab, request.choice.goal() if part == task else {})
    if request.choice.compare is not None:
        folder = labs[0].output if len(labs) == 1 else labs[0].output.parent
        found = write_comparison([lab.swept for lab in labs], labs[0].parts, data.seed, folder)
        if len(labs) > 1 and not request.sweep.tables_only:
            save_figure(frontier_figure(found, part), folder / "compare.png", folder)


def open_lab(
    request: SweepRequest,
    directory: Path,
    output: Path,
    task: Task,
    part: Task,
    device: torch.device,
) -> Lab:
    """Load a model trained on `task`, and the dev set of `part`: the task or its second half.

    Raises UserError for an unknown rule, key or value of a grid, before minutes go into a
    recording.
    """
    data, wanted = request.data, request.sweep
    check_finished(directory, "run_glue.py")
    mode = trained_mode(directory)
    mode.check_has_rules()
    dev = Split(part, data.folder, "dev")
    used = UsedFiles(directory, dev.path)
    model, tokenizer = load_trained(directory, mode, task, device, data.do_lower_case)
    cast_layers(model, dtype_of(wanted.dtype, device))
    mode.check_length(data.max_seq_length, model.config)
    examples = list(dev.examples(data.max_eval_samples))
    texts = examples, tokenizer, data.max_seq_length
    features = mode.features(model.config, *texts, seed=data.seed)
    hashes = {"weights": used.weights, "data": features.digest()}
    origin = {"provenance": provenance(as_dict(*request), **hashes)}
    job = Job(mode, model, tokenizer, part, features, data.batch_size, origin=origin, used=used)
    rules = list(dict.fromkeys(wanted.rules or sweepable(model.config)))
    texts = {key: text for key, _, text in (item.partition("=") for item in wanted.grid)}
    grids = make_grids(model.config, rules, texts)
    return Lab(request, directory, output, job, examples, grids)


def sweep_model(lab: Lab, goal: Mapping[str, float]) -> None:
    """Sweep one model, choose for a `goal`, and write what there is to see."""
    flags, swept = lab.request.sweep, lab.swept
    setting, choice = lab.own_setting(), None
    if goal:
        # Every rule costs a share of delta, so without --rules only the model's own is tested.
        rules = flags.rules or [setting[lab.config.rule_key]]
        choice = choose(swept, goal, rules, lab.parts.calibration)
        setting = setting if choice.setting is None else swept.settings[choice.setting]
    lab.job.check_unchanged()
    remove(lab.output, read_list(lab.output).keys() - {RECORDING})  # of an earlier sweep
    write_json(lab.output / "provenance.json", lab.job.origin["provenance"], lab.output)
    write_tables(swept, lab.output)
    if flags.verify:
        verify(lab, flags.verify)
    last = []
    if not flags.tables_only:
        last.append(partial(write_figures, lab, setting))
    if choice:
        last.append(partial(save_choice, lab, choice))
    run_all_then_raise(*last)
    if "max_p95_ms" in goal:
        seconds = run_one_by_one(lab.job, setting)["seconds"]
        median, p95 = np.percentile(seconds * 1000, [50, 95])
        print(f"Measured, one text at a time: {median:.2f} ms median, {p95:.2f} ms p95")


def run_one_by_one(job: Job, setting: Setting) -> Predictions:
    """Answer with early exit, one example at a time, under the exit keys of `setting`."""
    before = job.model.config.exit_keys()
    job.model.config.update({**before, **setting})
    try:
        return run_early_exit(replace(job, batch_size=1, alone=True))
    finally:
        job.model.config.update(before)


def verify(lab: Lab, count: int) -> None:
    """Run random settings with early exit, one example at a time; exit layers must be equal.

    Raises UserError naming the first setting and example that differ.
    """
    swept = lab.swept
    count = min(count, len(swept.settings))
    rng = np.random.default_rng(lab.request.data.seed)
    for number in rng.choice(len(swept.settings), count, replace=False):
        setting = swept.settings[number]
        predictions = run_one_by_one(lab.job, setting)
        found, expected = predictions["exit_layer"].numpy(), swept.exit_layer[number]
        if (found != expected).any():
            row = int((found != expected).argmax())
            recorded_logits = lab.recording.tensors["all_logits"][found[row] - 1, row]
            apart = (predictions["logits"][row] - recorded_logits).abs().max()
            raise UserError(
                f"{describe(setting)}: {(found != expected).sum()} examples "
                f"exit elsewhere in a real run; example {row} at layer {found[row]}, by the "
                f"recording at {expected[row]}, with logits {apart:.1e} apart. Where that is "
                f"rounding, delete {lab.output / RECORDING} and record again, with --batch_size 1"
            )
    print(f"verified {count} settings at batch size 1: every exit layer is equal")


def write_figures(lab: Lab, setting: Setting) -> None:
    """Write the figures, and the explorer, which opens at `setting`."""
    task, swept, setting = lab.job.task, lab.swept, lab.config.keys_read(**setting)
    exits = scan(lab.config.exit_rule(**setting), lab.recording.tensors).numpy()
    scores = exit_scores(lab.recording.tensors["all_logits"], task.multi_label)
    confidence = certainty(scores, task.multi_label).numpy()
    scores, labels = scores.numpy(), swept.labels
    if task.multi_label:  # the least certain label's way to be right is a class of its own
        right = np.where(labels > 0, scores, 1 - scores).min(-1)
        scores, labels = np.stack((right, 1 - right), -1), np.zeros(len(labels))
    found = frontier_set([swept], lab.parts, BAND_RESAMPLES, lab.request.data.seed)
    figures = {
        "frontier": frontier_figure(found, task),
        "heatmap": heatmap_figure(scores, labels, exits, task, describe(setting)),
    }
    for name, figure in figures.items():
        save_figure(figure, lab.output / f"{name}.png", lab.output)
    same = (i for i, one in enumerate(swept.settings) if one.items() <= setting.items())
    start = next(same, int((swept.exit_layer == exits).sum(1).argmax()))  # or which agrees most
    read = {name for rule in lab.grids for name in lab.config.exit_rules()[rule].reads}
    read -= {*chain(*lab.grids.values())}
    about = {
        "title": f"Exit explorer: {task.shown_name}, {lab.directory.name}",
        "start": start,
        "fixed": {name: x for name, x in lab.config.exit_keys().items() if name in read},
        "command": evaluation_command(lab),
        "remarks": remarks(
            task, at_exit(swept.predictions, exits), swept.labels, exits, swept.num_layers
        ),
    }
    page = explorer_page(swept, lab.examples, confidence, about, lab.request.data.seed)
    write_text(lab.output / "explorer.html", page, lab.output)
    print(f"figures ({', '.join(figures)}) and explorer.html: {lab.output}")


def evaluation_command(lab: Lab) -> str:
    """The command that evaluates the model in its folder, on the data that the sweep has."""
    folder, data = str(lab.directory), lab.request.data
    flags = {"model_type": lab.job.mode.name, "model_name_or_path": folder, "output_dir": folder}
    names = "validation_file text_column_names label_column_name label_separator".split()
    names = ("data_dir", "dataset_name", "task_name") if data.task_name else names
    flags |= {name: getattr(data, name) for name in (*names, "max_seq_length")}
    words = [f"--{flag} {shlex.quote(str(value))}" for flag, value in flags.items() if value]
    lower = " --do_lower_case" if data.do_lower_case else ""
    return f"python run_glue.py --do_eval {' '.join(words)}{lower}"


def save_choice(lab: Lab, choice: Choice) -> None:
    """Print the setting that was chosen, and make it what the next evaluation uses, by
    exit_config.json; UserError when there is none."""
    if choice.setting is None:
        raise UserError(f"no setting qualifies: {choice.reason}; exit_config.json not written")
    setting = lab.config.keys_read(**lab.swept.settings[choice.setting])
    print(f"\nPicked: {describe(setting)}\n({choice.reason})\n")
    print(held_out_report(lab.swept, choice.setting, lab.parts, lab.request.data.seed))
    lab.job.check_unchanged()
    path, config_path = lab.directory / EXIT_FILE, lab.directory / "config.json"
    old = read_json(path) if path.is_file() and path.read_bytes().strip() else {}
    kept = {name: value for name, value in old.items() if name not in lab.config.table.exit_keys}
    write_json(path, {**kept, **setting, **lab.job.origin})
    print(f"written to {path}; the next evaluation of {lab.directory} uses it")
    config = read_json(config_path)
    pointed = config.get("exit_config_path")
    if pointed and pointed != path.name:
        write_json(config_path, {**config, "exit_config_path": path.name})
        print(f"{config_path}: exit_config_path {pointed!r} -> {path.name!r}")


def vary(lab: Lab, request: str, results: Path) -> None:
    """Write eval_results.txt anew, as the published loop over one key: a row for every value.

    request: KEY or KEY=VALUES; a KEY alone takes the published loop's values.
    """
    config, layers = lab.config, lab.config.num_hidden_layers
    configured = config.exit_keys()
    if never := config.exit_rule().never_exits:
        raise UserError(f"--vary {request}: {configured[config.rule_key]} has no exits: {never}")
    key, _, text = request.partition("=")
    published = {
        "exit_thres": "0.9:0.1:-0.1",
        "cnt_thres": f"{min(2, layers)}:{min(12, layers)}",
    }
    values = config.grid(key, text or published.get(key))
    recording = lab.recording
    if not is_main():
        return
    lab.job.check_unchanged()
    print(f"{key} varies; held: {resolve(lab.directory, config.table).line(without=key)}")
    for number, value in enumerate(values):
        rule = {**configured, key: value}
        exits = scan(config.exit_rule(**rule), recording.tensors).numpy()
        answers = at_exit(recording.predictions, exits)
        summary = {
            "metrics": compute_metrics(lab.job.task, answers, recording.labels),
            "computation_cost": exits.mean(dtype=float) / layers,
            "rule": rule,
        }
        append_results(results, summary, "all" if number else "one", key)
        metrics = ", ".join(f"{name} = {v}" for name, v in sorted(summary["metrics"].items()))
        print(f"{key} {value:g}: Computation cost: {summary['computation_cost']:.4f}, {metrics}")
    print(f"{len(values)} rows: {results}")
