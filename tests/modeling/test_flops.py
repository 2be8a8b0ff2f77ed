"""FLOPs against what torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from elbert import PonderAlbertClassifier, PonderAlbertConfig
from tests.conftest import TINY, random_ids, tiny_model

EAGER = {"attn_implementation": "eager"}


def counted(model, *arguments, **keywords) -> int:
    # torch knows no formula for matrix-vector products.
    sums = {torch.ops.aten.addmv: lambda _, matrix, *args, **kwargs: 2 * matrix[0] * matrix[1]}
    mode = FlopCounterMode(display=False, custom_mapping=sums)
    with mode as counter, torch.no_grad():
        model(*arguments, **keywords)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"use_fc2": True, "use_out_pooler": False, "fc_size1": 8, "fc_size2": 12},
        {"num_exit_layers": 4, "use_out_pooler": False, "fc_size1": 16, "num_labels": 3},
        {"num_exit_layers": 2, "exit_layers": [2, 4]},
        {"inner_group_num": 2, "num_hidden_groups": 2, "num_labels": 1},
        {"lambda_layer_arch": "mlp", "num_labels": 3},
        {"lambda_layer_arch": "linear", "num_lambda_layers": 1},
        {"lambda_layer_arch": "linear_cat", "num_lambda_layers": 3, "num_labels": 1},
        {"lambda_layer_arch": "linear_diff", "num_lambda_layers": 2},
    ],
)
def test_flops_are_those_that_torch_counts(shape):
    if "lambda_layer_arch" in shape:
        config = PonderAlbertConfig(**TINY, **shape, exit_criteria="threshold", **EAGER)
        model = PonderAlbertClassifier(config).eval()
    else:
        model = tiny_model(**shape, thres_name="entropy", **EAGER)
    config = model.config
    for length in (2, 7, 20):
        ids = random_ids(1, length)
        for config.exit_thres in (0.0, 1.0):  # the first layer, and full depth with all checks
            with torch.no_grad():
                layer = model(ids).exit_layer.item()
            assert counted(model, ids) == config.early_exit_flops(length, layer)
        one_check = config.early_exit_flops(length, 2) - config.early_exit_flops(length, 1)
        checks = config.early_exit_flops(length, 4) - config.full_depth_flops(length)
        assert 0 < checks < 3 * one_check  # full depth answers once, at the end
