"""The study of a hyper-parameter search: a queue of runs that workers on any machine share.

Optuna keeps the runs, one trial each, in any of its relational storages. A run whose worker stopped
reporting is queued again.
"""

import functools
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import isfunction
from typing import Any, NamedTuple

import optuna
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.exceptions import OptunaError, TrialPruned, UpdateFinishedTrialError
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from modeling.errors import UserError
from training.fine_tuning_settings import BATCH_SIZES, EPOCHS, RATES, SEEDS

HEARTBEAT, GRACE = 30, 120  # seconds between a worker's reports, and until it counts as dead
POLL = 5.0  # seconds between looks at the runs of other workers
LIVE = (TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING)


class SearchRun(NamedTuple):
    """One training and evaluation; all but the seed are its setting."""

    learning_rate: float
    batch_size: int
    epochs: float
    seed: int

    @property
    def setting(self) -> tuple[float, int, float]:
        return self[:3]

    @property
    def name(self) -> str:
        return f"lr{self.learning_rate:g}-bs{self.batch_size}-ep{self.epochs:g}-seed{self.seed}"


# Of a run's values, in the form that Optuna keeps.
RANGES = {
    "learning_rate": FloatDistribution(RATES.low, RATES.high),
    "batch_size": IntDistribution(BATCH_SIZES.low, BATCH_SIZES.high),
    "epochs": FloatDistribution(EPOCHS.low, EPOCHS.high),
    "seed": IntDistribution(SEEDS.low, SEEDS.high),
}


def trials(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """The runs in any of these states, not to be changed."""
    return study.get_trials(deepcopy=False, states=states)


def marked(method: Callable) -> Callable:
    """`method`, marking the errors that come out of it as the storage's."""

    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return method(*arguments, **keywords)
        except Exception as error:
            error.of_storage = True
            raise

    return call


# Optuna raises its own errors, SQLAlchemy's and, of damaged contents, any of Python's.
MarkingStorage = type(
    "MarkingStorage",
    (RDBStorage,),
    {name: marked(value) for name, value in vars(RDBStorage).items() if isfunction(value)},
)


@contextmanager
def storage_errors(url: str, given: bool) -> Iterator[None]:
    """Make a UserError that names the storage of any error that comes out of it; others pass.

    `given`: the URL is the user's, rather than a file in the output directory.
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, "of_storage"):
            raise
        reason = str(error.__cause__ or error).partition("\n")[0]
        shown = re.sub(r":[^:@/]*@", ":***@", url)  # no password in a log
        place = f"--hp_storage {shown}" if given else url.removeprefix("sqlite:///")
        advice = (
            "give an Optuna storage URL such as sqlite:///search.db or postgresql://user@host/db. "
            "If the database is damaged, restore it from a copy or give another"
            if given
            else "if it is damaged, restore it from a copy, or move it away to begin anew"
        )
        raise UserError(f"{place} cannot be opened, read or written: {reason}; {advice}") from error


def open_study(url: str, name: str) -> optuna.Study:
    """The study of that name, made if it is new."""
    for _ in range(4):
        # Workers that start together get into each other's way until one has made the tables.
        with suppress(SQLAlchemyError, OptunaError, ImportError, RuntimeError, ValueError):
            return connect(url, name)
        time.sleep(1)
    return connect(url, name)


def connect(url: str, name: str) -> optuna.Study:
    sqlite = {"connect_args": {"timeout": 60, "isolation_level": None}}  # seconds
    storage = MarkingStorage(
        url,
        engine_kwargs=sqlite if url.startswith("sqlite") else None,
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
    )
    if storage.engine.dialect.name == "sqlite":
        # Optuna locks the row of a run that it takes, which SQLite cannot: without the lock of the
        # whole file from a transaction's start, two workers may both take it.
        begin = "BEGIN IMMEDIATE"
        event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    # Every run is queued with its values: there is nothing to sample.
    sampler = optuna.samplers.RandomSampler()
    return optuna.create_study(
        storage=storage, sampler=sampler, study_name=name, direction="maximize", load_if_exists=True
    )


def enqueue(study: optuna.Study, runs: Iterable[SearchRun]) -> None:
    """Queue the runs that are not done, running or queued already; those that failed, again."""
    known = {SearchRun(**t.params) for t in trials(study, *LIVE) if t.params}
    for run in runs:
        if run not in known:
            study.add_trial(
                create_trial(state=TrialState.WAITING, params=run._asdict(), distributions=RANGES)
            )


def run_all(study: optuna.Study, train: Callable[[optuna.Trial], float]) -> None:
    """Take runs from the queue until all are done; wait for those that other workers have.

    `train` returns a run's metric. A run that fails with a UserError is left out; where none has
    succeeded before, the error is raised: it may well be the flags'.
    """

    def objective(trial: optuna.Trial) -> float:
        # Two workers may queue the same run at the same time; the first of it counts. No values at
        # all has a trial that was asked for when another worker had just taken the last.
        same = [other.number for other in trials(study, *LIVE) if other.params == trial.params]
        if not trial.params or min(same) < trial.number:
            raise TrialPruned
        trial.storage.record_heartbeat(trial._trial_id)  # see `requeue_not_begun`
        trial.set_user_attr("begun", trial.number)
        return train(trial)

    while states := open_states(study):
        if states == {TrialState.RUNNING}:
            wait_for_others(study)
            continue
        try:
            run_next(study, objective)
        except UserError as error:
            if not trials(study, TrialState.COMPLETE):
                raise
            print(f"left out: {error}", flush=True)


def run_next(study: optuna.Study, objective: Callable[[optuna.Trial], float]) -> None:
    """Take the next run from the queue. As `study.optimize`, but that a run is left to the worker
    that took it over: this one was paused, or the machines' clocks differ."""
    fail_stale_trials(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that `ask` sends no heartbeat: see below
        trial = study.ask()
    value, state = None, TrialState.FAIL
    try:
        with get_heartbeat_thread(trial._trial_id, study._storage):
            value = objective(trial)
        state = TrialState.COMPLETE
    except TrialPruned:
        state = TrialState.PRUNED
    except UpdateFinishedTrialError:
        pass
    finally:
        told = study.tell(trial, value, state, skip_if_finished=True)
        if told.state is TrialState.FAIL and state is not TrialState.FAIL:
            print(f"left to the worker that took it over: {trial.params}", flush=True)


def open_states(study: optuna.Study) -> set[TrialState]:
    return {trial.state for trial in trials(study, TrialState.RUNNING, TrialState.WAITING)}


def wait_for_others(study: optuna.Study) -> None:
    """Return when all runs are done, or one is queued again because its worker died."""
    print(
        f"waiting for other workers' runs; {GRACE} s without a sign, and one is run again",
        flush=True,
    )
    start = time.monotonic()
    while open_states(study) == {TrialState.RUNNING}:
        time.sleep(POLL)
        fail_stale_trials(study)
        if time.monotonic() - start > GRACE:
            requeue_not_begun(study)


def requeue_not_begun(study: optuna.Study) -> None:
    """Queue again what a worker took and then died before its first heartbeat.

    To Optuna such a run is never stale.
    """
    for trial in trials(study, TrialState.RUNNING):
        if trial.user_attrs.get("begun") != trial.number:
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            enqueue(study, [SearchRun(**trial.params)] if trial.params else [])
