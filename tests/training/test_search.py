"""The hyper-parameter search: its grid, its table, and its end."""

import argparse
import csv
import json
import platform
import shutil
import signal
import sqlite3
import time
from functools import partial
from pathlib import Path

import optuna
import pytest
from optuna.trial import create_trial

import run_glue
import training.search as hp_search
from evaluation.settings import GROUPS
from glue.tasks import get_task
from modeling import UserError
from tests.conftest import edit_json, write_rte
from training.fine_tuning_settings import SearchSettings
from training.metric_at_cost import MetricAtCost
from training.search import (
    flags_of_every_run,
    grid,
    table,
    ties,
    value_of,
)
from training.settings import SettingsParser, parse
from training.study import RANGES, Run

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def parsed(*flags: str) -> SearchSettings:
    return parse([SearchSettings], None, flags)[0]


# Grid and flags.


def test_the_default_grid_is_the_published_one_but_for_the_epochs():
    """The notebook's LEARNING_RATES, TRAIN_BATCH_SIZES, N_SEEDS and MULTI_SEEDS_TASKS.

    Its MAX_EPOCHS is 4, with a checkpoint of each epoch; a run here has a schedule of its own.
    """
    runs = grid(parsed(), get_task("RTE"))
    assert len(runs) == len(set(runs)) == 3 * 2 * 3 * 5
    assert {run.learning_rate for run in runs} == {5e-5, 3e-5, 2e-5}
    assert {run.batch_size for run in runs} == {16, 32}
    assert {run.epochs for run in runs} == {2, 3, 4}
    for name in ("cola", "sts-b", "rte", "mrpc", "sst-2", "wnli"):
        assert {run.seed for run in grid(parsed(), get_task(name))} == {0, 1, 2, 3, 4}
    for name in ("mnli", "qnli", "qqp"):
        assert {run.seed for run in grid(parsed(), get_task(name))} == {0}


def test_the_help_tells_what_is_published_from_what_is_not():
    text = " ".join(SettingsParser([SearchSettings]).format_help().split())
    assert "default learning rates, batch sizes and seeds are those of the published" in text
    assert "The epochs are this suite's: the notebook trains for 4, with 200 --warmup_steps" in text


def test_a_value_given_twice_counts_once():
    flags = "--hp_learning_rates 1e-5 1e-5 --hp_batch_sizes 8 --hp_epochs 1 --hp_seeds 4 4"
    assert grid(parsed(*flags.split()), get_task("mnli")) == [Run(1e-5, 8, 1.0, 4)]


def test_the_runs_get_every_flag_but_those_of_the_search():
    kept = "--model_type albert --set a=1 b=2 --max_steps -1".split()
    argv = ["--hp_search", *kept, "--hp_seeds", "0", "1", "--do_predict"]
    assert flags_of_every_run(argv, GROUPS) == kept


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--learning_rate", "--hp_learning_rates"),
        ("--per_gpu_train_batch_size", "--hp_batch_sizes"),
        ("--num_train_epochs", "--hp_epochs"),
        ("--seed", "--hp_seeds"),
    ],
)
def test_a_flag_that_is_searched_is_refused(flag, instead):
    with pytest.raises(UserError, match=f"{flag} is what --hp_search varies.*{instead}"):
        flags_of_every_run(["--hp_search", flag, "1"], GROUPS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--hp_learning_rates", "expected at least one argument"),
        ("--hp_learning_rates 2", "2: allowed is a number from 0 to 1"),
        ("--hp_learning_rates nan", "nan: allowed is"),
        ("--hp_batch_sizes 0", "0: allowed is a number from 1 to"),
        ("--hp_batch_sizes 1.5", "invalid whole number value: '1.5'"),
        ("--hp_epochs three", "invalid number value: 'three'"),
        ("--hp_seeds -1", "-1: allowed is a number from 0"),
    ],
)
def test_wrong_or_missing_values_are_named(flags, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(*flags.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_search_is_not_told_to_resume():
    with pytest.raises(UserError, match="goes on by itself"):
        flags_of_every_run(["--hp_search", "--resume_from_checkpoint"], GROUPS)


# The table.


def finished(run: Run, value: float, cost: float) -> optuna.trial.FrozenTrial:
    return create_trial(
        params=run._asdict(),
        distributions=RANGES,
        value=value,
        user_attrs={"computation_cost": cost, "checkpoint": run.name, "machine": "m"},
    )


def test_the_best_setting_has_the_highest_mean_over_all_seeds():
    low, high, alone = (Run(rate, 16, 3.0, 0) for rate in (2e-5, 3e-5, 5e-5))
    trials = [
        finished(low, 0.80, 0.5),
        finished(low._replace(seed=1), 0.90, 0.7),  # the best run, but not the best setting
        finished(high, 0.84, 1.0),
        finished(high._replace(seed=1), 0.88, 0.8),
        finished(alone, 0.99, 0.1),  # its second seed is missing
        finished(high._replace(seed=2), 0.10, 0.1),  # not one of the seeds asked for
    ]
    first, second = table(trials, {0, 1})
    assert first.setting == (3e-5, 16, 3.0)
    assert first.mean == pytest.approx(0.86)
    assert first.std == pytest.approx(0.028284271)  # √(2 · 0.02²)
    assert first.cost == pytest.approx(0.9)
    assert (first.seeds, first.best.value) == (2, 0.88)
    assert second.mean == pytest.approx(0.85)
    assert second.std == pytest.approx(0.070710678)
    assert second.cost == pytest.approx(0.6)
    one = table(trials, {0})
    assert [row.mean for row in one] == [0.99, 0.84, 0.80]
    assert one[0].std is None


def test_ties_are_said_and_the_cheaper_comes_first(tmp_path, capsys):
    dear, cheap, worse = (Run(rate, 16, 3.0, 0) for rate in (2e-5, 3e-5, 5e-5))
    equal = [finished(dear, 0.8, 0.9), finished(cheap, 0.8, 0.4), finished(worse, 0.7, 0.1)]
    rows = table(equal, {0})
    assert [row.setting[0] for row in rows] == [3e-5, 2e-5, 5e-5]
    assert ties(rows) == "tie: lr2e-05-bs16-ep3 has the same mean; the cheaper one comes first"
    assert ties(rows[1:]) == ""  # one seed has no standard error
    hp_search.report(rows, MetricAtCost("acc"), tmp_path)
    assert "nan" not in capsys.readouterr().out + (tmp_path / "hp_search.csv").read_text()
    spread = [finished(cheap._replace(seed=i), 0.8 + 0.1 * i, 1) for i in range(2)]
    rows = table([*spread, *(finished(dear._replace(seed=i), 0.83, 1) for i in range(2))], {0, 1})
    assert ties(rows) == "1 more within one standard error of the mean, 0.0500: no clear winner"


def metric_named(text: str) -> MetricAtCost:
    return MetricAtCost.parse(text, get_task("rte"), "--hp_metric")


def test_a_metric_at_a_cost_is_the_best_that_costs_no_more():
    results = {"metrics": {"acc": 0.9}, "frontier": {"acc": [[0.3, 0.6], [0.5, 0.8], [0.7, 0.9]]}}
    values = {
        text: value_of(results, metric_named(text))
        for text in ("acc", "acc@0.3", "acc@0.6", "acc@1")
    }
    assert values == {"acc": 0.9, "acc@0.3": 0.6, "acc@0.6": 0.8, "acc@1": 0.9}
    with pytest.raises(UserError, match=r"the rule's cheapest setting costs 0\.3000"):
        value_of(results, MetricAtCost("acc", 0.2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ac", "did you mean acc"),
        ("acc@half", "'half' is not a number"),
        ("acc@1.5", "above 0 and at most 1"),
        ("acc@nan", "above 0 and at most 1"),
    ],
)
def test_a_metric_that_cannot_be_had_is_named(text, message):
    with pytest.raises(UserError, match=message):
        metric_named(text)


# The whole.


@pytest.fixture
def search(script, albert_dir, rte, tmp_path):
    """`search("--flag", value, ...)` searches two settings with two seeds for a tiny model.

    Results go to `out`. Later flags win.
    """
    text = (
        f"--hp_search --model_type albert --task_name RTE --data_dir {rte} "
        f"--output_dir {tmp_path / 'out'} --model_name_or_path {albert_dir} --max_seq_length 32 "
        "--hp_learning_rates 2e-5 5e-5 --hp_batch_sizes 8 --hp_epochs 1 --hp_seeds 0 1"
    )
    return lambda *more: script(run_glue.main, *text.split(), *more)


@pytest.fixture
def commands(monkeypatch):
    """Stands in for a run's process: accuracy is 10⁴ · learning rate + seed / 10, at cost 0.5.

    A run puts its flags on the list, which is what the tests see.
    """
    seen = []

    def run(command, log):
        parser = argparse.ArgumentParser()
        for flag, kind in (("--learning_rate", float), ("--seed", int), ("--output_dir", Path)):
            parser.add_argument(flag, type=kind)
        given = parser.parse_known_args(command)[0]
        seen.append(command[2:])
        given.output_dir.mkdir(exist_ok=True)
        accuracy = 1e4 * given.learning_rate + given.seed / 10
        points = [[0.2, 1 - accuracy], [0.9, 1.0]]
        report = {
            "metrics": {"acc": accuracy},
            "computation_cost": 0.5,
            "frontier": {"acc": points},
        }
        (given.output_dir / "eval_results.json").write_text(json.dumps(report))
        return 0

    monkeypatch.setattr(hp_search, "run_to_its_end", run)
    return seen


def test_a_search_ends_with_its_table_and_its_best_checkpoint(
    search, tmp_path, albert_dir, rte, commands
):
    outcome = search("--set", "w_lr=0.1").done()
    assert len(commands) == 4
    own = f"--model_type albert --task_name RTE --data_dir {rte} --output_dir {tmp_path / 'out'}"
    own += f" --model_name_or_path {albert_dir} --max_seq_length 32 --set w_lr=0.1"
    assert commands[0][:14] == own.split()
    study = tmp_path / "out/albert-rte"
    place = study / "000-lr2e-05-bs8-ep1-seed0"
    values = "--learning_rate 2e-05 --per_gpu_train_batch_size 8 --num_train_epochs 1.0 --seed 0"
    ending = f"--output_dir {place} --overwrite_output_dir --do_train --do_eval --out_mode one"
    assert commands[0][14:] == [*values.split(), *ending.split()]
    rows = list(csv.DictReader((study / "hp_search.csv").open()))
    assert [row["learning_rate"] for row in rows] == ["5e-05", "2e-05"]
    assert [row["acc"] for row in rows] == ["0.5500", "0.2500"]
    assert [row["std"] for row in rows] == ["0.0707", "0.0707"]
    assert [row["seeds"] for row in rows] == ["2", "2"]
    assert "best setting: lr5e-05-bs8-ep1, mean acc = 0.5500" in outcome.out
    best = study / "003-lr5e-05-bs8-ep1-seed1"
    assert outcome.out.endswith(f"best checkpoint: {best}, acc = 0.6000\n")


def test_a_search_can_choose_by_the_metric_at_a_cost(search, commands, tmp_path):
    outcome = search("--hp_metric", "acc@0.5").done()
    assert "best setting: lr2e-05-bs8-ep1, mean acc@0.5 = 0.7500" in outcome.out
    assert all("--hp_metric" not in command for command in commands)
    search().refused("was begun with --hp_metric acc@0.5")  # its values would not compare
    search("--hp_metric", "acc@0.5", "--model_type", "albert_act").refused("nothing to sweep")


def test_the_same_command_again_runs_only_what_is_new(search, commands):
    search()
    first = search().out
    assert len(commands) == 4
    assert "best checkpoint" in first
    search("--hp_seeds", 0, 1, 2)
    assert len(commands) == 6


def test_a_study_of_other_flags_is_not_mixed_in(search, commands):
    search()
    words = ("study albert-rte was begun with --max_seq_length 32, not 24", "another --hp_study")
    search("--max_seq_length", 24).refused(*words)
    more = ("--max_seq_length", 24, "--hp_study", "short", "--per_gpu_eval_batch_size", 4)
    search(*more).done()
    assert len(commands) == 8


def flip_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


def swap_words(path: Path) -> None:
    path.write_text(path.read_text().replace("dog", "cat"))


@pytest.mark.parametrize(
    ("name", "change", "flag"),
    [
        ("model/model.safetensors", flip_last_byte, "--model_name_or_path"),
        ("model/config.json", partial(edit_json, exit_thres=0.3), "--model_name_or_path"),
        ("data/train.tsv", swap_words, "--data_dir"),
        ("data/dev.tsv", swap_words, "--data_dir"),
    ],
)
def test_results_of_another_model_or_data_are_not_shown(
    name, change, flag, search, commands, albert_dir, tmp_path
):
    shutil.copytree(albert_dir, tmp_path / "model")
    write_rte(tmp_path / "data")
    places = ("--model_name_or_path", tmp_path / "model", "--data_dir", tmp_path / "data")
    search(*places).done()
    change(tmp_path / name)
    outcome = search(*places)
    outcome.refused("study albert-rte was begun with other", flag, "another --hp_study")
    assert outcome.out == ""
    search(*places, "--hp_study", "new").done()
    assert len(commands) == 8


def test_a_study_does_not_mind_where_model_and_data_lie(search, commands, albert_dir, tmp_path):
    search()
    shutil.copytree(albert_dir, tmp_path / "model")
    write_rte(tmp_path / "data")
    search("--model_name_or_path", tmp_path / "model", "--data_dir", tmp_path / "data").done()
    assert len(commands) == 4


@pytest.mark.parametrize(
    "damage",
    [
        None,
        "UPDATE study_user_attributes SET value_json = '{broken'",
        "UPDATE trial_params SET distribution_json = '{broken'",
        "UPDATE trials SET state = 'ODD'",
    ],
)
def test_a_damaged_database_is_named(damage, search, commands, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    search()
    path = tmp_path / "out/hp_search.db"
    if damage:
        with sqlite3.connect(path) as database:
            database.execute(damage)
    else:  # zeros in the page that says where all others are
        content = path.read_bytes()
        path.write_bytes(content[:100] + bytes(3996) + content[4096:])
    outcome = search()
    outcome.refused("restore it from a copy, or move it away")
    assert outcome.err.startswith(f"error: {path} cannot be opened, read or written: ")
    assert "--hp_storage" not in outcome.err
    assert search("--hp_storage", f"sqlite:///{path}").err.startswith(
        f"error: --hp_storage sqlite:///{path} cannot be opened, read or written: "
    )
    path.unlink()
    search().done()


def test_an_error_of_the_code_is_not_taken_for_one_of_the_storage(search, monkeypatch):
    def run(command, log):
        raise KeyError("mine")

    monkeypatch.setattr(hp_search, "run_to_its_end", run)
    with pytest.raises(KeyError, match="mine"):
        search()


def test_a_search_cannot_run_under_torchrun(search, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    search().refused("run it without torchrun")


# Stopping.


def test_a_stopped_search_says_so_and_its_run_goes_on(search, commands, tmp_path, monkeypatch):
    def stop(command, log):
        """Train a step and be stopped."""
        place = Path(command[command.index("--output_dir", 12) + 1])
        (place / "checkpoint-1").mkdir(parents=True)
        (place / "checkpoint-1/config.json").write_text("{}")
        raise KeyboardInterrupt(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(hp_search, "run_to_its_end", stop)
        stopped = search()
    assert stopped.status == 128 + signal.SIGTERM
    assert stopped.err == "SIGTERM: stopped. Go on with the same command\n"
    search().done()
    assert len(commands) == 4
    place = tmp_path / "out/albert-rte/000-lr2e-05-bs8-ep1-seed0"
    resumed = [command for command in commands if "--resume_from_checkpoint" in command]
    assert [command[-7:-4] for command in resumed] == [
        [str(place), "--resume_from_checkpoint", "latest"]
    ]


# The prediction.


@pytest.mark.parametrize("more", [(), ("--submission_dir", "submission")])
def test_a_test_file_that_does_not_fit_is_said_before_the_runs(more, search, commands, tmp_path):
    data = write_rte(tmp_path / "data")
    if not more:
        (data / "test.tsv").unlink()
    words = "has 5 examples, expected 3000" if more else "no test.tsv in"
    search("--data_dir", data, "--do_predict", *more).refused(words)
    assert commands == []


def test_a_best_checkpoint_that_is_gone_is_named(search, commands, tmp_path):
    search()
    best = tmp_path / "out/albert-rte/003-lr5e-05-bs8-ep1-seed1"
    shutil.rmtree(best)
    search().done()
    gone = f"not in {best}, where {platform.node()} wrote it"
    search("--do_predict").refused(gone, "--output_dir COPY")


# With real runs.


@pytest.mark.slow
def test_a_tiny_model_is_searched_from_the_flags_to_the_prediction(search, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    outcome = search("--no_cuda", "--do_lower_case", "--do_predict").done()
    best = Path(outcome.out.partition("best checkpoint: ")[2].partition(",")[0])
    assert best.parent == tmp_path / "out/albert-rte"
    assert (best / "RTE.tsv").read_text().count("\n") == 6
    means = {}
    for report in best.parent.glob("*/eval_results.json"):
        setting = report.parent.name[4:].rpartition("-")[0]
        means.setdefault(setting, []).append(json.loads(report.read_text())["metrics"]["acc"])
    assert {setting: len(values) for setting, values in means.items()} == {
        "lr2e-05-bs8-ep1": 2,
        "lr5e-05-bs8-ep1": 2,
    }
    assert sum(means[best.name[4:].rpartition("-")[0]]) == max(map(sum, means.values()))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ponder_albert", "albert_act"])
def test_a_search_works_for_the_modes_that_learn_when_to_stop(mode, search, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = ("--hp_learning_rates", 1e-3, "--hp_seeds", 3)
    search("--model_type", mode, *one, "--no_cuda").done()
    best = tmp_path / f"out/{mode}-rte/000-lr0.001-bs8-ep1-seed3"
    report = json.loads((best / "eval_results.json").read_text())
    row = next(csv.DictReader((best.parent / "hp_search.csv").open()))
    assert row["acc"] == f"{report['metrics']['acc']:.4f}"
    assert row["computation_cost"] == f"{report['computation_cost']:.4f}"
    assert json.loads((best / "config.json").read_text())["model_type"] == mode


def test_the_last_line_of_a_broken_run_is_shown(search, tmp_path, monkeypatch):
    def run(command, log):
        log.write("loading\nerror: the disk is full\n")
        return 2

    monkeypatch.setattr(hp_search, "run_to_its_end", run)
    outcome = search()
    assert outcome.status == 2
    run, log = "lr2e-05-bs8-ep1-seed0", tmp_path / "out/albert-rte/000-lr2e-05-bs8-ep1-seed0.log"
    message = f"{run} ended with status 2: error: the disk is full (see {log})"
    assert outcome.err == f"error: {message}\n"
