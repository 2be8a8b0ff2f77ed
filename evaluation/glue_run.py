"""run_glue.py's evaluation and prediction."""

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from evaluation.figures import exits_figure, save_figure
from evaluation.modes import MODES, Config, Mode, Model
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
    write_reports,
)
from evaluation.settings import GlueSettings
from evaluation.token_updates import (
    print_updates,
    run_adaptive,
    summarise_updates,
    token_examples,
    write_update_reports,
)
from exit_lab.sweep import RULE_SETS
from glue.features import Features
from glue.files import write_text
from glue.submission import add_to_submission, check_test_set
from glue.tasks import Task, prediction_tasks, primary_metric, write_submission
from modeling import AlbertActForSequenceClassification, UserError
from modeling.albert import cast_layers
from modeling.compilation import EarlyExitModel, compile_for_inference, repays
from training.fine_tuning import Reader, TrainingLog

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_for_evaluation(
    settings: GlueSettings,
    overrides: dict[str, Any],
    directory: Path,
    task: Task,
    device: torch.device,
) -> tuple[Model, PreTrainedTokenizerBase]:
    """The trained model of `directory`, with the exit keys that the flags give."""
    mode = MODES[settings.mode.model_type]
    fixed = [key for key in overrides if key not in mode.table.exit_keys]
    if fixed and not settings.run.do_train:
        raise UserError(
            f"{', '.join(fixed)}: decided in training; without --do_train only "
            f"{', '.join(mode.table.exit_keys)} can be set"
        )
    model, tokenizer = load_trained(directory, task, device, settings.run.do_lower_case, mode)
    mode.check_length(settings.data.max_seq_length, model.config)
    model.config.update({key: value for key, value in overrides.items() if key not in fixed})
    if not mode.stops_tokens:
        model.exit_rule()  # now, rather than after the first passes, for values that do not fit it
    return model, tokenizer


def reader_of(settings: GlueSettings) -> Reader:
    mode = MODES[settings.mode.model_type]
    return Reader(mode, settings.data, settings.model.model_name_or_path, settings.run.seed)


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
    settings: GlueSettings,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    directory: Path,
    prefix: str = "",
) -> None:
    """Evaluation on a dev set: prints the published lines, writes the reports."""
    examples, features = reader_of(settings).dev_set(task, tokenizer)
    logger.info("***** Running evaluation %s *****", prefix)
    logger.info("  Num examples = %d", len(examples))
    logger.info("  Batch size = %d", settings.evaluation.per_gpu_eval_batch_size)
    report = report_updates if MODES[settings.mode.model_type].stops_tokens else report_exits
    report(settings, model, tokenizer, task, features, directory, prefix)


def report_exits(
    settings: GlueSettings,
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
    fast, compiled = make_fast(settings, model, features)
    record = run_early_exit(fast, features, settings.evaluation.per_gpu_eval_batch_size, pad)
    summary = summarise(model, task, features, record) | conditions(settings, model, compiled)
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
        statistics_folder(settings, model.config, task),
        summary,
        features,
        record,
        all_logits,
        settings.evaluation.out_mode,
    )
    figure = exits_figure(
        summary["exits_per_layer"], curve, metric, summary["computation_cost"], task.name
    )
    save_figure(figure, directory / prefix / "exits.png")
    print_results(summary, prefix)


def report_updates(
    settings: GlueSettings,
    model: AlbertActForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    features: Features,
    directory: Path,
    prefix: str,
) -> None:
    """Adaptive depth: how often tokens are updated, and at which cost."""
    fast, compiled = make_fast(settings, model, features)
    batch_size = settings.evaluation.per_gpu_eval_batch_size
    record = run_adaptive(fast, features, batch_size, tokenizer.pad_token_id)
    summary = summarise_updates(model, tokenizer, task, features, record)
    summary |= conditions(settings, model, compiled)
    if processes()[0]:
        return  # reports are the main process's work
    maximum = model.config.num_hidden_layers
    pictured = token_examples(tokenizer, task, features, record, maximum)
    write_update_reports(directory / prefix, summary, pictured, settings.evaluation.out_mode)
    print_updates(summary, prefix)


def conditions(settings: GlueSettings, model: Model, compiled: bool) -> dict[str, Any]:
    """What an evaluation ran with."""
    return {
        "batch_size": settings.evaluation.per_gpu_eval_batch_size,
        "dtype": settings.evaluation.dtype,
        "compiled": compiled,
        "environment": environment(model.device),
    }


def make_fast(settings: GlueSettings, model: Model, features: Features) -> tuple[Model, bool]:
    """`model` in --dtype (a copy unless that is fp32), compiled where --compile asks for it.

    Returns it, and whether it is compiled.
    """
    if settings.evaluation.dtype != "fp32":
        model = copy.deepcopy(model)
        cast_layers(model, DTYPES[settings.evaluation.dtype])
    if MODES[settings.mode.model_type].stops_tokens:
        if settings.evaluation.compile == "on":
            logger.warning("--compile on: stopped tokens change every pass's shape; not compiled")
        return model, False
    typical = sorted(features.lengths)[len(features.lengths) // 2]
    wanted = settings.evaluation.compile == "on" or (
        settings.evaluation.compile == "auto" and repays(model, len(features.lengths), typical)
    )
    return model, wanted and compile_for_inference(model)


def statistics_folder(settings: GlueSettings, config: Config, task: Task) -> Path:
    """`my_out_dir`/model/task, relative to the model; beside the results if it cannot be made."""
    folder = Path(settings.run.output_dir) / config.my_out_dir / config.model_name / task.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fallback = Path(settings.run.output_dir) / "stat_out" / config.model_name / task.name
        logger.warning("my_out_dir %s: %s; using %s", folder, error.strerror, fallback)
        return fallback
    return folder


def predict(
    settings: GlueSettings,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
) -> None:
    """Answer the test sets of `task`: the official GLUE files, and predictions.tsv with details."""
    for part in prediction_tasks(task, settings.data.folder):
        examples, features = reader_of(settings).read(part, tokenizer, "test", None)
        if settings.evaluation.submission_dir:
            check_test_set(part, len(examples))
        fast, _ = make_fast(settings, model, features)
        run = run_adaptive if MODES[settings.mode.model_type].stops_tokens else run_early_exit
        record = run(
            fast, features, settings.evaluation.per_gpu_eval_batch_size, tokenizer.pad_token_id
        )
        if processes()[0]:
            continue  # files are the main process's work
        path = write_submission(
            part, examples, predictions_of(record.logits), settings.run.output_dir
        )
        name = "predictions.tsv" if part.name == task.name else f"predictions-{part.name}.tsv"
        details = Path(settings.run.output_dir) / name
        write_text(details, predictions_table(part, examples, record.logits, record.details()))
        print(f"{len(examples)} predictions: {path}, {details}")
        if settings.evaluation.submission_dir:
            print(add_to_submission(path, settings.evaluation.submission_dir))
