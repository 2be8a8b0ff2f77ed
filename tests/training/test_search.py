"""run_glue.py --hp_search from its flags to its table, its best checkpoint and its end."""

import argparse
import csv
import itertools
import json
import math
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import optuna
import pytest

import run_glue
import training.study
from elbert import UserError
from evaluation.metric import MetricAtCost
from glue.tasks import get_task
from runs import processes
from runs.flags import parse
from runs.settings import ModeSettings, SearchSettings
from tests.conftest import edit_json, slow, write_rte
from tests.forks import assert_same_weights
from training.search import make_search
from training.search_space import Dimension, parse_space
from training.study import Search

DRAW_PLOTS = training.study.draw_plots
RUNS = {f"lr{rate}-bs8-ep1-seed{seed}" for rate in ("2e-05", "5e-05") for seed in (0, 1)}


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


def parsed_run(flags: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for flag, kind in (("--learning_rate", float), ("--seed", int), ("--output_dir", Path)):
        parser.add_argument(flag, type=kind)
    return parser.parse_known_args(flags)[0]


CHANCE = 0.2  # an accuracy that is suspect
SCORES = {}  # of a learning rate, where a test has its own: accuracies by seed, and the cost


@pytest.fixture
def commands(monkeypatch):
    """Stands in for a run's process: accuracy is 10⁴ · learning rate + seed / 10, at cost 0.5.

    A run puts its flags on the list, which is what the tests see.
    """
    seen = []

    def call(script, flags, log):
        given = parsed_run(flags)
        seen.append(flags)
        rate = given.learning_rate
        usual = [1e4 * rate + seed / 10 for seed in (0, 1)], 0.5
        accuracies, cost = SCORES.get(rate, usual)
        accuracy = accuracies[given.seed]
        report = {
            "metrics": {"acc": accuracy},
            "computation_cost": cost,
            "remarks": ["it is at chance"] if accuracy == CHANCE else [],
            "frontier": {"acc": [[0.2, 1 - accuracy], [0.9, 1.0]]},
        }
        (given.output_dir / "eval_results.json").write_text(json.dumps(report))

    monkeypatch.setattr(processes, "call", call)
    monkeypatch.setattr(training.study, "draw_plots", lambda study, directory: None)
    return seen


def names_of(commands) -> list[str]:
    """The folders of runs."""
    return [parsed_run(flags).output_dir.name for flags in commands]


@pytest.mark.parametrize("sampler", ["tpe", "grid", "random"])
def test_a_search_ends_with_its_table_and_its_best_checkpoint(sampler, search, tmp_path, commands):
    outcome = search("--set", "w_lr=0.1", "--hp_sampler", sampler).done()
    assert set(names_of(commands)) == RUNS
    assert len(commands) == len(RUNS)
    assert all(flags[12:14] == ["--set", "w_lr=0.1"] for flags in commands)
    study = tmp_path / "out/albert-rte"
    rows = csv.DictReader((study / "hp_search.csv").open())
    shown = [[row[key] for key in ("learning_rate", "acc", "std", "seeds")] for row in rows]
    assert shown == [["5e-05", "0.5500", "0.0707", "2"], ["2e-05", "0.2500", "0.0707", "2"]]
    assert "best setting: lr5e-05-bs8-ep1, mean acc = 0.5500" in outcome.out
    best = study / "lr5e-05-bs8-ep1-seed1"
    assert outcome.out.endswith(f"best checkpoint: {best}, acc = 0.6000\n")


# 48 settings, of which a search tries 16.
MANY = """--hp_learning_rates 1e-6 5e-6 1e-5 5e-5 --hp_batch_sizes 8 16 32 --hp_epochs 1 2 3 4
    --hp_seeds 0 --hp_trials 16""".split()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "grid", "random"])
def test_a_search_can_be_repeated_and_the_parzen_estimator_comes_to_try_what_is_good(
    sampler, search, commands, tmp_path
):
    """5e-5 is best; batch size and epochs make no difference."""
    for out in ("one", "two"):
        search(*MANY, "--hp_sampler", sampler, "--output_dir", tmp_path / out).done()
    first, second = names_of(commands[:16]), names_of(commands[16:])
    assert first == second
    assert len(set(first)) == 16
    if sampler == "tpe":
        assert sum(name.startswith("lr5e-05") for name in first) > 16 / 4


def test_a_search_can_choose_by_the_metric_at_a_cost(search, commands):
    outcome = search("--hp_metric", "acc@0.5").done()
    assert "best setting: lr2e-05-bs8-ep1, mean acc@0.5 = 0.7500" in outcome.out
    assert all("--hp_metric" not in command for command in commands)
    too_little = ("--hp_metric", "acc@0.1", "--hp_study", "cheap")
    search(*too_little).refused("the rule's cheapest setting costs 0.2000")
    search("--hp_metric", "acc@0.5", "--model_type", "albert_act").refused("nothing to sweep")


def assigned(flags: list[str]) -> dict[str, str]:
    """The keys that the last --set of a run gives."""
    start = len(flags) - flags[::-1].index("--set")
    texts = itertools.takewhile(lambda text: not text.startswith("--"), flags[start:])
    return dict(text.split("=") for text in texts)


@pytest.mark.parametrize("sampler", ["tpe", slow("random")])
def test_further_keys_and_flags_are_searched(sampler, search, commands, tmp_path):
    """Each by --set, beside the command's own, or as a flag; every value within its range."""
    ranges = "exit_lr_factor=1:100:log pooler_input=cls,mean warmup_ratio=0:0.2:0.1".split()
    few = ("--set", "w_lr=0.1", "--hp_trials", 4, "--hp_seeds", 0, "--hp_sampler", sampler)
    out = search(*few, "--hp_space", *ranges, "adam_epsilon=1e-8").done().out
    settings = [assigned(flags) for flags in commands]
    factors = [float(setting["exit_lr_factor"]) for setting in settings]
    assert len({*factors}) == 4
    assert all(1 <= factor <= 100 for factor in factors)
    assert {setting["w_lr"] for setting in settings} == {"0.1"}
    assert {setting["pooler_input"] for setting in settings} == {"cls", "mean"}
    ratios = {flags[flags.index("--warmup_ratio") + 1] for flags in commands}
    assert ratios <= {"0.0", "0.1", "0.2"}
    rows = list(csv.DictReader((tmp_path / "out/albert-rte/hp_search.csv").open()))
    assert {row["adam_epsilon"] for row in rows} == {"1e-08"}
    shown = sorted(float(row["exit_lr_factor"]) for row in rows)
    assert shown == pytest.approx(sorted(factors), rel=1e-4)
    assert f"exit_lr_factor={factors[0]:g}" in out
    search(*few, "--hp_space", *ranges).refused("study albert-rte was started with hp_space")


def test_the_ranges_of_a_space():
    """λ_p and β of PonderNet; the usual values of the learning rate give way to a range."""
    (mode,) = parse([ModeSettings], None, ["--model_type", "ponder_albert"])
    items = "target_halt_probability=0.1,0.2 kl_penalty_factor=0.001:0.1:log"
    steps = "learning_rate=1e-5:3e-5:1e-5 per_device_train_batch_size=8:24:8 max_grad_norm=1"
    space = parse_space([*items.split(), *steps.split()], mode)
    assert {name: dimension.size for name, dimension in space.items()} == {
        "target_halt_probability": 2, "kl_penalty_factor": math.inf, "learning_rate": 3,
        "batch_size": 3, "max_grad_norm": 1,
    }  # fmt: skip
    assert space["batch_size"].flag == "--per_gpu_train_batch_size"
    made = search_of("rte", "--hp_trials", "9", space=space)
    assert (made.values, made.size) == ({"epochs": [2, 3, 4]}, 9)
    with pytest.raises(UserError, match="give --hp_space ranges a step"):
        search_of("rte", "--hp_sampler", "grid", space=space)
    space.pop("kl_penalty_factor")
    assert search_of("rte", "--hp_sampler", "grid", space=space).size == 2 * 3 * 3 * 3


@pytest.mark.slow
def test_the_plots_say_which_part_of_a_setting_matters(search, commands, tmp_path, monkeypatch):
    """The learning rate alone decides what the runs stand in for."""
    monkeypatch.setattr(training.study, "draw_plots", DRAW_PLOTS)
    space = ("--hp_space", "w_lr=0.1,0.2", "--hp_sampler", "grid", "--hp_seeds", 0)
    out = search(*space).done().out
    found = re.search(r"variance: learning_rate (\d\.\d+), w_lr (\d\.\d+)\n", out)
    assert float(found[1]) > 0.8  # by a random forest
    assert float(found[1]) + float(found[2]) == pytest.approx(1, abs=0.02)
    assert out.splitlines()[-1].startswith("best checkpoint")
    for name in ("hp_importances.png", "hp_slices.png"):
        assert (tmp_path / "out/albert-rte" / name).read_bytes().startswith(b"\x89PNG")


def test_the_same_command_again_runs_only_what_is_new(search, commands):
    search("--hp_trials", 1)
    assert len(commands) == 2
    assert "best checkpoint" in search("--hp_trials", 1).out
    assert len(commands) == 2
    search().done()
    assert set(names_of(commands)) == RUNS
    assert len(commands) == 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--max_seq_length 24", "max_seq_length 32, not 24"),
        ("--hp_seeds 0", "hp_seeds [0, 1], not [0]"),
        ("--model_name_or_path MODEL", "--model_name_or_path"),
        ("--data_dir DATA", "--data_dir"),
    ],
)
def test_a_study_of_other_flags_weights_or_data_is_not_mixed_in(
    flags, words, search, commands, albert_dir, rte, tmp_path
):
    search("--hp_trials", 1).done()
    places = {"MODEL": tmp_path / "model", "DATA": tmp_path / "data"}
    shutil.copytree(albert_dir, places["MODEL"])
    write_rte(places["DATA"])
    given = [places.get(word, word) for word in flags.split()]
    if "DATA" in flags or "MODEL" in flags:
        search("--hp_trials", 1, *given).done()  # where they lie makes no difference
    edit_json(places["MODEL"] / "config.json", exit_thres=0.3)
    dev = places["DATA"] / "dev.tsv"
    dev.write_text(dev.read_text().replace("dog", "cat"))
    search(*given).refused("study albert-rte was started with", words, "another --hp_study")
    assert len(commands) == 2
    search(*given, "--hp_study", "other", "--per_gpu_eval_batch_size", 4).done()


# Errors.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--hp_learning_rates 2", "2: allowed is a number from 0 to 1"),
        ("--hp_metric ac", "did you mean acc"),
        ("--hp_metric acc@half", "above 0 and at most 1"),
        ("--learning_rate 1", "--learning_rate is what --hp_search varies; give its values as"),
        ("--seed 1", "--hp_seeds"),
        ("--resume_from_checkpoint latest", "continues by itself"),
        ("--hp_space exit_lr_facto=1", "did you mean exit_lr_factor"),
        ("--hp_space exit_lr_factor=-1:2", "exit_lr_factor = -1"),
        ("--hp_space exit_lr_factor=2:1", "LOW:HIGH"),
        ("--hp_space exit_lr_factor=0:1:log", "must begin above 0"),
        ("--hp_space exit_lr_factor=1:2:0.3", "does not lead from 1 to 2"),
        ("--hp_space pooler_input=cls:mean", "for numbers"),
        ("--hp_space lr_scheduler_type=linear,steep", "steep: allowed is linear, cosine"),
        ("--hp_space warmup_ratio=0,2", "2: allowed is a number from 0 to 1"),
        ("--hp_space seed=1", "seed=1"),
        ("--hp_space w_lr=1 w_lr=2", "w_lr is there twice"),
        ("--hp_space w_lr=1 --set w_lr=2", "give one of them"),
        ("--hp_space warmup_ratio=0.1 --warmup_ratio 0", "give one of them"),
        ("--hp_space learning_rate=1e-5", "--hp_learning_rates and --hp_space learning_rate"),
        ("--hp_storage sqlite:////nowhere/at/all/search.db", "unable to open database file"),
        ("--hp_storage postgresql://me:secret@localhost:1/db", "cannot be opened"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_any_run(flags, words, search, commands):
    outcome = search(*flags.split())
    outcome.refused(words)
    assert "secret" not in outcome.err
    assert commands == []


def test_a_search_cannot_run_under_torchrun(search, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    search().refused("run it without torchrun")


@pytest.mark.slow
def test_a_damaged_database_is_named(search, commands, tmp_path):
    search()
    path = tmp_path / "out/hp_search.db"
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(3996) + content[4096:])  # where all other pages are
    search().refused(path, "cannot be opened, read or written")
    path.write_bytes(content)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v9'")
    search().refused(path, "cannot be opened, read or written", "optuna version")


def failing(script, flags, log):
    """A run's process that ends with an error."""
    raise UserError("run_glue.py ended with status 2: error: the disk is full (see run.log)")


def test_a_run_that_fails_is_left_out_and_tried_again_next_time(search, commands, monkeypatch):
    """The first ends the search: what fails once mostly fails again."""
    with monkeypatch.context() as patch:
        patch.setattr(processes, "call", failing)
        search().refused("ended with status 2: error: the disk is full")
    search("--hp_trials", 1).done()
    with monkeypatch.context() as patch:
        patch.setattr(processes, "call", failing)
        outcome = search().done()
    assert outcome.out.count("left out: run_glue.py ended with status 2: error: the disk") == 1
    assert set(names_of(commands)) < RUNS
    search().done()
    assert set(names_of(commands)) == RUNS


@pytest.mark.parametrize("sampler", ["tpe", "grid", "random"])
def test_a_stopped_search_says_so_and_its_run_goes_on(sampler, search, commands, monkeypatch):
    stopped, more = [], ("--hp_sampler", sampler)

    def stop(script, flags, log):
        stopped.append(parsed_run(flags).output_dir.name)
        raise KeyboardInterrupt(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "call", stop)
        outcome = search(*more)
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.err == "SIGTERM: stopped\n"
    search(*more).done()
    assert names_of(commands)[0] == stopped[0]
    assert len(commands) == 4
    assert all(flags[-4:-2] == ["--resume_from_checkpoint", "latest"] for flags in commands)


def test_a_setting_that_two_workers_tried_counts_once(search, commands, tmp_path):
    search("--hp_trials", 1).done()
    url = f"sqlite:///{tmp_path}/out/hp_search.db"
    study = optuna.load_study(study_name="albert-rte", storage=url)
    study.add_trial(study.trials[0])
    search().done()
    assert set(names_of(commands)) == RUNS
    assert len(commands) == 4
    assert len((tmp_path / "out/albert-rte/hp_search.csv").read_text().splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("later", "place"),
    [
        ("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')", 0),
        ("DELETE FROM trial_heartbeats", -2),  # killed before its first report: last
    ],
)
def test_a_setting_whose_worker_died_is_tried_again(
    later, place, search, commands, monkeypatch, tmp_path
):
    class Killed(BaseException):
        """What Optuna does not see, as it sees no SIGKILL."""

    def die(script, flags, log):
        died.append(parsed_run(flags).output_dir.name)
        raise Killed

    died = []
    with monkeypatch.context() as patch:
        patch.setattr(processes, "call", die)
        with pytest.raises(Killed):
            search()
    with sqlite3.connect(tmp_path / "out/hp_search.db") as database:
        database.execute(later)
    monkeypatch.setattr(training.study, "GRACE", 1)
    monkeypatch.setattr(training.study, "POLL", 0.5)
    search().done()
    assert set(names_of(commands)) == RUNS
    assert names_of(commands)[place] == died[0]
    assert len(commands) == 4


# Settings and their order.


def search_of(task: str, *flags: str, space: Mapping[str, Dimension] = {}) -> Search:
    (settings,) = parse([SearchSettings], None, flags)
    return make_search(
        settings,
        get_task(task),
        MetricAtCost("acc"),
        name="s",
        output_dir=Path(),
        flags=[],
        fingerprint={},
        space=space,
    )


def test_the_default_values_are_the_published_ones_but_for_the_epochs():
    """The notebook's LEARNING_RATES, TRAIN_BATCH_SIZES, N_SEEDS and MULTI_SEEDS_TASKS.

    Its MAX_EPOCHS is 4, with a checkpoint of each epoch; a run here has a schedule of its own.
    """

    assert search_of("rte").values == {
        "learning_rate": [2e-5, 3e-5, 5e-5], "batch_size": [16, 32], "epochs": [2, 3, 4]
    }  # fmt: skip
    assert (search_of("rte").size, search_of("rte", "--hp_sampler", "grid").size) == (12, 18)
    for name in ("cola", "sts-b", "rte", "mrpc", "sst-2", "wnli"):
        assert search_of(name).seeds == [0, 1, 2, 3, 4]
    for name in ("mnli", "qnli", "qqp"):
        assert search_of(name).seeds == [0]


@pytest.mark.parametrize(
    ("scores", "tie"),  # the better one first
    [
        ({3e-5: ([0.84, 0.89], 1), 2e-5: ([0.8, 0.9], 1)}, "standard error, 0.0250: lr2e-05"),
        ({3e-5: ([0.8], 0.4), 2e-5: ([0.8], 0.9)}, "0.0000: lr2e-05-bs8-ep1"),
        ({3e-5: ([0.8], 0.4), 2e-5: ([0.7], 0.1)}, ""),
    ],
)
def test_the_best_setting_has_the_highest_mean_and_ties_are_said(
    scores, tie, search, commands, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys.modules[__name__], "SCORES", scores)
    seeds = range(len(scores[2e-5][0]))
    done = search("--hp_learning_rates", *sorted(scores), "--hp_seeds", *seeds).done()
    rows = csv.DictReader((tmp_path / "out/albert-rte/hp_search.csv").open())
    assert [float(row["learning_rate"]) for row in rows] == [*scores]
    assert tie in done.out
    assert bool(tie) == ("within one standard error" in done.out)


def test_a_best_setting_that_has_learnt_nothing_is_said_to_be_suspect(search, commands):
    out = search("--hp_learning_rates", "2e-5", "--hp_seeds", 0).done().out  # 10⁴ · 2e-5
    assert "\nsuspect: it is at chance\nbest checkpoint: " in out


def test_a_script_that_fails_is_named_with_its_last_line(tmp_path):
    with pytest.raises(UserError, match=r"status 2: error: unknown flag --x.*\(see .*/log\)"):
        processes.call("run_parity.py", ["--x"], tmp_path / "log")


@pytest.mark.slow
def test_a_stopped_search_is_finished_by_two_processes(albert_dir, rte, tmp_path):
    """With the runs, weights and table of one that nothing disturbed."""

    def start(out: Path) -> subprocess.Popen:
        text = (
            f"run_glue.py --hp_search --model_type albert --task_name RTE --data_dir {rte} "
            f"--output_dir {out} --model_name_or_path {albert_dir} --max_seq_length 32 --no_cuda "
            "--hp_learning_rates 1e-3 2e-3 --hp_batch_sizes 2 --hp_epochs 20 --hp_seeds 0 "
            "--hp_sampler grid --logging_steps 1 --save_steps 10 --do_predict"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, *text.split()]
        return subprocess.Popen(command, cwd=Path(run_glue.__file__).parent, **pipes)

    out = tmp_path / "out"
    stopped = start(out)
    while not any('"step"' in log.read_text() for log in out.glob("*/*/run.log")):
        assert stopped.poll() is None, stopped.communicate()
        time.sleep(0.02)
    stopped.terminate()
    assert "SIGTERM: stopped" in stopped.communicate()[1]
    assert stopped.returncode == 128 + signal.SIGTERM
    assert list(out.glob("*/*/checkpoint-*"))
    both = [start(out) for _ in range(2)]
    printed = [search.communicate(timeout=600) for search in both]
    assert [search.returncode for search in both] == [0, 0], printed

    alone_out, _ = start(tmp_path / "alone").communicate(timeout=600)
    table = re.compile(r"^\| learning_rate.*?(?=^best checkpoint)", re.M | re.S)
    assert [table.findall(text) for text, _ in printed] == [table.findall(alone_out)] * 2
    folders = sorted(path.parent for path in out.glob("*/*/run.log"))
    assert len(folders) == 2
    for folder in folders:
        assert (folder / "eval_results.json").exists()
        assert_same_weights(folder, tmp_path / "alone" / folder.relative_to(out))
    assert len(list(out.glob("*/*/RTE.tsv"))) == 1  # the best one's answers
    log = "".join((folder / "run.log").read_text() for folder in folders)
    assert "Resumed from" in log
    assert log.count("***** Running training *****") == 2 + 1  # the stopped one
