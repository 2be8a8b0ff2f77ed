"""run_glue.py's training: from its settings to a fine-tuned model in --output_dir."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from evaluation.groups import read_groups
from evaluation.measures import labels_of
from evaluation.metric import MetricAtCost
from evaluation.modes import MODES
from evaluation.modes.base import Mode
from glue.features import Features, collate, encode, epoch_batches
from glue.metrics import check_any_answer
from glue.splits import Split
from glue.survey import TextSurvey
from glue.tasks import Task, describe_task, evaluation_tasks, prediction_tasks
from modeling.configuration import AdaptiveConfig
from modeling.encoder import AlbertPreTrainedModel
from modeling.errors import UserError
from modeling.files import TOKENIZER_FILES
from modeling.loading.configs import label_names
from runs.console import log_facts
from runs.flags import as_dict
from runs.job import Job, find_task, with_task
from runs.settings import DataSettings, GlueSettings, TrainingSettings
from training.checkpoints import (
    STARTING_WEIGHTS,
    Best,
    TrainState,
    find_start,
    input_hashes,
    run_fingerprint,
    was_finished,
)
from training.class_weights import check_class_weights, class_weights
from training.log import TrainingLog
from training.optimizer import make_optimizer, make_schedule
from training.score_scale import ScoreScale, start_heads
from training.starting_model import StartingModel
from training.teacher import Teacher, unlabelled_examples
from training.trainer import Batch, Trainer

logger = logging.getLogger(__name__)


def fine_tune(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Train, or resume a training to the last bit; do nothing where it is finished.

    Minimises the model's loss over all exits. The trained model ends in --output_dir.

    Raises UserError for whatever is wrong with flags and files, before the first step.
    """
    run = settings.run
    data = settings.data
    training = settings.training
    processes = accelerator.num_processes
    mode = MODES[settings.mode.model_type]
    task = find_task(data, None)
    check_any_answer(task)
    survey = TextSurvey()
    check_files_of_run(settings, task, survey)
    metric = parse_metric(mode, task, training.metric_for_best_model, "--metric_for_best_model")

    # What the training starts from.
    inputs = training_inputs(settings, task)
    if was_finished(run, run_fingerprint(settings, processes, inputs)):
        return
    start = StartingModel.of(settings.model, mode, settings.mode.keys, data.labels_in_order)
    checkpoint = find_start(run, [start.weights])
    spiece = start.spiece_file() if training.save_format == "pytorch" else None
    config = start.make_config(task)
    exit_keys = start.exit_keys(config)
    tokenizer = start.load_tokenizer(config, data.max_seq_length, run.do_lower_case)
    if checkpoint:
        model = mode.model_class(config)
        new_names = []  # the checkpoint has all weights
    else:
        model, new_names = start.make_model(config, task)
    features = training_features(
        task, data, tokenizer, config, run.seed, settings.model.teacher, accelerator, survey
    )
    for remark in survey.remarks(task):
        logger.warning("%s: %s", Split(task, data.folder, "train").path, remark)

    # What it changes.
    total = total_steps(training, len(features), processes)
    announce(settings, mode, task, accelerator, features.size, total)
    scale = ScoreScale.of(task, features)
    if task.is_regression:
        start_heads(model, new_names, features, scale)
    if training.train_exits_only:
        freeze_encoder(model)
    state = train_state(model, tokenizer, training, total, scale)
    weights = weigh_classes(model, training.class_weights, task, features, accelerator.device)

    report: dict[str, Any] = {"labels": label_names(model.config), **start.record()}
    if weights:
        report["class_weights"] = weights

    # The training itself.
    trainer = Trainer(
        accelerator,
        state,
        run=run,
        training=training,
        fingerprint=run_fingerprint(settings, processes, inputs, features.digest(), model.config),
        flags=as_dict(*settings._replace(data=with_task(data, task))),
        report=report,
    )
    trainer.begin(checkpoint)
    if accelerator.is_main_process:
        start.copy_exit_file(trainer.directory)
    batches = partial(
        training_batches,
        scale.standardised(features),
        accelerator,
        batch_size=training.per_gpu_train_batch_size * processes,
        pad_token_id=tokenizer.pad_token_id,
        seed=run.seed,
    )
    with TrainingLog(trainer, total, sums_of=mode.loss_parts, scalars=mode.scalars) as log:
        evaluate = None
        if training.looks_at_dev:
            job = dev_job(model, tokenizer, task, data, run.seed)
            evaluate = partial(evaluate_dev, mode, job, exit_keys, metric, log)
        accumulation = training.gradient_accumulation_steps
        trainer.fit(batches, total, log.step, evaluate, accumulation)
        trainer.finish(spiece)


def training_inputs(settings: GlueSettings, task: Task) -> dict[str, Any]:
    """Hash what a training of these settings reads, by what it is to the training."""
    data = settings.data
    start = settings.model
    tokenizer = Path(start.tokenizer_name or start.model_name_or_path)
    config = Path(start.config_name or start.model_name_or_path)
    if config.is_dir():
        config /= "config.json"
    inputs = {
        "training rows": [Split(task, data.folder, "train").path, data.unlabelled_file],
        STARTING_WEIGHTS: [start.model_name_or_path],
        "starting tokenizer": [tokenizer / name for name in TOKENIZER_FILES],
        "starting configuration": [config],
        "weights of the teacher": [start.teacher],
    }
    if settings.training.chooses_by_dev:
        inputs["dev rows"] = [Split(task, data.folder, "dev").path]
    return input_hashes(inputs)


# What is wrong with flags and files is said before the training, not hours later.


def check_files_of_run(settings: GlueSettings, task: Task, survey: TextSurvey) -> None:
    """Read all files but the training rows that the command, or a later one, will read."""
    data = settings.data
    evaluation = settings.evaluation
    looks_at_dev = evaluation.do_eval or settings.training.looks_at_dev
    check_files(
        task,
        data,
        # Files that are given are for a later command, if not for this one.
        dev=looks_at_dev or bool(data.validation_file),
        test=evaluation.do_predict or bool(data.test_file),
        survey=survey,
    )
    if settings.training.class_weights:
        check_class_weights(settings.training.class_weights, task)
    if evaluation.do_eval and evaluation.group_column:
        MODES[settings.mode.model_type].check_has_rules()
        for part, _ in evaluation_tasks(task):
            split = Split(part, data.folder, "dev")
            read_groups(split, evaluation.group_column, data.max_eval_samples)


def check_files(
    task: Task, data: DataSettings, dev: bool, test: bool, survey: TextSurvey | None = None
) -> None:
    """Read the dev files, the test files, or both, whole; UserError for what is wrong in them.

    survey: gets the dev examples.
    """
    if dev:
        for part, _ in evaluation_tasks(task):
            examples = list(Split(part, data.folder, "dev").examples(data.max_eval_samples))
            if survey:
                survey.dev(examples)
    if test:
        for part in prediction_tasks(task, data.folder):
            list(Split(part, data.folder, "test").examples())


def parse_metric(mode: Mode, task: Task, text: str | None, flag: str) -> MetricAtCost:
    """Read the metric that a flag names: METRIC, or METRIC@COST; by default the task's main one.

    Raises UserError for a metric at a cost of a mode that has one cost only.
    """
    metric = MetricAtCost.parse(text, task, flag)
    if metric.cost is not None:
        mode.check_has_rules()
    return metric


# The training data.


def training_features(
    task: Task,
    data: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    config: AdaptiveConfig,
    seed: int,
    teacher: str,
    accelerator: Accelerator,
    survey: TextSurvey,
) -> Features:
    """Tokenise the training set, truncated to --max_seq_length.

    With a `teacher`, a folder or "" for none, the examples of --unlabelled_file are added, and each
    example brings the teacher's answer: teacher_logits, (examples, num_labels). `survey` gets the
    examples of the training set.
    """
    length = data.max_seq_length
    examples = survey.train(Split(task, data.folder, "train").examples(data.max_train_samples))
    if not teacher:
        return encode(examples, tokenizer, length, config, seed)
    if task.multi_label:
        raise UserError(
            "--teacher: here an example may have several labels, and a teacher answers with one"
        )
    all_examples = list(examples)
    if data.unlabelled_file:
        all_examples.extend(unlabelled_examples(task, data.unlabelled_file))
    features = encode(all_examples, tokenizer, length, config, seed)
    soft_labels = Teacher(Path(teacher), task, length, data.labels_in_order).answers(
        all_examples, accelerator
    )
    return replace(features, inputs={**features.inputs, "teacher_logits": soft_labels})


def training_batches(
    features: Features,
    accelerator: Accelerator,
    epoch: int,
    first: int,
    *,
    batch_size: int,
    pad_token_id: int,
    seed: int,
) -> Iterator[Batch]:
    """Yield this process's part of the global batches of an epoch, from number `first` on.

    batch_size: examples of a global batch.
    """
    rank, processes = accelerator.process_index, accelerator.num_processes
    for rows in epoch_batches(features.lengths, batch_size, seed, epoch)[first:]:
        own_rows = rows[rank::processes]
        share = len(own_rows) / len(rows)
        if not len(own_rows):
            own_rows = rows[:1]  # every process takes part in a step: its share is 0
        inputs = collate(features, own_rows, pad_token_id)
        inputs = cast(dict[str, Tensor], send_to_device(inputs, accelerator.device))
        yield Batch(inputs, share)


# What a training changes.


def total_steps(training: TrainingSettings, examples: int, processes: int) -> int:
    """Count the optimiser steps on so many examples: at least one, but none in no epochs.

    Every epoch ends with a step, as in transformers, also where fewer batches are left for it than
    --gradient_accumulation_steps.
    """
    if training.max_steps > 0:
        return training.max_steps
    if not training.num_train_epochs:
        return 0
    batches = math.ceil(examples / (training.per_gpu_train_batch_size * processes))
    steps_of_epoch = math.ceil(batches / training.gradient_accumulation_steps)
    return max(1, int(steps_of_epoch * training.num_train_epochs))


def freeze_encoder(model: AlbertPreTrainedModel) -> None:
    """Leave only the exits to be trained, as in DeeBERT's second stage; a kept head is not."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(model.new_parts))


def weigh_classes(
    model: AlbertPreTrainedModel,
    texts: list[str] | None,
    task: Task,
    features: Features,
    device: torch.device,
) -> dict[str, float]:
    """Give the model's loss the weights of --class_weights, whose values are `texts`, if any.

    Returns the weights by class name; {} without the flag.
    """
    if not texts:
        return {}
    weights = class_weights(texts, task, labels_of(features))
    logger.info("Class weights: %s", {name: round(x, 4) for name, x in weights.items()})
    model.class_weights = torch.tensor(list(weights.values()), device=device)
    return weights


def train_state(
    model: AlbertPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    training: TrainingSettings,
    total: int,
    scale: ScoreScale,
) -> TrainState:
    """Make the optimiser of a model and the schedule of `total` steps."""
    optimizer = make_optimizer(model, training)
    warmup_steps = training.warmup_steps
    if not warmup_steps and training.warmup_ratio:
        warmup_steps = math.ceil(total * training.warmup_ratio)
    kind = training.lr_scheduler_type or "linear"
    return TrainState(
        model=model,
        tokenizer=tokenizer,
        optimizer=optimizer,
        schedule=make_schedule(optimizer, warmup_steps, total, kind),
        best=Best(
            patience=training.early_stopping_patience, keep=bool(training.load_best_model_at_end)
        ),
        scale=scale,
    )


# While it runs.


def dev_job(
    model: AlbertPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    data: DataSettings,
    seed: int,
) -> Job:
    """Make the job that evaluates the model in training on the dev set."""
    config: Any = model.config
    examples = Split(task, data.folder, "dev").examples(data.max_eval_samples)
    features = encode(examples, tokenizer, data.max_seq_length, config, seed)
    return Job(model, tokenizer, task, features, batch_size=32)


def evaluate_dev(
    mode: Mode, job: Job, exit_keys: Mapping[str, Any], metric: MetricAtCost, log: TrainingLog
) -> float:
    """Evaluate the model in training under some exit keys; log the result, and return `metric`."""
    own_keys = job.config.exit_keys()
    job.config.update(exit_keys)
    try:
        outcome = mode.evaluate_dev(job, metric)
    finally:
        job.config.update(own_keys)  # as config.json will have them
    log.write(outcome.line, outcome.scalars)
    return outcome.value


def announce(
    settings: GlueSettings,
    mode: Mode,
    task: Task,
    accelerator: Accelerator,
    examples: str,
    total: int,
) -> None:
    """Log what is about to be trained, on what; total: optimiser steps."""
    training = settings.training
    batch_size = training.per_gpu_train_batch_size * accelerator.num_processes
    log_facts(
        "Running training",
        {
            "Task": describe_task(task),
            "Model type": mode.name,
            "Device": f"{accelerator.device}, processes: {accelerator.num_processes}, "
            f"mixed precision {accelerator.mixed_precision}",
            "Keys": settings.mode.keys.line() or "defaults",
            "Seed": settings.run.seed,
            "Num examples": examples,
            "Max sequence length": settings.data.max_seq_length,
            "Total train batch size": batch_size * training.gradient_accumulation_steps,
            "Total optimization steps": total,
        },
    )
