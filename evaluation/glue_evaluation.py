"""run_glue.py's evaluation: a trained model on the dev set, and its answers to the test set."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from transformers import AlbertConfig, PreTrainedTokenizerBase

from evaluation.job import Job, find_task, load_trained, results_folder
from evaluation.modes import MODES, trained_mode
from evaluation.modes.base import Mode
from evaluation.onnx_file import OnnxFile
from evaluation.predictions import is_main
from evaluation.results import print_report, write_predictions, write_results
from evaluation.settings import GlueSettings
from glue.features import Features
from glue.tasks import Split, Task, about, evaluation_tasks, prediction_tasks
from modeling.cpu_packing import EMULATED, dtype_of, is_emulated
from modeling.errors import UserError
from modeling.exit_settings import resolve
from modeling.loading.files import UsedFiles
from training.provenance import provenance
from training.start import check_output_dir, lock_output_dir, make_accelerator, start_script
from utils.console import log_facts
from utils.flags import as_dict

logger = logging.getLogger(__name__)


def mode_of(settings: GlueSettings) -> Mode:
    return MODES[settings.mode.model_type]


@contextmanager
def session(settings: GlueSettings) -> Iterator[Accelerator]:
    """The device and the processes beside this one; logging, the seed, and an --output_dir that can
    take the results."""
    run, training = settings.run, settings.training
    fp16 = training.fp16 and training.fp16_opt_level != "O0"
    accelerator = make_accelerator(
        run.no_cuda,
        "bf16" if run.bf16 else "fp16" if fp16 else "no",
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        kwargs_handlers=[DistributedDataParallelKwargs()],
    )
    start_script(accelerator, run.seed)
    check_output_dir(run, run.do_train)
    with lock_output_dir(run.output_dir, accelerator, run.do_train):
        yield accelerator


def features_of(
    settings: GlueSettings,
    config: AlbertConfig,
    tokenizer: PreTrainedTokenizerBase,
    split: Split,
) -> Features:
    """Tokenise a split as the mode's models read it."""
    data, seed = settings.data, settings.run.seed
    limit = {"train": data.max_train_samples, "dev": data.max_eval_samples}.get(split.name)
    texts = split.examples(limit), tokenizer, data.max_seq_length
    return mode_of(settings).features(config, *texts, seed=seed)


def open_job(
    settings: GlueSettings, accelerator: Accelerator, directory: Path, task: Task, split: Split
) -> Job:
    """Load the model of `directory`, trained on `task`, under the flags' exit keys, and a split: of
    the task, or of its second half."""
    mode, data, evaluation = mode_of(settings), settings.data, settings.evaluation
    device, dtype = accelerator.device, dtype_of(evaluation.dtype, accelerator.device)
    if is_emulated(dtype, device):
        logger.warning("--dtype %s: %s", evaluation.dtype, EMULATED)
    wider = dtype == torch.float32 != dtype_of("auto", device)
    if wider and device.type == "cpu" and not evaluation.onnx:
        logger.info("--dtype auto: bf16 here, 1.6 to 1.8 times as fast for ALBERT-base")
    if mode is not (trained_in := trained_mode(directory)):
        raise UserError(
            f"--model_type {mode.name}: {directory} holds a model that was trained with "
            f"--model_type {trained_in.name}; give that one"
        )
    lower = settings.run.do_lower_case
    used = UsedFiles(directory, split.path, *filter(None, [evaluation.onnx]))
    keys = resolve(directory, mode.table, settings.mode.keys)
    model, tokenizer = load_trained(directory, mode, task, accelerator.device, lower, keys)
    mode.check_length(data.max_seq_length, model.config)
    in_force = model.config.keys_read()
    for key in settings.mode.keys.values.keys() & mode.table.exit_keys.keys() - in_force.keys():
        rule = in_force[model.config.rule_key]
        logger.warning("%s has no effect: the exit rule %s does not read it", key, rule)
    features = features_of(settings, model.config, tokenizer, split)
    about_run = provenance(as_dict(*settings), weights=used.weights, data=features.digest())
    size, path = evaluation.per_gpu_eval_batch_size, evaluation.onnx
    file = OnnxFile(path, model.config, used.weights) if path else None
    origin = {"rule_sources": keys.sources, "provenance": about_run}
    return Job(mode, model, tokenizer, split.task, features, size, evaluation, file, origin, used)


def evaluate(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Evaluate the trained model on the dev set, or sets, of its task."""
    directory = Path(settings.run.output_dir)
    task = find_task(settings.data, directory)
    for part, suffix in evaluation_tasks(task):
        split = Split(part, settings.data.folder, "dev")
        job = open_job(settings, accelerator, directory, task, split)
        facts = {
            "Task": about(part),
            "Device": f"{job.model.device}, dtype {job.evaluation.dtype}",
            "Num examples": job.features.size,
            "Batch size": job.batch_size,
        }
        log_facts("Running evaluation", facts)
        folder = results_folder(directory, suffix)
        report = job.mode.evaluate(job, folder, directory)
        if is_main():
            job.check_unchanged()
            print_report(report)
            write_results(report, folder, directory, job.evaluation.out_mode)


def predict(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Answer the test sets: the official GLUE files, and predictions.tsv with details."""
    directory, folder = Path(settings.run.output_dir), settings.data.folder
    task = find_task(settings.data, directory)
    for part in prediction_tasks(task, folder):
        split = Split(part, folder, "test")
        job = open_job(settings, accelerator, directory, task, split)
        ending = "" if part.name == task.name else f"-{part.name}"
        write_predictions(job, list(split.examples()), directory, f"predictions{ending}.tsv")
