"""A run of sweep_exits.py: open the models, record, sweep, pick, draw, compare."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from answers.figures import save_figure
from answers.predict import is_main, run_all
from answers.scores import remarks
from answers.sweep import (
    Grids,
    Recording,
    Sweep,
    make_grids,
    sweep,
    sweepable,
)
from elbert.cpu_packing import cast_layers, dtype_of
from elbert.rules import certainty, exit_scores, scan
from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE, Setting, describe
from elbert_base.files import read_json, resolve_within
from exit_lab.choice import Choice, Parts, choose, split
from exit_lab.compare import frontier_set, held_out_report, two_models, write_comparison
from exit_lab.explorer import explorer_page
from exit_lab.figures import frontier_figure
from exit_lab.learnt import fit_weights
from exit_lab.recording import RECORDING, load_or_record
from exit_lab.settings import SweepRequest
from exit_lab.tables import write_tables
from glue.metrics import at_exit
from glue.tasks import Example, Split, Task
from modes import trained_mode
from modes.base import Mode
from runs.files import RunFolder, write_json
from runs.flags import as_dict
from runs.folder import check_finished
from runs.job import Job, find_task, open_job
from runs.start import make_accelerator, start_script

BAND_RESAMPLES = 400  # of a figure's intervals


@dataclass(frozen=True)
class Lab:
    """Model, data and recording of one sweep."""

    request: SweepRequest
    directory: Path  # of the model
    output: Path  # of the results
    mode: Mode
    job: Job  # the model on the dev set
    examples: list[Example]
    grids: Grids

    @property
    def config(self) -> Any:
        return self.job.config

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
    """Do what the flags ask for, on the task's dev set."""
    data, choice = request.data, request.choice
    accelerator = make_accelerator(data.no_cuda, "no")
    start_script(accelerator, data.seed)
    if request.sweep.verify and accelerator.num_processes > 1:
        raise UserError("--verify needs one process: give it without torchrun")
    task = find_task(data, request.folders[0])
    labs = {folder: open_lab(request, folder, task, accelerator) for folder in request.folders}
    for lab in labs.values():  # all processes; the main one goes on
        lab.recording  # noqa: B018
    if not is_main():
        return
    if choice.compare:
        found = {folder: (lab.job, lab.recording) for folder, lab in labs.items()}
        sides = {x: [found[y] for y in ys] for x, ys in choice.models().items()}
        print(f"\n{two_models(sides, data.seed)}")
        return
    (lab,) = labs.values()
    sweep_model(lab, choice.goal())
    if choice.compare is not None:
        write_comparison(lab.swept, lab.parts, data.seed, lab.output)


def open_lab(request: SweepRequest, directory: Path, task: Task, accelerator: Accelerator) -> Lab:
    """Load a model trained on `task`, and the task's dev set.

    Raises UserError for an unknown rule, key or value of a grid, before minutes go into a
    recording.
    """
    data, wanted = request.data, request.sweep
    output = Path(data.output_dir or Path(os.path.abspath(directory), "sweep"))
    if not (data.output_dir or resolve_within(output.parent, output.name)):
        raise UserError(f"{output} leads out of {output.parent}: give --output_dir")
    check_finished(directory, "run_glue.py")
    mode = trained_mode(directory)
    mode.check_has_rules()
    dev = Split(task, data.folder, "dev")
    job = open_job(
        directory,
        task,
        dev,
        data,
        device=accelerator.device,
        do_lower_case=data.do_lower_case,
        seed=data.seed,
        flags=as_dict(*request),
        batch_size=data.batch_size,
    )
    cast_layers(job.model, dtype_of(wanted.dtype, accelerator.device))
    config = job.config
    rules = list(dict.fromkeys(wanted.rules or sweepable(config)))
    values = {key: text for key, _, text in (item.partition("=") for item in wanted.grid)}
    grids = make_grids(config, rules, values)
    examples = list(dev.examples(data.max_eval_samples))
    return Lab(request, directory, output, mode, job, examples, grids)


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
    results = RunFolder(lab.output)
    results.remove(results.read_list().keys() - {RECORDING})  # of an earlier sweep
    results.write_json("provenance.json", lab.job.origin.provenance.as_json())
    write_tables(swept, lab.output)
    if flags.verify:
        verify(lab, flags.verify)
    if not flags.tables_only:
        write_figures(lab, setting)
    if choice:
        save_choice(lab, choice)


def verify(lab: Lab, count: int) -> None:
    """Run random settings with early exit, one example at a time; exit layers must be equal.

    Raises UserError naming the first setting and example that differ.
    """
    swept, config = lab.swept, lab.config
    count, before = min(count, len(swept.settings)), config.exit_keys()
    rng = np.random.default_rng(lab.request.data.seed)
    for number in rng.choice(len(swept.settings), count, replace=False):
        setting = swept.settings[number]
        config.update({**before, **setting})
        try:
            found = run_all(replace(lab.job, batch_size=1), lab.mode.run)["exit_layer"].numpy()
        finally:
            config.update(before)
        if (found != swept.exit_layer[number]).any():
            row = int((found != swept.exit_layer[number]).argmax())
            raise UserError(
                f"{describe(setting)}: example {row} exits at layer {found[row]} in a real run, by "
                f"the recording at {swept.exit_layer[number, row]}. Where that is rounding, delete "
                f"{lab.output / RECORDING} and record again, with --batch_size 1"
            )
    print(f"verified {count} settings at batch size 1: every exit layer is equal")


def write_figures(lab: Lab, setting: Setting) -> None:
    """Write the figure, and the explorer, which opens at `setting`."""
    task, swept, setting = lab.job.task, lab.swept, lab.config.keys_read(**setting)
    exits = scan(lab.config.exit_rule(**setting), lab.recording.tensors).numpy()
    scores = exit_scores(lab.recording.tensors["all_logits"], task.multi_label)
    confidence = certainty(scores, task.multi_label).numpy()
    found = frontier_set(swept, lab.parts, BAND_RESAMPLES, lab.request.data.seed)
    results = RunFolder(lab.output)
    save_figure(frontier_figure(found, task), lab.output / "frontier.png", results)
    same = (i for i, one in enumerate(swept.settings) if one.items() <= setting.items())
    start = next(same, int((swept.exit_layer == exits).sum(1).argmax()))  # or which agrees most
    read = {name for rule in lab.grids for name in lab.config.exit_rules()[rule].reads}
    read -= {*chain(*lab.grids.values())}
    about = {
        "title": f"Exit explorer: {task.shown_name}, {lab.directory.name}",
        "start": start,
        "fixed": {name: x for name, x in lab.config.exit_keys().items() if name in read},
        "command": f"python run_glue.py --do_eval --output_dir {shlex.quote(str(lab.directory))}",
        "remarks": remarks(
            task, at_exit(swept.predictions, exits), swept.labels, exits, swept.num_layers
        ),
    }
    page = explorer_page(swept, lab.examples, confidence, about, lab.request.data.seed)
    results.write_text("explorer.html", page)
    print(f"frontier.png and explorer.html: {lab.output}")


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
    origin = {"provenance": lab.job.origin.provenance.as_json()}
    write_json(path, {**kept, **setting, **origin})
    print(f"written to {path}; the next evaluation of {lab.directory} uses it")
    config = read_json(config_path)
    pointed = config.get("exit_config_path")
    if pointed and pointed != path.name:
        write_json(config_path, {**config, "exit_config_path": path.name})
        print(f"{config_path}: exit_config_path {pointed!r} -> {path.name!r}")
