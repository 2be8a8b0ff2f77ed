"""The benchmarks: the table, and files for other runtimes."""

import numpy as np
import pytest
import torch

from benchmarks.contenders import ForcedExits
from benchmarks.load import FixedDepth, WholeBatches, serve
from benchmarks.runtimes import ROWS, feed_of, makers, write_files
from modeling import ElbertConfig
from modeling.depth_batching import DepthBatcher
from tests.conftest import TINY, tiny_model


@pytest.mark.onnx
@pytest.mark.slow
def test_the_runtimes_compute_what_torch_does(tmp_path):
    """The plain graph is the whole depth; our file exits where it is told, in int8 with the same
    answers in both runtimes.
    """
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
    rounded = []
    for name, make in makers(tmp_path).items():
        kind, _, is_int8 = ROWS[name][0].partition(".")[0].partition("-")
        (logits,) = make()(["logits"], told if kind == "loop" else feed)
        if not is_int8:
            np.testing.assert_allclose(logits, expected[kind], atol=1e-4)
        elif kind == "loop":  # how the runtimes' own tools round is theirs
            np.testing.assert_allclose(logits, expected[kind], atol=0.3)
            rounded.append(logits)
    np.testing.assert_allclose(rounded[0], rounded[-1], atol=1e-2)


def test_under_load_every_server_gives_the_models_answers():
    """Texts are answered at their exits, or all at one layer, in the order of arrival."""
    model, rng = tiny_model(thres_name="max_prob", exit_thres=0.4), np.random.default_rng(0)
    texts = [(rng.integers(5, 90, n), np.zeros(n, int)) for n in (3, 7, 5, 9, 4, 6)]
    arrivals = np.array([0, 0, 0, 0.01, 0.02, 0.3])
    with torch.inference_mode():
        alone = [model.exit_early(torch.tensor(ids)[None]) for ids, _ in texts]
        every = [
            model(torch.tensor(ids)[None], output_all_exits=True).all_logits for ids, _ in texts
        ]
    exits = [int(out.exit_layer) for out in alone]
    assert len(set(exits)) > 1
    for batcher in (DepthBatcher(model, 2), WholeBatches(model, 2)):
        labels, layers, latency, seconds = serve(batcher, texts, arrivals)
        assert layers.tolist() == exits
        assert labels.tolist() == [int(out.logits.argmax()) for out in alone]
        assert (latency > 0).all()
        assert seconds >= 0.3
    labels, layers, _, _ = serve(FixedDepth(model, 4, depth=2), texts, arrivals)
    assert layers.tolist() == [2] * 6
    assert labels.tolist() == [int(logits[1].argmax()) for logits in every]
