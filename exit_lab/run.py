"""A whole run of sweep_exits.py: open, record, sweep, pick, verify, draw, compare."""

import logging
from functools import partial
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from transformers.utils import logging as hf_logging

from evaluation.figures import save_figure
from evaluation.job import ResultPaths
from evaluation.keys import Setting, describe
from exit_lab.choice import Choice, Parts, choose, split
from exit_lab.compare import against_coin, choice_table, frontier_set, write_comparison
from exit_lab.explorer import View, explorer_page
from exit_lab.figures import exits_figure, frontier_figure, heatmap_figure
from exit_lab.lab import Lab, measured, open_lab, varied_values, vary, verify, write_choice
from exit_lab.recording import Recording
from exit_lab.settings import ChoiceSettings, LabSettings, PickGoal, SweepSettings
from exit_lab.sweep import Sweep, scan_setting, sweep
from exit_lab.tables import nearest_setting, write_tables
from glue.custom import Columns, custom_task
from glue.tasks import Task, evaluation_tasks, get_task
from modeling.errors import UserError
from modeling.loading.configs import trained_labels
from modeling.rules import exit_scores
from modeling.runtime import keep_freed_memory
from training.provenance import remove
from training.settings import as_dict
from utils.console import StdoutHandler
from utils.files import run_all_then_raise, write_json, write_text

# What a sweep leaves beside its recording: another sweep there begins without.
WRITTEN = (
    *("sweep.csv", "frontier.csv", "compare.csv", "compare.md", "explorer.html", "provenance.json"),
    *("frontier.png", "heatmap.png", "exits.png", "compare.png", "runs"),
)
BAND_DRAWS = 400  # of a figure's intervals


def run(data: LabSettings, wanted: SweepSettings, choice: ChoiceSettings) -> None:
    """Do what the flags ask for, on the task's dev set and, of MNLI, on its second half."""
    logging.basicConfig(
        format="%(levelname)s - %(message)s", level="INFO", handlers=[StdoutHandler()]
    )
    logging.getLogger("filelock").setLevel(logging.WARNING)
    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()
    keep_freed_memory()
    goal = choice.goal()
    if goal and goal.max_p95_ms is not None and data.batch_size > 1:
        raise UserError(
            f"--batch_size {data.batch_size}: --pick max_p95_ms needs the times of one "
            "text at a time, so leave it out"
        )
    task = task_of(data)
    for part, suffix in evaluation_tasks(task):
        run_part(data, wanted, choice, task, part, suffix)


def task_of(data: LabSettings) -> Task:
    """The GLUE task, or the user's own with the labels that the trained model has."""
    if data.task_name:
        return get_task(data.task_name)
    columns = Columns.named(data.text_column_names, data.label_column_name)
    labels = trained_labels(data.model_dir[0])
    return custom_task(None, data.validation_file, None, labels, columns)


def run_part(
    data: LabSettings,
    wanted: SweepSettings,
    choice: ChoiceSettings,
    task: Task,
    part: Task,
    suffix: str,
) -> None:
    """Do all of it on the dev set of `part`: the task, or its second half."""
    directories = [Path(name) for name in data.model_dir]
    outputs = output_folders(directories, data.output_dir, suffix)
    flags = as_dict(data, wanted, choice)
    labs = [
        open_lab(data, wanted, directory, output, task, part, flags)
        for directory, output in zip(directories, outputs, strict=True)
    ]
    if wanted.vary:
        varied = varied_values(labs[0], wanted.vary)
        vary(labs[0], *varied, ResultPaths(directories[0], suffix).results / "eval_results.txt")
        return
    # Settings are chosen on one part of the examples, and shown on the other.
    goal, parts = choice.goal() if part == task else None, None
    if goal or choice.compare or not wanted.tables_only:
        parts = split(len(labs[0].examples), choice.calibration_fraction, data.seed)
    recordings = [lab.record() for lab in labs]
    sweeps = [
        sweep_model(lab, recording, parts, wanted, goal)
        for lab, recording in zip(labs, recordings, strict=True)
    ]
    if choice.compare:
        place = outputs[0] if len(labs) == 1 else outputs[0].parent
        found = write_comparison(sweeps, parts, data.seed, place)
        if len(labs) > 1 and not wanted.tables_only:
            save_figure(frontier_figure(found, part), place / "compare.png")


def output_folders(models: list[Path], output_dir: str | None, suffix: str) -> list[Path]:
    """Where each model's results go; several models' comparison goes beside the first's."""
    if not output_dir:
        return [ResultPaths(model, suffix).results / "sweep" for model in models]
    output = Path(output_dir + suffix)
    if len(models) == 1:
        return [output]
    return [output / f"{i}-{model.name}" for i, model in enumerate(models, start=1)]


def sweep_model(
    lab: Lab,
    recording: Recording,
    parts: Parts | None,
    wanted: SweepSettings,
    goal: PickGoal | None,
) -> Sweep:
    """Sweep, and for a `goal` choose, one model; write what there is to see."""
    swept = sweep(lab.mode, lab.grids, recording, lab.task)
    setting, choice = lab.own_setting(), None
    if goal:
        # Every rule costs a share of delta, so without --rules only the model's own is tested.
        rules = wanted.rules or [setting[swept.name_key]]
        choice = choose(swept, lab.mode, goal, rules, parts.calibration)
        setting = setting if choice.setting is None else swept.settings[choice.setting]
    remove(lab.output / name for name in WRITTEN)
    write_json(lab.output / "provenance.json", lab.job.origin)
    write_tables(swept, lab.output)
    if wanted.verify:
        verify(lab, recording, swept, wanted.verify)
    last = []
    if not wanted.tables_only:
        last.append(partial(draw, lab, recording, swept, setting, parts))
    if choice:
        last.append(partial(report_choice, lab, swept, choice, parts))
    run_all_then_raise(*last)
    if goal and goal.max_p95_ms is not None:
        print(measured(lab, setting))
    return swept


def draw(lab: Lab, recording: Recording, swept: Sweep, setting: Setting, parts: Parts) -> None:
    """Write the figures, as PNG and to TensorBoard, and the explorer, which opens at `setting`."""
    task, seed = lab.task, lab.data.seed
    exits = scan_setting(lab.mode, {**lab.fixed, **setting}, recording)
    scores = exit_scores(recording.tensors["all_logits"]).numpy()
    found = frontier_set([swept], parts, BAND_DRAWS, seed)
    rule = describe(lab.mode.named(setting, task.is_regression), swept.name_key)
    figures = {
        "frontier": frontier_figure(found, task),
        "exits": exits_figure(found, task),
        "heatmap": heatmap_figure(scores, swept.labels, exits[0], task, rule),
    }
    with SummaryWriter(str(lab.output / "runs")) as writer:
        for name, figure in figures.items():
            writer.add_figure(f"{task.name}/{name}", figure, close=False)
            save_figure(figure, lab.output / f"{name}.png")
    title = f"Exit explorer: {task.name}, {lab.directory.name}"
    start = nearest_setting(swept, setting, exits)
    view = View(title, start, seed, lab.fixed, lab.command())
    page = explorer_page(swept, lab.examples, scores.max(-1), view)
    write_text(lab.output / "explorer.html", page)
    print(f"figures ({', '.join(figures)}) and explorer.html: {lab.output}")


def report_choice(lab: Lab, swept: Sweep, choice: Choice, parts: Parts) -> None:
    """Print the setting that was chosen, and put it into force; UserError when there is none."""
    if choice.setting is None:
        raise UserError(f"no setting qualifies: {choice.note}; exit_config.json not written")
    setting, seed = swept.settings[choice.setting], lab.data.seed
    print(f"\nPicked: {describe(setting, swept.name_key)}\n({choice.note})\n")
    print(choice_table(swept, choice.setting, parts, seed) + "\n")
    print(against_coin(swept, choice.setting, parts, seed) + "\n")
    write_choice(lab, setting)
