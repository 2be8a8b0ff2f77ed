"""`run_glue.py --hp_search`: a grid of settings, each with every seed, as one Optuna study.

A run is one setting with one seed: a run_glue.py of its own, trained and evaluated with the
caller's other flags. A search that was killed goes on with the same command.
"""

import argparse
import itertools
import json
import math
import platform
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, NamedTuple

import optuna
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from glue.tables import as_csv
from glue.tasks import Task
from modeling.errors import UserError
from training.checkpoints import is_finished, latest_checkpoint
from training.fine_tuning_settings import SearchSettings
from training.metric_at_cost import MetricAtCost
from training.provenance import ROOT
from training.settings import add_flag, entries
from training.stopping import StopSignal
from training.study import LIVE, SearchRun, enqueue, open_study, run_all, storage_errors, trials
from utils.files import write_text

# The published search uses one seed on these, five on the smaller tasks.
ONE_SEED = ("mnli", "qnli", "qqp")

# The flag of run_glue.py that a run sets for each, and the one that lists values to search.
FLAGS = {
    "learning_rate": ("--learning_rate", "--hp_learning_rates"),
    "batch_size": ("--per_gpu_train_batch_size", "--hp_batch_sizes"),
    "epochs": ("--num_train_epochs", "--hp_epochs"),
    "seed": ("--seed", "--hp_seeds"),
}

# What the places must hold alike, and the flags that name them.
CONTENTS = {
    "starting model": "--model_name_or_path and --config_name",
    "examples or tokens": "--data_dir, --train_file, --validation_file and --tokenizer_name",
}


class Row(NamedTuple):
    """A setting's line in the table; metric and cost are means over its seeds."""

    setting: tuple[float, int, float]
    mean: float
    std: float | None  # of a sample; one seed has none
    cost: float  # computation cost
    seeds: int
    best: FrozenTrial  # the seed with the highest metric


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search to begin or to go on with.

    name: the study's, unless --hp_study gives one.
    flags: those of every run, see `flags_of_every_run`.
    given: the flags in which machines that share the search must agree.
    contents: SHA-256 of each of CONTENTS.
    """

    settings: SearchSettings
    task: Task
    name: str
    output_dir: Path
    flags: Sequence[str]
    given: Mapping[str, Any]
    contents: Mapping[str, str]


# Flags.


def flags_of_every_run(argv: Sequence[str], classes: Sequence[type]) -> list[str]:
    """The caller's flags but those that a search does not pass on to its runs.

    Raises UserError for a flag that the search sets. classes: of the script's settings.
    """
    found = {text.partition("=")[0] for text in argv}
    for flag, searched in FLAGS.values():
        if flag in found:
            raise UserError(f"{flag} is what --hp_search varies; give its values as {searched}")
    if "--resume_from_checkpoint" in found:
        raise UserError("--hp_search goes on by itself: leave out --resume_from_checkpoint")
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for entry in itertools.chain(*map(fields, classes)):
        if not entry.metadata["allowed"].passed_on:
            add_flag(own, entry)
    return own.parse_known_args(argv)[1]


def shared_values(*settings: Any) -> dict[str, Any]:
    """The flags in which machines that share a search must agree."""
    return {name: value for name, value, allowed in entries(*settings) if not allowed.searching}


def grid(settings: SearchSettings, task: Task) -> list[SearchRun]:
    """Every run of the grid, all seeds of a setting together."""
    seeds = settings.hp_seeds or ([0] if task.name in ONE_SEED else [0, 1, 2, 3, 4])
    axes = (settings.hp_learning_rates, settings.hp_batch_sizes, settings.hp_epochs, seeds)
    return [SearchRun(*values) for values in itertools.product(*map(dict.fromkeys, axes))]


def check_same_search(study: optuna.Study, search: Search) -> None:
    """UserError when the study was begun with other flags or contents: runs would not compare."""
    for kind, now in (("flags", search.given), ("contents", search.contents)):
        if kind not in study.user_attrs:
            study.set_user_attr(kind, now)
        begun = study.user_attrs[kind]
        changed = next((name for name in now if begun.get(name, now[name]) != now[name]), None)
        if changed and kind == "flags":
            raise UserError(
                f"study {study.study_name} was begun with --{changed} {begun[changed]}, not "
                f"{now[changed]}; give the same flags, or another --hp_study"
            )
        if changed:
            raise UserError(
                f"study {study.study_name} was begun with other {changed}: give "
                f"{CONTENTS[changed]} with the same contents, or another --hp_study or --hp_storage"
            )


def metric_of(settings: SearchSettings, task: Task) -> MetricAtCost:
    """What a search chooses by."""
    return MetricAtCost.parse(settings.hp_metric, task, "--hp_metric")


# A run.


def run_to_its_end(command: Sequence[str], log: IO[str]) -> int:
    """Run a training; its exit status.

    A signal to stop is passed on to it, as SIGTERM; a KeyboardInterrupt with the signal's number
    follows when it has saved its checkpoint and is gone.
    """
    with StopSignal() as stop:
        # A session of its own: a terminal's Ctrl-C would reach it twice, and so at once.
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        while child.poll() is None and not stop.received:
            time.sleep(0.1)
        if stop.received:
            child.terminate()
        try:
            status = child.wait()
        finally:
            child.kill()  # at a second Ctrl-C
    if stop.received:
        raise KeyboardInterrupt(stop.received)
    return status


def train_and_evaluate(
    trial: optuna.Trial, flags: Sequence[str], directory: Path, metric: MetricAtCost
) -> float:
    """Train and evaluate in a process of its own; the dev metric. UserError if that fails."""
    run = SearchRun(**trial.params)
    # Numbered, because a worker's death need not end the training that it started.
    stopped = stopped_place(trial)
    place = stopped or directory / f"{trial.number:03d}-{run.name}"
    values = zip((flag for flag, _ in FLAGS.values()), map(str, run), strict=True)
    command = [sys.executable, str(ROOT / "run_glue.py"), *flags]
    command += [*itertools.chain(*values), "--output_dir", str(place)]
    command += ["--resume_from_checkpoint", "latest"] if stopped else ["--overwrite_output_dir"]
    command += ["--do_train", "--do_eval", "--out_mode", "one"]
    states = [other.state for other in trials(trial.study, *LIVE)]
    print(f"{states.count(TrialState.COMPLETE)} of {len(states)} done; {place}", flush=True)
    log = place.with_name(f"{place.name}.log")
    with log.open("w", encoding="utf-8") as file:
        try:
            status = run_to_its_end(command, file)
        except KeyboardInterrupt:
            with suppress(UpdateFinishedTrialError):  # another worker has it by now
                trial.set_user_attr("stopped", str(place.absolute()))
            raise
    if status:
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise UserError(f"{run.name} ended with status {status}: {last} (see {log})")
    results = json.loads((place / "eval_results.json").read_text(encoding="utf-8"))
    value, cost = value_of(results, metric), results["computation_cost"]
    trial.set_user_attr("computation_cost", cost)
    trial.set_user_attr("checkpoint", str(place.absolute()))
    trial.set_user_attr("machine", platform.node())
    print(f"  {metric} = {value:.4f} at computation cost {cost:.4f}", flush=True)
    return value


def value_of(results: Mapping[str, Any], metric: MetricAtCost) -> float:
    """Of an eval_results.json; UserError where nothing costs as little."""
    if metric.cost is None:
        return results["metrics"][metric.name]
    points = results.get("frontier", {}).get(metric.name)
    if not points:
        raise UserError(f"--hp_metric {metric}: all layers are needed; leave out --skip_full_depth")
    best = metric.best(points)
    if best is None:
        raise UserError(
            f"--hp_metric {metric}: the rule's cheapest setting costs {points[0][0]:.4f}; allow "
            "more, or take another rule"
        )
    return best


def stopped_place(trial: optuna.Trial) -> Path | None:
    """The directory whose checkpoint the same run left when it was last stopped, if it is here."""
    failed = trials(trial.study, TrialState.FAIL)
    same = [other.user_attrs.get("stopped") for other in failed if other.params == trial.params]
    place = Path(same[-1]) if same and same[-1] else None
    return place if place and latest_checkpoint(place) and not is_finished(place) else None


# The result.


def ranking(done: Iterable[FrozenTrial], seeds: set[int]) -> list[Row]:
    """The settings whose `seeds` are all done, from the highest mean down, of equal ones from the
    cheapest up."""
    by_setting: dict[tuple, list[FrozenTrial]] = {}
    for trial in done:
        if trial.params["seed"] in seeds:
            by_setting.setdefault(SearchRun(**trial.params).setting, []).append(trial)
    rows = []
    for setting, group in by_setting.items():
        if len(group) < len(seeds):
            continue
        values = [trial.value for trial in group]
        std = statistics.stdev(values) if len(values) > 1 else None
        cost = statistics.fmean(trial.user_attrs["computation_cost"] for trial in group)
        best = max(group, key=lambda trial: trial.value)
        rows.append(Row(setting, statistics.fmean(values), std, cost, len(group), best))
    return sorted(rows, key=lambda row: (-row.mean, row.cost))


def ties(rows: Sequence[Row]) -> str:
    """What else is as good as the first setting, or not clearly worse; "" where nothing is."""
    best, *others = rows
    equal = [name_of(row) for row in others if math.isclose(row.mean, best.mean, abs_tol=1e-9)]
    if equal:
        return f"tie: {', '.join(equal)} has the same mean; the cheaper one comes first"
    close = 0.0 if best.std is None else best.std / math.sqrt(best.seeds)
    near = sum(best.mean - row.mean <= close for row in others)
    if near:
        return f"{near} more within one standard error of the mean, {close:.4f}: no clear winner"
    return ""


def name_of(row: Row) -> str:
    return SearchRun(**row.best.params).name.rpartition("-")[0]


def report_search(rows: Sequence[Row], metric: MetricAtCost, directory: Path) -> None:
    """Print the table, the best setting and its best checkpoint; write hp_search.csv."""
    columns = [
        {
            "learning_rate": f"{row.setting[0]:g}",
            "batch_size": row.setting[1],
            "epochs": f"{row.setting[2]:g}",
            "seeds": row.seeds,
            str(metric): f"{row.mean:.4f}",
            "std": "" if row.std is None else f"{row.std:.4f}",
            "computation_cost": f"{row.cost:.4f}",
        }
        for row in rows
    ]
    write_text(directory / "hp_search.csv", as_csv(columns))
    widths = [max(6, len(name)) for name in columns[0]]
    for cells in [columns[0], *(row.values() for row in columns)]:
        print("  ".join(map(str.rjust, map(str, cells), widths)))
    best = rows[0].best
    machine = best.user_attrs["machine"]
    print(f"best setting: {name_of(rows[0])}, mean {metric} = {rows[0].mean:.4f}")
    if tie := ties(rows):
        print(tie)
    where = "" if machine == platform.node() else f" on {machine}"
    print(f"best checkpoint: {best.user_attrs['checkpoint']}{where}, {metric} = {best.value:.4f}")


def search(wanted: Search, predicting: bool) -> Path:
    """Run the whole grid, alone or beside other workers; the best checkpoint's directory.

    Raises UserError for a storage that cannot be used, a study of another search, when no setting
    came through with all its seeds, and when a best model is needed, `predicting`, but not here.
    """
    settings = wanted.settings
    metric = metric_of(settings, wanted.task)
    runs, name = grid(settings, wanted.task), settings.hp_study or wanted.name
    directory = wanted.output_dir / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}") from error
    url = settings.hp_storage or f"sqlite:///{directory.parent.absolute() / 'hp_search.db'}"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with storage_errors(url, settings.hp_storage is not None), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats
        study = open_study(url, name)
        check_same_search(study, wanted)
        enqueue(study, runs)
        try:
            run_all(study, lambda trial: train_and_evaluate(trial, wanted.flags, directory, metric))
        except KeyboardInterrupt as stop:
            number = signal.Signals((stop.args or (signal.SIGINT,))[0])
            print(f"{number.name}: stopped. Go on with the same command", file=sys.stderr)
            sys.exit(128 + number)
        rows = ranking(trials(study, TrialState.COMPLETE), {run.seed for run in runs})
    if not rows:
        raise UserError(
            f"no setting came through with all its seeds; see the logs in {directory}, then give "
            "the same command again: it repeats the runs that failed"
        )
    report_search(rows, metric, directory)
    return best_checkpoint(rows[0].best, predicting)


def best_checkpoint(best: FrozenTrial, needed: bool) -> Path:
    """The directory of a run's model; UserError when it is `needed` and not there."""
    place, machine = Path(best.user_attrs["checkpoint"]), best.user_attrs["machine"]
    if needed and not is_finished(place):
        raise UserError(
            f"--do_predict: the best model is not in {place}, where {machine} wrote it; give the "
            "command there, or predict from a copy with --output_dir COPY and without --hp_search; "
            "if it was deleted, train it again with --do_train and the values of its name"
        )
    return place
