"""How well a pre-trained model predicts, and how often its tokens were updated."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling.cpu_packing import packed_weights
from modeling.pretraining import PreTrainingObjective, Sums, add_sums, means
from training.pretraining import mean_updates
from training.pretraining_data import PretrainingData, TokenClass
from training.pretraining_settings import PretrainingSettings
from utils.environment import environment
from utils.files import write_json
from utils.markdown import markdown_table


def evaluation_text(
    settings: PretrainingSettings, tokenizer: PreTrainedTokenizerBase, processes: int
) -> PretrainingData:
    """--eval_file in batches, masked as the training's text is."""
    text, flags = settings.text, settings.evaluation
    recipe = text.recipe(text.max_seq_length, settings.run.seed)
    batch_size = flags.per_gpu_eval_batch_size * processes
    return PretrainingData([flags.eval_file], text.split_sentences, tokenizer, recipe, batch_size)


@torch.inference_mode()
def evaluate_pretraining(
    accelerator: Accelerator, model: PreTrainedModel, data: PretrainingData
) -> dict[str, Any]:
    """Losses, accuracies and mean updates of `model` on a text."""
    objective = PreTrainingObjective(model.to(accelerator.device).eval(), len(TokenClass))
    total: Sums = {}
    shard = accelerator.process_index, accelerator.num_processes
    with packed_weights(model):
        for batch in data.evaluation_batches(shard):
            total = add_sums(total, objective(**send_to_device(batch, accelerator.device)).sums)
    total, tau = accelerator.reduce(total, "sum"), objective.tau
    return {
        **means(total, tau),
        "updates": mean_updates(total),
        "max_updates": model.config.num_hidden_layers,
        "tau": tau,
        "examples": int(total["examples"]),
        "eval_file": str(data.paths[0]),
        "environment": environment(accelerator.device),
    }


def report_pretraining(summary: dict[str, Any], directory: Path) -> None:
    """Print what was found with the published table, and write eval_results.json."""
    print("***** Eval results *****")
    for name in ("loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "ponder_cost"):
        if name in summary:
            print(f"{name} = {summary[name]:.4f}")
    if summary["updates"]:
        print()
        print_table({"this model": summary})
    write_json(directory / "eval_results.json", summary)


def print_table(models: dict[str, dict]) -> None:
    """Print the published table, in Markdown: a column for each model's `eval_results.json`."""
    columns = [cells_of(summary) for summary in models.values()]
    rows = list(dict.fromkeys(row for cells in columns for row in cells))
    cells = [[row, *(column.get(row, "") for column in columns)] for row in rows]
    print(markdown_table(["", *models], cells))


def cells_of(summary: dict) -> dict[str, str]:
    """A model's column of the table; a dense model has no τ, and all updates for every token."""
    adaptive = bool(summary["updates"])
    cells = {
        "τ": f"{summary['tau']:g}" if adaptive else "",
        "Max iterations": str(summary["max_updates"]),
    }
    for name, key in (("mlm (Acc.)", "mlm_acc"), ("sop (Acc.)", "sop_acc")):
        cells[name] = f"{100 * summary[key]:.1f}" if key in summary else ""
    return cells | {name: f"{value:.2f}" for name, value in summary["updates"].items()}
