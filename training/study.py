"""The study of a search: settings that Optuna chooses, each trained with every seed.

A trial of the study is a setting; its value is the mean of the metric over the seeds. Processes on
any machine share the study through its storage: each takes settings until all together have tried
enough.
"""

import math
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.samplers import BaseSampler, BruteForceSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization.matplotlib import plot_param_importances, plot_slice
from sqlalchemy.exc import SQLAlchemyError

from evaluation.figures import save_figure
from evaluation.metric import MetricAtCost
from evaluation.scores import remark_lines
from glue.tables import as_csv
from modeling.errors import UserError
from modeling.files import read_json
from runs import processes
from runs.console import markdown_table
from runs.fingerprint import differences
from runs.folder import RunFolder
from training.search_space import Dimension

TRIALS = 12  # of a search that does not try all settings, if --hp_trials does not say
HEARTBEAT = 30  # seconds between a worker's reports that it lives
GRACE = 120  # seconds without a report until it counts as dead
POLL = 30.0  # seconds between looks at the settings of other workers
# The flags of run_glue.py that are searched.
SEARCHED_FLAGS = {
    "learning_rate": "--learning_rate",
    "batch_size": "--per_gpu_train_batch_size",
    "epochs": "--num_train_epochs",
    "seed": "--seed",
}
# What a database raises that cannot be used; RuntimeError where another Optuna made its tables.
DATABASE_ERRORS = (OptunaError, SQLAlchemyError, ImportError, RuntimeError)

Setting = dict[str, Any]  # learning_rate, batch_size, epochs and more of some runs


@dataclass
class Search:
    """A search to begin or to go on with.

    Attributes:
        values: what a setting chooses from: learning rates, batch sizes, epochs, by name.
        seeds: of the runs of every setting.
        size: number of settings to try, by all workers together.
        sampler: how settings are chosen: tpe, grid or random.
        metric: is maximised, the mean over the seeds.
        name: the study's.
        output_dir: of the search; its study and its runs have a folder there.
        storage: Optuna's URL of the database.
        flags: those of every run.
        fingerprint: in what machines that share the search must agree: flags, weights, examples.
        space: what else a setting chooses, by name.
        set_keys: KEY=VALUE of --set in `flags`, which the keys of a setting are added to.
        failed: the settings whose runs failed in this process.
    """

    values: Mapping[str, Sequence[float]]
    seeds: Sequence[int]
    size: int
    sampler: str
    metric: MetricAtCost
    name: str
    output_dir: Path
    storage: str
    flags: Sequence[str]
    fingerprint: Mapping[str, Any]
    space: Mapping[str, Dimension] = field(default_factory=dict)
    set_keys: Sequence[str] = ()
    failed: list[Setting] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Folder of the study."""
        return self.output_dir / self.name

    def run(self) -> Path:
        """Try settings until there are enough, and report; return the best model's folder.

        Raises UserError for a database that cannot be used, and for a study that was begun with
        another fingerprint.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats
        try:
            study = self.open_study()
            self.complete(study)
            trials = one_of_each(study)
        except DATABASE_ERRORS as error:
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise UserError(
                f"the search's database (--hp_storage, or {self.output_dir}/hp_search.db) cannot "
                f"be opened, read or written: {reason}; restore a damaged one, or move it away"
            ) from error
        draw_plots(study, self.directory)
        return self.report(trials)

    # The study that all workers share.

    def open_study(self) -> optuna.Study:
        """Open the study, or make it; UserError for one whose runs would not compare."""
        try:
            return self.load_study()
        except DATABASE_ERRORS:
            # Processes that make the tables at the same time get in each other's way.
            time.sleep(2)
            return self.load_study()

    def load_study(self) -> optuna.Study:
        """Open the study in the database, or make it there; see `open_study`."""
        is_sqlite = self.storage.startswith("sqlite")
        storage = RDBStorage(
            self.storage,
            engine_kwargs={"connect_args": {"timeout": 60}} if is_sqlite else None,
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
        )
        study = optuna.create_study(
            storage=storage, study_name=self.name, direction="maximize", load_if_exists=True
        )
        begun_with = study.user_attrs.get("fingerprint", {})
        for name, (before, now) in differences(begun_with, self.fingerprint).items():
            raise UserError(
                f"study {self.name} was started with {name} {before}, not {now}; give the same, or "
                "another --hp_study"
            )
        study.set_user_attr("fingerprint", self.fingerprint)
        study.sampler = self.make_sampler(len(study.trials))
        return study

    def make_sampler(self, tried: int) -> BaseSampler:
        """Make Optuna's sampler; its choices follow from the number of trials there are."""
        if self.sampler == "tpe":
            return TPESampler(seed=tried, n_startup_trials=TRIALS // 3)
        if any(math.isinf(dimension.size) for dimension in self.space.values()):
            return RandomSampler(seed=tried)
        return BruteForceSampler(seed=tried)  # which draws what is left at random

    def complete(self, study: optuna.Study) -> None:
        """Try settings until all workers together have enough.

        The first are those that failed, were stopped, or whose worker died. What fails here, the
        next call tries again.
        """
        has_waited = False
        while len(one_of_each(study)) + len(self.failed) < self.size:
            fail_stale_trials(study)
            taken = [trial.params for trial in one_of_each(study, TrialState.RUNNING)]
            taken.extend(self.failed)
            if len(taken) < self.size:
                ended = study.get_trials(deepcopy=False, states=[TrialState.FAIL])
                again = [x.params for x in ended if x.params and x.params not in taken]
                if again:
                    study.enqueue_trial(again[0])
                study.optimize(self.evaluate, n_trials=1)
                continue
            if not has_waited:
                print(
                    "waiting for settings that other processes try, in case one of them fails",
                    flush=True,
                )
                record_heartbeats(study)
            has_waited = True
            time.sleep(POLL)

    def evaluate(self, trial: optuna.Trial) -> float:
        """Train and evaluate a setting with every seed: an objective for Optuna.

        Returns the mean of the metric; NaN, which Optuna counts as failed, where a run failed.
        Raises TrialPruned for a setting that is taken, and UserError where the first one fails,
        for which the flags may well be the reason.
        """
        for name, values in self.values.items():
            trial.suggest_categorical(name, values)
        for name, dimension in self.space.items():
            dimension.suggest(trial, name)
        setting = trial.params
        if setting in self.failed or setting in settings_before(trial):
            raise optuna.TrialPruned
        done = len(one_of_each(trial.study))
        print(f"{done} of {self.size} settings done; next {name_of(setting)}", flush=True)
        try:
            runs = [self.run_seed(setting, seed) for seed in self.seeds]
        except UserError as error:
            running = trial.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
            if [other.params for other in running].count(setting) > 1:
                raise optuna.TrialPruned from error  # the folder is another worker's
            if not done:
                raise
            print(f"left out: {error}", flush=True)
            self.failed.append(setting)
            return math.nan
        trial.set_user_attr("runs", runs)
        trial.set_user_attr("computation_cost", statistics.fmean(run["cost"] for run in runs))
        return statistics.fmean(run["value"] for run in runs)

    # A run of a setting with a seed.

    def folder(self, setting: Setting, seed: int) -> Path:
        """Folder of a run."""
        return self.directory / f"{name_of(setting)}-seed{seed}"

    def run_seed(self, setting: Setting, seed: int) -> dict[str, float]:
        """Train and evaluate one seed of a setting, or go on with it.

        Returns its value, the metric, and its computation cost. Raises UserError for a run that
        fails, and where no setting of the exit rule is as cheap as the metric asks for.
        """
        folder = self.folder(setting, seed)
        folder.mkdir(parents=True, exist_ok=True)
        flags = [*self.flags]
        assignments = [*self.set_keys]
        for name, value in {**setting, "seed": seed}.items():
            dimension = self.space.get(name)
            if dimension and not dimension.flag:
                assignments.append(f"{name}={value}")
            else:
                flag = dimension.flag if dimension else SEARCHED_FLAGS[name]
                flags += [flag, str(value)]
        if len(assignments) > len(self.set_keys):
            flags += ["--set", *assignments]
        flags += ["--out_mode", "one", "--output_dir", str(folder)]
        flags += ["--resume_from_checkpoint", "latest", "--do_train", "--do_eval"]
        processes.call("run_glue.py", flags, folder / "run.log")
        results = read_json(folder / "eval_results.json")
        cost, metric = results["computation_cost"], self.metric
        if metric.cost is None:
            value = results["metrics"][metric.name]
        else:
            points = results.get("frontier", {}).get(metric.name, [])  # (cost, metric)
            value = metric.best(points)
            if value is None:
                least = f"costs {points[0][0]:.4f}" if points else "is of no --skip_full_depth"
                raise UserError(f"--hp_metric {metric}: the rule's cheapest setting {least}")
        print(f"  {folder}: {metric} = {value:.4f} at computation cost {cost:.4f}", flush=True)
        return {"value": value, "cost": cost}

    # The end.

    def report(self, trials: Iterable[FrozenTrial]) -> Path:
        """Print the settings from the best down, and write them to hp_search.csv.

        The best has the highest mean; of equal ones, the lowest computation cost. Returns the
        folder of its best seed.
        """
        ranked = sorted(
            trials,
            key=lambda x: (-mean_of(x), x.user_attrs["computation_cost"], name_of(x.params)),
        )
        rows = [self.row(trial) for trial in ranked]
        RunFolder(self.directory).write_text("hp_search.csv", as_csv(rows))
        print(markdown_table([*rows[0]], [[*row.values()] for row in rows]))
        best, *others = ranked
        print(f"best setting: {name_of(best.params)}, mean {self.metric} = {mean_of(best):.4f}")
        values = values_of(best)
        error = deviation(values) / math.sqrt(len(values))
        near = [name_of(x.params) for x in others if mean_of(best) - mean_of(x) <= error + 1e-9]
        if near:
            print(f"within one standard error, {error:.4f}: {', '.join(near)}")
        best_seed = self.seeds[values.index(max(values))]
        folder = self.folder(best.params, best_seed)
        results_file = folder / "eval_results.json"
        if results_file.exists():  # it may be another machine's
            for line in remark_lines(read_json(results_file).get("remarks", []), folder):
                print(line)
        print(f"best checkpoint: {folder}, {self.metric} = {max(values):.4f}")
        return folder

    def row(self, trial: FrozenTrial) -> dict[str, str]:
        """Format a row of the table, for one setting."""
        values = values_of(trial)
        return {
            **{name: value_text(trial.params[name]) for name in (*self.values, *self.space)},
            "seeds": str(len(values)),
            str(self.metric): f"{mean_of(trial):.4f}",
            "std": f"{deviation(values):.4f}" if len(values) > 1 else "",
            "computation_cost": f"{trial.user_attrs['computation_cost']:.4f}",
        }


# Optuna's trials.


def record_heartbeats(study: optuna.Study) -> None:
    """Report once for the trials of other workers.

    One that was killed before its first report would never count as dead.
    """
    storage: Any = study._storage  # Optuna offers no public way
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        storage.record_heartbeat(trial._trial_id)


def complete_and(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Read the complete trials and those in `states`, not to be changed."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, *states))


def one_of_each(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Read a trial of each setting, complete or in `states`.

    Two workers may have tried the same setting, or died before they had one.
    """
    by_setting = {}
    for trial in complete_and(study, *states):
        if trial.params:
            by_setting[frozenset(trial.params.items())] = trial
    return list(by_setting.values())


def settings_before(trial: optuna.Trial) -> list[dict[str, Any]]:
    """List the settings that are complete, or that trials with lower numbers are running."""
    others = complete_and(trial.study, TrialState.RUNNING)
    return [
        other.params
        for other in others
        if other.number < trial.number or other.state == TrialState.COMPLETE
    ]


def mean_of(trial: FrozenTrial) -> float:
    """Return a complete trial's value, the mean over its seeds."""
    return math.nan if trial.value is None else trial.value


def values_of(trial: FrozenTrial) -> list[float]:
    """List the metric of a complete trial's runs, in the order of the seeds."""
    return [run["value"] for run in trial.user_attrs["runs"]]


def deviation(values: Sequence[float]) -> float:
    """Compute the standard deviation; 0 of a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def name_of(setting: Setting) -> str:
    """Name a setting as its folders are named: lr3e-05-bs16-ep3, and further keys."""
    usual = "lr{learning_rate:g}-bs{batch_size}-ep{epochs:g}".format(**setting)
    others = setting.keys() - {"learning_rate", "batch_size", "epochs"}
    return "-".join([usual, *(f"{name}={value_text(setting[name])}" for name in sorted(others))])


def value_text(value: Any) -> str:
    """Format a value of a setting; a number to six digits."""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


# Pictures.


def draw_plots(study: optuna.Study, directory: Path) -> None:
    """Print how much each part of a setting matters, and draw it: Optuna's importances and slices.

    Draws nothing before two settings differ in the metric.
    """
    trials = complete_and(study)
    tried: dict[str, set[Any]] = {}  # by part of a setting
    for trial in trials:
        for name, value in trial.params.items():
            tried.setdefault(name, set()).add(value)
    varied = [name for name, values in tried.items() if len(values) > 1]
    if len({trial.value for trial in trials}) < 2 or not varied:
        return
    from matplotlib import pyplot

    pyplot.switch_backend("agg")  # no window
    evaluator = FanovaImportanceEvaluator(seed=0)
    importances = get_param_importances(study, evaluator=evaluator, params=varied)
    shares = ", ".join(f"{name} {share:.2f}" for name, share in importances.items())
    print(f"importance, as shares of the metric's variance: {shares}")
    plots = {
        "hp_importances.png": partial(plot_param_importances, evaluator=evaluator),
        "hp_slices.png": plot_slice,
    }
    results = RunFolder(directory)
    for name, plot in plots.items():
        with pyplot.rc_context():  # Optuna sets a style of its own
            plot(study, params=varied)
            figure = pyplot.gcf()
            save_figure(figure, directory / name, results)
            pyplot.close(figure)
