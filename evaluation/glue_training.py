"""run_glue.py's training: a model from its start to the end of a training, or a search for one."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from transformers import AlbertConfig, PreTrainedModel, PreTrainedTokenizerBase

from evaluation.glue_evaluation import features_of, mode_of
from evaluation.job import Job, find_task
from evaluation.modes.base import Mode
from evaluation.settings import GROUPS, GlueSettings
from glue.features import Features
from glue.tasks import Split, Task, about, evaluation_tasks, prediction_tasks
from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE, overriding_file, read_exit_file
from modeling.loading.configs import load_config
from modeling.loading.files import find_file, read_json, weight_file
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import load_model
from training.checkpoints import find_start
from training.fine_tuning import MetricAtCost, class_weights, task_batches, task_state, total_steps
from training.search import Search, flags_of_every_run, run_search
from training.start import check_vocab_size
from training.teacher import Teacher, unlabelled_examples
from training.trainer import Trainer, TrainingLog
from utils.console import log_facts
from utils.files import file_fingerprint, fingerprint, write_json
from utils.flags import entries

logger = logging.getLogger(__name__)


# What a training starts from.


def exit_file(settings: GlueSettings) -> Path | None:
    """Find the file of exit keys that --set or the starting configuration names: it goes with the
    model."""
    source = Path(settings.model.config_name or settings.model.model_name_or_path)
    path = source if source.is_file() else source / "config.json"
    if "exit_config_path" not in mode_of(settings).table.keys:
        return None
    config, keys = read_json(path) if path.exists() else {}, settings.mode.keys.values
    return overriding_file(config | keys, path.parent, "exit_config_path" in keys)


def new_config(settings: GlueSettings, task: Task) -> AlbertConfig:
    """Make the configuration of a model for `task`, with the keys that flags give."""
    mode, source, labels = mode_of(settings), settings.model, dict(enumerate(task.labels))
    labels = labels or {0: "score"}
    path = source.config_name or source.model_name_or_path
    config = load_config(
        path,
        mode.config_class,
        id2label=labels,
        label2id={label: i for i, label in labels.items()},
        num_labels=task.num_labels,
        # The starting model's is of its own task.
        problem_type="multi_label_classification" if task.multi_label else None,
        finetuning_task=task.name,
        **settings.mode.keys.values,
    )
    if exit_file(settings):
        config.exit_config_path = EXIT_FILE
    for key, meaning in mode.table.ignored.items():
        if meaning and getattr(config, key, False) is True:
            logger.warning("%s: %s = true has no effect: no %s here", path, key, meaning)
    return config


def new_tokenizer(settings: GlueSettings, config: AlbertConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer; UserError when it, or --max_seq_length, is too large for the model."""
    source = settings.model.tokenizer_name or settings.model.model_name_or_path
    tokenizer = load_tokenizer(source, settings.run.do_lower_case)
    check_vocab_size(tokenizer, source, config)
    mode_of(settings).check_length(settings.data.max_seq_length, config)
    return tokenizer


def new_model(settings: GlueSettings, config: AlbertConfig) -> PreTrainedModel:
    """Make a model with the checkpoint's weights; of one of another task, without its heads."""
    model_class, source = mode_of(settings).model_class, settings.model.model_name_or_path
    if settings.model.from_scratch:
        logger.info("Weights newly initialised: all (--from_scratch)")
        return model_class(config)
    path = find_file(source, "config.json")
    trained_on = read_json(path).get("finetuning_task") if path else None
    other = trained_on not in (None, config.finetuning_task)
    model, report = load_model(model_class, source, config, other)
    for line in report.lines():
        logger.info(line)
    return model


def published_pieces(settings: GlueSettings) -> Path | None:
    """Find the spiece.model that --save_format pytorch copies; UserError where there is none."""
    if settings.training.save_format != "pytorch":
        return None
    source = settings.model.tokenizer_name or settings.model.model_name_or_path
    if found := find_file(source, "spiece.model"):
        return found
    raise UserError(
        f"--save_format pytorch: no spiece.model in {source}, and ELBERT's published code "
        "reads no other tokenizer; name a folder that has one with --tokenizer_name"
    )


def check_files(settings: GlueSettings, task: Task, dev: bool) -> None:
    """UserError for anything wrong with a dev or test file: worth knowing before training.

    They are read whole.
    """
    folder, limit = settings.data.folder, settings.data.max_eval_samples
    for part, _ in evaluation_tasks(task) if dev else []:
        list(Split(part, folder, "dev").examples(limit))
    for part in prediction_tasks(task, folder) if settings.evaluation.do_predict else []:
        list(Split(part, folder, "test").examples())


def chosen_metric(mode: Mode, task: Task, text: str | None, flag: str) -> MetricAtCost:
    """Read a flag's metric; UserError for one at a cost, of a mode that has one cost only."""
    metric = MetricAtCost.parse(text, task, flag)
    if metric.cost is not None:
        mode.check_has_rules()
    return metric


def training_features(
    settings: GlueSettings,
    accelerator: Accelerator,
    config: AlbertConfig,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
) -> Features:
    """Tokenise the training set; with --teacher also its answers, and --unlabelled_file."""
    data, length = settings.data, settings.data.max_seq_length
    split, seed = Split(task, data.folder, "train"), settings.run.seed
    if not settings.model.teacher:
        return features_of(settings, config, tokenizer, split)
    if task.multi_label:
        raise UserError("--teacher: an example has several labels here; a teacher answers one")
    examples = list(split.examples(data.max_train_samples))
    if data.unlabelled_file:
        examples += unlabelled_examples(task, data.unlabelled_file)
    features = mode_of(settings).features(config, examples, tokenizer, length, seed=seed)
    teacher = Teacher(Path(settings.model.teacher), task, length)
    answers = {"teacher_logits": teacher.answers(examples, accelerator)}
    return replace(features, inputs={**features.inputs, **answers})


# A training.


def fine_tune(settings: GlueSettings, accelerator: Accelerator) -> None:
    """Train, or go on with a training to the last bit; nothing where it is finished.

    Minimises the model's loss over all exits; the trained model ends in --output_dir.
    """
    training, mode, task = settings.training, mode_of(settings), find_task(settings.data, None)
    check_files(settings, task, dev=settings.evaluation.do_eval or training.looks_at_dev)
    wanted = training.metric_for_best_model, "--metric_for_best_model"
    metric = chosen_metric(mode, task, *wanted)
    source = settings.model.model_name_or_path
    is_finished, checkpoint = find_start(settings, accelerator.num_processes, source)
    if is_finished:
        return
    spiece = published_pieces(settings)
    config = new_config(settings, task)
    tokenizer = new_tokenizer(settings, config)
    model = mode.model_class(config) if checkpoint else new_model(settings, config)
    features = training_features(settings, accelerator, config, tokenizer, task)
    # ALBERT's own pooler has no part in a model whose exits have theirs.
    accelerator.ddp_handler.find_unused_parameters = not getattr(config, "use_out_pooler", True)
    total = total_steps(training, len(features), accelerator.num_processes)
    weights = class_weights(training.class_weights or [], task, features.labels)
    announce(settings, accelerator, task, features.size, total)
    scores = np.asarray(features.labels if task.is_regression else [], float)
    state = task_state(training, model, tokenizer, total, scores[~np.isnan(scores)].tolist())
    if weights:
        logger.info("Class weights: %s", {name: round(x, 4) for name, x in weights.items()})
        model.class_weights = torch.tensor([*weights.values()], device=accelerator.device)
    about = {"class_weights": weights} if weights else {}
    trainer = Trainer(accelerator, state, settings, features.digest(), about)
    trainer.begin(checkpoint)
    if accelerator.is_main_process:
        copy_exit_file(settings, trainer.directory)
    batches = partial(task_batches, trainer, features)
    with TrainingLog(trainer, total, mode.loss_parts, scalars=mode.scalars) as log:
        evaluate = None
        if training.looks_at_dev:
            dev = Split(task, settings.data.folder, "dev")
            dev = features_of(settings, config, tokenizer, dev)
            job = Job(mode, model, tokenizer, task, dev, batch_size=32)
            evaluate = dev_evaluation(job, metric, log)
        trainer.fit(batches, total, log.step, evaluate)
        trainer.finish(spiece)


def copy_exit_file(settings: GlueSettings, directory: Path) -> None:
    """Copy the starting model's exit keys into `directory`, unless a training that is resumed has
    them there already, perhaps edited."""
    source, copy = exit_file(settings), directory / EXIT_FILE
    if source and not copy.exists():
        given = settings.mode.keys.values  # which win over the file
        keys = {k: value for k, value in read_exit_file(source).items() if k not in given}
        write_json(copy, keys, listed_in=directory)


def dev_evaluation(job: Job, metric: MetricAtCost, log: TrainingLog) -> Callable[[], float]:
    """Make what a training calls at each logging step: it logs, and returns `metric`."""

    def evaluate() -> float:
        scalars, line, value = job.mode.dev_scalars(job, metric)
        log.write(line, scalars)
        return value

    return evaluate


def announce(
    settings: GlueSettings, accelerator: Accelerator, task: Task, examples: str, total: int
) -> None:
    """Log what is about to be trained, on what."""
    training, mode = settings.training, mode_of(settings)
    batch = training.per_gpu_train_batch_size * accelerator.num_processes
    log_facts(
        "Running training",
        {
            "Task": about(task),
            "Model type": mode.name,
            "Device": f"{accelerator.device}, {accelerator.num_processes} process(es), "
            f"mixed precision {accelerator.mixed_precision}",
            "Keys": settings.mode.keys.line() or "defaults",
            "Seed": settings.run.seed,
            "Num examples": examples,
            "Max sequence length": settings.data.max_seq_length,
            "Total train batch size": batch * training.gradient_accumulation_steps,
            "Total optimization steps": total,
        },
    )


# A search.


def search(settings: GlueSettings, argv: Sequence[str]) -> Path:
    """Run a search; the directory of its best model. argv: this call's flags."""
    flags, given = flags_of_every_run(argv, GROUPS), settings.search
    mode, task = mode_of(settings), find_task(settings.data, None)
    metric = chosen_metric(mode, task, given.hp_metric, "--hp_metric")
    check_files(settings, task, dev=True)
    # What machines that share a search must agree in.
    shared = {name: value for name, value, allowed in entries(*settings) if not allowed.resuming}
    shared["dtype"] = settings.evaluation.dtype
    # ELBERT by its published name: an earlier version's search goes on.
    shared["model_type"] = name = "albert" if mode.name == "elbert" else mode.name
    wanted = Search(
        settings=given,
        task=task,
        metric=metric,
        name=given.hp_study or f"{name}-{task.name}",
        output_dir=Path(settings.run.output_dir),
        flags=flags,
        fingerprint=shared | content_hashes(settings, task),
    )
    return run_search(wanted)


def content_hashes(settings: GlueSettings, task: Task) -> dict[str, str]:
    """SHA-256 of the files that the runs of a search start from, wherever these lie."""
    source, data = settings.model, settings.data
    config = Path(source.config_name or source.model_name_or_path)
    model = [config if config.is_file() else config / "config.json"]
    model += [] if source.from_scratch else [weight_file(source.model_name_or_path)]
    teaching = [Path(data.unlabelled_file)] if data.unlabelled_file else []
    teaching += [weight_file(source.teacher)] if source.teacher else []
    named = {
        "the model of --teacher, or --unlabelled_file": teaching,
        "the model of --model_name_or_path and --config_name": model,
        "the examples of --data_dir or --train_file": [
            Split(task, data.folder, name).path for name in ("train", "dev")
        ],
    }
    return {name: fingerprint(*map(file_fingerprint, files)) for name, files in named.items()}
