"""run_glue.py's evaluation: a trained model on the dev set, and its answers to the test set."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from evaluation.groups import read_groups
from evaluation.modes import MODES, trained_mode
from evaluation.modes.base import Mode
from evaluation.predict import is_main, run_all
from evaluation.prediction_files import write_predictions
from glue.splits import Split
from glue.tables import as_csv
from glue.tasks import Task, describe_task, evaluation_tasks, prediction_tasks
from modeling.cpu_packing import EMULATED, dtype_of, is_emulated
from modeling.errors import UserError
from modeling.exit_settings import KeyValues
from modeling.files import read_json
from runs.console import log_facts, markdown_table
from runs.flags import as_dict
from runs.folder import RunFolder
from runs.job import Job, find_task, open_job
from runs.output_dir import checkpoints_of, results_folder
from runs.settings import GlueSettings
from runs.trackers import log_scalars

logger = logging.getLogger(__name__)


def evaluate(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Evaluate the trained model of --output_dir on the dev set, or sets, of its task."""
    directory, evaluation = Path(settings.run.output_dir), settings.evaluation
    mode = MODES[settings.mode.model_type]
    task = find_task(settings.data, directory)
    statistics_dir = Path(evaluation.statistics_dir) if evaluation.statistics_dir else None
    for part, suffix in evaluation_tasks(task):
        split = Split(part, settings.data.folder, "dev")
        groups = None
        if evaluation.group_column:
            mode.check_has_rules()
            groups = read_groups(split, evaluation.group_column, settings.data.max_eval_samples)
        job = open_evaluation(settings, accelerator, mode, task, split)
        facts = {
            "Task": describe_task(part),
            "Device": f"{job.model.device}, dtype {evaluation.dtype}",
            "Num examples": job.features.size,
            "Batch size": job.batch_size,
        }
        log_facts("Running evaluation", facts)
        folder = results_folder(directory, suffix)
        report = mode.evaluate(
            job,
            folder,
            directory,
            dtype=evaluation.dtype,
            full_depth=not evaluation.skip_full_depth,
            statistics_dir=statistics_dir,
            groups=groups,
        )
        if is_main():
            job.check_unchanged()
            report.print()
            report.write(folder, directory, evaluation.out_mode)
        if settings.run.do_train:  # whose trackers are still open
            scalars = {
                f"eval/{name}{suffix}": value for name, value in report.final_scalars().items()
            }
            log_scalars(accelerator, scalars, step=None)


def evaluate_checkpoints(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Evaluate the checkpoints in --output_dir, whose trained model has been evaluated.

    Print a table with a row for each and one for the trained model, and write it there as
    checkpoints.csv.
    """
    output = Path(settings.run.output_dir)
    checkpoints = checkpoints_of(output)
    for checkpoint in checkpoints:
        logger.info("%s", checkpoint)
        run = replace(settings.run, output_dir=str(checkpoint), do_train=False)
        evaluate(settings._replace(run=run), accelerator)
    if is_main():
        parts = evaluation_tasks(find_task(settings.data, output))
        rows = []
        for folder in [*checkpoints, output]:
            row = {"model": "trained model" if folder == output else folder.name}
            for _, suffix in parts:
                row |= checkpoint_results(results_folder(folder, suffix), suffix)
            rows.append(row)
        RunFolder(output).write_text("checkpoints.csv", as_csv(rows))
        print(markdown_table([*rows[0]], [[*row.values()] for row in rows]))


def checkpoint_results(folder: Path, suffix: str) -> dict[str, str]:
    """Read what a row of --eval_all_checkpoints says of an evaluation, by column.

    suffix: ends the columns' names for the second half of a task.
    """
    results = read_json(folder / "eval_results.json")
    values = {**results["metrics"], "computation_cost": results["computation_cost"]}
    return {f"{name}{suffix}": f"{value:.4f}" for name, value in values.items()}


def predict(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Answer the test sets: the official GLUE files, and predictions.tsv with details."""
    directory, folder = Path(settings.run.output_dir), settings.data.folder
    mode = MODES[settings.mode.model_type]
    task = find_task(settings.data, directory)
    for part in prediction_tasks(task, folder):
        split = Split(part, folder, "test")
        job = open_evaluation(settings, accelerator, mode, task, split)
        predictions = run_all(job.in_type(settings.evaluation.dtype), mode.run)
        if is_main():
            ending = "" if part.name == task.name else f"-{part.name}"
            write_predictions(
                job,
                predictions,
                examples=list(split.examples()),
                details=mode.details(predictions),
                output=directory,
                name=f"predictions{ending}.tsv",
            )


def open_evaluation(
    settings: GlueSettings, accelerator: Accelerator, mode: Mode, task: Task, split: Split
) -> Job:
    """Load the model of --output_dir under the flags' exit keys, and a split of its data.

    Raises UserError for a model that was trained in another mode.
    """
    directory, evaluation = Path(settings.run.output_dir), settings.evaluation
    trained_in = trained_mode(directory)
    if mode is not trained_in:
        raise UserError(
            f"--model_type {mode.name}: {directory} holds a model that was trained with "
            f"--model_type {trained_in.name}; give that one"
        )
    warn_of_type(evaluation.dtype, accelerator.device, is_file=bool(evaluation.onnx))
    keys = settings.mode.keys
    if settings.run.do_train:
        keys = keys.without("exit_config_path")  # the training has copied that file into the folder
    job = open_job(
        directory,
        task,
        split,
        settings.data,
        device=accelerator.device,
        do_lower_case=settings.run.do_lower_case,
        seed=settings.run.seed,
        flags=as_dict(*settings),
        keys=keys,
        onnx=evaluation.onnx,
        batch_size=evaluation.per_gpu_eval_batch_size,
    )
    warn_of_unread_keys(job, keys)
    return replace(job, compile=settings.training.torch_compile)


def warn_of_type(name: str, device: torch.device, is_file: bool) -> None:
    """Say where --dtype is slow on this processor, or where another would be faster."""
    dtype = dtype_of(name, device)
    if is_emulated(dtype, device):
        logger.warning("--dtype %s: %s", name, EMULATED)
    has_bf16 = dtype_of("auto", device) != torch.float32
    if dtype == torch.float32 and has_bf16 and device.type == "cpu" and not is_file:
        logger.info(
            "Running in fp32. --dtype auto would use bf16, which is faster on this processor"
        )


def warn_of_unread_keys(job: Job, keys: KeyValues) -> None:
    """Warn of exit keys that a flag sets and that the exit rule in force does not read."""
    config = job.model.config
    for key in config.idle_keys(keys.values):
        rule = config.keys_read()[config.rule_key]
        logger.warning("%s has no effect: the exit rule %s does not read it", key, rule)
