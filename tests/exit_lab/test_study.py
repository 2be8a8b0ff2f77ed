"""The plan of a comparison of methods: what is trained, from what, and by whom."""

import pytest

from exit_lab.study import reserved
from exit_lab.study_settings import Study, read_study
from modeling.errors import UserError
from training.provenance import ROOT

SAMPLE = str(ROOT / "configs/sample")


def plan(*flags: str) -> Study:
    return read_study("", ["--model_name_or_path", SAMPLE, "--data_dir", SAMPLE, *flags])


def test_small_tasks_start_from_mnli_of_the_same_method_and_seed(tmp_path):
    study = plan("--tasks", "RTE", "MNLI=MNLI-from-SICK", "--output_dir", str(tmp_path))
    assert list(study.plans) == ["MNLI", "RTE"]
    run = next(run for run in study.runs(study.plans["RTE"]) if run.name == "RTE-palbert-43")
    settings = study.glue_settings(run)
    assert settings.model.model_name_or_path == str(tmp_path / "MNLI-palbert-43")
    assert settings.run.seed == 43
    first = study.glue_settings(study.start(run))
    assert first.model.model_name_or_path == SAMPLE
    assert first.data.data_dir.endswith("MNLI-from-SICK")


def test_a_task_brings_the_one_that_it_starts_from():
    assert list(plan("--tasks", "STS-B").plans) == ["MNLI", "STS-B"]


def test_methods_epochs_rows_and_flags_reach_the_trainings():
    study = plan(
        *("--tasks", "sst2", "--epochs", "SST2=1.5", "--rows", "sst-2=100", "--tau", "0.1", "0.2"),
        *("--set", "elbert.pooler_input=mean", "--learning_rate", "2e-5", "--bf16"),
    )
    assert list(study.methods) == ["elbert", "pondernet", "palbert", "act-tau0.1", "act-tau0.2"]
    elbert, ponder, palbert, *act = map(study.glue_settings, study.runs(study.plans["SST-2"])[:5])
    keys = [
        {flag.key: flag.value for flag in settings.mode.key_flags()}
        for settings in (elbert, palbert, *act)
    ]
    assert keys[0]["pooler_input"] == "mean"
    assert keys[1]["lambda_layer_arch"] == "linear_cat"
    assert [own["tau"] for own in keys[2:]] == [0.1, 0.2]
    for settings in (elbert, ponder, palbert, *act):
        assert settings.training.num_train_epochs == 1.5
        assert settings.data.max_train_samples == 100
        assert settings.training.learning_rate == 2e-5
        assert settings.run.bf16


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--tasks", "SST-3"], "did you mean"),
        (["--epochs", "SST-2"], "expected NAME=VALUE"),
        (["--epochs", "QQP=1"], "SST-2"),
        (["--rows", "SST-2=many"], "not a number"),
        (["--set", "elbert.tau=1"], "--set elbert.tau=1"),
        (["--set", "elbert.pooler_input=left"], "allowed is one of"),
        (["--seed", "1"], "what the study sets"),
        (["--methods", "act"], "elbert"),
        (["--seeds", "42", "42"], "give each once"),
        (["--quick"], "--model_name_or_path does not go with --quick"),
    ],
)
def test_flags_that_no_training_could_take_are_refused(flags, word):
    with pytest.raises(UserError, match=word):
        plan(*flags)


def test_the_trial_on_the_sample_keeps_to_its_own_folder():
    trial, study = read_study("", ["--quick"]), plan()
    assert trial.directory != study.directory
    with pytest.raises(UserError, match="--tasks does not go with --quick"):
        read_study("", ["--quick", "--tasks", "SST-2"])


def test_a_training_is_taken_by_one_process_at_a_time(tmp_path):
    study = plan("--output_dir", str(tmp_path))
    first, second = study.runs(study.plans["SST-2"])[:2]
    with reserved(study, first) as mine:
        assert mine
        with reserved(study, first) as again, reserved(study, second) as another:
            assert (again, another) == (False, True)
    with reserved(study, first) as mine:
        assert mine
