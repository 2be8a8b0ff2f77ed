"""Workers that share a search's queue, and one that dies."""

import json
import sqlite3
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage
from optuna.trial import TrialState

import training.study as hp_study
from tests.forks import FORKS
from tests.studies import RUNS, sqlite
from training.study import SearchRun, enqueue, open_study, run_all

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def drain(url: str, log: Path, start, hang_at: int | None = None) -> None:
    """A worker, as a process: every run is a line in `log`; it hangs in its run `hang_at`."""
    hp_study.POLL = 0.1
    start.wait()
    study = open_study(url, "s")
    enqueue(study, RUNS * 3)

    def train(trial: optuna.Trial) -> float:
        with log.open("a") as file:
            file.write(json.dumps(trial.params) + "\n")
        if hang_at == trial.number:
            time.sleep(600)
        time.sleep(0.02)
        return trial.params["seed"]

    run_all(study, train)


def started(log: Path) -> list[SearchRun]:
    return [SearchRun(**json.loads(line)) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_workers_that_share_a_study_take_every_run_exactly_once(tmp_path):
    log = tmp_path / "log"
    start = FORKS.Barrier(2)  # both make the tables and queue the grid at the same time
    workers = [FORKS.Process(target=drain, args=(sqlite(tmp_path), log, start)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert sorted(started(log)) == sorted(RUNS)
    done = open_study(sqlite(tmp_path), "s").get_trials(states=(TrialState.COMPLETE,))
    assert sorted(SearchRun(**trial.params) for trial in done) == sorted(RUNS)


@pytest.mark.slow
def test_the_run_of_a_killed_worker_is_taken_over_and_no_other_is_repeated(tmp_path):
    log = tmp_path / "log"
    start = FORKS.Event()
    start.set()
    killed = FORKS.Process(target=drain, args=(sqlite(tmp_path), log, start, 1))
    killed.start()
    deadline = time.monotonic() + 120
    while not (log.exists() and len(started(log)) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    killed.kill()
    killed.join()
    with sqlite3.connect(tmp_path / "search.db") as database:  # an hour later
        database.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")
    drain(sqlite(tmp_path), log, start)
    assert started(log)[:2] == RUNS[:2]
    assert sorted(started(log)[2:]) == sorted(RUNS[1:])


@pytest.mark.parametrize("tells_more", [True, False])
def test_a_worker_whose_run_was_taken_over_goes_on(tells_more, tmp_path, monkeypatch):
    """Paused for longer than its reports may take, or by another's clock: it comes too late."""
    study, seen, beats = open_study(sqlite(tmp_path), "s"), [], []
    enqueue(study, RUNS)
    record = hp_study.MarkingStorage.record_heartbeat

    def recorded(storage: BaseStorage, trial_id: int) -> None:
        record(storage, trial_id)
        beats.append(trial_id)

    monkeypatch.setattr(hp_study.MarkingStorage, "record_heartbeat", recorded)

    def train(trial: optuna.Trial) -> float:
        seen.append(SearchRun(**trial.params))
        if len(seen) == 2:
            deadline = time.monotonic() + 60
            while beats.count(trial._trial_id) < 2:  # the worker's, and its thread's first
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with sqlite3.connect(tmp_path / "search.db") as database:
                hours_ago = "UPDATE trial_heartbeats SET heartbeat = datetime('now', '-3 hours')"
                database.execute(hours_ago)
            optuna.storages.fail_stale_trials(open_study(sqlite(tmp_path), "s"))  # the other one
        if tells_more:
            trial.set_user_attr("computation_cost", 0.5)
        return trial.params["seed"]

    run_all(study, train)
    done = [SearchRun(**trial.params) for trial in study.get_trials(states=(TrialState.COMPLETE,))]
    assert sorted(done) == sorted(RUNS)
    assert sorted(seen) == sorted([*RUNS, seen[1]])


def test_a_run_that_was_taken_over_can_still_be_interrupted(tmp_path):
    study = open_study(sqlite(tmp_path), "s")
    enqueue(study, RUNS)

    def train(trial: optuna.Trial) -> float:
        study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(study, train)
