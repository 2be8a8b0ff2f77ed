"""Running a model over a data set, and reporting answers, cost and time."""

import logging
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from filelock import FileLock
from torch import distributed
from torch.nn import functional as F
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from evaluation.modes import Mode, Model, trained_mode
from glue.features import Features, collate, sorted_batches
from glue.files import write_json, write_text
from glue.tables import as_csv
from glue.tasks import Example, Task, compute_metrics, label_text, primary_metric
from modeling import UserError, apply_exit_config, load_tokenizer
from modeling.cpu_packing import packed_weights
from modeling.depth import EarlyExitModel
from modeling.depth_batching import Answer, DepthBatcher
from modeling.elbert.rules import exit_scores, normalised_entropy
from modeling.flops import early_exit_flops, full_depth_flops
from modeling.loading.weights import in_brief

logger = logging.getLogger(__name__)


class Record(NamedTuple):
    """What early-exit inference answered, in input order."""

    logits: torch.Tensor  # (examples, num_labels), of the exit taken
    exit_layer: torch.Tensor  # (examples,), 1-based
    seconds: torch.Tensor  # (examples,), from the start of the example to its answer

    def details(self) -> dict[str, list[Any]]:
        """Columns of predictions.tsv."""
        return {"exit_layer": self.exit_layer.tolist()}


def load_trained(
    directory: Path,
    task: Task,
    device: torch.device,
    do_lower_case: bool = True,
    mode: Mode | None = None,
) -> tuple[Model, PreTrainedTokenizerBase]:
    """A trained model with its exit overrides, in eval mode, and its tokenizer.

    Raises UserError if it is not a trained model, or one of another task or `mode`.
    """
    trained_in = trained_mode(directory)
    if mode not in (None, trained_in):
        raise UserError(
            f"--model_type {mode.name}: {directory} holds a model that was trained with "
            f"--model_type {trained_in.name}; give that one"
        )
    model, report = trained_in.load(directory)
    untrained = [name for name in report.initialised if name not in trained_in.optional]
    if untrained:
        raise UserError(
            f"{directory} is not a trained model of this project: no weights for "
            f"{in_brief(untrained)}; train it first with run_glue.py --do_train"
        )
    # The published code leaves it null.
    trained_on = getattr(model.config, "finetuning_task", None) or task.name
    if trained_on != task.name or model.config.num_labels != task.num_labels:
        raise UserError(
            f"{directory} was trained on {trained_on} ({model.config.num_labels} labels), not on "
            f"{task.name} ({task.num_labels} labels)"
        )
    overrides = {} if trained_in.stops_tokens else apply_exit_config(model.config, directory)
    if overrides:
        logger.info("exit keys overridden by %s: %s", model.config.exit_config_path, overrides)
    return model.to(device).eval(), load_tokenizer(directory, do_lower_case)


def to_device(batch: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def run_early_exit(
    model: EarlyExitModel, features: Features, batch_size: int, pad_token_id: int
) -> Record:
    """Answer every example with early exit; processes take examples in turn, all get all answers.

    Batch size 1, the reporting default, goes in input order and never pads; above it, `batch_size`
    slots are kept full by depth batching. The answers are the same, also where exits are sampled:
    every example brings its own draw.
    """
    count = len(features.input_ids)
    features = my_part(features)
    mine = len(features.input_ids)
    record = Record(
        torch.empty(mine, model.config.num_labels),
        torch.empty(mine, dtype=torch.long),
        torch.empty(mine, dtype=torch.double),
    )
    model.eval()
    if batch_size == 1:
        answers = one_by_one(model, features, pad_token_id)
    else:
        batcher = DepthBatcher(model, slots=batch_size, pad_token_id=pad_token_id)
        columns = [features.input_ids, features.token_type_ids]
        if features.draws is not None:
            columns.append(features.draws)
        batcher.submit(zip(*columns, strict=True))
        answers = batcher.answers()
    shown = tqdm(answers, "Evaluating", mine, unit="example", disable=processes()[0] > 0)
    with packed_weights(model):
        for answer in shown:
            record.logits[answer.row] = answer.logits
            record.exit_layer[answer.row] = answer.exit_layer
            record.seconds[answer.row] = answer.seconds
    return Record(*(gathered(tensor, count) for tensor in record))


def processes() -> tuple[int, int]:
    """This process's number and how many there are."""
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def my_part(features: Features) -> Features:
    """Every n-th example, of n processes, beginning with this process's number."""
    first, n = processes()
    return Features(*(column and column[first::n] for column in features))


def gathered(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """All `count` examples' entries in input order, from those of each process's `my_part`."""
    _, n = processes()
    if n == 1:
        return tensor
    parts: list[Any] = [None] * n
    distributed.all_gather_object(parts, tensor)
    whole = tensor.new_empty(count, *tensor.shape[1:])
    for first, part in enumerate(parts):
        whole[first::n] = part
    return whole


def one_by_one(model: EarlyExitModel, features: Features, pad_token_id: int) -> Iterator[Answer]:
    """Every example alone, without padding; `seconds` is the whole call."""
    for row in range(len(features.input_ids)):
        batch = to_device(collate(features, [row], pad_token_id), model.device)
        batch.pop("labels", None)
        start = time.perf_counter()
        out = model(**batch)
        exit_layer = int(out.exit_layer)  # waits for the device
        seconds = time.perf_counter() - start
        yield Answer(row, out.answer[0].cpu(), exit_layer, seconds)


def record_all_exits(
    model: EarlyExitModel, features: Features, pad_token_id: int, batch_size: int = 32
) -> dict[str, torch.Tensor]:
    """What every layer says of every example, at full depth.

    all_logits: (layers, examples, num_labels). Of a ponder model also halt_probabilities
    (examples, layers) and draws (examples,). Processes take examples in turn; all get all answers.
    """
    draws, count = features.draws, len(features.input_ids)
    features, config = my_part(features), model.config
    layers = config.num_hidden_layers
    answers = torch.empty(len(features.input_ids), layers, config.num_labels)
    halts = torch.empty(len(features.input_ids), layers)
    model.eval()
    batches = list(sorted_batches(features.lengths, batch_size))
    with packed_weights(model):
        for rows in tqdm(batches, desc="All layers", unit="batch", disable=processes()[0] > 0):
            batch = to_device(collate(features, rows, pad_token_id), model.device)
            batch.pop("labels", None)
            out = model(**batch, output_all_exits=True)
            answers[rows] = out.all_logits.cpu().transpose(0, 1)
            if draws is not None:
                halts[rows] = out.halt_probabilities.cpu()
    tensors = {"all_logits": gathered(answers, count).transpose(0, 1).contiguous()}
    if draws is not None:
        tensors["halt_probabilities"] = gathered(halts, count)
        tensors["draws"] = torch.tensor(draws)
    return tensors


def predictions_of(logits: torch.Tensor) -> np.ndarray:
    """Class ids, or values for a single output: (..., num_labels) -> (...)."""
    chosen = logits.argmax(-1) if logits.shape[-1] > 1 else logits[..., 0]
    return chosen.numpy()


def labels_of(features: Features) -> np.ndarray:
    if None in features.labels:
        raise UserError("the file has no labels; evaluate on the dev file, or use --do_predict")
    return np.array(features.labels)


def metrics_by_layer(task: Task, all_logits: torch.Tensor, labels: np.ndarray) -> list[dict]:
    """The task's metrics of every layer's answers."""
    return [compute_metrics(task, predictions_of(logits), labels) for logits in all_logits]


def summarise(
    model: EarlyExitModel, task: Task, features: Features, record: Record
) -> dict[str, Any]:
    """Metrics, computation cost, exits per layer, FLOPs ratio and latency of a run."""
    config = model.config
    layers = config.num_hidden_layers
    exits = torch.bincount(record.exit_layer, minlength=layers + 1)[1:]
    spent = [
        early_exit_flops(config, length, layer)
        for length, layer in zip(features.lengths, record.exit_layer.tolist(), strict=True)
    ]
    full = [full_depth_flops(config, length) for length in features.lengths]
    average = record.exit_layer.double().mean().item()
    return {
        "task": task.name,
        "examples": len(features.labels),
        "metrics": compute_metrics(task, predictions_of(record.logits), labels_of(features)),
        "computation_cost": average / layers,
        "average_layer": average,
        "num_layers": layers,
        "exit_sample_ratio": 1 - exits[-1].item() / len(features.labels),
        "exits_per_layer": exits.tolist(),
        "flops_ratio": sum(spent) / sum(full),
        "latency_ms": latency_of(record.seconds),
        "rule": config.exit_keys(),
    }


def latency_of(seconds: torch.Tensor) -> dict[str, float]:
    """Milliseconds an example took."""
    median, p95 = np.percentile((seconds * 1000).numpy(), [50, 95]).tolist()
    return {"median": median, "p95": p95}


def environment(device: torch.device) -> dict[str, str]:
    """What the numbers were measured with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": f"{device.type} {name}".strip(),
        "threads": str(torch.get_num_threads()),
    }


def append_results(path: Path, summary: dict[str, Any], out_mode: str) -> None:
    """One row of the published CSV; `one` starts the file anew, `all` appends.

    Columns: the index 0, exit_thres where there is one, the metrics with compute_ratio after the
    first, and the rest of the rule without window_score, which the published code lacks.

    Raises UserError when the file holds another task's columns.
    """
    metrics = {name: f"{value:.4f}" for name, value in summary["metrics"].items()}
    first, *rest = metrics
    rule = summary["rule"]
    row = {"": "0"}
    if "exit_thres" in rule:
        row["exit_thres"] = f"{rule['exit_thres']:.2f}"
    row[first] = metrics[first]
    row["compute_ratio"] = f"{summary['computation_cost']:.4f}"
    row |= {name: metrics[name] for name in rest}
    row |= {k: str(v) for k, v in rule.items() if k not in ("exit_thres", "window_score")}
    header, line = ",".join(row), ",".join(row.values())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two evaluations may end at the same time; the lock keeps both rows.
        with FileLock(f"{path}.lock"):
            old = path.read_text(encoding="utf-8") if out_mode == "all" and path.exists() else ""
            if old and old.splitlines()[0] != header:
                raise UserError(f"{path} has other columns; use --out_mode one to start it anew")
            rows = [*(old.splitlines() or [header]), line]
            write_text(path, "\n".join(rows) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def layer_table(
    all_logits: torch.Tensor, labels: torch.Tensor, exit_layer: torch.Tensor, exits_only: bool
) -> str:
    """CSV with loss, entropy and accuracy of every layer.

    Over all samples, or over those that exit at the layer (`exits_only`). Regression has neither
    entropy nor accuracy: these fields stay empty.
    """
    regression = all_logits.shape[-1] == 1
    rows = []
    for layer, logits in enumerate(all_logits, start=1):
        here = exit_layer == layer if exits_only else torch.ones_like(exit_layer, dtype=torch.bool)
        chosen, truth = logits[here], labels[here]
        row = {"layer": layer, "samples": len(truth), "loss": "", "entropy": "", "accuracy": ""}
        if len(truth) and regression:
            row["loss"] = f"{F.mse_loss(chosen[:, 0], truth.float()):.6f}"
        elif len(truth):
            row["loss"] = f"{F.cross_entropy(chosen, truth):.6f}"
            row["entropy"] = f"{normalised_entropy(exit_scores(chosen)).mean():.6f}"
            row["accuracy"] = f"{(chosen.argmax(-1) == truth).float().mean():.6f}"
        rows.append(row)
    return as_csv(rows)


def predictions_table(
    task: Task, examples: Sequence[Example], logits: torch.Tensor, details: dict[str, Sequence]
) -> str:
    """TSV with index, label, prediction, confidence and `details` of every example.

    details: further columns by name, e.g. exit_layer.
    """
    scores = exit_scores(logits)
    lines = ["\t".join(["index", "label", "prediction", "confidence", *details])]
    predictions = predictions_of(logits)
    for i, example in enumerate(examples):
        label = "" if example.label is None else label_text(task, example.label)
        confidence = "" if task.is_regression else f"{scores[i].max():.4f}"
        more = (str(column[i]) for column in details.values())
        fields = [example.index, label, label_text(task, predictions[i]), confidence, *more]
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def print_results(summary: dict[str, Any], prefix: str = "") -> None:
    """The published closing lines, then what the published code does not measure."""
    average = f"{summary['average_layer']:.2f} of {summary['num_layers']}"
    per_layer = summary["exits_per_layer"]
    print_summary(summary, prefix, [f"average layer = {average}", f"exits per layer = {per_layer}"])
    if summary["dtype"] != "fp32":
        print(f"exit layers as in fp32 = {summary['same_exit_layer_as_fp32']:.4f}")


def print_summary(summary: dict[str, Any], prefix: str, details: Sequence[str]) -> None:
    """Cost and metrics as published, the mode's own `details`, FLOPs ratio and latency."""
    print(f"Computation cost: {summary['computation_cost']:.4f}")
    print(f"***** Eval results {prefix} *****")
    for name in sorted(summary["metrics"]):
        print(f"{name} = {summary['metrics'][name]}")
    for line in details:
        print(line)
    latency = summary["latency_ms"]
    print(f"FLOPs ratio = {summary['flops_ratio']:.4f}")
    print(f"latency = {latency['median']:.2f} ms median, {latency['p95']:.2f} ms p95")


def write_reports(
    directory: Path,
    statistics_dir: Path,
    summary: dict[str, Any],
    features: Features,
    record: Record,
    all_logits: torch.Tensor,
    out_mode: str,
) -> None:
    """eval_results.txt and .json in `directory`; per-layer statistics in `statistics_dir`."""
    append_results(directory / "eval_results.txt", summary, out_mode)
    write_json(directory / "eval_results.json", summary)
    labels = torch.tensor(features.labels)
    for name, exits_only in (("layers_all.csv", False), ("layers_exit.csv", True)):
        write_text(
            statistics_dir / name, layer_table(all_logits, labels, record.exit_layer, exits_only)
        )


def layer_curve(task: Task, all_logits: torch.Tensor, labels: np.ndarray) -> list[float]:
    """The task's main metric of every layer."""
    name = primary_metric(task)
    return [metrics[name] for metrics in metrics_by_layer(task, all_logits, labels)]
