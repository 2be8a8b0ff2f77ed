"""What run_pretraining.py and share_layers.py find on a text that was held out, and print."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from transformers import AlbertConfig, AlbertModel, PreTrainedModel

from modeling.cpu_packing import packed_weights
from modeling.errors import UserError
from modeling.layer_sharing import squared_errors, variance_sums, variances
from modeling.loading.configs import make_config
from modeling.loading.files import read_json
from modeling.loading.weights import load_into, read_weights
from modeling.pretraining import PreTrainingObjective, Sums, add_sums, means
from training.checkpoints import check_finished
from training.layer_sharing import TeacherText, load_teacher
from training.pretraining import mean_updates
from training.pretraining_data import PretrainingData, TokenClass
from training.pretraining_settings import SharingSettings
from utils.console import markdown_table
from utils.environment import environment
from utils.files import write_json


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
        "eval_file": str(data.text.train_files[0]),
        "environment": environment(accelerator.device),
    }


def report_pretraining(summary: dict[str, Any], directory: Path) -> None:
    """Print what was found with the published table, and write eval_results.json."""
    print("***** Eval results *****")
    for name in ("loss", "mlm_loss", "mlm_acc", "sop_loss", "sop_acc", "ponder_cost"):
        if name in summary:
            print(f"{name} = {summary[name]:.4f}")
    if summary["updates"]:
        rows = [("τ", f"{summary['tau']:g}"), ("Max iterations", summary["max_updates"])]
        for name, key in (("mlm (Acc.)", "mlm_acc"), ("sop (Acc.)", "sop_acc")):
            rows.append((name, f"{100 * summary[key]:.1f}" if key in summary else ""))
        rows += [(row, f"{value:.2f}") for row, value in summary["updates"].items()]
        print(f"\n{markdown_table(('', 'this model'), rows)}")
    write_json(directory / "eval_results.json", summary)


def load_student(settings: SharingSettings) -> AlbertModel:
    """Load the trained student in --output_dir; UserError when there is none."""
    directory = settings.run.output_dir
    check_finished(directory)
    path = Path(directory) / "config.json"
    values = read_json(path)
    if values.get("model_type") != "albert":
        raise UserError(f"{path}: not an ALBERT that share_layers.py wrote")
    model = AlbertModel(make_config(path, values, AlbertConfig))
    load_into(model, read_weights(directory), directory, heads=())
    return model


def evaluate_student(settings: SharingSettings, accelerator: Accelerator) -> dict[str, Any]:
    """Every pass's share of the teacher's variance that is left unexplained on --eval_file."""
    student, device = load_student(settings), accelerator.device
    passes, path = student.config.num_hidden_layers, settings.evaluation.eval_file
    teacher, tokenizer = load_teacher(settings, passes, device)
    for key in ("hidden_size", "vocab_size"):
        mine, wanted = getattr(student.config, key), getattr(teacher.config, key)
        if mine != wanted:
            raise UserError(
                f"{settings.run.output_dir}/config.json: {key} is {mine}, that of "
                f"{settings.student.model_name_or_path} is {wanted}; give the teacher of this "
                "student with --model_name_or_path"
            )
    batch_size = settings.evaluation.per_gpu_eval_batch_size * accelerator.num_processes
    text = replace(settings.text, train_files=[path])
    text = TeacherText(text, tokenizer, settings.run.seed, batch_size)
    student.to(device).eval()
    # A text may have fewer examples than there are processes: without any, the sums are zeros.
    states = len(teacher.followed)
    nothing = torch.zeros(states, 0, 1, teacher.config.hidden_size, device=device)
    sums: Sums = {"errors": torch.zeros(states, dtype=torch.double, device=device)}
    sums |= variance_sums(nothing, None)
    shard = accelerator.process_index, accelerator.num_processes
    with packed_weights(teacher.backbone), torch.no_grad():
        for inputs in text.evaluation_batches(shard):
            inputs = send_to_device(inputs, device)
            mask, wanted = inputs.get("attention_mask"), teacher.states(inputs)
            found = student(**inputs, output_hidden_states=True).hidden_states
            errors = squared_errors(found, wanted, mask).double()
            sums = add_sums(sums, {"errors": errors, **variance_sums(wanted, mask)})
    sums = accelerator.reduce(sums, "sum")
    shares = (sums["errors"] / sums["tokens"] / variances(sums)).tolist()
    return {
        "passes": shares[1:],
        "embeddings": shares[0],
        "followed_layers": teacher.followed[1:],
        "tokens": int(sums["tokens"]),
        "eval_file": path,
        "environment": environment(device),
    }


def report_student(summary: dict[str, Any], directory: Path) -> None:
    """Print the shares of every pass, and write eval_results.json."""
    print(f"What is left unexplained of the teacher's variance, {summary['tokens']} tokens:")
    rows = [("embeddings", 0, f"{summary['embeddings']:.4f}")]
    passes = zip(summary["followed_layers"], summary["passes"], strict=True)
    rows += [(number, layer, f"{share:.4f}") for number, (layer, share) in enumerate(passes, 1)]
    print(markdown_table(("pass", "teacher's layer", "share"), rows))
    write_json(directory / "eval_results.json", summary)
