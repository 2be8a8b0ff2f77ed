"""A whole run of sweep_exits.py: open, record, sweep, pick, verify, draw, compare."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter
from transformers.utils import logging as hf_logging

from evaluation.figures import save_figure
from evaluation.job import ResultPaths
from evaluation.modes.base import Setting, describe
from exit_lab.choice import Choice, Parts, choose, split
from exit_lab.compare import against_coin, choice_table, limits_of, write_comparison
from exit_lab.explorer import View, explorer_page
from exit_lab.figures import (
    exits_at,
    exits_by_rule_figure,
    frontier_figure,
    heatmap_figure,
    leads,
)
from exit_lab.frontiers import FrontierSet, rules_and_baselines
from exit_lab.lab import Lab, measured, open_lab, varied_values, vary, verify, write_choice
from exit_lab.recording import Recording
from exit_lab.settings import ChoiceSettings, LabSettings, PickGoal, SweepSettings
from exit_lab.sweep import Sweep, scan_setting, sweep
from exit_lab.tables import nearest_setting, write_tables
from glue.custom import Columns, custom_task
from glue.tasks import Task, evaluation_tasks, get_task, primary_metric
from modeling.errors import UserError
from modeling.loading.configs import trained_labels
from modeling.loading.files import weights_hash
from modeling.memory import keep_freed_memory
from modeling.rules import exit_scores
from training.provenance import provenance, remove
from training.settings import as_dict
from utils.console import Messages
from utils.files import each_of, write_json, write_text

# What a sweep leaves beside its recording: another sweep there begins without.
WRITTEN = (
    *("sweep.csv", "frontier.csv", "compare.csv", "compare.md", "explorer.html", "provenance.json"),
    *("frontier.png", "heatmap.png", "exits.png", "compare.png", "runs"),
)

BAND_DRAWS = 400  # of a figure's intervals


@dataclass(frozen=True)
class SweepRequest:
    """Everything that the flags ask for."""

    data: LabSettings
    sweep: SweepSettings
    choice: ChoiceSettings

    @property
    def goal(self) -> PickGoal | None:
        return self.choice.goal()

    @property
    def needs_split(self) -> bool:
        """Is anything chosen on one part of the examples, and shown on the other?"""
        return bool(self.goal or self.choice.compare or not self.sweep.tables_only)

    def split(self, examples: int) -> Parts:
        return split(examples, self.choice.calibration_fraction, self.data.seed)

    def provenance(self, lab: Lab) -> dict[str, Any]:
        """What the results of a sweep say of where they come from."""
        hashes = {"weights": weights_hash(lab.directory), "data": lab.job.features.digest()}
        return provenance(as_dict(self.data, self.sweep, self.choice), **hashes)

    def check(self, lab: Lab) -> None:
        """Raise UserError for a wrong flag before minutes go into a recording."""
        lab.grids(self.sweep)
        if self.sweep.vary:
            varied_values(lab, self.sweep.vary)
        if self.needs_split and not self.sweep.vary:
            self.split(len(lab.examples))
        if self.goal and self.goal.max_p95_ms is not None and self.data.batch_size > 1:
            raise UserError(
                f"--batch_size {self.data.batch_size}: --pick max_p95_ms needs the times of one "
                "text at a time, so leave it out"
            )


def run(request: SweepRequest) -> None:
    """Everything asked for, on the task's dev set and, of MNLI, on its second half."""
    logging.basicConfig(format="%(levelname)s - %(message)s", level="INFO", handlers=[Messages()])
    logging.getLogger("filelock").setLevel(logging.WARNING)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    keep_freed_memory()
    task = task_of(request.data)
    for part, suffix in evaluation_tasks(task):
        run_part(request, task, part, suffix)


def task_of(data: LabSettings) -> Task:
    """The GLUE task, or the user's own with the labels that the trained model has."""
    if data.task_name:
        return get_task(data.task_name)
    columns = Columns.named(data.text_column_names, data.label_column_name)
    labels = trained_labels(data.model_dir[0])
    return custom_task(None, data.validation_file, None, labels, columns)


def run_part(request: SweepRequest, task: Task, part: Task, suffix: str) -> None:
    """Everything asked for, on the dev set of `part`: the task, or its second half."""
    directories = [Path(name) for name in request.data.model_dir]
    outputs = output_folders(directories, request.data.output_dir, suffix)
    labs = [
        open_lab(request.data, directory, task, part, output)
        for directory, output in zip(directories, outputs, strict=True)
    ]
    for lab in labs:
        request.check(lab)
    labs = [replace(lab, provenance=request.provenance(lab)) for lab in labs]
    recordings = [lab.record() for lab in labs]
    if request.sweep.vary:
        directory = directories[0]
        results = ResultPaths(directory, suffix).results / "eval_results.txt"
        vary(labs[0], recordings[0], request.sweep.vary, results)
        return
    goal = request.goal if part == task else None
    sweeps = [run_lab(request, *pair, goal) for pair in zip(labs, recordings, strict=True)]
    if request.choice.compare:
        place = outputs[0] if len(labs) == 1 else outputs[0].parent
        parts = request.split(len(sweeps[0].labels))
        found = write_comparison(sweeps, parts, request.data.seed, place)
        if len(labs) > 1 and not request.sweep.tables_only:
            figure = frontier_of_rules(found, task, f"mean of {len(labs)} models, ")
            save_figure(figure, place / "compare.png")


def run_lab(request: SweepRequest, lab: Lab, recording: Recording, goal: PickGoal | None) -> Sweep:
    """Sweep, and for a `goal` choose, one model; write what there is to see."""
    swept = sweep(lab.mode, lab.grids(request.sweep), recording, lab.task)
    setting, choice, seed = lab.own_setting, None, request.data.seed
    parts = request.split(len(swept.labels)) if request.needs_split else None
    if goal:
        # Every rule costs a share of delta, so without --rules only the model's own is tested.
        rules = request.sweep.rules or [setting[swept.name_key]]
        choice = choose(swept, lab.mode, goal, rules, parts.calibration)
        setting = setting if choice.setting is None else swept.settings[choice.setting]
    remove(lab.output / name for name in WRITTEN)
    write_json(lab.output / "provenance.json", lab.provenance)
    write_tables(swept, lab.output)
    if request.sweep.verify:
        verify(lab, recording, swept, request.sweep.verify, seed)
    last = []
    if not request.sweep.tables_only:
        last.append(partial(draw, lab, recording, swept, setting, parts, seed))
    if choice:
        last.append(partial(report_choice, lab, swept, choice, parts, seed))
    each_of(*last)
    if goal and goal.max_p95_ms is not None:
        print(measured(lab, setting))
    return swept


def draw(
    lab: Lab, recording: Recording, swept: Sweep, setting: Setting, parts: Parts, seed: int
) -> None:
    """Write the figures, as PNG and to TensorBoard, and the explorer, which opens at `setting`."""
    whole, task = {**lab.fixed, **setting}, lab.task
    exits = scan_setting(lab.mode, whole, recording)
    found = rules_and_baselines([swept], parts, BAND_DRAWS, seed)
    scores = exit_scores(recording.tensors["all_logits"]).numpy()
    regression = task.is_regression
    values = scores[..., 0] - swept.labels if regression else leads(scores, swept.labels)
    rule = describe(lab.mode.named(whole, regression), swept.name_key)
    figures = {
        "frontier": frontier_of_rules(found, task),
        "exits": exits_of_rules(found, task),
        "heatmap": heatmap_figure(values, exits[0], regression, task.name, rule),
    }
    with SummaryWriter(str(lab.output / "runs")) as writer:
        for name, figure in figures.items():
            writer.add_figure(f"{task.name}/{name}", figure, close=False)
            save_figure(figure, lab.output / f"{name}.png")
    title = f"Exit explorer: {task.name}, {lab.directory.name}"
    start = nearest_setting(swept, setting, exits)
    view = View(title, start, seed, lab.fixed, lab.command)
    page = explorer_page(swept, lab.examples, scores.max(-1), view)
    write_text(lab.output / "explorer.html", page)
    print(f"figures ({', '.join(figures)}) and explorer.html: {lab.output}")


def frontier_of_rules(found: FrontierSet, task: Task, models: str = "") -> Figure:
    metric, (chosen, shown) = primary_metric(task), map(len, found.parts)
    about = (
        f"{models}best setting at or under each cost,\n"
        f"chosen on {chosen} examples, shown on the other {shown}; band: 95% interval\n"
        "coin: each example stops at one of two layers, by chance\n"
        "oracle: each example stops at its first right layer"
    )
    return frontier_figure(found, metric, f"{task.name}: {metric} against computation cost", about)


def exits_of_rules(found: FrontierSet, task: Task) -> Figure:
    limits, (chosen, shown) = limits_of(found.layers), map(len, found.parts)
    limit = limits[len(limits) // 2]
    title = f"{task.name}: where examples exit at a cost of at most {limit:.2f}"
    about = f"each rule's best setting, chosen on {chosen} examples, shown on the other {shown}"
    return exits_by_rule_figure(exits_at(found, limit), primary_metric(task), title, about)


def report_choice(lab: Lab, swept: Sweep, choice: Choice, parts: Parts, seed: int) -> None:
    """Print the setting that was chosen, and put it into force; UserError when there is none."""
    if choice.setting is None:
        raise UserError(f"no setting qualifies: {choice.note}; exit_config.json not written")
    setting = swept.settings[choice.setting]
    print(f"\nPicked: {describe(setting, swept.name_key)}\n({choice.note})\n")
    print(choice_table(swept, choice.setting, parts, seed) + "\n")
    print(against_coin(swept, choice.setting, parts, seed) + "\n")
    write_choice(lab, setting)


def output_folders(models: list[Path], output_dir: str | None, suffix: str) -> list[Path]:
    """Where each model's results go; several models' comparison goes beside the first's."""
    if not output_dir:
        return [ResultPaths(model, suffix).results / "sweep" for model in models]
    output = Path(output_dir + suffix)
    if len(models) == 1:
        return [output]
    return [output / f"{i}-{model.name}" for i, model in enumerate(models, start=1)]
