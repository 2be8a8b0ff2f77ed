"""What run_glue.py does: a model is trained, evaluated, answers a test set, or is searched for."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from transformers import AlbertConfig, PreTrainedModel, PreTrainedTokenizerBase

from evaluation.job import DTYPES, Job, find_task, load_trained, results_folder
from evaluation.modes import MODES, trained_mode
from evaluation.modes.base import Mode
from evaluation.onnx_file import OnnxFile
from evaluation.predictions import is_main
from evaluation.results import check_results, predict
from evaluation.settings import GROUPS, GlueSettings
from glue.features import Features
from glue.tasks import Split, Task, about, evaluation_tasks, prediction_tasks, read_examples
from modeling.cpu_packing import EMULATED, is_emulated
from modeling.depth import layer_groups
from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE, overriding_file, read_exit_file, resolve
from modeling.loading.configs import ORIGIN_KEYS, load_config
from modeling.loading.files import find_file, read_json, weight_files, weights_hash
from modeling.loading.tokenizers import load_tokenizer
from modeling.loading.weights import load_model
from training.checkpoints import checkpoints_of, find_start
from training.fine_tuning import MetricAtCost, task_batches, task_state, total_steps
from training.provenance import check_inputs, note, provenance, provenance_in, write_result
from training.search import Search, flags_of_every_run, run_search
from training.settings import as_dict, entries
from training.start import (
    check_output_dir,
    check_vocab_size,
    lock_output_dir,
    make_accelerator,
    start_script,
)
from training.trainer import Trainer, TrainingLog, start_trackers
from utils.console import log_facts
from utils.files import file_fingerprint, fingerprint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GlueRun:
    """The flags of a call of run_glue.py, and all that they ask for."""

    settings: GlueSettings

    @property
    def mode(self) -> Mode:
        return MODES[self.settings.mode.model_type]

    @property
    def directory(self) -> Path:
        return Path(self.settings.run.output_dir)

    @cached_property
    def task(self) -> Task:
        new = self.settings.run.do_train or self.settings.search.hp_search
        return find_task(self.settings.data, None if new else self.directory)

    @cached_property
    def accelerator(self) -> Accelerator:
        """The device, and the processes beside this one."""
        run, training = self.settings.run, self.settings.training
        fp16 = training.fp16 and training.fp16_opt_level != "O0"
        return make_accelerator(
            run.no_cuda,
            "bf16" if run.bf16 else "fp16" if fp16 else "no",
            gradient_accumulation_steps=training.gradient_accumulation_steps,
            # ALBERT's own pooler, for one, has no part in a model whose exits have theirs.
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )

    @contextmanager
    def session(self) -> Iterator[None]:
        """Logging, the seed, and an --output_dir that can take the results."""
        run = self.settings.run
        start_script(self.accelerator, run.seed)
        files = ("train_file", "validation_file", "test_file")
        check_inputs(run.output_dir, {name: getattr(self.settings.data, name) for name in files})
        check_output_dir(run, run.do_train)
        with lock_output_dir(run.output_dir, self.accelerator, run.do_train):
            yield

    def check_files(self, dev: bool) -> None:
        """UserError for anything wrong with a dev or test file: worth knowing before training.

        They are read whole.
        """
        folder, evaluation = self.settings.data.folder, self.settings.evaluation
        for part, _ in evaluation_tasks(self.task) if dev else []:
            list(Split(part, folder, "dev").examples(self.settings.data.max_eval_samples))
        for part in prediction_tasks(self.task, folder) if evaluation.do_predict else []:
            list(Split(part, folder, "test").examples())

    def features(
        self, config: AlbertConfig, task: Task, tokenizer: PreTrainedTokenizerBase, split: str
    ) -> Features:
        """A split's tokens, as the mode's models read them."""
        data, seed = self.settings.data, self.settings.run.seed
        limit = {"train": data.max_train_samples, "dev": data.max_eval_samples}.get(split)
        examples = Split(task, data.folder, split).examples(limit)
        return self.mode.features(config, examples, tokenizer, data.max_seq_length, seed=seed)

    @cached_property
    def exit_file(self) -> Path | None:
        """The file of exit keys that --set or the starting configuration names: it goes with the
        model."""
        source = Path(self.settings.model.config_name or self.settings.model.model_name_or_path)
        path = source if source.is_file() else source / "config.json"
        if "exit_config_path" not in self.mode.table.keys:
            return None
        config, keys = read_json(path) if path.exists() else {}, self.settings.mode.keys.values
        return overriding_file(config | keys, path.parent, "exit_config_path" in keys)

    def new_config(self) -> AlbertConfig:
        source, labels = self.settings.model, dict(enumerate(self.task.labels or ["score"]))
        path = source.config_name or source.model_name_or_path
        config = load_config(
            path,
            self.mode.model_class.config_class,
            id2label=labels,
            label2id={label: i for i, label in labels.items()},
            num_labels=self.task.num_labels,
            problem_type=None,  # of the starting model's task
            finetuning_task=self.task.name,
            **self.settings.mode.keys.values,
        )
        if self.exit_file:
            config.exit_config_path = EXIT_FILE
        for key, meaning in self.mode.table.ignored.items():
            if meaning and getattr(config, key, False) is True:
                logger.warning("%s: %s = true has no effect: no %s here", path, key, meaning)
        return config

    def new_tokenizer(self, config: AlbertConfig) -> PreTrainedTokenizerBase:
        """The tokenizer; UserError when it, or --max_seq_length, is too large for the model."""
        model = self.settings.model
        source = model.tokenizer_name or model.model_name_or_path
        tokenizer = load_tokenizer(source, self.settings.run.do_lower_case)
        check_vocab_size(tokenizer, source, config)
        self.mode.check_length(self.settings.data.max_seq_length, config)
        return tokenizer

    def new_model(self, config: AlbertConfig) -> PreTrainedModel:
        """With the checkpoint's weights; of one of another task, without its heads."""
        if self.settings.model.from_scratch:
            logger.info("Weights newly initialised: all (--from_scratch)")
            return self.mode.model_class(config)
        source = self.settings.model.model_name_or_path
        path = find_file(source, "config.json")
        trained_on = read_json(path).get("finetuning_task") if path else None
        other = trained_on not in (None, self.task.name)
        model, report = load_model(self.mode.model_class, source, config, other)
        for line in report.lines():
            logger.info(line)
        new_pooler = "albert.pooler.weight" in report.initialised
        if new_pooler and getattr(config, "pooler_input", None) == "cls":
            logger.info(
                "%s has no pooler, so the exits' pooler starts new, on a [CLS] that was not "
                "pre-trained for classes: --set pooler_input=mean often learns better",
                source,
            )
        return model

    def content_hashes(self) -> dict[str, str]:
        """SHA-256 of what the runs of a search start from, wherever that lies."""
        config, source = self.new_config(), self.settings.model
        tokenizer = self.new_tokenizer(config)
        kept = {name: v for name, v in config.to_dict().items() if name not in ORIGIN_KEYS}
        files = [] if source.from_scratch else weight_files(source.model_name_or_path)
        model = fingerprint(sorted(kept.items()), list(map(file_fingerprint, files)))
        sets = [self.features(config, self.task, tokenizer, part) for part in ("train", "dev")]
        # Draws follow from --seed, which the runs of a search may change.
        data = fingerprint(*(replace(features, inputs={}).digest() for features in sets))
        return {
            "the model of --model_name_or_path and --config_name": model,
            "the examples and tokens of --data_dir or --train_file": data,
        }

    def chosen_metric(self, text: str | None, flag: str) -> MetricAtCost:
        """Read a flag's metric; UserError for one at a cost, of a mode that has one cost only."""
        metric = MetricAtCost.parse(text, self.task, flag)
        if metric.cost is not None:
            self.mode.rules(regression=False)
        return metric

    def search(self, argv: Sequence[str]) -> Path:
        """Run a search; the directory of its best model. argv: this call's flags."""
        flags, given = flags_of_every_run(argv, GROUPS), self.settings.search
        metric = self.chosen_metric(given.hp_metric, "--hp_metric")
        self.check_files(dev=True)
        # What machines that share a search must agree in.
        shared = {name: v for name, v, allowed in entries(*self.settings) if not allowed.resuming}
        shared["dtype"] = self.settings.evaluation.dtype
        # ELBERT by its published name: an earlier version's search goes on.
        shared["model_type"] = mode = "albert" if self.mode.name == "elbert" else self.mode.name
        wanted = Search(
            settings=given,
            task=self.task,
            metric=metric,
            name=given.hp_study or f"{mode}-{self.task.name}",
            output_dir=self.directory,
            flags=flags,
            fingerprint=shared | self.content_hashes(),
        )
        return run_search(wanted, self.settings.evaluation.do_predict)

    def fine_tune(self) -> None:
        """Train, or go on with a training to the last bit; nothing where it is finished.

        Minimises the model's loss over all exits; the trained model ends in --output_dir.
        """
        training = self.settings.training
        self.check_files(dev=self.settings.evaluation.do_eval or training.looks_at_dev)
        metric = self.chosen_metric(training.metric_for_best_model, "--metric_for_best_model")
        processes = self.accelerator.num_processes
        source = self.settings.model.model_name_or_path
        is_finished, checkpoint = find_start(self.settings, processes, source)
        if is_finished:
            return
        pieces = self.settings.model.tokenizer_name or source
        publishes = training.save_format == "pytorch"
        spiece = find_file(pieces, "spiece.model") if publishes else None
        if publishes and not spiece:
            raise UserError(
                f"--save_format pytorch: no spiece.model in {pieces}, and ELBERT's published code "
                "reads no other tokenizer; name a folder that has one with --tokenizer_name"
            )
        config = self.new_config()
        tokenizer = self.new_tokenizer(config)
        model = self.mode.model_class(config) if checkpoint else self.new_model(config)
        features = self.features(config, self.task, tokenizer, "train")
        total = total_steps(training, len(features), processes)
        self.announce_training(features, total)
        scores = features.labels.tolist() if self.task.is_regression else []
        state = task_state(training, model, tokenizer, total, scores)
        if self.settings.evaluation.compile == "on":
            for group in layer_groups(model):
                group.compile(dynamic=True)
        trainer = Trainer(self.accelerator, state, self.settings, features.digest())
        trainer.begin(checkpoint)
        copy = trainer.directory / EXIT_FILE
        # What a resumed training finds may have been edited.
        if self.exit_file and self.accelerator.is_main_process and not copy.exists():
            given = self.settings.mode.keys.values  # which win over the file
            keys = read_exit_file(self.exit_file).items()
            write_result(copy, {key: value for key, value in keys if key not in given})
        batches = partial(task_batches, trainer, features)
        mode = self.mode
        with TrainingLog(trainer, total, mode.loss_parts, scalars=mode.scalars) as log:
            evaluate = None
            if training.looks_at_dev:
                dev = self.features(config, self.task, tokenizer, "dev")
                job = Job(mode, model, tokenizer, self.task, dev, batch_size=32)

                def evaluate() -> float:
                    scalars, line, value = mode.dev_scalars(job, metric)
                    log.write(line, scalars)
                    return value

            trainer.fit(batches, total, log.step, evaluate)
            trainer.finish(spiece)

    def announce_training(self, features: Features, total: int) -> None:
        """Log what is about to be trained, on what."""
        training, accelerator = self.settings.training, self.accelerator
        batch = training.per_gpu_train_batch_size * accelerator.num_processes
        log_facts(
            "Running training",
            {
                "Task": about(self.task),
                "Model type": self.mode.name,
                "Loss": self.mode.loss,
                "Device": f"{accelerator.device}, {accelerator.num_processes} process(es), "
                f"mixed precision {accelerator.mixed_precision}",
                "Seed": self.settings.run.seed,
                "Num examples": features.size,
                "Max sequence length": self.settings.data.max_seq_length,
                "Total train batch size": batch * training.gradient_accumulation_steps,
                "Total optimization steps": total,
            },
        )

    def job(self, directory: Path, part: Task, split: str) -> Job:
        """The model of `directory` under the flags' exit keys, and a split of a task for it."""
        mode, data, evaluation = self.mode, self.settings.data, self.settings.evaluation
        if is_emulated(DTYPES[evaluation.dtype], self.accelerator.device):
            logger.warning("--dtype %s: %s", evaluation.dtype, EMULATED)
        if mode is not (trained_in := trained_mode(directory)):
            raise UserError(
                f"--model_type {mode.name}: {directory} holds a model that was trained with "
                f"--model_type {trained_in.name}; give that one"
            )
        keys = resolve(directory, mode.table, self.settings.mode.keys)
        device, lower = self.accelerator.device, self.settings.run.do_lower_case
        model, tokenizer = load_trained(directory, mode, self.task, device, lower, keys)
        mode.check_length(data.max_seq_length, model.config)
        if rules := model.config.exit_rules(part.is_regression):
            rule = model.config.exit_keys()[mode.rule_key]
            for key in self.settings.mode.keys.values.keys() - {*rules[rule].reads}:
                if key in mode.table.exit_keys and mode.table.exit_keys[key].kind in (int, float):
                    logger.warning("%s has no effect: the exit rule %s does not read it", key, rule)
        features = self.features(model.config, part, tokenizer, split)
        length, cut = data.max_seq_length, int(features.truncated.sum())
        flags = provenance_in(self.directory / "training.json").get("flags")
        trained_at = flags.get("max_seq_length") if isinstance(flags, dict) else None
        if isinstance(trained_at, int) and length < trained_at and cut:
            logger.warning(
                f"--max_seq_length {length} cuts {cut} of {len(features)} texts; "
                f"the training had {trained_at}"
            )
        hashes = {"weights": weights_hash(directory), "data": features.digest()}
        about_run = provenance(as_dict(*self.settings), **hashes)
        size, path = evaluation.per_gpu_eval_batch_size, evaluation.onnx
        weights = hashes["weights"]
        file = OnnxFile(path, model.config, weights, evaluation.runtime) if path else None
        origin = {"rule_sources": keys.sources, "provenance": about_run}
        return Job(mode, model, tokenizer, part, features, size, evaluation, file, origin)

    def evaluate(self) -> None:
        """Evaluate the trained model and, if asked for, each of its checkpoints."""
        every = self.settings.evaluation.eval_all_checkpoints
        for checkpoint in [*(checkpoints_of(self.directory) if every else []), self.directory]:
            name = "" if checkpoint == self.directory else checkpoint.name
            for part, suffix in evaluation_tasks(self.task):
                job = self.job(checkpoint, part, "dev")
                folder = results_folder(self.directory, suffix, name)
                check_results(folder, job)
                facts = {
                    "Task": about(part),
                    "Device": f"{job.model.device}, dtype {job.evaluation.dtype}",
                    "Num examples": job.features.size,
                    "Batch size": job.batch_size,
                }
                log_facts(f"Running evaluation {name}", facts)
                summary = self.mode.evaluate(job, folder, self.directory, name)
                if is_main():
                    self.track(summary, f"eval{suffix}", int(name.rpartition("-")[2] or 0))

    def track(self, summary: dict[str, Any], prefix: str, step: int) -> None:
        """Send an evaluation's numbers to --report_to's trackers, at the step of a checkpoint."""
        names = ("computation_cost", "flops_ratio", "texts_per_second")
        values = {**summary["metrics"], **{name: summary[name] for name in names}}
        values |= {f"latency_ms/{name}": value for name, value in summary["latency_ms"].items()}
        for layer, count in enumerate(summary.get("exits_per_layer", ()), start=1):
            values[f"exits/layer_{layer}"] = count / summary["examples"]
        training = self.directory / "training.json"
        step = step or (read_json(training).get("steps", 0) if training.exists() else 0)
        for tracker in start_trackers(self.settings):
            tracker.log({f"{prefix}/{name}": value for name, value in values.items()}, step)
            tracker.finish()
        note(self.directory, (self.directory / "runs").glob(f"**/events*.{os.getpid()}.*"))

    def predict(self) -> None:
        """Answer the test sets: the official GLUE files, and predictions.tsv with details."""
        folder = self.settings.data.folder
        for part in prediction_tasks(self.task, folder):
            examples = read_examples(part, folder, "test")
            job = self.job(self.directory, part, "test")
            ending = "" if part.name == self.task.name else f"-{part.name}"
            predict(job, examples, self.directory, f"predictions{ending}.tsv")
