"""What a training takes over from the model that it starts from."""

import json
from contextlib import nullcontext

import pytest

from evaluation.modes import MODES
from glue.tasks import TASKS, Task
from modeling.errors import UserError
from modeling.exit_settings import NO_KEYS, KeyValues
from modeling.keys import FITTED_KEYS
from runs.settings import ModelSettings
from tests.conftest import tiny_model
from training.starting_model import StartingModel, check_kept_head

FITTED = {
    "learnt_weights": [[0.0, 1.0, 0.5]],
    "stopping_thresholds": [[0.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.5, 0.5]],
    "exit_calibration": [[0.0, 2.0, 0.0, 0.0, 0.0, 2.0]],
}


def test_what_was_fitted_to_a_model_does_not_go_with_its_weights_into_another_training(tmp_path):
    """A calibration of other answers would change the new model's answers without a word."""
    assert {*FITTED} == {*FITTED_KEYS}
    tiny_model(num_labels=2, exit_thres=0.3).save_pretrained(tmp_path)
    picked = {**FITTED, "thres_name": "optimal_stopping", "exit_price": 0.4}
    (tmp_path / "exit_config.json").write_text(json.dumps(picked))
    settings = ModelSettings(model_name_or_path=str(tmp_path))
    start = StartingModel.of(settings, MODES["elbert"], NO_KEYS)
    config = start.make_config(TASKS["rte"])
    assert [getattr(config, key) for key in FITTED] == [[], [], []]
    assert (config.exit_thres, config.exit_price) == (0.3, 0.4)
    # Nor in the copy of the file, which would override the configuration.
    of_the_old_model = {"provenance": {"weights": "0"}, "guarantee": {}, "reference": {}}
    (tmp_path / "exit_config.json").write_text(json.dumps(picked | of_the_old_model))
    start.copy_exit_file(tmp_path / "out")
    copied = json.loads((tmp_path / "out/exit_config.json").read_text())
    assert copied == {"thres_name": "optimal_stopping", "exit_price": 0.4}
    stated = {"learnt_weights": [[0.0, 1.0, 0.0]]}
    start = StartingModel.of(settings, MODES["elbert"], KeyValues.from_source(stated, "a flag"))
    assert start.make_config(TASKS["rte"]).learnt_weights == stated["learnt_weights"]


@pytest.mark.parametrize(
    ("stored", "task", "is_kept"),
    [
        ({"problem_type": "single_label_classification"}, {"labels": ("a", "b")}, True),
        ({"problem_type": "multi_label_classification"}, {"labels": ("a", "b")}, False),
        (
            {"problem_type": "single_label_classification"},
            {"labels": ("a", "b"), "multi_label": True},
            False,
        ),
        ({"id2label": {0: "LABEL_0"}}, {"labels": ("a", "b")}, False),
        ({"id2label": {0: "LABEL_0"}}, {"labels": ()}, True),
    ],
)
def test_a_head_is_kept_for_its_own_kind_of_task_alone(stored, task, is_kept):
    """A sigmoid's head would answer by a softmax, and no longer as before."""
    table = Task(name="custom", folder="", submission="", **task)
    expected = nullcontext() if is_kept else pytest.raises(UserError, match="answer otherwise")
    with expected:
        check_kept_head(stored, table, "hf/clf")
