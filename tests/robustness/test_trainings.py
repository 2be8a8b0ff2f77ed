"""Trainings that are killed, stopped or damaged go on bit by bit as if nothing had happened; two
processes do what one does; a signal saves, and the status says what stopped the run."""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file

import run_glue
import run_pretraining
import share_layers
import training.checkpoints as checkpointing
from modeling.files import read_json
from runs.output_dir import checkpoints_of, is_finished, latest_checkpoint
from runs.processes import StopSignal
from tests.berts import plain_text, save, sharing_flags, tiny_bert
from tests.commands import (
    flags,
    logged_steps,
    no_file_above,
    pretraining_flags,
    ran,
    refused,
    report_of,
)
from tests.conftest import contents, edit_json, slow, write_rte
from tests.forks import assert_same_weights, run, run_together, start_together, survive_kills
from training import trainer
from training.trainer import Trainer

LAMB = ("--optimizer", "lamb")
PONDER = ("--model_type", "ponder_albert", "--lambda_lr", 0.01)
NARROW = ("--intermediate_size", 96, "--bf16")
ACT = ("--model_type", "albert_act")
# Script and flags of each.
TRAININGS = {
    "elbert": (run_glue.main, ()),
    "taught": (run_glue.main, ("--set", "weight_name=equal", "self_distillation=0.5")),
    "ponder": (run_glue.main, PONDER),
    "act": (run_glue.main, ACT),
    "pretraining": (run_pretraining.main, ()),
    "dense": (run_pretraining.main, ("--model_type", "albert", *LAMB)),
    "sharing": (share_layers.main, ()),
    "narrow sharing": (share_layers.main, NARROW),
}


@pytest.fixture(scope="session")
def small_training(tmp_path_factory, albert_dir, rte, corpus, spiece, trained_once) -> Callable:
    """`small_training(name, out)`: a script and flags of 8 to 12 steps with dropout; `count`:
    without, and one process's share of so many."""
    folder = tmp_path_factory.mktemp("small")
    calm, dropping = shutil.copytree(albert_dir, folder / "calm"), folder / "dropping.json"
    edit_json(calm / "config.json", classifier_dropout_prob=0.0)
    shutil.copy(corpus / "config.json", dropping)
    edit_json(dropping, hidden_dropout_prob=0.1)
    bert, text = save(tiny_bert(), folder / "bert"), plain_text(folder)

    def training(name: str, out: Path, *more, count: int = 0) -> tuple[Callable, list]:
        main, own = TRAININGS[name]
        size = 4 // max(1, count)
        if main is run_glue.main:
            size = 10 // count if count else 4
            command = flags(calm if count else albert_dir, rte, out, "RTE", "--do_train")
            if name == "taught":
                command += ["--teacher", trained_once, "--unlabelled_file", rte / "test.tsv"]
            command += ["--num_train_epochs", 3 if count else 2, "--learning_rate", 1e-3]
        elif main is run_pretraining.main:
            config = corpus / "config.json" if count else dropping
            command = pretraining_flags(corpus, spiece, out, "--config_name", config)
        else:
            command = sharing_flags(bert, text, out)
        command += ["--per_gpu_train_batch_size", size, "--seed", 3, "--logging_steps", 1]
        if count:  # Adam's step for a gradient that is zero up to rounding would be its sign
            command += ["--adam_epsilon", 1e-3]
        return main, [*command, "--resume_from_checkpoint", *own, *more]

    return training


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, small_training) -> Callable[[str], Path]:
    """`undisturbed(name)`: what that training leaves when nothing stops it."""

    @cache
    def run_whole(name: str) -> Path:
        out = tmp_path_factory.mktemp("undisturbed") / "out"
        main, command = small_training(name, out, "--save_steps", 0)
        assert run(command, main=main) == 0
        return out

    return run_whole


# Killed and stopped.


@pytest.mark.parametrize(
    ("name", "kills"), [slow("elbert", 1), *(slow(name, 20) for name in TRAININGS)]
)
def test_a_run_killed_at_any_moments_ends_with_the_same_bits(
    name, kills, tmp_path, small_training, undisturbed
):
    def command(out: Path) -> list:
        return small_training(name, out, "--save_steps", 2, "--save_total_limit", 2)[1]

    survive_kills(command, undisturbed(name), tmp_path, kills, main=TRAININGS[name][0])
    assert all(len(checkpoints_of(out)) <= 2 for out in tmp_path.glob("out-*"))


@pytest.mark.slow
def test_a_run_killed_at_any_file_operation_of_its_end_has_lost_nothing(
    tmp_path, small_training, script, monkeypatch
):
    """The best model stands aside until the finished one does."""
    whole, eve = tmp_path / "whole", tmp_path / "eve"

    def best(out: Path) -> list:
        return small_training("elbert", out, "--load_best_model_at_end", "--save_steps", 2)[1]

    assert run(best(whole)) == 0
    assert not (whole / checkpointing.BEST).exists()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "finish", lambda *_: sys.exit(1))
        assert script(run_glue.main, *best(eve)).status == 1
    status, die_at = -signal.SIGKILL, 0
    while status == -signal.SIGKILL:
        out = Path(shutil.copytree(eve, tmp_path / str(die_at)))
        status = run(best(out), die_at=die_at)
        assert status in (0, -signal.SIGKILL)
        assert status == 0 or run(best(out)) == 0
        assert is_finished(out)
        assert_same_weights(out, whole)
        assert not list(out.glob(".*.partial"))
        die_at += 1
    assert die_at > 20


STOPS = [
    ("elbert", signal.SIGTERM, 6),
    ("elbert", signal.SIGINT, 6),
    ("elbert", signal.SIGHUP, 6),
    ("pretraining", signal.SIGTERM, 2),  # amid an epoch
    ("pretraining", signal.SIGTERM, 6),  # at the end of the first phase
    slow("pretraining", signal.SIGTERM, 7),  # in the second
    ("dense", signal.SIGTERM, 3),
    ("sharing", signal.SIGTERM, 5),
]


@pytest.fixture
def in_a_terminal():
    """Signals as a terminal's job has them; one in the background, or under nohup, ignores some."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    old = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize(("name", "number", "step"), STOPS)
def test_a_stopped_run_saves_says_so_and_goes_on(
    name, number, step, tmp_path, small_training, undisturbed, script, monkeypatch
):
    if name == "dense":
        pytest.importorskip("pytorch_optimizer")
    out, seed_batch = tmp_path / "out", Trainer.seed_batch
    main, command = small_training(name, out, "--save_steps", 0)

    def interrupted(trainer: Trainer) -> None:
        if trainer.state.step == step - 1:
            os.kill(os.getpid(), number)
        seed_batch(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "seed_batch", interrupted)
        stopped = script(main, *command)
    assert stopped.status == 128 + number
    saved = f"checkpoint-{step}"
    for word in (signal.Signals(number).name, f"step {step}", saved, "--resume_from_checkpoint"):
        assert word in stopped.err
    assert [path.name for path in checkpoints_of(out)] == [saved]
    resumed = script(main, *command).done()
    assert min(json.loads(x)["step"] for x in resumed.out.splitlines() if x[:1] == "{") == step + 1
    assert_same_weights(out, undisturbed(name))


# What a run goes on from.


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory, small_training) -> Path:
    """A run of eight steps whose end is missing; its two newest checkpoints are left."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    _, command = small_training("elbert", out, "--save_steps", 2, "--save_total_limit", 2)
    assert run([*command, "--max_steps", 8]) == 0
    for name in ("config.json", "model.safetensors"):
        (out / name).unlink()
    (out / checkpointing.IN_PROGRESS).write_text("{}")
    return out


@pytest.fixture
def stopped(tmp_path, stopped_run) -> Path:
    return Path(shutil.copytree(stopped_run, tmp_path / "out"))


@pytest.fixture
def again(stopped, small_training) -> list:
    """The command that takes up `stopped`."""
    return small_training("elbert", stopped, "--save_steps", 4, "--max_steps", 8)[1]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "training_state.json", "written.json"]
)
def test_a_damaged_checkpoint_is_refused_and_the_newest_intact_one_offered(
    harm, name, stopped, again, script
):
    harm(stopped / "checkpoint-8" / name)
    before = contents(stopped)
    refused(script, again, "checkpoint-8 is damaged", name, f"{stopped}/checkpoint-6")
    assert contents(stopped) == before
    flip(stopped / "checkpoint-6/optimizer.safetensors")
    refused(script, again, "No other checkpoint is intact", "--overwrite_output_dir")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--learning_rate 2e-3", ["another run", "learning_rate was 0.001, is 0.002"]),
        ("--per_gpu_train_batch_size 8", ["another run", "batch size was 4, is 8"]),
        ("--max_train_samples 9", ["another run", "max_train_samples was None, is 9"]),
        ("--config_name CONFIG", ["another run", "hidden_act was", "is 'relu'"]),
        ("--data_dir DATA", ["training examples or their tokens are others"]),
        ("--resume_from_checkpoint OUT/checkpoint-5", ["5: no such directory", "checkpoint-8"]),
    ],
)
def test_what_is_not_this_runs_is_refused(
    more, words, stopped, again, albert_dir, tmp_path, script
):
    (tmp_path / "config").mkdir()
    config = Path(shutil.copy(albert_dir / "config.json", tmp_path / "config"))
    edit_json(config, hidden_act="relu", exit_thres=0.5)  # an exit key is no other model's
    other, before = write_rte(tmp_path / "RTE"), contents(stopped)
    rows = (other / "train.tsv").read_text().splitlines()
    (other / "train.tsv").write_text("\n".join([*rows[:-1], rows[1]]) + "\n")
    places = {"CONFIG": config, "DATA": other}
    given = [places.get(word, word.replace("OUT", str(stopped))) for word in more.split()]
    refused(script, [*again, *given], *words)
    assert contents(stopped) == before
    if "CONFIG" in more:
        edit_json(config, hidden_act="gelu_new")
        script(run_glue.main, *again, *given).done()


def test_a_finished_training_is_left_as_it_is_and_an_unfinished_one_not_evaluated(
    stopped, again, albert_dir, rte, script
):
    evaluation = flags(albert_dir, rte, stopped, "RTE", "--do_eval")
    refused(script, evaluation, "did not finish", "--resume_from_checkpoint latest", "checkpoint-8")
    assert script(run_glue.main, *again).status == 0
    before = {path: path.stat().st_mtime_ns for path in stopped.glob("*.safetensors")}
    assert before
    assert script(run_glue.main, *again).status == 0
    assert {path: path.stat().st_mtime_ns for path in stopped.glob("*.safetensors")} == before
    refused(script, [*again, "--seed", 4], "is finished", "seed was 3, is 4")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tokenizer", "had other starting tokenizer"),
        ("configuration", "had other starting configuration"),
        ("weights", "had other starting weights"),
        ("rows", "had other training rows"),
        ("dev", "had other dev rows"),
        ("teacher", "had other weights of the teacher"),
        ("record", "no training_finished.json, which would say how it was trained"),
    ],
)
def test_a_finished_training_of_anything_else_is_refused(
    change, words, albert_dir, trained_once, tmp_path, script
):
    """The same command after what it reads has changed; nothing in the folder is."""
    start = Path(shutil.copytree(albert_dir, tmp_path / "start"))
    data, out = write_rte(tmp_path / "RTE"), tmp_path / "out"
    command = flags(start, data, out, "RTE", "--do_train", "--resume_from_checkpoint", "latest")
    command += ["--num_train_epochs", 0, "--set", "weight_name=equal"]
    if change == "dev":  # which then decides which step's model is kept
        command.append("--load_best_model_at_end")
    script(run_glue.main, *command).done()
    if change == "tokenizer":
        (start / "tokenizer_config.json").write_text("{}")
    elif change == "configuration":
        edit_json(start / "config.json", hidden_act="relu")
    elif change == "weights":
        weights = load_file(start / "model.safetensors")
        name = next(iter(weights))
        save_file({**weights, name: weights[name] + 1}, start / "model.safetensors")
    elif change in ("rows", "dev"):
        table = data / ("train.tsv" if change == "rows" else "dev.tsv")
        lines = table.read_text().splitlines()
        table.write_text("\n".join([lines[0], *lines[:0:-1]]))
    elif change == "teacher":
        command += ["--teacher", trained_once]
    else:
        (out / "training_finished.json").unlink()
    before = contents(out)
    refused(script, command, words, "--overwrite_output_dir")
    assert contents(out) == before


def test_a_config_of_the_users_own_is_kept_beside_the_trained_model(albert_dir, rte, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text('{"mine": 1}')
    command = flags(albert_dir, rte, out, "RTE", "--do_train", "--resume_from_checkpoint", "latest")
    for _ in range(2):  # the second finds the training finished
        assert run([*command, "--num_train_epochs", 0]) == 0
    assert (out / "config.json.1").read_text() == '{"mine": 1}'
    assert not (out / "config.json.2").exists()
    assert json.loads((out / "config.json").read_text())["finetuning_task"] == "rte"


def test_only_the_newest_intact_checkpoints_are_kept_and_hold_no_pickle(stopped):
    assert [path.name for path in checkpoints_of(stopped)] == ["checkpoint-6", "checkpoint-8"]
    names = {path.suffix for path in latest_checkpoint(stopped).iterdir()}
    assert names <= {".json", ".safetensors", ".model"}
    flip(stopped / "checkpoint-8/optimizer.safetensors")
    checkpointing.prune(stopped, 1)
    assert [path.name for path in checkpoints_of(stopped)] == ["checkpoint-6"]
    flip(stopped / "checkpoint-6/optimizer.safetensors")
    checkpointing.prune(stopped, 1)  # none is intact
    assert len(checkpoints_of(stopped)) == 1


@pytest.mark.parametrize("room", [0, 2_000, 30_000])
def test_a_full_disk_leaves_the_checkpoints_that_were_there(room, stopped, again, script):
    before = contents(stopped / "checkpoint-8")
    older = [*again, "--resume_from_checkpoint", stopped / "checkpoint-6"]
    with no_file_above(room):
        refused(script, older, "cannot write")
    assert contents(stopped / "checkpoint-8") == before
    assert script(run_glue.main, *again).status == 0


# Two processes.


def losses(log: Path) -> list[float]:
    return [line["loss"] for line in logged_steps(log.read_text()) if "loss" in line]


def assert_close_weights(one: Path, other: Path) -> None:
    first, second = (load_file(out / "model.safetensors") for out in (one, other))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("elbert", ()),  # 24 examples in batches of 10: the last of an epoch is not shared evenly
        slow("elbert", ("--gradient_accumulation_steps", 2)),
        slow("elbert", ("--set", "use_out_pooler=false", "num_exit_layers=2")),
        slow("taught", ()),
        slow("ponder", ()),
        slow("act", ()),
        slow("pretraining", ("--do_eval",)),
        slow("sharing", ()),
    ],
)
def test_two_processes_take_the_steps_of_one(name, more, tmp_path, small_training):
    for count in (1, 2):
        log, out = tmp_path / f"log{count}", tmp_path / f"out{count}"
        main, command = small_training(name, out, *more, count=count)
        status = run_together(count, command, log, main=main)
        assert status == [0] * count, log.with_suffix(".0").read_text()
    one, two = losses(tmp_path / "log1.0"), losses(tmp_path / "log2.0")
    assert len(one) >= 4
    assert two == pytest.approx(one, abs=1e-5)
    assert losses(tmp_path / "log2.1") == []  # only the main process speaks
    assert_close_weights(tmp_path / "out1", tmp_path / "out2")
    if "--do_eval" in more:
        reports = [report_of(tmp_path / f"out{count}") for count in (1, 2)]
        assert reports[0]["mlm_acc"] == pytest.approx(reports[1]["mlm_acc"], abs=1e-6)
        assert reports[0]["updates"] == pytest.approx(reports[1]["updates"], abs=1e-6)


def test_an_epochs_last_batches_are_a_step_of_their_own(tmp_path, small_training):
    """Five batches of 4, of which up to 8 are accumulated: one step, that of a batch of 20.

    With up to 2, there are three steps, the last of one batch; all rows count in every case.
    """
    steps = {}
    for name, batch_size, accumulation in (("whole", 20, 1), ("rest", 4, 8), ("pairs", 4, 2)):
        out = tmp_path / name
        main, command = small_training("elbert", out, "--max_train_samples", 20, count=1)
        command += ["--per_gpu_train_batch_size", batch_size, "--num_train_epochs", 1]
        command += ["--gradient_accumulation_steps", accumulation]
        assert run_together(1, command, tmp_path / f"{name}.log", main=main) == [0]
        steps[name] = read_json(out / "training.json")["steps"]
    assert steps == {"whole": 1, "rest": 1, "pairs": 3}
    assert_close_weights(tmp_path / "whole", tmp_path / "rest")


@pytest.mark.parametrize(
    ("before", "after", "name"), [slow(1, 2, "elbert"), slow(2, 1, "elbert"), slow(1, 2, "ponder")]
)
def test_a_run_goes_on_with_another_number_of_processes(
    before, after, name, tmp_path, small_training
):
    whole, out, log = (tmp_path / part for part in ("whole", "out", "log"))
    assert run_together(1, small_training(name, whole, count=1)[1]) == [0]
    _, first = small_training(name, out, "--save_steps", 5, count=before)
    assert run_together(before, first) == [0] * before
    assert [path.name for path in checkpoints_of(out)] == ["checkpoint-5"]
    (out / "config.json").unlink()  # as if it had been killed before its end
    _, second = small_training(name, out, count=after)
    assert run_together(after, second, log) == [0] * after
    assert len(losses(log.with_suffix(".0"))) == 4  # steps 6 to 9
    assert_close_weights(out, whole)


@pytest.mark.parametrize(
    ("mode", "batch_size"),
    [
        slow("albert", 1),
        slow("albert", 3),
        slow("ponder_albert", 1),
        slow("ponder_albert", 3),
        slow("albert_act", 3),
    ],
)
def test_two_processes_give_the_answers_of_one(
    mode, batch_size, tmp_path, small_training, albert_dir, rte
):
    out = tmp_path / "out"
    _, training = small_training("elbert", out, "--model_type", mode, count=1)
    assert run_together(1, training) == [0]
    edit_json(out / "config.json", exit_thres=0.97)
    evaluation = flags(albert_dir, rte, out, "RTE", "--do_eval", "--do_predict")
    evaluation += ["--per_gpu_eval_batch_size", batch_size, "--model_type", mode]
    names, seen = ("eval_results.txt", "RTE.tsv"), []
    details = []
    keys = ("metrics", "computation_cost", "updates_per_token_class", "exits_per_layer")
    for count in (1, 2):
        assert run_together(count, evaluation, tmp_path / "log") == [0] * count
        report = report_of(out)
        seen.append(
            [(out / name).read_text() for name in names] + [report.get(key) for key in keys]
        )
        details.append(pandas.read_csv(out / "predictions.tsv", sep="\t"))
        (out / "eval_results.txt").unlink()
    assert seen[0] == seen[1]
    # A batch of another size may differ in the last digit of a probability.
    pandas.testing.assert_frame_equal(*details, rtol=0, atol=1e-5)
    assert len(details[0]) == 5
    assert "Computation cost" in (tmp_path / "log.0").read_text()
    assert "Computation cost" not in (tmp_path / "log.1").read_text()


def test_a_signal_to_one_process_stops_both_with_one_checkpoint(tmp_path, small_training):
    out, log = tmp_path / "out", tmp_path / "log"
    _, endless = small_training("elbert", out, "--max_steps", 10**6, count=2)
    both = start_together(2, endless, log)
    deadline = time.monotonic() + 60
    while not (log.with_suffix(".0").exists() and losses(log.with_suffix(".0"))):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(both[1].pid, signal.SIGTERM)
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [128 + signal.SIGTERM] * 2
    assert len(checkpoints_of(out)) == 1
    assert "SIGTERM" in log.with_suffix(".0").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "launcher"),
    [
        (2, ["torch.distributed.run", "--nproc_per_node", "2"]),
        (1, ["accelerate.commands.launch", "--cpu"]),  # several CPU processes: only through MPI
    ],
)
def test_the_usual_launchers_work(count, launcher, tmp_path, small_training):
    out = tmp_path / "out"
    _, arguments = small_training("elbert", out, "--do_eval", count=count)
    command = (sys.executable, "-m", *launcher, "run_glue.py", *arguments)
    printed = ran(*command, OMP_NUM_THREADS=1)
    assert printed.count("Computation cost") == 1
    assert "Total optimization steps = 9" in printed


# Signals.


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize("launched", [False, True])
def test_a_second_ctrl_c_acts_at_once_unless_a_launcher_passed_it_on(launched, monkeypatch):
    """Launchers such as torchrun, which set LOCAL_RANK, pass on what all have received."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if launched:
        monkeypatch.setenv("LOCAL_RANK", "0")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        at_once = not launched and number == signal.SIGINT
        with StopSignal() as stop:
            os.kill(os.getpid(), number)
            with pytest.raises(KeyboardInterrupt) if at_once else nullcontext():
                os.kill(os.getpid(), number)
            assert stop.received == number


@pytest.mark.usefixtures("in_a_terminal")
def test_under_nohup_a_closed_terminal_stops_nothing():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None


def test_a_signal_waits_until_a_trained_model_is_saved(glue, tmp_path, monkeypatch):
    def interrupted(*arguments) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        save_model(*arguments)

    save_model = trainer.save_model
    monkeypatch.setattr(trainer, "save_model", interrupted)
    out = tmp_path / "out"
    ended = glue(out, "--do_train", "--do_eval", "--max_steps", 2)
    assert ended.status == 128 + signal.SIGTERM
    assert "SIGTERM" in ended.err
    assert "the trained model" in ended.err
    assert is_finished(out)
    assert not (out / "eval_results.json").exists()
