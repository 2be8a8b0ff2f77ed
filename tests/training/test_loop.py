"""The training loop; tests/robustness stops it and lets it go on."""

import math

import pytest

from modeling import UserError
from training.checkpoints import checkpoints_of, latest_checkpoint
from training.loop import check_loss


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_names_step_rate_and_checkpoint(loss, tmp_path):
    check_loss(1.0, 7, 3e-5, tmp_path)
    with pytest.raises(UserError, match=r"at step 7 .*3e-05.*No checkpoint"):
        check_loss(loss, 7, 3e-5, tmp_path)
    for name in ("checkpoint-5", "checkpoint-10", "checkpoint-best", "checkpoint-20"):
        (tmp_path / name).mkdir()
        if name != "checkpoint-20":  # a save that was cut short
            (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"last good checkpoint is .*checkpoint-10\."):
        check_loss(loss, 12, 3e-5, tmp_path)
    assert latest_checkpoint(tmp_path).name == "checkpoint-10"
    assert {path.name for path in checkpoints_of(tmp_path)} == {"checkpoint-5", "checkpoint-10"}
