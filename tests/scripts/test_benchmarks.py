"""The benchmarks: the table, and files for other runtimes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.contenders import ForcedExits
from benchmarks.runtimes import feed_of, makers, write_files
from modeling import ElbertConfig
from tests.conftest import TINY

ROOT = Path(__file__).parents[2]


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
        exact = not name.endswith("int8")
        np.testing.assert_allclose(logits, expected[kind], atol=1e-4 if exact else 0.3)
