"""`run_glue.py --hp_search`: settings that Optuna chooses, each trained with every seed.

A trial of the study is a setting; its value is the mean of the metric over the seeds. Processes on
any machine share the study through its storage. The same command goes on after an interruption.
"""

import argparse
import itertools
import math
import platform
import re
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState

from glue.tables import as_csv
from glue.tasks import Task
from modeling.errors import UserError
from training.checkpoints import is_finished
from training.fine_tuning import MetricAtCost
from training.fine_tuning_settings import SearchSettings
from training.runs import Run
from training.settings import add_flag, entries
from utils.files import write_text
from utils.fingerprint import differences

# The published search uses one seed on these, five on the smaller tasks.
ONE_SEED = ("mnli", "qnli", "qqp")
TRIALS = 12  # of a search that does not try all settings, if --hp_trials does not say
HEARTBEAT, GRACE = 30, 120  # seconds between a worker's reports, and until it counts as dead
POLL = 30.0  # seconds between looks at the settings of other workers

# The flag of run_glue.py that is searched, and the one that lists its values.
FLAGS = {
    "learning_rate": ("--learning_rate", "--hp_learning_rates"),
    "batch_size": ("--per_gpu_train_batch_size", "--hp_batch_sizes"),
    "epochs": ("--num_train_epochs", "--hp_epochs"),
    "seed": ("--seed", "--hp_seeds"),
}


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search to begin or to go on with.

    name: the study's, unless --hp_study gives one.
    flags: those of every run, see `flags_of_every_run`.
    fingerprint: in what machines that share the search must agree: flags, weights, examples.
    unfinished: the trials of this process whose runs failed or were stopped.
    """

    settings: SearchSettings
    task: Task
    name: str
    output_dir: Path
    flags: Sequence[str]
    fingerprint: Mapping[str, Any]
    unfinished: list[optuna.Trial] = field(default_factory=list)

    @property
    def study_name(self) -> str:
        return self.settings.hp_study or self.name

    @property
    def directory(self) -> Path:
        return self.output_dir / self.study_name

    @cached_property
    def metric(self) -> MetricAtCost:
        return metric_of(self.settings, self.task)

    @property
    def seeds(self) -> list[int]:
        default = [0] if self.task.name in ONE_SEED else [0, 1, 2, 3, 4]
        return list(dict.fromkeys(self.settings.hp_seeds or default))

    @property
    def values(self) -> dict[str, list[float]]:
        """The values to try of each part of a setting."""
        given = self.settings
        lists = (given.hp_learning_rates, given.hp_batch_sizes, given.hp_epochs)
        names = ("learning_rate", "batch_size", "epochs")
        return {name: list(dict.fromkeys(v)) for name, v in zip(names, lists, strict=True)}

    @property
    def size(self) -> int:
        """How many settings are tried."""
        every = math.prod(map(len, self.values.values()))
        grid = self.settings.hp_sampler == "grid"
        return min(every, self.settings.hp_trials or (every if grid else TRIALS))

    def sampler(self, seed: int) -> BaseSampler:
        if self.settings.hp_sampler == "grid":
            return GridSampler(self.values, seed)
        if self.settings.hp_sampler == "random":
            return RandomSampler(seed)
        return TPESampler(seed=seed, n_startup_trials=TRIALS // 3)

    def evaluate(self, trial: optuna.Trial) -> float:
        """Train and evaluate a setting with every seed: an objective for Optuna."""
        for name, values in self.values.items():
            trial.suggest_categorical(name, values)
        others = trials(trial.study, TrialState.COMPLETE, TrialState.RUNNING)
        before = [*(other for other in others if other.number < trial.number), *self.unfinished]
        if any(other.params == trial.params for other in before):
            raise optuna.TrialPruned
        done = sum(other.state is TrialState.COMPLETE for other in others)
        print(f"{done} of {self.size} settings done; next {name_of(trial.params)}", flush=True)
        try:
            runs = [self.finish({**trial.params, "seed": seed}) for seed in self.seeds]
        except (UserError, KeyboardInterrupt) as error:
            self.unfinished.append(trial)
            if isinstance(error, KeyboardInterrupt) or not done:  # it may well be the flags
                raise
            print(f"left out: {error}", flush=True)
            return math.nan  # which Optuna counts as failed
        trial.set_user_attr("runs", runs)
        trial.set_user_attr("computation_cost", statistics.fmean(run["cost"] for run in runs))
        return statistics.fmean(run["value"] for run in runs)

    def finish(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Train and evaluate one seed of a setting; return what the table needs of it."""
        folder = self.directory / f"{name_of(values)}-seed{values['seed']}"
        words = [word for name, value in values.items() for word in (FLAGS[name][0], str(value))]
        known = {name: v for name, v in self.fingerprint.items() if not name.startswith("hp_")}
        run = Run(folder, [*self.flags, *words, "--out_mode", "one"], known | values)
        results = run.finish()
        value, cost = value_of(results, self.metric), results["computation_cost"]
        print(f"  {folder}: {self.metric} = {value:.4f} at computation cost {cost:.4f}", flush=True)
        where = {"folder": str(folder.absolute()), "machine": platform.node()}
        return {"value": value, "cost": cost, **where}


def name_of(setting: Mapping[str, float]) -> str:
    return "lr{learning_rate:g}-bs{batch_size}-ep{epochs:g}".format(**setting)


# Flags.


def flags_of_every_run(argv: Sequence[str], classes: Sequence[type]) -> list[str]:
    """Select the caller's flags that a search passes on to its runs.

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
    """Collect the flags in which machines that share a search must agree."""
    return {name: value for name, value, allowed in entries(*settings) if not allowed.searching}


def metric_of(settings: SearchSettings, task: Task) -> MetricAtCost:
    """Read what a search chooses by."""
    return MetricAtCost.parse(settings.hp_metric, task, "--hp_metric")


def value_of(results: Mapping[str, Any], metric: MetricAtCost) -> float:
    """Read the metric off an eval_results.json; UserError where nothing costs as little."""
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


# The study.


def trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Read the trials in any of these states, not to be changed."""
    return study.get_trials(deepcopy=False, states=states)


@contextmanager
def storage_errors(url: str, kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into a UserError that names the storage."""
    try:
        yield
    except kinds as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        shown = re.sub(r":[^:@/]*@", ":***@", url)  # no password in a log
        raise UserError(
            f"--hp_storage {shown} cannot be opened, read or written: {reason}; give an Optuna URL "
            "such as sqlite:///search.db or postgresql://user@host/db. If the database is damaged, "
            "restore it from a copy, or move it away to begin anew"
        ) from error


def open_study(url: str, name: str) -> optuna.Study:
    """Open the study of that name, made if it is new, and read all that it holds."""
    storage = RDBStorage(
        url,
        engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None,
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
    )
    study = optuna.create_study(
        storage=storage, study_name=name, direction="maximize", load_if_exists=True
    )
    study.get_trials(), study.user_attrs
    return study


def check_same_search(study: optuna.Study, search: Search) -> None:
    """Raise UserError when the study is of another search, whose runs would not compare."""
    known = study.user_attrs.get("fingerprint", search.fingerprint)
    for name, (before, now) in differences(known, search.fingerprint).items():
        raise UserError(
            f"study {study.study_name} was begun with {name} {before}, not {now}; give the same, "
            "or another --hp_study"
        )
    if study.trials and "fingerprint" not in study.user_attrs:
        raise UserError(f"study {study.study_name} is of an older version; give another --hp_study")
    study.set_user_attr("fingerprint", search.fingerprint)


def run_trials(study: optuna.Study, search: Search) -> None:
    """Try settings until there are enough, those of all workers together.

    A setting whose run failed or was stopped is tried again by the next call, and that of a worker
    which died by any.
    """
    study.sampler = search.sampler(len(study.trials))
    try:
        while len(trials(study, TrialState.COMPLETE)) + len(search.unfinished) < search.size:
            fail_stale_trials(study)
            taken = trials(study, TrialState.COMPLETE, TrialState.RUNNING)
            if len(taken) + len(search.unfinished) >= search.size:
                print("waiting for the settings of other processes, which may yet die", flush=True)
                time.sleep(POLL)
                continue
            with suppress(UpdateFinishedTrialError):  # taken over while this process was paused
                study.optimize(search.evaluate, n_trials=1)
    finally:
        for trial in search.unfinished:
            RetryHeartbeatStaleTrialCallback()(study, study.trials[trial.number])


# The result.


def ranking(done: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Order settings from the highest mean down, of equal ones from the cheapest up."""
    return sorted(done, key=lambda trial: (-trial.value, trial.user_attrs["computation_cost"]))


def std_of(trial: FrozenTrial) -> float | None:
    """The standard deviation over the seeds; None of one seed."""
    values = [run["value"] for run in trial.user_attrs["runs"]]
    return statistics.stdev(values) if len(values) > 1 else None


def ties(ranked: Sequence[FrozenTrial]) -> str:
    """Say what else is as good as the first setting, or not clearly worse; "" if nothing is."""
    best, *others = ranked
    equal = [t for t in others if math.isclose(t.value, best.value, abs_tol=1e-9)]
    if equal:
        names = ", ".join(name_of(trial.params) for trial in equal)
        return f"tie: {names} has the same mean; the cheaper one comes first"
    close = (std_of(best) or 0.0) / math.sqrt(len(best.user_attrs["runs"]))
    near = sum(best.value - trial.value <= close for trial in others)
    if near:
        return f"{near} more within one standard error of the mean, {close:.4f}: no clear winner"
    return ""


def row_of(trial: FrozenTrial, metric: MetricAtCost) -> dict[str, str]:
    """A setting's line in the table: metric and cost are means over the seeds."""
    std = std_of(trial)
    return {
        "learning_rate": f"{trial.params['learning_rate']:g}",
        "batch_size": str(trial.params["batch_size"]),
        "epochs": f"{trial.params['epochs']:g}",
        "seeds": str(len(trial.user_attrs["runs"])),
        str(metric): f"{trial.value:.4f}",
        "std": "" if std is None else f"{std:.4f}",
        "computation_cost": f"{trial.user_attrs['computation_cost']:.4f}",
    }


def report_search(ranked: Sequence[FrozenTrial], metric: MetricAtCost, directory: Path) -> Path:
    """Print the table, write it to hp_search.csv; return the best checkpoint's directory."""
    rows = [row_of(trial, metric) for trial in ranked]
    write_text(directory / "hp_search.csv", as_csv(rows))
    widths = [max(6, len(name)) for name in rows[0]]
    for cells in (rows[0], *(row.values() for row in rows)):
        print("  ".join(map(str.rjust, cells, widths)))
    print(f"best setting: {name_of(ranked[0].params)}, mean {metric} = {ranked[0].value:.4f}")
    if tie := ties(ranked):
        print(tie)
    best = max(ranked[0].user_attrs["runs"], key=lambda run: run["value"])
    where = "" if best["machine"] == platform.node() else f" on {best['machine']}"
    print(f"best checkpoint: {best['folder']}{where}, {metric} = {best['value']:.4f}")
    return Path(best["folder"])


def search(wanted: Search, predicting: bool) -> Path:
    """Run the search, alone or beside other workers; return the best checkpoint's directory.

    Raises UserError for a storage that cannot be used, a study of another search, a run that fails
    where none has succeeded, and when the best model is needed, `predicting`, but not here.
    """
    directory = wanted.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}") from error
    url = wanted.settings.hp_storage or f"sqlite:///{wanted.output_dir.absolute()}/hp_search.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats
    with storage_errors(url, Exception):
        try:
            study = open_study(url, wanted.study_name)
        except Exception:  # processes that make the tables at the same time get in each other's way
            time.sleep(2)
            study = open_study(url, wanted.study_name)
    with storage_errors(url, OptunaError):
        check_same_search(study, wanted)
        try:
            run_trials(study, wanted)
        except KeyboardInterrupt as stop:
            number = signal.Signals((stop.args or (signal.SIGINT,))[0])
            print(f"{number.name}: stopped. Go on with the same command", file=sys.stderr)
            sys.exit(128 + number)
        ranked = ranking(trials(study, TrialState.COMPLETE))
    best = report_search(ranked, wanted.metric, directory)
    if predicting and not is_finished(best):
        raise UserError(
            f"--do_predict: the best model is not in {best}; give the command on the machine that "
            "has it, or predict from a copy with --output_dir COPY and without --hp_search; if it "
            "was deleted, train it again with --do_train and the values of its name"
        )
    return best
