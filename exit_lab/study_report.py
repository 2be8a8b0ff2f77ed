"""What a comparison of methods shows of the trainings that are finished: tables and figures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.torch import load_file

from evaluation.figures import save_figure
from evaluation.modes import MODES
from evaluation.study_figure import study_figure
from exit_lab.choice import split
from exit_lab.compare import AREA, Cells, compare, difference, markdown, with_cost
from exit_lab.frontiers import FULL_DEPTH, Field
from exit_lab.grids import RuleGrid, fitted, make_grids
from exit_lab.methods import (
    Differences,
    LearnedDepths,
    MethodSweeps,
    curve,
    difference_table,
    differences,
    field_of,
)
from exit_lab.recording import Recording
from exit_lab.study import is_recorded, recording_path
from exit_lab.study_settings import Method, MethodRun, Study, TaskPlan
from exit_lab.sweep import LARGEST_SWEEP, TRUNCATION, Sweep, sweep
from glue.tables import as_csv
from glue.tasks import Task, evaluation_tasks, get_task, primary_metric
from modeling.errors import UserError
from utils.files import write_text

LIMITS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
REFERENCE = "ELBERT, bias_1"
# Rows of the tables: the training that they read, and the rule. Truncation is ELBERT's.
ROWS = {
    REFERENCE: ("elbert", "bias_1"),
    "ELBERT, bias_2": ("elbert", "bias_2"),
    "ELBERT, bias_3": ("elbert", "bias_3"),
    "entropy (DeeBERT)": ("elbert", "entropy"),
    "patience (PABEE)": ("elbert", "patience"),
    TRUNCATION: ("elbert", TRUNCATION),
    "PonderNet, sampling": ("pondernet", "sample"),
    "PonderNet, Q-exit": ("pondernet", "threshold"),
    "PALBERT": ("palbert", "threshold"),
    "ACT": ("act", "learned"),
    FULL_DEPTH: ("elbert", FULL_DEPTH),
}
CURVE = np.arange(0.1, 1.001, 0.02)  # cost limits of the figure
DRAWS = 1000
AT = 0.5  # the limit of the table over all tasks
PAGE = """# Every method from one encoder, at matched cost

A cell is 100 × the metric, mean of the seeds: of the best setting at or under a cost, chosen on one
half of the dev set, reported on the other, with its 95% interval over seeds and examples.
Thresholds of entropy and halting are tried at every 5% of all examples' numbers, layer by layer,
without the labels; other keys have fixed values. *truncation* stops everyone at one layer; *area*
is the mean over all costs, from one layer to all.

A difference is to {reference}, of the same seeds and examples; it is bold where its interval leaves
out 0. *visible from*: four of five studies like this one would have found a true difference of so
many points, at every cost.

## All tasks, at a cost of at most {limit}

{overview}

{sections}"""
SECTION = """## {name}

{finding}

100 × {metric}, seeds {seeds}; {calibration} examples choose, {report} report. Last in a cell: the
cost there.

{cells}

Differences to {reference}:

{differences}

![{name}: all methods at equal costs, and their differences to {reference}]({name}.png)

100 × {metric} of each layer alone, all dev examples:

{layers}
"""
UNFINISHED = """## {name}

No seed has all its methods' trainings. These are missing: {missing}.
"""


class PartReport(NamedTuple):
    """What the page shows of a dev set: its section, and its column of the table over all tasks."""

    name: str
    section: str
    cells: Cells
    found: Differences


def load_recording(path: Path) -> Recording:
    tensors = load_file(path)
    labels = tensors.pop("labels").numpy()
    return Recording(tensors, labels)


def swept_rules(recording: Recording, method: Method, part: Task) -> Sweep:
    """Every rule of the tables that a training serves, over its grid."""
    rule_set, regression = MODES[method.model_type].rules(), part.is_regression
    swept = rule_set.swept(regression)
    wanted = [rule for _, rule in ROWS.values() if rule in swept]
    layers = len(recording.tensors["all_logits"])
    grids = make_grids(rule_set, list(dict.fromkeys(wanted)), {}, layers, regression)
    choices = {name: key.default for name, key in rule_set.keys.items() if key.choices}
    fixed = {k: method.keys.get(k, v) for k, v in choices.items() if k != rule_set.name_key}
    grids = [replace(grid, fixed=fixed) for grid in grids]
    most = LARGEST_SWEEP // (len(recording.labels) * len(grids))
    grids = [fitted(grid, rule_set, recording.tensors, most) for grid in grids]
    return sweep(rule_set, grids, recording, part)


def learned_depths(recordings: dict[str, Recording], part: Task) -> LearnedDepths:
    """The models of one seed that differ in how they were trained, by name."""
    first = next(iter(recordings.values()))
    numbers = np.arange(1, len(recordings) + 1, dtype=np.uint8)
    return LearnedDepths(
        part,
        (RuleGrid("learned", {"model": tuple(map(float, numbers))}),),
        [{"thres_name": name} for name in recordings],
        np.repeat(numbers[:, None], len(first.labels), 1),
        np.concatenate([recording.predictions for recording in recordings.values()]),
        first.labels,
        costs=np.stack([recording.tensors["cost"].numpy() for recording in recordings.values()]),
    )


def sweep_of(study: Study, plan: TaskPlan, part: Task, kind: str, seed: int) -> Sweep:
    """One seed's training of a kind; of ACT, its trainings with every τ."""
    names = [name for name in study.methods if name.partition("-")[0] == kind]
    recordings = {
        name: load_recording(recording_path(study.place(MethodRun(plan, name, seed)), part))
        for name in names
    }
    if "cost" in recordings[names[0]].tensors:
        return learned_depths(recordings, part)
    return swept_rules(recordings[names[0]], study.methods[names[0]], part)


def contenders_of(
    study: Study, plan: TaskPlan, part: Task, seeds: list[int]
) -> dict[str, MethodSweeps]:
    """The rows of the tables, but for rules that the task does not have."""
    kinds = dict.fromkeys(name.partition("-")[0] for name in study.methods)
    sweeps = {kind: [sweep_of(study, plan, part, kind, seed) for seed in seeds] for kind in kinds}
    known = {grid.rule for found in sweeps.values() for grid in found[0].grids}
    return {
        name: MethodSweeps(sweeps[kind], rule)
        for name, (kind, rule) in ROWS.items()
        if kind in sweeps and rule in {*known, TRUNCATION, FULL_DEPTH}
    }


def finding(found: Differences) -> str:
    """The differences that the intervals leave no doubt about, as a sentence."""
    clear = {
        name: [f"{limit:g}" for limit, cell in zip(LIMITS, row, strict=True) if cell and cell.clear]
        for name, row in found.items()
    }
    named = [f"{name} at {', '.join(limits)}" for name, limits in clear.items() if limits]
    if not named:
        return f"No method differs from {REFERENCE} by more than chance may give, at any cost."
    return f"Beyond what chance may give, these differ from {REFERENCE}: {'; '.join(named)}."


def csv_rows(cells: Cells, found: Differences) -> list[dict[str, object]]:
    """All numbers of both tables, a row a contender and limit, for a CSV file."""
    none = ("", "", "", "")
    names = [f"over_reference{ending}" for ending in ("", "_low", "_high", "_visible")]
    rows = []
    for name, row in cells.items():
        against = [*found.get(name, [None] * len(LIMITS)), None]
        for limit, cell, other in zip([*LIMITS, AREA], row, against, strict=True):
            if cell:
                numbers = dict(zip(names, other or none, strict=True))
                rows.append({"method": name, "max_cost": limit, **numbers, **cell.row()})
    return rows


def layer_table(sweeps: Sequence[Sweep], seeds: Sequence[int]) -> str:
    """Markdown: 100 × the metric of every layer's answers, a row a seed and one for the mean."""
    values = 100 * np.stack([swept.main_metric(swept.truncations) for swept in sweeps])
    rows = [*zip(map(str, seeds), values, strict=True), ("mean", values.mean(0))]
    lines = [f"| seed | {' | '.join(map(str, range(1, values.shape[1] + 1)))} |"]
    lines.append("|---" * (values.shape[1] + 1) + "|")
    lines += [f"| {name} | {' | '.join(f'{value:.1f}' for value in row)} |" for name, row in rows]
    return "\n".join(lines)


def overview(parts: Sequence[PartReport]) -> str:
    """Markdown: the reference's metric at one limit, and the others' differences, a column a task.

    Full depth is compared at its own cost.
    """
    at = LIMITS.index(AT)
    lines = [f"| | {' | '.join(part.name for part in parts)} |", "|---" * (len(parts) + 1) + "|"]
    for name in ROWS:
        if name == REFERENCE:
            own = [part.cells[name][at] for part in parts]
            shown = [with_cost(cell) if cell else "–" for cell in own]
        else:
            over = [part.found[name][at] if name in part.found else None for part in parts]
            shown = [difference(cell and cell.estimate) for cell in over]
        if any(name in part.cells for part in parts):
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def report_part(study: Study, plan: TaskPlan, part: Task, seeds: list[int]) -> PartReport:
    """The report of a task's dev set; writes its CSV file and its figure."""
    contenders = contenders_of(study, plan, part, seeds)
    sweeps = contenders[REFERENCE].sweeps
    parts = split(len(sweeps[0].labels), 0.5, seed=42)
    field = field_of(contenders, parts, DRAWS, seed=42)
    cells, found = compare(field, LIMITS), differences(field, REFERENCE, LIMITS)
    write_text(study.directory / f"{part.name}.csv", as_csv(csv_rows(cells, found)))
    draw(study.directory / f"{part.name}.png", field, cells, found, primary_metric(part))
    section = SECTION.format(
        name=part.name,
        finding=finding(found),
        metric=primary_metric(part),
        seeds=", ".join(map(str, seeds)),
        calibration=len(parts.calibration),
        report=len(parts.report),
        reference=REFERENCE,
        cells=markdown(cells, LIMITS, with_cost),
        differences=difference_table(found, LIMITS),
        layers=layer_table(sweeps, seeds),
    )
    return PartReport(part.name, section, cells, found)


def draw(path: Path, field: Field, cells: Cells, found: Differences, metric: str) -> None:
    curves = {
        name: curve(field, name, CURVE) if name in field.frontiers else ((), ())
        for name in ROWS
        if name != FULL_DEPTH
    }
    by_limit = {name: list(zip(LIMITS, row, strict=True)) for name, row in found.items()}
    full = cells[FULL_DEPTH][0].metric.value
    save_figure(study_figure(curves, full, by_limit, metric), path)


def report_study(study: Study) -> None:
    """Print the page of all tasks, and write it as methods.md.

    Raises UserError, and writes nothing, where no task has a seed with all its methods.
    """
    reports, unfinished = [], []
    for plan in study.plans.values():
        missing = [run for run in study.runs(plan) if not is_recorded(study, run)]
        seeds = [x for x in study.settings.seeds if x not in {run.seed for run in missing}]
        for part, _ in evaluation_tasks(get_task(plan.name)):
            if seeds:
                reports.append(report_part(study, plan, part, seeds))
            else:
                names = ", ".join(run.name for run in missing)
                unfinished.append(UNFINISHED.format(name=part.name, missing=names))
    if not reports:
        there = {path.parent.name for path in study.directory.glob("*/answers-*")}
        tasks = tuple(f"{name}-" for name in study.plans)
        kinds = sorted({name.rpartition("-")[0] for name in there if name.startswith(tasks)})
        raise UserError(
            f"{study.directory}: no seed has all its methods' trainings (for one, "
            f"{missing[0].name} is missing), so nothing was written; of these tasks there are: "
            f"{', '.join(kinds) or 'none'}; see --output_dir, --tasks, --methods, --seeds, --tau"
        )
    text = PAGE.format(
        reference=REFERENCE,
        limit=AT,
        overview=overview(reports),
        sections="\n".join([*(report.section for report in reports), *unfinished]),
    )
    write_text(study.directory / "methods.md", text)
    print(f"\n{text}\n{study.directory}: methods.md; a figure and a CSV file of each task")
