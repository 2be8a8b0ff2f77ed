"""What the benchmarks share; precision.py: int8 maps by hand, tables on a tiny
model; speed.py's files for other runtimes."""

import operator
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.contenders import BASE, ForcedExits
from benchmarks.parts import exit_checks, matmul_rate
from benchmarks.precision import (
    CUTS_SUMS,
    EXITS_HEADER,
    PRECISIONS,
    in_precisions,
    int8_linear,
    main,
)
from benchmarks.runtimes import ToldExits, feed_of, makers, write_files
from benchmarks.table import Contender, Table
from benchmarks.timing import OwnProcess, busy_neighbours, in_turn, spread_of
from modeling import ElbertConfig
from tests.conftest import TINY, edit_json, random_ids, tiny_model


@pytest.fixture(autouse=True)
def _onednn(monkeypatch):
    """The engine that the script chooses, for these tests alone."""
    monkeypatch.setattr(torch.backends.quantized, "engine", "onednn")


def test_int8_maps_are_exact_where_nothing_needs_rounding():
    """Multiples of one scale a row of weights, and of one scale for all activations."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (6, 16), generator=generator).float()
    weight[:, 0] = 127
    weight *= torch.tensor([1.0, 2, 4, 0.5, 8, 0.25])[:, None]
    highest = 127 if CUTS_SUMS else 255
    states = torch.randint(0, highest + 1, (5, 16), generator=generator).float()
    states[0, :2] = torch.tensor([0.0, highest])
    bias = torch.arange(6.0)
    outcome = int8_linear(weight, bias)(states)
    torch.testing.assert_close(outcome, F.linear(states, weight, bias), rtol=1e-5, atol=0)


def test_int8_maps_give_all_tokens_of_a_call_one_scale():
    linear = int8_linear(torch.eye(4), torch.zeros(4))
    small = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    large = torch.full((1, 4), 1000.0)
    torch.testing.assert_close(linear(small), small, rtol=0, atol=0.01)
    beside = linear(torch.cat((small, large)))[:1]
    assert torch.equal(beside, torch.zeros_like(small))  # steps of 1000 / 255 or 127


@pytest.mark.slow
def test_the_parts_of_a_pass_are_timed():
    model = ForcedExits(ElbertConfig(**BASE, vocab_size=50)).eval()
    with torch.inference_mode():
        assert all(seconds > 0 for seconds in exit_checks(model, 8, rounds=1))
    assert matmul_rate(torch.float32, 8) > 0


def test_every_precision_answers_about_as_float32():
    model, ids = tiny_model(), random_ids(8, 12)
    most = 0.3 if CUTS_SUMS else 0.15  # half as many levels, twice the rounding
    with torch.inference_mode():
        expected = model(ids, output_all_exits=True).all_logits
        for name, changed in in_precisions(model).items():
            logits = changed(ids, output_all_exits=True).all_logits
            difference = (logits - expected).abs().max().item()
            assert difference < most, name
            assert (difference == 0) == (name == "fp32"), name


def test_a_run_is_timed_once_a_round_in_turn_with_the_others():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    times = in_turn(runs, 3, torch.device("cpu"))
    assert calls == ["a", "b"] * 3
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_a_contender_has_a_process_of_its_own_that_keeps_what_it_made():
    with OwnProcess(os.getpid) as one, OwnProcess(list) as other:
        assert one.ask(operator.add, 0) == one.process.pid != os.getpid()
        other.ask(list.append, 5)
        assert other.ask(list) == [5]
    assert not one.process.is_alive()
    assert not other.process.is_alive()


def test_a_contender_rests_while_another_has_its_turn():
    with OwnProcess(os.getpid) as resting, OwnProcess(list) as other:
        resting.ask(operator.add, 0)
        assert other.ask(list) == []
        how = os.WSTOPPED | os.WNOWAIT
        assert os.waitid(os.P_PID, resting.process.pid, how).si_status == signal.SIGSTOP


def test_a_contender_has_variables_of_its_own_and_one_that_dies_is_no_hang(capfd):
    with OwnProcess(partial(os.getenv, "GOMP_SPINCOUNT"), {"GOMP_SPINCOUNT": "7"}) as process:
        assert process.ask(str) == "7"
        with pytest.raises(EOFError):
            process.ask(str.index, "8")
    assert "ValueError" in capfd.readouterr().err
    assert os.environ.get("GOMP_SPINCOUNT") != "7"


def test_neighbours_are_busy_until_the_case_is_over():
    with busy_neighbours(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert [process.poll() for process in processes] == [-9, -9]


class Clock:
    """In place of a contender's process: what it is asked takes the next of these seconds."""

    def __init__(self, *times: float) -> None:
        self.times = iter((0.0, *times))  # the first is a warm-up

    def ask(self, *_: object) -> float:
        return next(self.times)


def test_a_table_keeps_every_round(capsys, tmp_path):
    table, texts = Table({"fp32": 1e9, "bf16": 2e9}, rounds=3), [[5, 6], [7, 8]]
    hf = Contender("HF", Clock(0.2, 0.4, 0.6), print, texts)
    table.compare("a", [hf, Contender("ours", Clock(0.1, 0.1, 0.1), print, texts)])
    assert "| a | ours | 2 | 50.00 | 4.00 | 2.00–6.00 |" in capsys.readouterr().out
    assert table.summary(["a"]).splitlines()[2:] == [
        "| HF | 200.0 (1.0×) |",
        "| ours | 50.0 (4.0×) |",
    ]
    table.write_csv(tmp_path / "a.csv")
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert rows[0] == "case,contender,round,seconds_a_text"
    assert rows[1:4] == ["a,HF,1,0.1", "a,HF,2,0.2", "a,HF,3,0.3"]
    assert len(rows) == 7


@pytest.mark.onnx
@pytest.mark.slow
def test_the_runtimes_compute_what_torch_does(tmp_path):
    """The plain graph is the whole depth; our file exits where it is told."""
    pytest.importorskip("onnxscript")
    write_files(tmp_path, TINY)
    torch.manual_seed(0)
    model, texts = ToldExits(ElbertConfig(**TINY)).eval(), [[7, 8, 9], [10, 11, 12, 13, 14], [15]]
    feed = feed_of(texts)
    with torch.no_grad():
        tensors = {name: torch.tensor(array) for name, array in feed.items()}
        every = model(**tensors, output_all_exits=True).all_logits.numpy()
    told = {**feed, "target": np.array([1, 3, 4], np.float32)}
    expected = {"plain": every[-1], "loop": every[[0, 2, 3], [0, 1, 2]]}
    for name, make in makers(tmp_path).items():
        kind = name.split()[1].removesuffix("-int8")
        logits = make()(told if kind == "loop" else feed)
        exact = not name.endswith(("int8", "bf16"))
        np.testing.assert_allclose(logits, expected[kind], atol=1e-4 if exact else 0.3)


def test_ratios_are_those_of_the_same_round():
    assert spread_of([2.0, 3.0, 8.0], [1.0, 1.0, 2.0]) == "3.00 | 2.00–4.00"


def test_the_tables_have_a_row_for_each_shape_and_each_precision(script, tmp_path, rte, spiece):
    tiny_model(finetuning_task="rte", cnt_thres=2).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", id2label={0: "entailment", 1: "not_entailment"})
    (tmp_path / "spiece.model").write_bytes(spiece.read_bytes())
    shapes = ["--batches", 1, "--lengths", 4, 8, "--rounds", 1]
    where = ["--model", tmp_path, "--data_dir", rte, "--task_name", "RTE", "--max_seq_length", 32]
    outcome = script(main, *shapes, *where).done()
    exits, times = outcome.out.split(EXITS_HEADER)[1].strip().split("\n\n")
    rows = [row.strip("| ").split(" | ") for row in exits.splitlines()]
    assert [row[1:3] for row in rows] == [["10", name] for name in PRECISIONS]
    assert rows[0][3:] == ["100.0%", "100.0%", "0.0%"]
    assert [row.split(" | ")[0] for row in times.splitlines()[2:]] == ["| 1, 4", "| 1, 8"]


def test_a_model_needs_its_task(script, tmp_path):
    script(main, "--model", tmp_path).refused("--model needs --task_name")
