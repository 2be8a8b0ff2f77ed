"""Fine-tune, evaluate and predict on GLUE with models that stop when they are sure.

Train:

    python ./run_glue.py --model_type albert --task_name RTE --do_train --do_lower_case \\
        --data_dir $GLUE_DIR/RTE --model_name_or_path $W_DIR --config_name $W_DIR \\
        --output_dir $OUT_DIR/RTE --overwrite_output_dir --max_seq_length 128 \\
        --per_gpu_train_batch_size 32 --learning_rate 3e-5 --num_train_epochs 3.0

Evaluate with early exit, one example at a time:

    python ./run_glue.py --model_type albert --task_name RTE --do_eval --do_lower_case \\
        --data_dir $GLUE_DIR/RTE --model_name_or_path $W_DIR --output_dir $OUT_DIR/RTE \\
        --per_gpu_eval_batch_size 1 --out_mode one

The same with `--model_type ponder_albert`, whose examples stop by a learned halting probability, or
`--model_type albert_act`, whose tokens do.

`--do_predict` writes the files for gluebenchmark.com. The user's own task: `--train_file`,
`--validation_file`, `--test_file` with columns sentence1[,sentence2],label.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.modes import MODES
from evaluation.settings import GROUPS, GlueSettings, ModeSettings
from glue.files import run_script
from modeling.errors import UserError
from modeling.keys import nearest_names, typed
from training.settings import parse

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from evaluation.job import Job
    from glue.features import Features
    from glue.tasks import Task
    from training.fine_tuning import Plan, Reader


def read_settings() -> GlueSettings:
    """The command line; raises UserError for flags that do not go together."""
    settings = GlueSettings(*parse(GROUPS, __doc__))
    run, how, evaluation = settings.run, settings.training, settings.evaluation
    search = settings.search.hp_search
    if how.local_rank >= 0:
        # Old launchers pass the rank as a flag, accelerate reads it from the environment.
        os.environ.setdefault("LOCAL_RANK", str(how.local_rank))
    if not (run.do_train or evaluation.do_eval or evaluation.do_predict or search):
        raise UserError("nothing to do: give --do_train, --do_eval, --do_predict or --hp_search")
    if search and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--hp_search starts its own processes: run it without torchrun")
    if evaluation.submission_dir and not evaluation.do_predict:
        raise UserError("--submission_dir collects what --do_predict writes: add --do_predict")
    if evaluation.onnx:
        check_onnx(settings)
    if how.fp16 and run.bf16:
        raise UserError("--fp16 and --bf16 exclude each other")
    return settings


def check_onnx(settings: GlueSettings) -> None:
    run, evaluation = settings.run, settings.evaluation
    others = {
        "--do_train": run.do_train,
        "--hp_search": settings.search.hp_search,
        "--eval_all_checkpoints": evaluation.eval_all_checkpoints,
        f"--dtype {evaluation.dtype}": evaluation.dtype != "fp32",
        "--compile on": evaluation.compile == "on",
    }
    if given := ", ".join(flag for flag, is_given in others.items() if is_given):
        raise UserError(f"--onnx evaluates a finished file as it is: leave out {given}")


def configuration_keys(settings: ModeSettings) -> dict[str, Any]:
    """The configuration's keys of --set and of the flags that are keys, typed."""
    keys, values = MODES[settings.model_type].table.keys, {}
    for flag, pair in settings.pairs():
        key, equals, text = pair.partition("=")
        if not equals or key not in keys:
            known = nearest_names(key, list(keys))
            raise UserError(f"{flag} {pair}: no key of --model_type {settings.model_type}; {known}")
        try:
            values[key] = typed(key, text, keys)
        except UserError as error:
            raise UserError(f"{flag}: {error}") from error
    return values


def main() -> None:
    settings = read_settings()
    keys = configuration_keys(settings.mode)
    # torch, and what stands on it: not before the flags are known to be right.
    from training.fine_tuning import Plan, find_task
    from training.start import check_output_dir, start_script

    if settings.search.hp_search:
        best = best_of_search(settings, keys)
        if not settings.evaluation.do_predict:
            return
        settings = settings._replace(
            run=replace(settings.run, output_dir=str(best), do_train=False),
            evaluation=replace(settings.evaluation, do_eval=False),
        )
    run, directory = settings.run, Path(settings.run.output_dir)
    plan = Plan(run, settings.training, settings.evaluation.compile == "on", settings)
    accelerator = plan.accelerator()
    start_script(accelerator, run.seed)
    check_output_dir(run)
    accelerator.wait_for_everyone()  # before the main process writes into it
    task = find_task(settings.data, None if run.do_train else directory)
    if run.do_train:
        fine_tune(settings, keys, task, plan, accelerator)
    if settings.evaluation.do_eval:
        evaluate_all(settings, keys, task, accelerator.device)
    if settings.evaluation.do_predict:
        predict_all(settings, keys, task, accelerator.device)


def reader_of(settings: GlueSettings) -> Reader:
    from training.fine_tuning import Reader

    mode, source = MODES[settings.mode.model_type], settings.model.model_name_or_path
    return Reader(mode, settings.data, source, settings.run.seed)


def best_of_search(settings: GlueSettings, keys: dict[str, Any]) -> Path:
    """Run a search; the directory of its best model."""
    from training.fine_tuning import StartingPoint, check_files, content_hashes, find_task
    from training.search import Search, flags_of_every_run, search, shared_values

    flags, task = flags_of_every_run(sys.argv[1:], GROUPS), find_task(settings.data, None)
    evaluation = settings.evaluation
    whole = evaluation.submission_dir is not None
    check_files(task, settings.data.folder, True, evaluation.do_predict, whole)
    start = StartingPoint(MODES[settings.mode.model_type], settings.model, task, keys)
    wanted = Search(
        settings=settings.search,
        task=task,
        name=f"{settings.mode.model_type}-{task.name}",
        output_dir=Path(settings.run.output_dir),
        flags=flags,
        given=shared_values(*settings),
        contents=content_hashes(start, reader_of(settings), settings.run.do_lower_case),
    )
    return search(wanted, evaluation.do_predict)


def fine_tune(
    settings: GlueSettings, keys: dict[str, Any], task: Task, plan: Plan, accelerator: Accelerator
) -> None:
    """Train, or go on with a training; nothing where it is finished."""
    from evaluation.job import Job
    from training.checkpoints import left_to_train
    from training.fine_tuning import Material, StartingPoint, check_files, train

    run, evaluation = settings.run, settings.evaluation
    whole = evaluation.submission_dir is not None
    check_files(task, settings.data.folder, evaluation.do_eval, evaluation.do_predict, whole)
    unfinished, checkpoint = left_to_train(run.output_dir, run.resume_from_checkpoint)
    if not unfinished:
        return
    mode, reader = MODES[settings.mode.model_type], reader_of(settings)
    start = StartingPoint(mode, settings.model, task, keys)
    model, tokenizer = start.load(settings.data.max_seq_length, run.do_lower_case)
    features = reader.training_set(task, tokenizer)
    material = Material(model, tokenizer, features, task.is_regression)
    dev = None
    if settings.training.evaluate_during_training:
        dev = Job(mode, model, tokenizer, task, reader.dev_set(task, tokenizer), batch_size=32)
    for step, log in train(plan, accelerator, mode, material, checkpoint):
        if dev:
            scalars, line = mode.dev_scalars(dev)
            log.scalars(scalars, step.number)
            log.line({**line, "step": step.number})


def load_for_evaluation(
    settings: GlueSettings, keys: dict[str, Any], directory: Path, task: Task, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The trained model of `directory`, with the exit keys that the flags give."""
    from evaluation.job import load_trained
    from evaluation.modes import check_mode

    mode, run = MODES[settings.mode.model_type], settings.run
    fixed = [key for key in keys if key not in mode.table.exit_keys]
    if fixed and not run.do_train:
        raise UserError(
            f"{', '.join(fixed)}: decided in training; without --do_train only "
            f"{', '.join(mode.table.exit_keys)} can be set"
        )
    check_mode(directory, mode)
    model, tokenizer = load_trained(directory, mode, task, device, run.do_lower_case)
    mode.check_length(settings.data.max_seq_length, model.config)
    mode.set_exit_keys(model.config, {k: v for k, v in keys.items() if k not in fixed})
    return model, tokenizer


def job_of(
    settings: GlueSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    features: Features,
) -> Job:
    from evaluation.job import Job
    from evaluation.onnx_file import OnnxFile

    mode, how = MODES[settings.mode.model_type], settings.evaluation
    speed = {"batch_size": how.per_gpu_eval_batch_size, "dtype": how.dtype, "compile": how.compile}
    file = OnnxFile(how.onnx, model.config, how.per_gpu_eval_batch_size) if how.onnx else None
    return Job(mode, model, tokenizer, task, features, **speed, out_mode=how.out_mode, file=file)


def evaluate_all(
    settings: GlueSettings, keys: dict[str, Any], task: Task, device: torch.device
) -> None:
    """Evaluate the trained model and, if asked for, each of its checkpoints."""
    from evaluation.job import Place
    from glue.tasks import evaluation_tasks
    from training.checkpoints import checkpoints_of

    directory = Path(settings.run.output_dir)
    checkpoints = checkpoints_of(directory) if settings.evaluation.eval_all_checkpoints else []
    for checkpoint in [*checkpoints, directory]:
        model, tokenizer = load_for_evaluation(settings, keys, checkpoint, task, device)
        for part, suffix in evaluation_tasks(task):
            features = reader_of(settings).dev_set(part, tokenizer)
            job = job_of(settings, model, tokenizer, part, features)
            place = Place(directory, suffix, "" if checkpoint == directory else checkpoint.name)
            job.announce(place)
            job.mode.evaluate(job, place)


def predict_all(
    settings: GlueSettings, keys: dict[str, Any], task: Task, device: torch.device
) -> None:
    """Answer the test sets of `task`: the official GLUE files, and predictions.tsv with details."""
    from evaluation.predictions import predict
    from glue.submission import check_test_set
    from glue.tasks import prediction_tasks, read_examples

    directory, submission_dir = Path(settings.run.output_dir), settings.evaluation.submission_dir
    model, tokenizer = load_for_evaluation(settings, keys, directory, task, device)
    for part in prediction_tasks(task, settings.data.folder):
        examples = read_examples(part, settings.data.folder, "test")
        if submission_dir:
            check_test_set(part, len(examples))
        features = reader_of(settings).test_set(part, tokenizer)
        details = "predictions.tsv" if part.name == task.name else f"predictions-{part.name}.tsv"
        job = job_of(settings, model, tokenizer, part, features)
        predict(job, examples, directory, details, submission_dir)


if __name__ == "__main__":
    run_script(main)
