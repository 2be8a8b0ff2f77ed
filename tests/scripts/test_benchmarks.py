"""The benchmarks: int8 maps by hand, the tables, and files for other runtimes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.contenders import ForcedExits
from benchmarks.precision import (
    CUTS_SUMS,
    EXITS_HEADER,
    PRECISIONS,
    in_precisions,
    int8_linear,
    main,
)
from benchmarks.runtimes import feed_of, makers, write_files
from modeling import ElbertConfig
from tests.conftest import TINY, edit_json, random_ids, tiny_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _onednn(monkeypatch):
    """The engine that the script chooses, for these tests alone."""
    monkeypatch.setattr(torch.backends.quantized, "engine", "onednn")


@pytest.mark.slow
def test_a_quick_table_has_ratios_of_the_times_beside_them():
    command = [sys.executable, "benchmarks/speed.py", "--quick", "--lengths", "32"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    rows = [row for row in rows if row[0].startswith(("batch 1", "SST-2", "RTE"))]
    assert len({row[0] for row in rows}) == 3
    first = {}
    for case, _, _, milliseconds, ratio, spread, _ in rows:
        base = first.setdefault(case, float(milliseconds))
        low, high = map(float, spread.split("–"))
        assert low <= float(ratio) <= high
        if low == high:  # of one round: its own times, rounded
            assert float(ratio) == pytest.approx(base / float(milliseconds), rel=0.01, abs=0.01)
    assert re.search(r"Exit check, length 32: \d+ µs", done.stdout)


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


@pytest.mark.onnx
@pytest.mark.slow
def test_the_runtimes_compute_what_torch_does(tmp_path):
    """The plain graph is the whole depth; our file exits where it is told."""
    pytest.importorskip("onnxscript")
    write_files(tmp_path, TINY)
    torch.manual_seed(0)
    model, texts = ForcedExits(ElbertConfig(**TINY)).eval(), [[7, 8, 9], [10, 11, 12, 13, 14], [15]]
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
