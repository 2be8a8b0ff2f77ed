"""The benchmarks: the table, and files for other runtimes."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.contenders import ForcedExits
from benchmarks.runtimes import feed_of, makers, write_files
from modeling import ElbertConfig
from tests.conftest import TINY

ROOT = Path(__file__).parents[2]


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
