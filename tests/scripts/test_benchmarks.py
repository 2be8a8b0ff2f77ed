"""The benchmarks' files for other runtimes."""

import numpy as np
import pytest
import torch

from benchmarks.contenders import ForcedExits
from benchmarks.runtimes import ROWS, feed_of, write_files
from elbert import ElbertConfig
from tests.conftest import TINY


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
