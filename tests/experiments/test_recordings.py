"""Recorded answers, and what their metadata says of their networks."""

import numpy as np
import pytest

from experiments.comparison.recordings import (
    RECORDED,
    Answers,
    config_of,
    list_recordings,
    load,
    path_of,
    trained_config,
)
from experiments.comparison.trainings import Run, queue
from modeling.errors import UserError


def test_values_score_the_share_of_the_variance_that_they_explain():
    labels = np.array([1.0, 3.0])  # variance 1
    answers = Answers(np.array([[[1.0], [3.0]], [[2.0], [2.0]]]), labels, np.ones((2, 2)))
    assert answers.scores.mean(1).tolist() == [1, 0]


def test_a_network_is_what_the_flags_of_its_training_say():
    flags = "--model_type elbert --recipe recommended --set fc_size1=64 --seed 3".split()
    config = trained_config("untied-6", flags)
    assert (config.num_hidden_groups, config.num_exit_layers) == (6, 6)
    assert (config.use_out_pooler, config.fc_size1) == (False, 64)
    with pytest.raises(UserError, match="no_such_key"):
        trained_config("untied-6", [*flags, "--set", "no_such_key=1"])
    with pytest.raises(KeyError, match="untied-99"):
        trained_config("untied-99", flags)


@pytest.mark.parametrize(
    "run", [run for run in queue() if run.seed in (1, 11)], ids=lambda run: run.name
)
def test_a_recording_s_metadata_is_of_the_training_with_its_name(run: Run):
    if not run.recording.exists():
        pytest.skip("not recorded")
    config = config_of(run.recording)
    assert config.to_dict() == trained_config(run.start, run.flags).to_dict()


def test_the_older_recordings_say_what_their_networks_are():
    palbert = config_of(path_of("SICK", "palbert", 42))
    assert (palbert.lambda_layer_arch, palbert.num_lambda_layers) == ("linear_cat", 3)
    assert config_of(path_of("STS-B", "shared-exits", 44)).pooler_input == "mean"
    assert config_of(RECORDED / "SST-2-all-1.safetensors").weight_name == "equal"


def test_a_recording_has_the_phrases_only_where_they_were_recorded():
    newer, older = load("SST-2", "shared-exits", 1), load("SST-2", "pondernet", 42)
    assert newer.logits.shape == older.logits.shape == (6, 872, 2)
    assert newer.phrases is not None
    assert newer.phrases.logits.shape == (6, 1000, 2)
    assert older.phrases is None
    assert older.halts is not None
    assert older.halts.shape == (6, 872)


def test_recordings_are_listed_by_their_names():
    names = list_recordings()
    assert ("SICK", "untied-exits-equal-x4", 12) in names
    assert ("SST-2", "untied-3-rate5e-05", 7) in names
    assert all(path_of(*name).exists() for name in names)
    assert not [name for name in names if name.network.startswith("act")]
