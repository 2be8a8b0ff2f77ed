"""The texts that calibrate an int8 file: which ones, and as which inputs."""

import json

import numpy as np
import pytest

from elbert import ElbertConfig, UserError
from evaluation.calibration import TEXTS, calibration_feeds, deepest_settings, find_texts
from glue.splits import read_examples
from glue.tasks import TASKS
from runs.job import load_finished
from tests.conftest import write


def test_they_are_the_training_texts(trained, rte):
    texts = find_texts(trained, file=None)
    assert texts.path == rte / "train.tsv"
    assert texts.max_length == 32  # as in the training
    feeds = list(calibration_feeds(trained, load_finished(trained), texts))
    examples = read_examples(TASKS["rte"], rte, "train")
    assert len(feeds) == min(TEXTS, len(examples)) == 24
    for feed in feeds:
        assert feed["input_ids"].shape == feed["attention_mask"].shape
        assert feed["attention_mask"].all()
        assert 2 < feed["input_ids"].shape[1] <= 32


def test_a_table_may_give_them(trained, tmp_path):
    rows = "".join(f"a dog sings {i},a cat\n" for i in range(3))
    table = write(tmp_path / "texts.csv", f"sentence1,sentence2\n{rows}")
    texts = find_texts(trained, table)
    assert texts.path == table
    assert len(list(calibration_feeds(trained, load_finished(trained), texts))) == 3
    # Its columns are those of the training's texts.
    about = json.loads((trained / "training.json").read_text())
    about["provenance"]["flags"].update(task_name=None, text_column_names="a,b")
    (trained / "training.json").write_text(json.dumps(about))
    write(table, f"a,b\n{rows}")
    assert find_texts(trained, table).split.task.text_columns == ("a", "b")


def test_where_the_training_texts_are_gone_a_flag_is_named(trained):
    path = trained / "training.json"
    content = json.loads(path.read_text())
    content["provenance"]["flags"]["data_dir"] = "gone"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"gone.*; or give --calibration_file"):
        find_texts(trained, file=None)


def test_the_deepest_settings_let_nothing_exit_early():
    config = ElbertConfig(num_hidden_layers=6)
    settings = deepest_settings(config)
    assert settings["exit_thres"] == 0
    assert settings["exit_thres"].dtype == np.float32
    assert settings["cnt_thres"] == 6  # no window is full before the last layer
    assert settings["cnt_thres"].dtype == np.int64
    assert "thres_name" not in settings
