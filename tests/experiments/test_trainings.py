"""Names and flags of the trainings: recordings are found by them."""

from collections import Counter

from experiments.comparison.recordings import STARTS
from experiments.comparison.trainings import Run, queue


def test_names_of_recordings():
    names = {
        Run("shared", 1): "SST-2-shared-exits-1",
        Run("untied", 2, 3): "SST-2-untied-3-2",
        Run("untied", 1, 4, data="all"): "SST-2-all-untied-4-1",
        Run("act", 3, price=5e-4): "SST-2-act-tau0.0005-3",
        Run("pondernet", 1, price=0.5): "SST-2-pondernet-beta0.5-1",
        Run("pondernet", 1, price=0.1, prior=0.2): "SST-2-pondernet-beta0.1-prior0.2-1",
        Run("palbert", 2, price=0.5, recipe="fromprior"): "SST-2-palbert-beta0.5-fromprior-2",
        Run("untied", 7, 4, 5e-5, data="SICK"): "SICK-untied-4-rate5e-05-7-dev",
        Run("untied", 12, 4, recipe="taught"): "SST-2-untied-4-taught-12",
        Run("untied", 13, 4, data="SICK"): "SICK-untied-4-13-test",
        Run("untied", 11, data="CoLA", recipe="equal-x4"): "CoLA-untied-exits-equal-x4-11",
    }
    assert {run: run.name for run in names} == names


def test_flags_of_a_training_with_an_exit_after_each_layer():
    run = Run("untied", 11, recipe="taught-x4")
    assert run.start == "untied-6"
    assert " ".join(run.flags) == (
        "--task_name SST-2 --num_train_epochs 2 --do_train --do_lower_case "
        "--per_gpu_train_batch_size 32 --warmup_steps 50 --save_steps 0 --overwrite_output_dir "
        "--model_type elbert --set pooler_input=mean num_exit_layers=6 weight_name=equal "
        "use_out_pooler=false exit_lr_factor=4 --learning_rate 0.0001 --seed 11 --bf16 "
        "--num_train_epochs 1"
    )


def test_a_distilled_network_has_a_teacher_with_its_seed():
    teachers = {
        Run("untied", 12, recipe="taught-x4"): "SST-2-untied-6-12",
        Run("untied", 13, 3, recipe="taught"): "SST-2-untied-6-13",
    }
    names = {run: run.teacher.name for run in teachers if run.teacher}
    assert names == teachers
    assert Run("untied", 12, recipe="equal-x4").teacher is None


def test_flags_of_a_training_to_a_depth_and_of_one_that_learns_to_halt():
    truncated = Run("shared", 2, 3)
    assert truncated.start == "shared-3"
    assert "weight_name=dyn w_init=-30 w_lr=0 --max_grad_norm 3" in " ".join(truncated.flags)
    halting = Run("pondernet", 1, price=0.03, prior=0.1)
    assert halting.start == "still-6"
    assert halting.flags[-7:] == [
        "kl_penalty_factor=0.005",
        "target_halt_probability=0.1",
        "--learning_rate",
        "0.0001",
        "--seed",
        "1",
        "--bf16",
    ]


def test_every_training_is_queued_once_and_starts_from_an_encoder_that_is_made():
    runs = list(queue())
    assert max(Counter(run.name for run in runs).values()) == 1
    assert {run.start for run in runs} <= STARTS.keys()
