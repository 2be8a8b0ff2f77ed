"""What a training takes over from the model that it starts from."""

import json

from evaluation.modes import MODES
from glue.tasks import TASKS
from modeling.exit_settings import NO_KEYS, KeyValues
from modeling.keys import FITTED_KEYS
from runs.settings import ModelSettings
from tests.conftest import tiny_model
from training.starting_model import StartingModel

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
    stated = {"learnt_weights": [[0.0, 1.0, 0.0]]}
    start = StartingModel.of(settings, MODES["elbert"], KeyValues.from_source(stated, "a flag"))
    assert start.make_config(TASKS["rte"]).learnt_weights == stated["learnt_weights"]
