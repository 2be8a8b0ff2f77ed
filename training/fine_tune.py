"""run_glue.py's training: from flags to a fine-tuned model."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from answers.metric import MetricAtCost
from answers.report import labels_of
from elbert.albert import AlbertPreTrainedModel
from elbert.configuration import AdaptiveConfig
from elbert.loading.configs import load_config
from elbert.loading.tokenizers import load_tokenizer
from elbert.loading.weights import load_model
from elbert_base.errors import UserError
from elbert_base.exit_settings import EXIT_FILE, KeyValues, overriding_file, read_exit_file
from elbert_base.files import find_file, read_json
from glue.features import Features, encode
from glue.tasks import Split, Task, about, evaluation_tasks, prediction_tasks
from modes import MODES
from modes.base import Mode
from runs.console import log_facts
from runs.files import RunFolder
from runs.job import Job, check_vocab_size, find_task
from runs.settings import DataSettings, GlueSettings, ModelSettings, RunSettings, TrainingSettings
from training.checkpoints import find_start
from training.steps import class_weights, task_batches, task_state, total_steps
from training.teacher import Teacher, unlabelled_examples
from training.trainer import Trainer, TrainingLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FineTuning:
    """What is trained, from what, on what, and how."""

    mode: Mode
    keys: KeyValues  # of the model's configuration, that flags set
    task: Task
    start: ModelSettings
    data: DataSettings
    training: TrainingSettings
    run: RunSettings

    @classmethod
    def of(cls, settings: GlueSettings) -> "FineTuning":
        """Resolve run_glue.py's settings; raises UserError for a task that cannot be found."""
        return cls(
            mode=MODES[settings.mode.model_type],
            keys=settings.mode.keys,
            task=find_task(settings.data, None),
            start=settings.model,
            data=settings.data,
            training=settings.training,
            run=settings.run,
        )

    @property
    def tokenizer_source(self) -> str:
        """Folder of the tokenizer."""
        return self.start.tokenizer_name or self.start.model_name_or_path

    @property
    def config_source(self) -> Path:
        """The config.json, or its folder, of the starting model."""
        return Path(self.start.config_name or self.start.model_name_or_path)


def fine_tune(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Train, or go on with a training to the last bit; nothing where it is finished.

    Minimises the model's loss over all exits; the trained model ends in --output_dir.
    """
    tuning = FineTuning.of(settings)
    training, task, mode = tuning.training, tuning.task, tuning.mode
    looks_at_dev = settings.evaluation.do_eval or training.looks_at_dev
    check_files(task, tuning.data, dev=looks_at_dev, test=settings.evaluation.do_predict)
    metric = chosen_metric(mode, task, training.metric_for_best_model, "--metric_for_best_model")
    source = tuning.start.model_name_or_path
    is_finished, checkpoint = find_start(settings, accelerator.num_processes, source)
    if is_finished:
        return
    spiece = published_pieces(training.save_format, tuning.tokenizer_source)
    config = new_config(tuning)
    tokenizer = new_tokenizer(tuning, config)
    model = mode.model_class(config) if checkpoint else new_model(tuning, config)
    features = training_features(tuning, accelerator, config, tokenizer)
    # ALBERT's own pooler has no part in a model whose exits have theirs.
    ddp: Any = accelerator.ddp_handler  # `make_accelerator` gives it one
    ddp.find_unused_parameters = not getattr(config, "use_out_pooler", True)
    total = total_steps(training, len(features), accelerator.num_processes)
    announce(tuning, accelerator, features.size, total)
    state = task_state(training, model, tokenizer, total, labelled_scores(task, features))
    weights = class_weights(training.class_weights or [], task, labels_of(features))
    if weights:
        logger.info("Class weights: %s", {name: round(x, 4) for name, x in weights.items()})
        model.class_weights = torch.tensor([*weights.values()], device=accelerator.device)
    report = {"class_weights": weights} if weights else {}
    trainer = Trainer(accelerator, state, settings, features.digest(), report)
    trainer.begin(checkpoint)
    if accelerator.is_main_process:
        copy_exit_file(tuning, trainer.directory)
    batches = partial(task_batches, trainer, features)
    with TrainingLog(trainer, total, mode.loss_parts, scalars=mode.scalars) as log:
        evaluate = None
        if training.looks_at_dev:
            job = dev_job(tuning, model, tokenizer)
            evaluate = dev_evaluation(mode, job, metric, log)
        trainer.fit(batches, total, log.step, evaluate)
        trainer.finish(spiece)


# What a training starts from.


def exit_file(tuning: FineTuning) -> Path | None:
    """Find the file of exit keys that --set or the starting configuration names, if any.

    It goes with the model.
    """
    if "exit_config_path" not in tuning.mode.table.keys:
        return None
    source, keys = tuning.config_source, tuning.keys.values
    path = source if source.is_file() else source / "config.json"
    config = read_json(path) if path.exists() else {}
    return overriding_file({**config, **keys}, path.parent, trusted="exit_config_path" in keys)


def new_config(tuning: FineTuning) -> AdaptiveConfig:
    """Make the configuration of a model for the task, with the keys that flags give."""
    mode, task, source = tuning.mode, tuning.task, tuning.config_source
    labels = dict(enumerate(task.labels)) or {0: "score"}
    config = load_config(
        source,
        mode.config_class,
        id2label=labels,
        label2id={label: i for i, label in labels.items()},
        num_labels=task.num_labels,
        # The starting model's is of its own task.
        problem_type="multi_label_classification" if task.multi_label else None,
        finetuning_task=task.name,
        **tuning.keys.values,
    )
    if exit_file(tuning):
        config.exit_config_path = EXIT_FILE
    for key, feature in mode.table.ignored.items():
        if feature and getattr(config, key, False) is True:
            logger.warning("%s: %s = true has no effect: no %s here", source, key, feature)
    return config


def new_tokenizer(tuning: FineTuning, config: AdaptiveConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer, with --max_seq_length as its limit, which is saved with it.

    Raises UserError when the tokenizer, or the length, is too large for the model.
    """
    source, length = tuning.tokenizer_source, tuning.data.max_seq_length
    tokenizer = load_tokenizer(source, tuning.run.do_lower_case)
    check_vocab_size(tokenizer, source, config)
    config.check_length(length)
    tokenizer.model_max_length = length
    return tokenizer


def new_model(tuning: FineTuning, config: AdaptiveConfig) -> AlbertPreTrainedModel:
    """Make a model with the checkpoint's weights; of one of another task, without its heads."""
    model_class, source = tuning.mode.model_class, tuning.start.model_name_or_path
    if tuning.start.from_scratch:
        logger.info("Weights newly initialised: all (--from_scratch)")
        return model_class(config)
    path = find_file(source, "config.json")
    trained_on = read_json(path).get("finetuning_task") if path else None
    is_other_task = trained_on not in (None, config.finetuning_task)
    model, report = load_model(model_class, source, config, is_other_task)
    for line in report.lines():
        logger.info(line)
    return model


def published_pieces(save_format: str, source: str) -> Path | None:
    """Find the spiece.model that --save_format pytorch copies; UserError where there is none."""
    if save_format != "pytorch":
        return None
    if path := find_file(source, "spiece.model"):
        return path
    raise UserError(
        f"--save_format pytorch: no spiece.model in {source}, and ELBERT's published code "
        "reads no other tokenizer; name a folder that has one with --tokenizer_name"
    )


def check_files(task: Task, data: DataSettings, dev: bool, test: bool) -> None:
    """Read the dev or test files whole, to raise UserError for them before the training."""
    for part, _ in evaluation_tasks(task) if dev else []:
        list(Split(part, data.folder, "dev").examples(data.max_eval_samples))
    for part in prediction_tasks(task, data.folder) if test else []:
        list(Split(part, data.folder, "test").examples())


def chosen_metric(mode: Mode, task: Task, text: str | None, flag: str) -> MetricAtCost:
    """Read a flag's metric; UserError for one at a cost, of a mode that has one cost only."""
    metric = MetricAtCost.parse(text, task, flag)
    if metric.cost is not None:
        mode.check_has_rules()
    return metric


def training_features(
    tuning: FineTuning,
    accelerator: Accelerator,
    config: AdaptiveConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> Features:
    """Tokenise the training set; with --teacher also its answers, and --unlabelled_file."""
    data, task, seed = tuning.data, tuning.task, tuning.run.seed
    length = data.max_seq_length
    examples = Split(task, data.folder, "train").examples(data.max_train_samples)
    if not tuning.start.teacher:
        return encode(examples, tokenizer, length, config, seed)
    if task.multi_label:
        raise UserError("--teacher: an example has several labels here; a teacher answers one")
    examples = list(examples)
    if data.unlabelled_file:
        examples += unlabelled_examples(task, data.unlabelled_file)
    features = encode(examples, tokenizer, length, config, seed)
    teacher = Teacher(Path(tuning.start.teacher), task, length)
    soft_labels = {"teacher_logits": teacher.answers(examples, accelerator)}
    return replace(features, inputs={**features.inputs, **soft_labels})


def labelled_scores(task: Task, features: Features) -> list[float]:
    """Return the scores of a regression's examples that have one; [] for classes."""
    if not task.is_regression or features.labels is None:
        return []
    scores = np.asarray(features.labels, float)
    return scores[~np.isnan(scores)].tolist()


# While it runs.


def copy_exit_file(tuning: FineTuning, directory: Path) -> None:
    """Copy the starting model's exit keys into `directory`.

    Not where a training that is resumed has them there already, perhaps edited.
    """
    source = exit_file(tuning)
    if source and not (directory / EXIT_FILE).exists():
        flags = tuning.keys.values  # they win over the file
        keys = {key: x for key, x in read_exit_file(source).items() if key not in flags}
        RunFolder(directory).write_json(EXIT_FILE, keys)


def dev_job(
    tuning: FineTuning, model: AlbertPreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Job:
    """Make the job that evaluates the model in training on the dev set."""
    data = tuning.data
    config: Any = model.config
    examples = Split(tuning.task, data.folder, "dev").examples(data.max_eval_samples)
    features = encode(examples, tokenizer, data.max_seq_length, config, tuning.run.seed)
    return Job(model, tokenizer, tuning.task, features, batch_size=32)


def dev_evaluation(
    mode: Mode, job: Job, metric: MetricAtCost, log: TrainingLog
) -> Callable[[], float]:
    """Make what a training calls at each logging step: it logs, and returns `metric`."""

    def evaluate() -> float:
        outcome = mode.evaluate_dev(job, metric)
        log.write(outcome.line, outcome.scalars)
        return outcome.value

    return evaluate


def announce(tuning: FineTuning, accelerator: Accelerator, examples: str, total: int) -> None:
    """Log what is about to be trained, on what; total: optimiser steps."""
    training = tuning.training
    batch = training.per_gpu_train_batch_size * accelerator.num_processes
    log_facts(
        "Running training",
        {
            "Task": about(tuning.task),
            "Model type": tuning.mode.name,
            "Device": f"{accelerator.device}, {accelerator.num_processes} process(es), "
            f"mixed precision {accelerator.mixed_precision}",
            "Keys": tuning.keys.line() or "defaults",
            "Seed": tuning.run.seed,
            "Num examples": examples,
            "Max sequence length": tuning.data.max_seq_length,
            "Total train batch size": batch * training.gradient_accumulation_steps,
            "Total optimization steps": total,
        },
    )
