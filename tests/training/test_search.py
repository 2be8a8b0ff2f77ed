"""run_glue.py --hp_search from its flags to its table, its best checkpoint and its end."""

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

import pytest

import run_glue
import training.search as hp_search
from tests.conftest import edit_json, slow, write_rte

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


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
        slow("model/model.safetensors", flip_last_byte, "--model_name_or_path"),
        ("model/config.json", partial(edit_json, exit_thres=0.3), "--model_name_or_path"),
        slow("data/train.tsv", swap_words, "--data_dir"),
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
        slow("UPDATE trial_params SET distribution_json = '{broken'"),
        slow("UPDATE trials SET state = 'ODD'"),
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
