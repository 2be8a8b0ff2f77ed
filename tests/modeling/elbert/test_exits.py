"""What an exit sees of a layer."""

import torch

from modeling.elbert.model import pool


def test_pooling_runs_over_real_tokens_only():
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[-5.0], [-7.0], [-9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()[:, None, None]
    expected = {
        "cls": [1, -5],
        "mean": [2, -7],
        "max": [3, -5],
        "cls-mean": [1 + 2, -5 - 7],
        "cls-max": [1 + 3, -5 - 5],
        "mean-max": [2 + 3, -7 - 5],
    }
    for name, values in expected.items():
        assert pool(hidden, mask, name).flatten().tolist() == values, name
    assert pool(hidden[1:], None, "mean-max").item() == -12
