"""`run_glue.py --hp_search`: settings that Optuna chooses, each trained with every seed.

A trial of the study is a setting; its value is the mean of the metric over the seeds. Processes on
any machine share the study through its storage. The same command goes on after an interruption.
"""

import argparse
import itertools
import json
import math
import random
import re
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError, UpdateFinishedTrialError
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from glue.tables import as_csv
from glue.tasks import Task
from modeling.errors import UserError
from modeling.loading.files import read_json, resolve_within
from training.checkpoints import is_finished
from training.fine_tuning import MetricAtCost
from training.settings import SearchSettings
from utils import processes
from utils.console import markdown_table
from utils.files import differences, write_text
from utils.flags import add_flag, spellings

# The published search uses one seed on these, five on the smaller tasks.
ONE_SEED = ("mnli", "qnli", "qqp")
TRIALS = 12  # of a search that does not try all settings, if --hp_trials does not say
HEARTBEAT = 30  # seconds between a worker's reports
GRACE = 120  # seconds without one until it counts as dead
POLL = 30.0  # seconds between looks at the settings of other workers

OF_THE_CALL = ("do_predict", "onnx")  # not of its runs
# The flag of run_glue.py that is searched, and the one that lists its values.
FLAGS = {
    "learning_rate": ("--learning_rate", "--hp_learning_rates"),
    "batch_size": ("--per_gpu_train_batch_size", "--hp_batch_sizes"),
    "epochs": ("--num_train_epochs", "--hp_epochs"),
    "seed": ("--seed", "--hp_seeds"),
}


@dataclass(kw_only=True)
class Search:
    """A search to begin or to go on with; name: the study's.

    flags: those of every run, see `flags_of_every_run`.
    fingerprint: in what machines that share the search must agree: flags, weights, examples.
    failed: the settings whose runs failed in this process. ended: are the latest runs over?
    storage: where the study is.
    """

    settings: SearchSettings
    task: Task
    metric: MetricAtCost
    name: str
    output_dir: Path
    flags: Sequence[str]
    fingerprint: Mapping[str, Any]
    failed: list[dict[str, float]] = field(default_factory=list)
    ended: bool = False
    storage: RDBStorage = field(init=False)

    def __post_init__(self) -> None:
        given = self.settings
        seeds = given.hp_seeds or ([0] if self.task.name in ONE_SEED else [0, 1, 2, 3, 4])
        self.seeds = list(dict.fromkeys(seeds))
        self.directory = self.output_dir / self.name
        lists = (given.hp_learning_rates, given.hp_batch_sizes, given.hp_epochs)
        self.values = {n: list(dict.fromkeys(x)) for n, x in zip(FLAGS, lists, strict=False)}
        every = itertools.product(*self.values.values())
        self.every = [dict(zip(self.values, setting, strict=True)) for setting in every]
        default = len(self.every) if given.hp_sampler == "grid" else TRIALS
        self.size = min(len(self.every), given.hp_trials or default)  # how many are tried

    def run(self, study: optuna.Study) -> None:
        """Try settings until all workers together have enough: first those that failed, were
        stopped, or whose worker died. What fails here, the next call tries again."""
        parzen = TPESampler(seed=len(study.trials), n_startup_trials=TRIALS // 3)
        waited = False
        while len(trials(study)) + len(self.failed) < self.size:
            fail_stale_trials(study)
            taken = trials(study, TrialState.RUNNING)
            if len(taken) + len(self.failed) >= self.size:
                for trial in taken if not waited else ():  # killed before its first report
                    self.report_alive(study, trial)
                waited = True
                print("waiting for the settings of other processes, which may yet die")
                time.sleep(POLL)
                continue
            known = [*(trial.params for trial in taken), *self.failed]
            begun = [x.params for x in study.get_trials(deepcopy=False, states=[TrialState.FAIL])]
            left = [setting for setting in self.every if setting not in known]
            again = [setting for setting in left if setting in begun]
            if not again and self.settings.hp_sampler != "tpe":
                again = left
            study.sampler = PartialFixedSampler(random.choice(again), parzen) if again else parzen
            self.ended = False
            try:
                study.optimize(self.evaluate, n_trials=1)
            except (UpdateFinishedTrialError, ValueError):
                # Of a trial that is over: another worker took this one, long paused, for dead.
                if not self.ended:
                    raise

    def report_alive(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Give a worker that may have died without a report its grace period from now on."""
        study_id = self.storage.get_study_id_from_name(study.study_name)
        number = self.storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        self.storage.record_heartbeat(number)

    def evaluate(self, trial: optuna.Trial) -> float:
        """Train and evaluate a setting with every seed: an objective for Optuna."""
        for name, values in self.values.items():
            trial.suggest_categorical(name, values)
        taken = [x for x in trials(trial.study, TrialState.RUNNING) if x.number < trial.number]
        if trial.params in [*(x.params for x in taken), *self.failed]:
            raise optuna.TrialPruned
        done = len(trials(trial.study))
        print(f"{done} of {self.size} settings done; next {name_of(trial.params)}", flush=True)
        try:
            found = [self.run_seed(trial.params, seed) for seed in self.seeds]
        except UserError as error:
            running = trials(trial.study, TrialState.RUNNING)
            if any(x.params == trial.params and x.number != trial.number for x in running):
                raise optuna.TrialPruned from error  # the folder is another worker's
            if not done:  # it may well be the flags
                raise
            print(f"left out: {error}", flush=True)
            self.failed.append(trial.params)
            found = []
        self.ended = True
        if not found:
            return math.nan  # which Optuna counts as failed
        trial.set_user_attr("runs", found)
        trial.set_user_attr("computation_cost", statistics.fmean(run["cost"] for run in found))
        return statistics.fmean(run["value"] for run in found)

    def folder(self, params: Mapping[str, float], seed: int) -> Path:
        return self.directory / f"{name_of(params)}-seed{seed}"

    def run_seed(self, params: Mapping[str, float], seed: int) -> dict[str, float]:
        """Train and evaluate one seed of a setting; return what the table needs of it."""
        folder = self.folder(params, seed)
        folder.mkdir(parents=True, exist_ok=True)
        flags = [*self.flags]
        for name, value in {**params, "seed": seed}.items():
            flags += [FLAGS[name][0], str(value)]
        flags += ["--out_mode", "one", "--output_dir", str(folder)]
        flags += ["--resume_from_checkpoint", "latest", "--do_train", "--do_eval"]
        processes.call("run_glue.py", flags, folder / "run.log")
        results = read_json(folder / "eval_results.json")
        cost, metric = results["computation_cost"], self.metric
        value = results["metrics"][metric.name]
        if metric.cost is not None:
            points = results.get("frontier", {}).get(metric.name, ())
            value = metric.best(points)
        if value is None:
            least = f"costs {points[0][0]:.4f}" if points else "is of no --skip_full_depth"
            raise UserError(f"--hp_metric {metric}: the rule's cheapest setting {least}")
        print(f"  {folder}: {metric} = {value:.4f} at computation cost {cost:.4f}", flush=True)
        return {"value": value, "cost": cost}

    def report(self, done: Iterable[FrozenTrial]) -> Path:
        """Print the settings from the highest mean down, of equal ones from the cheapest up; write
        them to hp_search.csv; return the best checkpoint's directory."""
        ranked = sorted(done, key=lambda trial: name_of(trial.params))
        ranked.sort(key=lambda trial: (-trial.value, trial.user_attrs["computation_cost"]))
        rows = []
        for trial in ranked:
            values = [run["value"] for run in trial.user_attrs["runs"]]
            row = {name: f"{trial.params[name]:g}" for name in self.values}
            row["seeds"] = str(len(values))
            row[str(self.metric)] = f"{trial.value:.4f}"
            row["std"] = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
            row["computation_cost"] = f"{trial.user_attrs['computation_cost']:.4f}"
            rows.append(row)
        write_text(self.directory / "hp_search.csv", as_csv(rows), listed_in=self.directory)
        print(markdown_table([*rows[0]], [[*row.values()] for row in rows]))
        best, *others = ranked
        print(f"best setting: {name_of(best.params)}, mean {self.metric} = {best.value:.4f}")
        values = [run["value"] for run in best.user_attrs["runs"]]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        near = [name_of(x.params) for x in others if best.value - x.value <= error + 1e-9]
        if near:
            print(f"within one standard error, {error:.4f}: {', '.join(near)}")
        folder = self.folder(best.params, self.seeds[values.index(max(values))])
        print(f"best checkpoint: {folder}, {self.metric} = {max(values):.4f}")
        return folder


def trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Read the complete trials and those in `states`, not to be changed."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, *states))


def name_of(setting: Mapping[str, float]) -> str:
    return "lr{learning_rate:g}-bs{batch_size}-ep{epochs:g}".format(**setting)


def flags_of_every_run(argv: Sequence[str], classes: Sequence[type]) -> list[str]:
    """Select the caller's flags that a search passes on to its runs; `classes`: of settings."""
    found = {text.partition("=")[0] for text in argv}
    for flag, searched in FLAGS.values():
        if found & {*spellings(flag.removeprefix("--"))}:
            raise UserError(f"{flag} is what --hp_search varies; give its values as {searched}")
    if "--resume_from_checkpoint" in found:
        raise UserError("--hp_search goes on by itself: leave out --resume_from_checkpoint")
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for entry in itertools.chain(*map(fields, classes)):
        if entry.name.startswith("hp_") or entry.name in OF_THE_CALL:
            add_flag(own, entry)
    return own.parse_known_args(argv)[1]


def open_study(url: str, search: Search) -> optuna.Study:
    """Open the search's study, or make it; UserError where its runs would not compare."""
    storage = search.storage = RDBStorage(
        url,
        engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None,
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
    )
    options = {"direction": "maximize", "load_if_exists": True}
    study = optuna.create_study(storage=storage, study_name=search.name, **options)
    try:
        known = study.user_attrs.get("fingerprint", None if study.get_trials() else {})
    except (LookupError, RecursionError) as error:  # a database of elsewhere
        raise UserError(f"study {search.name} cannot be read: {error}") from error
    if not isinstance(known, dict):
        raise UserError(f"study {search.name} is not of a search: give another --hp_study")
    for name, (before, now) in differences(known, search.fingerprint).items():
        raise UserError(
            f"study {search.name} was begun with {name} {before}, not {now}; give the same, or "
            "another --hp_study"
        )
    study.set_user_attr("fingerprint", search.fingerprint)
    return study


def checked(trial: FrozenTrial, search: Search) -> FrozenTrial:
    """Raise UserError for a trial of another search: a database may come from elsewhere."""
    about = trial.user_attrs
    with suppress(KeyError, TypeError):
        numbers = [trial.value, about["computation_cost"], *(x["value"] for x in about["runs"])]
        whole = len(about["runs"]) == len(search.seeds) and all(map(math.isfinite, numbers))
        if whole and trial.params in search.every:
            return trial
    raise UserError(
        f"study {search.name}: trial {trial.number} is not of this search: {about!r:.99}"
    )


def complete_trials(url: str, search: Search) -> list[FrozenTrial]:
    """Run the search in the study at `url`; UserError for a storage that cannot be used."""
    damage = (OptunaError, SQLAlchemyError, ImportError, json.JSONDecodeError)
    try:
        try:
            study = open_study(url, search)
        except damage:  # processes that make the tables at the same time get in each other's way
            time.sleep(2)
            study = open_study(url, search)
        search.run(study)
        return [checked(trial, search) for trial in trials(study)]
    except damage as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        shown = re.sub(r":[^:@/]*@", ":***@", url)  # no password in a log
        raise UserError(
            f"--hp_storage {shown} cannot be opened, read or written: {reason}; give an Optuna URL "
            "such as sqlite:///search.db. If the database is damaged, restore it from a copy, or "
            "move it away to begin anew"
        ) from error


def run_search(search: Search, predicting: bool) -> Path:
    """Run the search, alone or beside other workers; return the best checkpoint's directory, which
    has to be here for one that is `predicting`."""
    if not resolve_within(search.output_dir, search.name):
        raise UserError(f"--hp_study {search.name} leads out of --output_dir {search.output_dir}")
    try:
        search.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{search.directory} cannot be made: {error.strerror}") from error
    url = search.settings.hp_storage or f"sqlite:///{search.output_dir.absolute()}/hp_search.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats, fixed settings
    try:
        best = search.report(complete_trials(url, search))
    except KeyboardInterrupt as stop:
        number = signal.Signals((stop.args or (signal.SIGINT,))[0])
        print(f"{number.name}: stopped. Go on with the same command", file=sys.stderr)
        sys.exit(128 + number)
    if predicting and not is_finished(best):
        raise UserError(
            f"--do_predict: the best model is not in {best}; give the command on the machine that "
            "has it, or predict from a copy with --output_dir COPY and without --hp_search"
        )
    return best
