"""The benchmarks' files for other runtimes, and the table that they make on a GPU."""

import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from benchmarks import contenders, speed
from benchmarks.contenders import ForcedExits
from benchmarks.runtimes import ROWS, feed_of, write_files
from elbert import ElbertConfig, UserError
from tests.conftest import TINY
from tests.cpu_recorder import graphs_on_cpu


@pytest.mark.onnx
@pytest.mark.slow
def test_the_runtimes_compute_what_torch_does(tmp_path):
    """The plain graph is the whole depth; our file exits where it is told, in int8 with the same
    answers in both runtimes.
    """
    for module in ("onnxscript", "openvino", "nncf"):
        pytest.importorskip(module)
    write_files(tmp_path, TINY)
    torch.manual_seed(0)
    model, texts = ForcedExits(ElbertConfig(**TINY)).eval(), [[7, 8, 9], [10, 11, 12, 13, 14], [15]]
    feed = feed_of(texts)
    with torch.no_grad():
        tensors = {name: torch.tensor(array) for name, array in feed.items()}
        every = model(**tensors, output_all_exits=True).all_logits.numpy()
    told = {**feed, "target": np.array([1, 3, 4], np.float32)}
    expected = {"plain": every[-1], "loop": every[[0, 2, 3], [0, 1, 2]]}
    rounded = []
    for name, load in ROWS.values():
        kind, _, is_int8 = name.partition(".")[0].partition("-")
        (logits,) = load(tmp_path / name)(["logits"], told if kind == "loop" else feed)
        if not is_int8:
            np.testing.assert_allclose(logits, expected[kind], atol=1e-4)
        elif kind == "loop":  # how the runtimes' own tools round is theirs
            np.testing.assert_allclose(logits, expected[kind], atol=0.3)
            rounded.append(logits)
    np.testing.assert_allclose(rounded[0], rounded[-1], atol=1e-2)


@contextmanager
def this_process(make, more=None):
    """As `speed.own_process`, without another process."""
    made = make()

    def clock(run, texts, first=1):
        start = time.perf_counter()
        run(made, texts)
        return time.perf_counter() - start

    yield clock


@pytest.mark.slow
def test_the_table_of_a_gpu_has_a_row_for_every_contender_and_cost(monkeypatch, capsys):
    """Here it is made on the CPU, of tiny models, with a recorder for the CPU."""
    recorder = graphs_on_cpu(monkeypatch)
    small = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    for sizes, name in ((contenders.ALBERTS, "ALBERT-base"), (contenders.BERTS, "MiniLM")):
        monkeypatch.setitem(sizes, name, {**sizes[name], **small})
    monkeypatch.setattr(contenders, "compiled_hf_model", contenders.hf_model)
    monkeypatch.setattr(speed, "own_process", this_process)
    monkeypatch.setattr(speed, "texts_of", lambda task, count: contenders.texts_of(task, 8))
    monkeypatch.setattr(speed, "ROUNDS", 2)
    table = speed.Table()
    speed.gpu_table(table, ["ALBERT-base", "MiniLM"], ["8x64"], minutes=5)
    ours = ["ours, graphs", "ours, compiled graphs"]
    rows = ["HF eager", "HF compiled"]
    rows += [f"{name}{cost}" for name in ours for cost in ("", ", c = 0.5", ", c = 0.25")]
    assert list(table.cases["ALBERT-base, batch 8, length 64"]) == rows
    assert list(table.cases["MiniLM, batch 1, length 32"]) == rows
    assert len(table.cases["ALBERT-base, SST-2's lengths, 128 at a time"]) == 6
    assert capsys.readouterr().out.count("| ours, graphs, c = 0.25 |") == 3 + 1

    # Times of a model that runs as it is are not those of graphs: it is left out of the case.
    recorder.failures = [RuntimeError("no capture here")]
    table = speed.Table()
    speed.gpu_table(table, ["MiniLM"], ["8x64"], minutes=5)
    case = "MiniLM, batch 1, length 32"
    assert f"{case}: ours, graphs is left out: MiniLM: not captured" in capsys.readouterr().out
    assert list(table.cases[case]) == ["HF eager", "HF compiled", *rows[5:]]


def test_without_a_gpu_the_benchmark_of_one_says_so(monkeypatch):
    monkeypatch.setattr("sys.argv", ["speed.py", "--models", "MiniLM"])
    with pytest.raises(UserError, match="torch finds no GPU here"):
        speed.main()
