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

import argparse
import copy
import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from transformers import PreTrainedTokenizerBase

from evaluation.figures import exits_figure, save_figure
from evaluation.modes import MODES, Config, Mode, Model, mode_of
from evaluation.running import (
    environment,
    labels_of,
    layer_curve,
    load_trained,
    predictions_of,
    predictions_table,
    print_results,
    processes,
    record_all_exits,
    run_early_exit,
    summarise,
    to_device,
    write_reports,
)
from evaluation.token_updates import (
    print_updates,
    run_adaptive,
    summarise_updates,
    token_examples,
    write_update_reports,
)
from exit_lab.sweep import RULE_SETS
from glue.features import Features, cache_path, collate, encode, epoch_batches
from glue.files import run_script, write_text
from glue.submission import add_to_submission, check_test_set
from glue.tasks import (
    Task,
    custom_task,
    evaluation_tasks,
    get_task,
    prediction_tasks,
    primary_metric,
    read_examples,
    write_submission,
)
from modeling import (
    AlbertActForSequenceClassification,
    UserError,
    load_config,
    load_tokenizer,
)
from modeling.albert import cast_layers
from modeling.compilation import (
    EarlyExitModel,
    compile_for_inference,
    compile_for_training,
    repays,
)
from modeling.keys import PONDER_KEYS, nearest_names, typed
from modeling.loading.configs import ORIGIN_KEYS, trained_task
from modeling.loading.files import weight_files
from training.arguments import at_least, check_output_dir
from training.checkpoints import (
    checkpoints_of,
    file_stamp,
    left_to_train,
)
from training.loop import (
    Batch,
    ProgressLog,
    Step,
    Training,
    fingerprint,
    make_optimizer,
    make_schedule,
    start_at_mean,
    start_script,
)
from training.search import add_search_flags, flags_of_every_run, search

logger = logging.getLogger(__name__)

# Keys of a ponder model that have a flag of their own; --set takes all keys of every mode.
PONDER_FLAGS = (
    "target_halt_probability kl_penalty_factor lambda_layer_arch num_lambda_layers lambda_lr "
    "exit_criteria exit_thres"
).split()
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_published_flags(parser)
    add_training_flags(parser)
    add_new_flags(parser)
    add_search_flags(parser)
    args = parser.parse_args()
    if args.local_rank >= 0:
        # Old launchers pass the rank as a flag, accelerate reads it from the environment.
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    if not (args.do_train or args.do_eval or args.do_predict or args.hp_search):
        raise UserError("nothing to do: give --do_train, --do_eval, --do_predict or --hp_search")
    if args.hp_search and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--hp_search starts its own processes: run it without torchrun")
    args.do_train = args.do_train or args.hp_search
    if args.submission_dir and not args.do_predict:
        raise UserError("--submission_dir collects what --do_predict writes: add --do_predict")
    if args.fp16 and args.bf16:
        raise UserError("--fp16 and --bf16 exclude each other")
    return args


def add_published_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--out_mode",
        default="all",
        choices=("one", "all"),
        help="eval_results.txt: one overwrites it, all appends a row",
    )
    add("--data_dir", help="folder with the task's .tsv files")
    add(
        "--model_type",
        required=True,
        choices=tuple(MODES),
        type=str.lower,
        help="who stops: an example by a rule (albert, which is ELBERT) or by a learned halting "
        "probability (ponder_albert), or each token by its own (albert_act)",
    )
    add("--model_name_or_path", required=True, help="folder or hub name of pre-trained weights")
    add("--task_name", help="GLUE task, e.g. RTE")
    add("--output_dir", required=True, help="where the trained model and the results go")
    add("--config_name", default="", help="config.json or its folder, if not the weights' own")
    add("--tokenizer_name", default="", help="folder of the tokenizer, if not the weights' own")
    add("--cache_dir", default="", help="where models from the hub are kept")
    add("--max_seq_length", default=128, type=int, help="longer texts are truncated")
    add("--do_train", action="store_true")
    add("--do_eval", action="store_true", help="evaluate on the dev set with early exit")
    add(
        "--evaluate_during_training",
        action="store_true",
        help="dev metric of every layer at each logging step",
    )
    add("--do_lower_case", action="store_true", help="for uncased models")
    add("--eval_all_checkpoints", action="store_true", help="also every checkpoint-STEP")
    add("--no_cuda", action="store_true", help="stay on the CPU")
    add("--overwrite_output_dir", action="store_true")
    add("--overwrite_cache", action="store_true", help="tokenise anew")
    add("--local_rank", default=-1, type=int, help="set by old launchers")


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--per_gpu_train_batch_size", default=8, type=at_least(1))
    add("--per_gpu_eval_batch_size", default=8, type=at_least(1))
    add("--gradient_accumulation_steps", default=1, type=at_least(1))
    add("--learning_rate", default=5e-5, type=at_least(0, float))
    add("--weight_decay", default=0.0, type=at_least(0, float))
    add("--adam_epsilon", default=1e-8, type=at_least(0, float))
    add("--max_grad_norm", default=1.0, type=at_least(0, float))
    add("--num_train_epochs", default=3.0, type=at_least(0, float))
    add("--max_steps", default=-1, type=int, help="if > 0, instead of --num_train_epochs")
    add("--warmup_steps", default=0, type=at_least(0))
    add("--logging_steps", default=100, type=int)
    add("--save_steps", default=5000, type=int, help="checkpoint every so many steps; 0: none")
    add(
        "--save_total_limit",
        type=at_least(1),
        help="keep only so many checkpoints, the newest",
    )
    add(
        "--resume_from_checkpoint",
        nargs="?",
        const="latest",
        metavar="PATH|latest",
        help="go on with a training that was stopped; nothing to go on from: begin it",
    )
    add("--seed", default=42, type=at_least(0))
    add("--fp16", action="store_true", help="mixed precision in training (CUDA)")
    add(
        "--fp16_opt_level",
        default="O1",
        choices=("O0", "O1", "O2", "O3"),
        help="of --fp16: O0 is float32, all others are PyTorch's mixed precision",
    )


def add_new_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--do_predict", action="store_true", help="answer the test set; GLUE submission files")
    add(
        "--submission_dir",
        help="also collect the files of --do_predict here; with those of all tasks, submission.zip",
    )
    add("--bf16", action="store_true", help="bfloat16 mixed precision in training")
    add("--from_scratch", action="store_true", help="start from random weights")
    add("--max_train_samples", type=at_least(1), help="use only the first so many")
    add("--max_eval_samples", type=at_least(1), help="use only the first so many")
    add("--train_file", help="CSV, TSV or JSON lines with sentence1[,sentence2],label")
    add("--validation_file")
    add("--test_file")
    add("--gradient_checkpointing", action="store_true", help="less memory, slower training")
    add(
        "--compile",
        default="auto",
        choices=("auto", "on", "off"),
        help="compile the layer pass; auto: for evaluation, when the number of examples repays it",
    )
    add("--dtype", default="fp32", choices=tuple(DTYPES), help="of evaluation and prediction")
    add(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="override keys of the configuration, e.g. pooler_input=mean; after training only "
        "those that decide an exit",
    )
    for key in PONDER_FLAGS:
        add(f"--{key}", help=f"of ponder_albert: {PONDER_KEYS[key].meaning}; as --set {key}=…")


def make_accelerator(args: argparse.Namespace) -> Accelerator:
    precision = "no"
    if args.bf16:
        precision = "bf16"
    elif args.fp16 and args.fp16_opt_level != "O0":
        precision = "fp16"
    try:
        return Accelerator(
            # Without this, several processes on a machine without a GPU would not find each other.
            cpu=args.no_cuda or not torch.accelerator.is_available(),
            mixed_precision=precision,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            # ALBERT's own pooler, for one, has no part in a model whose exits have theirs.
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
    except ValueError as error:
        raise UserError(f"mixed precision {precision}: {error}; on a CPU use --bf16") from error


def find_task(args: argparse.Namespace) -> Task:
    """The GLUE task, or the user's own from its files (labels as the trained model has them)."""
    if not (args.train_file or args.validation_file or args.test_file):
        if not args.task_name:
            raise UserError("--task_name is missing; give one of GLUE's, or your own --train_file")
        if not args.data_dir:
            raise UserError("--data_dir is missing: the folder with the task's .tsv files")
        return get_task(args.task_name)
    labels = None
    if not args.do_train:
        config = load_config(args.output_dir)
        labels = (
            [] if config.num_labels == 1 else [config.id2label[i] for i in range(config.num_labels)]
        )
    return custom_task(args.train_file, args.validation_file, args.test_file, labels)


def overrides_of(args: argparse.Namespace) -> dict[str, Any]:
    """The configuration keys of --set and of the flags that are keys, typed."""
    mode, pairs = MODES[args.model_type], [("--set", pair) for pair in args.set]
    for key in PONDER_FLAGS:
        if getattr(args, key) is not None:
            pairs.append((f"--{key}", f"{key}={getattr(args, key)}"))
    values = {}
    for flag, pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key not in mode.table.keys:
            known = nearest_names(key, list(mode.table.keys))
            raise UserError(f"{flag} {pair}: no key of --model_type {mode.name}; {known}")
        try:
            values[key] = typed(key, text, mode.table.keys)
        except UserError as error:
            raise UserError(f"{flag}: {error}") from error
    return values


def training_config(args: argparse.Namespace, task: Task) -> Config:
    labels = dict(enumerate(task.labels)) if task.labels else {0: "score"}
    return MODES[args.model_type].load_config(
        args.config_name or args.model_name_or_path,
        args.cache_dir or None,
        id2label=labels,
        label2id={label: i for i, label in labels.items()},
        num_labels=task.num_labels,
        finetuning_task=task.name,
        **overrides_of(args),
    )


def training_tokenizer(args: argparse.Namespace, config: Config) -> PreTrainedTokenizerBase:
    """The tokenizer; UserError when it, or --max_seq_length, is too large for the model."""
    source = args.tokenizer_name or args.model_name_or_path
    tokenizer = load_tokenizer(source, args.do_lower_case, args.cache_dir or None)
    if len(tokenizer) > config.vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {len(tokenizer)} pieces, vocab_size is"
            f" {config.vocab_size}"
        )
    MODES[args.model_type].check_length(args.max_seq_length, config)
    return tokenizer


def load_for_training(
    args: argparse.Namespace, task: Task
) -> tuple[Model, PreTrainedTokenizerBase]:
    mode, config = MODES[args.model_type], training_config(args, task)
    tokenizer = training_tokenizer(args, config)
    if args.from_scratch:
        logger.info("Weights newly initialised: all (--from_scratch)")
        return mode.model_class(config), tokenizer
    source, cache = args.model_name_or_path, args.cache_dir or None
    other = trained_task(source, cache) not in (None, task.name)
    model, report = mode.load(source, config, cache, other)
    for line in report.lines():
        logger.info(line)
    return model, tokenizer


def load_for_evaluation(
    args: argparse.Namespace, directory: Path, task: Task, device: torch.device
) -> tuple[Model, PreTrainedTokenizerBase]:
    """The trained model of `directory`, with the exit keys that the flags give."""
    mode, overrides = MODES[args.model_type], overrides_of(args)
    fixed = [key for key in overrides if key not in mode.table.exit_keys]
    if fixed and not args.do_train:
        raise UserError(
            f"{', '.join(fixed)}: decided in training; without --do_train only "
            f"{', '.join(mode.table.exit_keys)} can be set"
        )
    model, tokenizer = load_trained(directory, task, device, args.do_lower_case, mode)
    mode.check_length(args.max_seq_length, model.config)
    model.config.update({key: value for key, value in overrides.items() if key not in fixed})
    if not mode.stops_tokens:
        model.exit_rule()  # now, rather than after the first passes, for values that do not fit it
    return model, tokenizer


def load_features(
    args: argparse.Namespace,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    split: str,
    limit: int | None,
) -> tuple[list, Features]:
    """Examples of a split and their tokens; only whole GLUE splits are cached."""
    mode, cache = MODES[args.model_type], None
    examples = read_examples(task, args.data_dir or ".", split, limit)
    length = args.max_seq_length - mode.extra_tokens
    if args.data_dir and limit is None:
        cache = cache_path(args.data_dir, split, args.model_name_or_path, length, task.name)
    features = encode(examples, tokenizer, length, cache, args.overwrite_cache)
    return examples, mode.prepare(features, args.seed)


class TrainingLog(ProgressLog):
    """The published JSON lines, and what the mode logs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.losses: list[float] = []  # since the last logging step

    def step(self, step: Step, model: Model) -> bool:
        """After an optimiser step; returns whether a logging step was due."""
        self.losses.append(step.loss)
        if not self.advance(step):
            return False
        mean = sum(self.losses) / len(self.losses)
        values = {"learning_rate": step.learning_rate, "loss": mean}
        self.losses = []
        self.scalars(values, step.number)
        self.line({**values, "step": step.number})
        self.scalars(mode_of(model.config).scalars(model, step.outs[-1]), step.number)
        return True


def train(
    args: argparse.Namespace,
    accelerator: Accelerator,
    task: Task,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    checkpoint: Path | None = None,
) -> None:
    """Minimise the model's loss over all exits; the trained model ends in --output_dir.

    With `checkpoint`, goes on from there: the same steps, to the last bit.
    """
    _, features = load_features(args, task, tokenizer, "train", args.max_train_samples)
    dev = None
    if args.evaluate_during_training:
        _, dev = load_features(args, task, tokenizer, "dev", args.max_eval_samples)
    batch_size = args.per_gpu_train_batch_size * accelerator.num_processes
    batches = -(-len(features.lengths) // batch_size)
    total = max(1, int(batches * args.num_train_epochs) // args.gradient_accumulation_steps)
    if args.max_steps > 0:
        total = args.max_steps
    logger.info("***** Running training *****")
    logger.info("  Num examples = %d", len(features.lengths))
    logger.info("  Total train batch size = %d", batch_size * args.gradient_accumulation_steps)
    logger.info("  Total optimization steps = %d", total)
    mode = MODES[args.model_type]
    if task.is_regression:
        start_at_mean(model, features.labels)
    training = make_training(args, accelerator, model, tokenizer, features, total)
    training.begin(checkpoint)
    epoch = partial(my_batches, accelerator, features, batch_size, args.seed, tokenizer)
    with TrainingLog(training, args.logging_steps, total) as log:
        for step in training.kept(training.steps(epoch, total)):
            if log.step(step, model) and dev:
                log_dev(log, mode, task, model, dev, tokenizer, step.number)


def make_training(
    args: argparse.Namespace,
    accelerator: Accelerator,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    features: Features,
    total: int,
) -> Training:
    optimizer = make_optimizer(model, args.learning_rate, args.weight_decay, args.adam_epsilon)
    schedule = make_schedule(optimizer, args.warmup_steps, total)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if args.compile == "on":
        compile_for_training(model)
    data = fingerprint(features.input_ids, features.labels)
    return Training(
        accelerator, model, tokenizer, optimizer, schedule, vars(args), data, args.max_grad_norm
    )


def my_batches(
    accelerator: Accelerator,
    features: Features,
    batch_size: int,
    seed: int,
    tokenizer: PreTrainedTokenizerBase,
    epoch: int,
    first: int,
) -> Iterator[Batch]:
    """This process's part of the batches of an epoch, from number `first` on."""
    for rows in epoch_batches(features.lengths, batch_size, seed, epoch)[first:]:
        mine = rows[accelerator.process_index :: accelerator.num_processes]
        # Every process takes part in a step: one without rows of its own repeats one, for nothing.
        inputs = collate(features, mine or rows[:1], tokenizer.pad_token_id)
        yield Batch(to_device(inputs, accelerator.device), len(mine) / len(rows))


def log_dev(
    log: TrainingLog,
    mode: Mode,
    task: Task,
    model: Model,
    dev: Features,
    tokenizer: PreTrainedTokenizerBase,
    step: int,
) -> None:
    """Dev metric at a logging step: of every layer, or with the cost of adaptive depth."""
    name, pad = primary_metric(task), tokenizer.pad_token_id
    if mode.stops_tokens:
        summary = summarise_updates(model, tokenizer, task, dev, run_adaptive(model, dev, 32, pad))
        value, cost = summary["metrics"][name], summary["computation_cost"]
        log.scalars({f"eval_{name}": value, "eval_computation_cost": cost}, step)
        log.line({f"eval_{name}": value, "eval_computation_cost": cost, "step": step})
        return
    all_logits = record_all_exits(model, dev, pad)["all_logits"]
    curve = layer_curve(task, all_logits, labels_of(dev))
    log.scalars({f"eval_{name}/layer_{i}": v for i, v in enumerate(curve, 1)}, step)
    log.line({f"eval_{name}_per_layer": curve, "step": step})


def evaluate(
    args: argparse.Namespace,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    directory: Path,
    prefix: str = "",
) -> None:
    """Evaluation on a dev set: prints the published lines, writes the reports."""
    examples, features = load_features(args, task, tokenizer, "dev", args.max_eval_samples)
    logger.info("***** Running evaluation %s *****", prefix)
    logger.info("  Num examples = %d", len(examples))
    logger.info("  Batch size = %d", args.per_gpu_eval_batch_size)
    report = report_updates if MODES[args.model_type].stops_tokens else report_exits
    report(args, model, tokenizer, task, features, directory, prefix)


def report_exits(
    args: argparse.Namespace,
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    features: Features,
    directory: Path,
    prefix: str,
) -> None:
    """Early exit: where examples leave, at which cost, and what every layer would answer."""
    pad = tokenizer.pad_token_id
    recorded = record_all_exits(model, features, pad)
    all_logits = recorded["all_logits"]
    fast, compiled = make_fast(args, model, features)
    record = run_early_exit(fast, features, args.per_gpu_eval_batch_size, pad)
    summary = summarise(model, task, features, record) | conditions(args, model, compiled)
    # Exits of this run against those that the float32 record of all layers gives.
    rules, setting = RULE_SETS[model.config.model_type], model.config.exit_keys()
    same = rules.scan(setting, recorded) == record.exit_layer
    summary["same_exit_layer_as_fp32"] = same.float().mean().item()
    metric, curve = primary_metric(task), layer_curve(task, all_logits, labels_of(features))
    summary[f"{metric}_per_layer"] = curve
    if processes()[0]:
        return  # reports are the main process's work
    write_reports(
        directory / prefix,
        statistics_folder(args, model.config, task),
        summary,
        features,
        record,
        all_logits,
        args.out_mode,
    )
    figure = exits_figure(
        summary["exits_per_layer"], curve, metric, summary["computation_cost"], task.name
    )
    save_figure(figure, directory / prefix / "exits.png")
    print_results(summary, prefix)


def report_updates(
    args: argparse.Namespace,
    model: AlbertActForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    features: Features,
    directory: Path,
    prefix: str,
) -> None:
    """Adaptive depth: how often tokens are updated, and at which cost."""
    fast, compiled = make_fast(args, model, features)
    batch_size = args.per_gpu_eval_batch_size
    record = run_adaptive(fast, features, batch_size, tokenizer.pad_token_id)
    summary = summarise_updates(model, tokenizer, task, features, record)
    summary |= conditions(args, model, compiled)
    if processes()[0]:
        return  # reports are the main process's work
    maximum = model.config.num_hidden_layers
    pictured = token_examples(tokenizer, task, features, record, maximum)
    write_update_reports(directory / prefix, summary, pictured, args.out_mode)
    print_updates(summary, prefix)


def conditions(args: argparse.Namespace, model: Model, compiled: bool) -> dict[str, Any]:
    """What an evaluation ran with."""
    return {
        "batch_size": args.per_gpu_eval_batch_size,
        "dtype": args.dtype,
        "compiled": compiled,
        "environment": environment(model.device),
    }


def make_fast(args: argparse.Namespace, model: Model, features: Features) -> tuple[Model, bool]:
    """`model` in --dtype (a copy unless that is fp32), compiled where --compile asks for it.

    Returns it, and whether it is compiled.
    """
    if args.dtype != "fp32":
        model = copy.deepcopy(model)
        cast_layers(model, DTYPES[args.dtype])
    if MODES[args.model_type].stops_tokens:
        if args.compile == "on":
            logger.warning("--compile on: stopped tokens change every pass's shape; not compiled")
        return model, False
    typical = sorted(features.lengths)[len(features.lengths) // 2]
    wanted = args.compile == "on" or (
        args.compile == "auto" and repays(model, len(features.lengths), typical)
    )
    return model, wanted and compile_for_inference(model)


def statistics_folder(args: argparse.Namespace, config: Config, task: Task) -> Path:
    """`my_out_dir`/model/task, relative to the model; beside the results if it cannot be made."""
    folder = Path(args.output_dir) / config.my_out_dir / config.model_name / task.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fallback = Path(args.output_dir) / "stat_out" / config.model_name / task.name
        logger.warning("my_out_dir %s: %s; using %s", folder, error.strerror, fallback)
        return fallback
    return folder


def predict(
    args: argparse.Namespace,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
) -> None:
    """Answer the test sets of `task`: the official GLUE files, and predictions.tsv with details."""
    for part in prediction_tasks(task, args.data_dir or "."):
        examples, features = load_features(args, part, tokenizer, "test", None)
        if args.submission_dir:
            check_test_set(part, len(examples))
        fast, _ = make_fast(args, model, features)
        run = run_adaptive if MODES[args.model_type].stops_tokens else run_early_exit
        record = run(fast, features, args.per_gpu_eval_batch_size, tokenizer.pad_token_id)
        if processes()[0]:
            continue  # files are the main process's work
        path = write_submission(part, examples, predictions_of(record.logits), args.output_dir)
        name = "predictions.tsv" if part.name == task.name else f"predictions-{part.name}.tsv"
        details = Path(args.output_dir) / name
        write_text(details, predictions_table(part, examples, record.logits, record.details()))
        print(f"{len(examples)} predictions: {path}, {details}")
        if args.submission_dir:
            print(add_to_submission(path, args.submission_dir))


def check_examples(args: argparse.Namespace, task: Task) -> None:
    """UserError for a dev or test file that is missing: worth knowing before a training."""
    data_dir = args.data_dir or "."
    for part, _ in evaluation_tasks(task) if args.do_eval or args.hp_search else []:
        read_examples(part, data_dir, "dev", 1)
    for part in prediction_tasks(task, data_dir) if args.do_predict else []:
        examples = read_examples(part, data_dir, "test", None if args.submission_dir else 1)
        if args.submission_dir:
            check_test_set(part, len(examples))


def contents_of(args: argparse.Namespace, task: Task) -> dict[str, str]:
    """SHA-256 of what the runs of a search start from; see `hp_search.CONTENTS`."""
    config = training_config(args, task)
    tokenizer = training_tokenizer(args, config)
    settings = {name: v for name, v in config.to_dict().items() if name not in ORIGIN_KEYS}
    weights = []
    if not args.from_scratch:
        weights = weight_files(args.model_name_or_path, args.cache_dir or None)
    _, train_set = load_features(args, task, tokenizer, "train", args.max_train_samples)
    _, dev_set = load_features(args, task, tokenizer, "dev", args.max_eval_samples)
    columns = (column for features in (train_set, dev_set) for column in features[:3])
    return {
        "starting model": fingerprint(sorted(settings.items()), list(map(file_stamp, weights))),
        "examples or tokens": fingerprint(*columns),
    }


def best_of_search(args: argparse.Namespace) -> Path:
    """Run a search; the directory of its best model."""
    flags, task = flags_of_every_run(sys.argv[1:]), find_task(args)
    check_examples(args, task)
    return search(args, task, flags, contents_of(args, task))


def main() -> None:
    args = parse_args()
    if args.hp_search:
        best = best_of_search(args)
        if not args.do_predict:
            return
        args.output_dir, args.do_train, args.do_eval = str(best), False, False
    accelerator = make_accelerator(args)
    start_script(accelerator, args.seed)
    check_output_dir(args)
    accelerator.wait_for_everyone()  # before the main process writes into it
    task = find_task(args)
    if args.do_train:
        check_examples(args, task)
        unfinished, checkpoint = left_to_train(args.output_dir, args.resume_from_checkpoint)
        if unfinished:
            train(args, accelerator, task, *load_for_training(args, task), checkpoint)
    directory = Path(args.output_dir)
    if args.do_eval:
        checkpoints = [directory]
        if args.eval_all_checkpoints:
            checkpoints = checkpoints_of(directory) + checkpoints
        for checkpoint in checkpoints:
            model, tokenizer = load_for_evaluation(args, checkpoint, task, accelerator.device)
            prefix = "" if checkpoint == directory else checkpoint.name
            for part, suffix in evaluation_tasks(task):
                results = directory.with_name(directory.name + suffix)
                evaluate(args, model, tokenizer, part, results, prefix)
    if args.do_predict:
        model, tokenizer = load_for_evaluation(args, directory, task, accelerator.device)
        predict(args, model, tokenizer, task)


if __name__ == "__main__":
    run_script(main)
