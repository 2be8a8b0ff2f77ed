"""Fine-tuning on a task: what a run starts from, its examples, and its training."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, send_to_device
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from glue.cache import cache_path, cached_features
from glue.custom import custom_task
from glue.features import Features, collate, encode, epoch_batches
from glue.submission import check_test_set
from glue.tasks import (
    Split,
    Task,
    evaluation_tasks,
    get_task,
    prediction_tasks,
    read_examples,
)
from modeling.compilation import compile_for_training
from modeling.errors import UserError
from modeling.loading.configs import ORIGIN_KEYS, load_config, trained_task
from modeling.loading.files import weight_files
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import LoadReport
from training.checkpoints import Learner, file_stamp
from training.fine_tuning_settings import DataSettings, ModelSettings, TrainingSettings
from training.logs import ProgressLog
from training.loop import Batch, Identity, Step, Training, data_hash
from training.optimizer import make_optimizer, make_schedule
from training.settings import RunSettings
from training.start import make_accelerator

logger = logging.getLogger(__name__)


class Mode(Protocol):
    """What fine-tuning asks of a mode; the modes themselves are in `evaluation.modes`."""

    model_class: type[PreTrainedModel]
    extra_tokens: int

    def load_config(self, source: str, cache_dir: str | None, **keys: Any) -> PreTrainedConfig: ...

    def load(
        self, source: str, config: PreTrainedConfig, cache_dir: str | None, other_task: bool
    ) -> tuple[PreTrainedModel, LoadReport]: ...

    def check_length(self, max_seq_length: int, config: PreTrainedConfig) -> None: ...

    def prepare(self, features: Features, seed: int) -> Features: ...

    def scalars(self, model: PreTrainedModel, out: ModelOutput) -> dict[str, float]: ...


# The examples.


def find_task(data: DataSettings, trained: Path | None) -> Task:
    """The GLUE task, or the user's own from its files, with the labels of a `trained` model."""
    if not (data.train_file or data.validation_file or data.test_file):
        if not data.task_name:
            raise UserError("--task_name is missing; give one of GLUE's, or your own --train_file")
        if not data.data_dir:
            raise UserError("--data_dir is missing: the folder with the task's .tsv files")
        return get_task(data.task_name)
    labels = None
    if trained:
        config = load_config(trained)
        labels = (
            [] if config.num_labels == 1 else [config.id2label[i] for i in range(config.num_labels)]
        )
    return custom_task(data.train_file, data.validation_file, data.test_file, labels)


def check_files(task: Task, folder: str, dev: bool, test: bool, whole: bool) -> None:
    """UserError for a dev or test file that is missing: worth knowing before a training.

    `whole`: the test files, for a submission, must be GLUE's own.
    """
    for part, _ in evaluation_tasks(task) if dev else []:
        read_examples(part, folder, "dev", 1)
    for part in prediction_tasks(task, folder) if test else []:
        count = sum(1 for _ in Split(part, folder, "test").examples(None if whole else 1))
        if whole:
            check_test_set(part, count)


@dataclass(frozen=True)
class Reader:
    """Tokens of a task's files as a mode's models read them.

    source: the model that training starts from; names the cache of tokens.
    seed: of what a mode draws for each example.
    """

    mode: Mode
    data: DataSettings
    source: str
    seed: int

    def read(
        self, task: Task, tokenizer: PreTrainedTokenizerBase, split: str, limit: int | None
    ) -> Features:
        """A split, or its first `limit` examples; only whole GLUE splits are cached."""
        data, file = self.data, Split(task, self.data.folder, split)
        length = data.max_seq_length - self.mode.extra_tokens
        if data.data_dir and limit is None:
            cache = cache_path(data.data_dir, split, self.source, length, task.name)
            features = cached_features(cache, file, tokenizer, length, data.overwrite_cache)
        else:
            features = encode(file.examples(limit), tokenizer, length)
        return self.mode.prepare(features, self.seed)

    def training_set(self, task: Task, tokenizer: PreTrainedTokenizerBase) -> Features:
        return self.read(task, tokenizer, "train", self.data.max_train_samples)

    def dev_set(self, task: Task, tokenizer: PreTrainedTokenizerBase) -> Features:
        return self.read(task, tokenizer, "dev", self.data.max_eval_samples)

    def test_set(self, task: Task, tokenizer: PreTrainedTokenizerBase) -> Features:
        return self.read(task, tokenizer, "test", None)


# The model.


@dataclass(frozen=True)
class StartingPoint:
    """The model that a training on `task` starts from.

    keys: of its configuration, that differ from the checkpoint's.
    """

    mode: Mode
    settings: ModelSettings
    task: Task
    keys: dict[str, Any]

    def config(self) -> PreTrainedConfig:
        task, labels = self.task, dict(enumerate(self.task.labels or ["score"]))
        return self.mode.load_config(
            self.settings.config_name or self.settings.model_name_or_path,
            self.settings.cache,
            id2label=labels,
            label2id={label: i for i, label in labels.items()},
            num_labels=task.num_labels,
            finetuning_task=task.name,
            **self.keys,
        )

    def tokenizer(
        self, config: PreTrainedConfig, max_seq_length: int, do_lower_case: bool
    ) -> PreTrainedTokenizerBase:
        """The tokenizer; UserError when it, or --max_seq_length, is too large for the model."""
        source = self.settings.tokenizer_name or self.settings.model_name_or_path
        tokenizer = load_tokenizer(source, do_lower_case, self.settings.cache)
        if len(tokenizer) > config.vocab_size:
            raise UserError(
                f"{source}: the tokenizer has {len(tokenizer)} pieces, vocab_size is"
                f" {config.vocab_size}"
            )
        self.mode.check_length(max_seq_length, config)
        return tokenizer

    def model(self, config: PreTrainedConfig) -> PreTrainedModel:
        """With the checkpoint's weights; of one of another task, without its heads."""
        if self.settings.from_scratch:
            logger.info("Weights newly initialised: all (--from_scratch)")
            return self.mode.model_class(config)
        source, cache = self.settings.model_name_or_path, self.settings.cache
        other = trained_task(source, cache) not in (None, self.task.name)
        model, report = self.mode.load(source, config, cache, other)
        for line in report.lines():
            logger.info(line)
        return model

    def load(
        self, max_seq_length: int, do_lower_case: bool
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        config = self.config()
        tokenizer = self.tokenizer(config, max_seq_length, do_lower_case)
        return self.model(config), tokenizer

    def content_hash(self, config: PreTrainedConfig) -> str:
        """SHA-256 of configuration and weights, wherever they lie."""
        kept = {name: v for name, v in config.to_dict().items() if name not in ORIGIN_KEYS}
        files = []
        if not self.settings.from_scratch:
            files = weight_files(self.settings.model_name_or_path, self.settings.cache)
        return data_hash(sorted(kept.items()), list(map(file_stamp, files)))


def content_hashes(start: StartingPoint, reader: Reader, do_lower_case: bool) -> dict[str, str]:
    """SHA-256 of what the runs of a search start from; see `training.search.CONTENTS`."""
    config, task = start.config(), start.task
    tokenizer = start.tokenizer(config, reader.data.max_seq_length, do_lower_case)
    sets = reader.training_set(task, tokenizer), reader.dev_set(task, tokenizer)
    # Draws follow from --seed, which the runs of a search may change.
    digests = [replace(features, draws=None).digest() for features in sets]
    return {
        "starting model": start.content_hash(config),
        "examples or tokens": data_hash(*digests),
    }


# The training.


@dataclass(frozen=True)
class Plan:
    """How a run trains.

    compiled: compile the layer pass?
    everything: all settings of the script, which a checkpoint keeps.
    """

    run: RunSettings
    training: TrainingSettings
    compiled: bool
    everything: tuple[Any, ...]

    def accelerator(self) -> Accelerator:
        """The device, and the processes beside this one."""
        how, precision = self.training, "no"
        if self.run.bf16:
            precision = "bf16"
        elif how.fp16 and how.fp16_opt_level != "O0":
            precision = "fp16"
        return make_accelerator(
            self.run.no_cuda,
            precision,
            gradient_accumulation_steps=how.gradient_accumulation_steps,
            # ALBERT's own pooler, for one, has no part in a model whose exits have theirs.
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )

    def total_steps(self, examples: int, batch_size: int) -> int:
        """Optimiser steps, for batches of `batch_size` examples over all processes."""
        if self.training.max_steps > 0:
            return self.training.max_steps
        batches = -(-examples // batch_size)
        steps = int(batches * self.training.num_train_epochs)
        return max(1, steps // self.training.gradient_accumulation_steps)


class TrainingLog(ProgressLog):
    """The published JSON lines, and what the mode logs."""

    def __init__(self, training: Training, every: int, total: int, mode: Mode) -> None:
        super().__init__(training, every, total)
        self.model, self.mode = training.learner.model, mode
        self.losses: list[float] = []  # since the last logging step

    def step(self, step: Step) -> bool:
        """After an optimiser step; returns whether a logging step was due."""
        self.losses.append(step.loss)
        if not self.advance(step):
            return False
        mean = sum(self.losses) / len(self.losses)
        values = {"learning_rate": step.learning_rate, "loss": mean}
        self.losses = []
        self.scalars(values, step.number)
        self.line({**values, "step": step.number})
        self.scalars(self.mode.scalars(self.model, step.outs[-1]), step.number)
        return True


class Material(NamedTuple):
    """What a training works on."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    features: Features
    regression: bool


def train(
    plan: Plan,
    accelerator: Accelerator,
    mode: Mode,
    material: Material,
    checkpoint: Path | None,
) -> Iterator[tuple[Step, TrainingLog]]:
    """Minimise the model's loss over all exits; the trained model ends in --output_dir.

    Yields after every logging step. With `checkpoint`, goes on from there: the same steps, to the
    last bit.
    """
    how, features = plan.training, material.features
    examples = len(features)
    batch_size = how.per_gpu_train_batch_size * accelerator.num_processes
    total = plan.total_steps(examples, batch_size)
    logger.info("***** Running training *****")
    logger.info("  Num examples = %d", examples)
    logger.info("  Total train batch size = %d", batch_size * how.gradient_accumulation_steps)
    logger.info("  Total optimization steps = %d", total)
    identity = Identity.of(plan.everything, batch_size, features.digest())
    learner = make_learner(plan, material, total)
    training = Training(accelerator, learner, plan.run, how.save_steps, identity)
    training.begin(checkpoint)
    epoch = partial(my_batches, training, features)
    with TrainingLog(training, how.logging_steps, total, mode) as log:
        for step in training.kept(training.steps(epoch, total)):
            if log.step(step):
                yield step, log


def make_learner(plan: Plan, material: Material, total_steps: int) -> Learner:
    how, model = plan.training, material.model
    if material.regression:
        start_at_mean(model, material.features.labels.tolist())
    optimizer = make_optimizer(model, how.learning_rate, how.weight_decay, how.adam_epsilon)
    schedule = make_schedule(optimizer, how.warmup_steps, total_steps)
    if how.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if plan.compiled:
        compile_for_training(model)
    return Learner(model, material.tokenizer, optimizer, schedule)


@torch.no_grad()
def start_at_mean(model: PreTrainedModel, scores: Sequence[float]) -> None:
    """Let new regression heads begin with the answer `mean(scores)`.

    Otherwise the first steps all push towards it, which saturates the pooler's tanh and leaves
    little of what tells examples apart. A head that was trained before has another bias than 0.
    """
    for name, module in model.named_modules():
        head = "classifier" in name and isinstance(module, torch.nn.Linear)
        if head and module.out_features == 1 and module.bias == 0:
            module.bias.fill_(sum(scores) / len(scores))


def my_batches(training: Training, features: Features, epoch: int, first: int) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on."""
    accelerator, pad = training.accelerator, training.learner.tokenizer.pad_token_id
    batch_size, seed = training.identity.batch_size, training.run.seed
    for rows in epoch_batches(features.lengths, batch_size, seed, epoch)[first:]:
        mine = rows[accelerator.process_index :: accelerator.num_processes]
        # Every process takes part in a step: one without rows of its own repeats one, for nothing.
        inputs = collate(features, mine if len(mine) else rows[:1], pad)
        yield Batch(send_to_device(inputs, accelerator.device), len(mine) / len(rows))
