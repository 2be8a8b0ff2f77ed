"""`run_glue.py --hp_search`: settings that Optuna chooses, each trained with every seed.

A trial of the study is a setting; its value is the mean of the metric over the seeds. Processes on
any machine share the study through its storage. The same command goes on after an interruption.
"""

import argparse
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.samplers import BaseSampler, BruteForceSampler, TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from answers.metric import MetricAtCost
from elbert_base.errors import UserError
from elbert_base.files import read_json, weight_file
from glue.tables import as_csv
from glue.tasks import Split, Task
from modes import MODES
from runs import processes
from runs.console import markdown_table
from runs.files import RunFolder, differences, file_fingerprint, fingerprint
from runs.flags import add_flag, entries, flags_of, spellings
from runs.job import find_task
from runs.settings import GROUPS, GlueSettings, SearchSettings
from training.fine_tune import check_files, chosen_metric

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


@dataclass
class Search:
    """A search to begin or to go on with; name: the study's.

    flags: those of every run, see `flags_of_every_run`.
    fingerprint: in what machines that share the search must agree: flags, weights, examples.
    failed: the settings whose runs failed in this process.
    """

    settings: SearchSettings
    task: Task
    metric: MetricAtCost
    name: str
    output_dir: Path
    flags: Sequence[str]
    fingerprint: Mapping[str, Any]
    failed: list[dict[str, float]] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.output_dir / self.name

    @cached_property
    def seeds(self) -> list[int]:
        usual = [0] if self.task.name in ONE_SEED else [0, 1, 2, 3, 4]
        return list(dict.fromkeys(self.settings.hp_seeds or usual))

    @cached_property
    def values(self) -> dict[str, list[float]]:
        given = self.settings
        lists = (given.hp_learning_rates, given.hp_batch_sizes, given.hp_epochs)
        return {name: list(dict.fromkeys(x)) for name, x in zip(FLAGS, lists, strict=False)}

    @property
    def size(self) -> int:
        """Number of settings that are tried."""
        every = math.prod(map(len, self.values.values()))
        default = every if self.settings.hp_sampler == "grid" else TRIALS
        return min(every, self.settings.hp_trials or default)

    def sampler(self, tried: int) -> BaseSampler:
        """Make Optuna's sampler; its choices follow from the number of trials there are."""
        if self.settings.hp_sampler == "tpe":
            return TPESampler(seed=tried, n_startup_trials=TRIALS // 3)
        return BruteForceSampler(seed=tried)  # which draws what is left at random

    def run(self, study: optuna.Study) -> None:
        """Try settings until all workers together have enough: first those that failed, were
        stopped, or whose worker died. What fails here, the next call tries again."""
        waited = False
        while len(one_of_each(study)) + len(self.failed) < self.size:
            fail_stale_trials(study)
            begun = [x.params for x in one_of_each(study, TrialState.RUNNING)] + self.failed
            if len(begun) < self.size:
                ended = study.get_trials(deepcopy=False, states=[TrialState.FAIL])
                if again := [x.params for x in ended if x.params and x.params not in begun]:
                    study.enqueue_trial(again[0])
                study.optimize(self.evaluate, n_trials=1)
                continue
            if not waited:
                print("waiting for the settings of other processes, which may yet die", flush=True)
                storage: Any = study._storage
                for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                    # One killed before its first report would never count as dead.
                    storage.record_heartbeat(trial._trial_id)
            waited = True
            time.sleep(POLL)

    def evaluate(self, trial: optuna.Trial) -> float:
        """Train and evaluate a setting with every seed: an objective for Optuna."""
        for name, values in self.values.items():
            trial.suggest_categorical(name, values)
        taken, done = trials(trial.study, TrialState.RUNNING), len(one_of_each(trial.study))
        taken = [x for x in taken if x.number < trial.number or x.state == TrialState.COMPLETE]
        if trial.params in [*(x.params for x in taken), *self.failed]:
            raise optuna.TrialPruned
        print(f"{done} of {self.size} settings done; next {name_of(trial.params)}", flush=True)
        try:
            found = [self.run_seed(trial.params, seed) for seed in self.seeds]
        except UserError as error:
            running = trial.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
            if [x.params for x in running].count(trial.params) > 1:
                raise optuna.TrialPruned from error  # the folder is another worker's
            if not done:  # it may well be the flags
                raise
            print(f"left out: {error}", flush=True)
            self.failed.append(trial.params)
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
        ranked.sort(key=lambda trial: (-mean_of(trial), trial.user_attrs["computation_cost"]))
        rows = []
        for trial in ranked:
            values = [run["value"] for run in trial.user_attrs["runs"]]
            row = {name: f"{trial.params[name]:g}" for name in self.values}
            row["seeds"] = str(len(values))
            row[str(self.metric)] = f"{trial.value:.4f}"
            row["std"] = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
            row["computation_cost"] = f"{trial.user_attrs['computation_cost']:.4f}"
            rows.append(row)
        RunFolder(self.directory).write_text("hp_search.csv", as_csv(rows))
        print(markdown_table([*rows[0]], [[*row.values()] for row in rows]))
        best, *others = ranked
        print(f"best setting: {name_of(best.params)}, mean {self.metric} = {best.value:.4f}")
        values = [run["value"] for run in best.user_attrs["runs"]]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        near = [name_of(x.params) for x in others if mean_of(best) - mean_of(x) <= error + 1e-9]
        if near:
            print(f"within one standard error, {error:.4f}: {', '.join(near)}")
        folder = self.folder(best.params, self.seeds[values.index(max(values))])
        print(f"best checkpoint: {folder}, {self.metric} = {max(values):.4f}")
        return folder


def mean_of(trial: FrozenTrial) -> float:
    """Return a complete trial's value, the mean over its seeds."""
    return math.nan if trial.value is None else trial.value


def trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Read the complete trials and those in `states`, not to be changed."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, *states))


def one_of_each(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Read a trial of each setting: two workers may have tried it, or died before they had one."""
    found = {frozenset(x.params.items()): x for x in trials(study, *states) if x.params}
    return [*found.values()]


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
    for entry, metadata in itertools.chain(*map(flags_of, classes)):
        if entry.name.startswith("hp_") or entry.name in OF_THE_CALL:
            add_flag(own, entry, metadata)
    return own.parse_known_args(argv)[1]


def open_study(url: str, search: Search) -> optuna.Study:
    """Open the search's study, or make it; UserError where its runs would not compare."""
    storage = RDBStorage(
        url,
        engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else None,
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
    )
    study = optuna.create_study(
        storage=storage, study_name=search.name, direction="maximize", load_if_exists=True
    )
    known = study.user_attrs.get("fingerprint", {})
    for name, (before, now) in differences(known, search.fingerprint).items():
        raise UserError(
            f"study {search.name} was begun with {name} {before}, not {now}; give the same, or "
            "another --hp_study"
        )
    study.set_user_attr("fingerprint", search.fingerprint)
    study.sampler = search.sampler(len(study.trials))
    return study


def complete_trials(url: str, search: Search) -> list[FrozenTrial]:
    """Run the search in the study at `url`; UserError for a storage that cannot be used."""
    damage = (OptunaError, SQLAlchemyError, ImportError, RuntimeError)  # of another Optuna's tables
    try:
        try:
            study = open_study(url, search)
        except damage:  # processes that make the tables at the same time get in each other's way
            time.sleep(2)
            study = open_study(url, search)
        search.run(study)
        return one_of_each(study)
    except damage as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise UserError(
            f"the search's database (--hp_storage, or {search.output_dir}/hp_search.db) cannot be "
            f"opened, read or written: {reason}; restore a damaged one, or move it away"
        ) from error


def run_search(search: Search) -> Path:
    """Run the search, alone or beside other workers; return the best checkpoint's directory."""
    search.directory.mkdir(parents=True, exist_ok=True)
    url = search.settings.hp_storage or f"sqlite:///{search.output_dir.absolute()}/hp_search.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats
    return search.report(complete_trials(url, search))


def search(settings: GlueSettings, argv: Sequence[str]) -> Path:
    """Run a search; the directory of its best model. argv: this call's flags."""
    flags, given = flags_of_every_run(argv, GROUPS), settings.search
    mode, task = MODES[settings.mode.model_type], find_task(settings.data, None)
    metric = chosen_metric(mode, task, given.hp_metric, "--hp_metric")
    check_files(task, settings.data, dev=True, test=settings.evaluation.do_predict)
    # What machines that share a search must agree in.
    shared = {name: value for name, value, allowed in entries(*settings) if not allowed.resuming}
    shared["dtype"] = settings.evaluation.dtype
    # ELBERT by its published name: an earlier version's search goes on.
    shared["model_type"] = name = "albert" if mode.name == "elbert" else mode.name
    wanted = Search(
        settings=given,
        task=task,
        metric=metric,
        name=given.hp_study or f"{name}-{task.name}",
        output_dir=Path(settings.run.output_dir),
        flags=flags,
        fingerprint=shared | content_hashes(settings, task),
    )
    return run_search(wanted)


def content_hashes(settings: GlueSettings, task: Task) -> dict[str, str]:
    """SHA-256 of the files that the runs of a search start from, wherever these lie."""
    source, data = settings.model, settings.data
    config = Path(source.config_name or source.model_name_or_path)
    model = [config if config.is_file() else config / "config.json"]
    model += [] if source.from_scratch else [weight_file(source.model_name_or_path)]
    teaching = [Path(data.unlabelled_file)] if data.unlabelled_file else []
    teaching += [weight_file(source.teacher)] if source.teacher else []
    named = {
        "the model of --teacher, or --unlabelled_file": teaching,
        "the model of --model_name_or_path and --config_name": model,
        "the examples of --data_dir or --train_file": [
            Split(task, data.folder, name).path for name in ("train", "dev")
        ],
    }
    return {name: fingerprint(*map(file_fingerprint, files)) for name, files in named.items()}
