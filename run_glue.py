"""Train and evaluate text classifiers with early exit, on GLUE or on a task of your own.

Train:

    python ./run_glue.py --model_type elbert --task_name RTE --do_train --do_lower_case \\
        --data_dir $GLUE_DIR/RTE --model_name_or_path $W_DIR --config_name $W_DIR \\
        --output_dir $OUT_DIR/RTE --overwrite_output_dir --max_seq_length 128 \\
        --per_gpu_train_batch_size 32 --learning_rate 3e-5 --num_train_epochs 3.0

Evaluate with early exit, one example at a time:

    python ./run_glue.py --do_eval --output_dir $OUT_DIR/RTE --per_gpu_eval_batch_size 1

The folder of the trained model knows --model_type, the task, its files, --max_seq_length and
--do_lower_case; flags override them.

`--do_predict` writes the files for gluebenchmark.com. For a task of your own, give `--train_file`,
`--validation_file` and `--test_file`, with the columns sentence1[,sentence2],label.
"""
# The flags are read here. `training/fine_tune.py` trains, by the loop in `training/trainer.py`;
# `evaluation/evaluate.py` evaluates and predicts.

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

import os
from dataclasses import replace

from modeling.errors import UserError
from modeling.keys import keys_of
from modeling.runtime import launched_processes
from runs.files import check_place
from runs.flags import expand_config_file, is_on
from runs.processes import run_script
from runs.provenance import training_flags
from runs.settings import GROUPS, EvaluationSettings, GlueSettings, fetch_models
from runs.trained_flags import parse_with_trained_model

STATISTICS = "layers_all.csv"  # in --statistics_dir


def read_settings() -> GlueSettings:
    """The command line; raises UserError for flags that do not go together."""
    argv = expand_config_file(sys.argv[1:])
    trains = is_on("do_train", argv) or is_on("hp_search", argv)
    folder_flags = () if trains else ("--output_dir", "--model_name_or_path")
    settings = GlueSettings(*parse_with_trained_model(GROUPS, __doc__, folder_flags))
    run = settings.run
    training = settings.training
    evaluation = settings.evaluation
    search = settings.search.hp_search
    if not trains:
        settings.mode.check_trained()
        start, output = settings.model.model_name_or_path, run.output_dir
        if training_flags(start) and not os.path.exists(os.path.join(output, "config.json")):
            raise UserError(
                f"--output_dir {output} holds no trained model, --model_name_or_path {start} does: "
                f"give --output_dir {start}"
            )
    if not (run.do_train or evaluation.do_eval or evaluation.do_predict or search):
        raise UserError("nothing to do: give --do_train, --do_eval, --do_predict or --hp_search")
    if evaluation.eval_all_checkpoints:
        check_all_checkpoints(evaluation)
    if evaluation.group_column and not (evaluation.do_eval or search):
        raise UserError("--group_column: give --do_eval as well")
    if evaluation.group_column and evaluation.skip_full_depth:
        raise UserError("--group_column compares with full depth: leave out --skip_full_depth")
    if search and launched_processes() > 1:
        raise UserError("--hp_search starts its own processes: run it without torchrun")
    if evaluation.statistics_dir:
        check_place(Path(evaluation.statistics_dir, STATISTICS))
    for_a_model = {
        "--do_train": run.do_train,
        "--hp_search": search,
        f"--dtype {evaluation.dtype}": evaluation.dtype != "fp32",
    }
    unwanted = [flag for flag, is_given in for_a_model.items() if is_given]
    if evaluation.onnx and unwanted:
        raise UserError(
            f"--onnx evaluates a finished file as it is: leave out {', '.join(unwanted)}"
        )
    if settings.data.unlabelled_file and not settings.model.teacher:
        raise UserError("--unlabelled_file: give the model that answers the examples by --teacher")
    if settings.model.teacher and "teacher_share" not in keys_of(settings.mode.model_type).keys:
        raise UserError(f"--teacher: --model_type {settings.mode.model_type} learns from labels")
    teacher = settings.model.teacher
    if teacher and run.do_train and os.path.realpath(teacher) == os.path.realpath(run.output_dir):
        raise UserError(f"--teacher {run.output_dir} is also --output_dir; choose another")
    if training.fp16 and run.bf16:
        raise UserError("--fp16 and --bf16 exclude each other")
    return settings


def check_all_checkpoints(evaluation: EvaluationSettings) -> None:
    """Raise UserError for flags that do not go with --eval_all_checkpoints."""
    if not evaluation.do_eval:
        raise UserError("--eval_all_checkpoints: give --do_eval as well")
    for_one_model = {
        f"--onnx {evaluation.onnx}": evaluation.onnx,
        f"--statistics_dir {evaluation.statistics_dir}": evaluation.statistics_dir,
    }
    for flag, is_given in for_one_model.items():
        if is_given:
            raise UserError(f"{flag} belongs to one model: leave out --eval_all_checkpoints")


def main() -> None:
    settings = read_settings()
    # torch, and what stands on it: not before the flags are known to be right.
    from runs.hub_data import fetch_data

    settings = settings._replace(data=fetch_data(settings.data))
    from evaluation.evaluate import evaluate, evaluate_checkpoints, predict
    from runs.start import session
    from training.fine_tune import fine_tune

    if settings.run.do_train or settings.search.hp_search:
        needs_weights = {
            "model_name_or_path": not settings.model.from_scratch,
            "teacher": True,
            "config_name": False,
            "tokenizer_name": False,
        }
        settings = settings._replace(model=fetch_models(settings.model, needs_weights))
    if settings.search.hp_search:
        from training.search import search

        best = search(settings, expand_config_file(sys.argv[1:]))
        if not settings.evaluation.do_predict:
            return
        settings = settings._replace(
            run=replace(settings.run, output_dir=str(best), do_train=False),
            evaluation=replace(settings.evaluation, do_eval=False),
            search=replace(settings.search, hp_search=False),
        )
    with session(settings.run, settings.precision, settings.training) as accelerator:
        if settings.run.do_train:
            fine_tune(settings, accelerator)
        if settings.evaluation.do_eval:
            evaluate(settings, accelerator)
        if settings.evaluation.eval_all_checkpoints:
            evaluate_checkpoints(settings, accelerator)
        if settings.evaluation.do_predict:
            predict(settings, accelerator)


if __name__ == "__main__":
    run_script(main)
