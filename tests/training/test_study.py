"""The queue of a search, with many or dying workers, and its storage."""

import time

import optuna
import pytest
from optuna.trial import TrialState, create_trial

import training.study as hp_study
from modeling import UserError
from tests.studies import RUNS, sqlite
from training.study import RANGES, SearchRun, enqueue, open_study, run_all, storage_errors

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_run_is_queued_once_and_again_only_if_it_failed(tmp_path):
    study = open_study(sqlite(tmp_path), "s")
    for _ in range(2):
        enqueue(study, RUNS)
    assert [SearchRun(**trial.params) for trial in study.trials] == RUNS
    first = study.ask()
    assert first.params == RUNS[0]._asdict()
    study.tell(first, 0.5)
    study.tell(study.ask(), state=TrialState.FAIL)
    study.ask()  # runs on
    enqueue(study, RUNS)
    assert [SearchRun(**trial.params) for trial in study.trials] == [*RUNS, RUNS[1]]


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_run_that_died_before_its_first_heartbeat_is_done_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(hp_study, "POLL", 0.01)
    monkeypatch.setattr(hp_study, "GRACE", 0.02)
    study, done = open_study(sqlite(tmp_path), "s"), []
    enqueue(study, RUNS)
    study.ask()  # taken by a worker that dies at once
    run_all(study, lambda trial: done.append(SearchRun(**trial.params)) or 0.5)
    assert done == [*RUNS[1:], RUNS[0]]


def test_a_run_that_was_queued_twice_is_done_once(tmp_path):
    study = open_study(sqlite(tmp_path), "s")
    for _ in range(2):
        study.add_trial(
            create_trial(state=TrialState.WAITING, params=RUNS[0]._asdict(), distributions=RANGES)
        )
    done = []
    run_all(study, lambda trial: done.append(trial.number) or 0.5)
    assert done == [0]


def test_a_run_that_fails_is_left_out_but_the_first_one_ends_the_search(tmp_path, capsys):
    def train(trial: optuna.Trial) -> float:
        if trial.number in failing:
            raise UserError(f"run {trial.number} broke")
        return 0.5

    study, failing = open_study(sqlite(tmp_path), "s"), {1}
    enqueue(study, RUNS)
    run_all(study, train)
    assert "left out: run 1 broke" in capsys.readouterr().out
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", *["COMPLETE"] * 2]
    study, failing = open_study(sqlite(tmp_path), "other"), {0}
    enqueue(study, RUNS)
    with pytest.raises(UserError, match="run 0 broke"):
        run_all(study, train)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////nowhere/at/all/search.db", "unable to open database file"),
        ("search.db", "Could not parse"),
        ("nosuch://host/db", "nosuch"),
        ("postgresql://me:secret@localhost:1/db", "--hp_storage postgresql://me:***@localhost:1"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_named_without_its_password(url, message, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(UserError) as caught, storage_errors(url, True):
        open_study(url, "s")
    assert message in str(caught.value)
    assert "cannot be opened" in str(caught.value)
    assert "secret" not in str(caught.value)
