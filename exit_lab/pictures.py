"""What a sweep shows: figures as PNG and in TensorBoard, and the explorer."""

from pathlib import Path

from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from evaluation.figures import save_figure
from evaluation.modes.base import RuleSet, Setting, describe
from exit_lab.closeups import (
    Course,
    Decision,
    decisions_figure,
    heatmap_figure,
    in_lines,
    leads,
    telling_examples,
)
from exit_lab.compare import limits_of
from exit_lab.curves import exits_at, exits_by_rule_figure, frontier_figure
from exit_lab.explorer import View, explorer_page
from exit_lab.frontiers import Field
from exit_lab.lab import Lab
from exit_lab.metrics import taken
from exit_lab.recording import Recording
from exit_lab.sweep import Sweep, scan_setting
from exit_lab.tables import nearest_setting
from glue.tasks import Example, Task, label_text, primary_metric
from modeling.elbert.rules import exit_scores
from utils.files import write_text


def draw(lab: Lab, recording: Recording, swept: Sweep, setting: Setting, field: Field) -> None:
    """The figures, as PNG and to TensorBoard, and the explorer; `setting` is looked at closely."""
    whole = {**lab.fixed, **setting}
    figures = {
        **rule_figures(field, swept.task),
        **closeups(swept, lab.rule_set, recording, whole, lab.examples),
    }
    with SummaryWriter(str(lab.output / "runs")) as writer:
        for name, figure in figures.items():
            writer.add_figure(f"{lab.task.name}/{name}", figure, close=False)
            save_figure(figure, lab.output / f"{name}.png")
    exits = scan_setting(lab.rule_set, whole, recording)
    title = f"Exit explorer: {lab.task.name}, {lab.directory.name}"
    start = nearest_setting(swept, setting, exits)
    view = View(title, start, field.seed, lab.fixed, lab.command)
    confidence = exit_scores(recording.tensors["all_logits"]).amax(-1).numpy()
    page = explorer_page(swept, lab.examples, confidence, view)
    write_text(lab.output / "explorer.html", page)
    print(f"figures ({', '.join(figures)}) and explorer.html: {lab.output}")


def draw_comparison(field: Field, task: Task, directory: Path) -> None:
    """compare.png: the frontiers of several models, as means."""
    models = f"mean of {field.draws.models.shape[1]} models, "
    figure = frontier_figure(field, primary_metric(task), *frontier_names(field, task, models))
    save_figure(figure, directory / "compare.png")


def rule_figures(field: Field, task: Task) -> dict[str, Figure]:
    """frontier and exits: the rules beside each other."""
    metric, limits = primary_metric(task), limits_of(field.layers)
    limit = limits[len(limits) // 2]
    title = f"{task.name}: where examples exit at a cost of at most {limit:.2f}"
    about = f"each rule's best setting, {how(field)}"
    return {
        "frontier": frontier_figure(field, metric, *frontier_names(field, task)),
        "exits": exits_by_rule_figure(exits_at(field, limit), metric, title, about),
    }


def how(field: Field) -> str:
    chosen, shown = map(len, field.parts)
    return f"chosen on {chosen} examples, shown on the other {shown}"


def frontier_names(field: Field, task: Task, models: str = "") -> tuple[str, str]:
    """Title of a frontier figure, and how to read it."""
    return (
        f"{task.name}: {primary_metric(task)} against computation cost",
        f"{models}best setting at or under each cost,\n{how(field)}\n"
        "band: 95% interval; grey: truncation, everyone stops at one layer",
    )


def closeups(
    swept: Sweep,
    rule_set: RuleSet,
    recording: Recording,
    setting: Setting,
    examples: list[Example],
) -> dict[str, Figure]:
    """decisions and heatmap of one setting, given with all keys that its scan needs."""
    regression = swept.task.is_regression
    exits = scan_setting(rule_set, setting, recording)[0]
    scores = exit_scores(recording.tensors["all_logits"]).numpy()
    rule = describe(rule_set.named(setting, regression), swept.name_key)
    shown = decisions(swept, rule_set, recording, setting, examples)
    values = scores[..., 0] - swept.labels if regression else leads(scores, swept.labels)
    return {
        "decisions": decisions_figure(shown, swept.task.labels, swept.task.name, rule),
        "heatmap": heatmap_figure(values, exits, regression, swept.task.name, rule),
    }


def decisions(
    swept: Sweep,
    rule_set: RuleSet,
    recording: Recording,
    setting: Setting,
    examples: list[Example],
) -> list[Decision]:
    """The decision process of a few telling examples."""
    exits = scan_setting(rule_set, setting, recording)[0]
    scores = exit_scores(recording.tensors["all_logits"]).numpy()
    window = rule_set.window(setting, recording.tensors).numpy()
    trace = rule_set.trace(setting, recording.tensors)
    answers = taken(swept.predictions, exits)
    found = telling_examples(swept.predictions, swept.labels, exits, swept.task.is_regression)

    def course(row: int) -> Course | None:
        if trace is None:
            return None
        values = {name: lines[:, row].numpy() for name, lines in trace.values.items()}
        return Course(values, float(trace.limit[row]), trace.limit_name)

    def about(row: int) -> str:
        answer, label = (label_text(swept.task, side[row]) for side in (answers, swept.labels))
        return f"answer {answer}, label {label}\n{in_lines(examples[row][1:3])}"

    return [
        Decision(
            f"{title}: layer {exits[row]}",
            about(row),
            scores[:, row],
            int(exits[row]),
            int(window[row]),
            swept.labels[row],
            course(row),
        )
        for row, title in found
    ]
