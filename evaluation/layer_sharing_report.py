"""How closely a shared layer follows the BERT that it was made of, pass by pass."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from transformers import AlbertConfig, AlbertModel

from evaluation.job import environment
from glue.files import write_json
from modeling.cpu_packing import packed_weights
from modeling.errors import UserError
from modeling.layer_sharing import Teacher, squared_errors, variance_sums, variances
from modeling.loading.configs import make_config
from modeling.loading.files import read_json
from modeling.loading.weights import adopt, read_weights
from modeling.pretraining import Sums, add_sums
from training.checkpoints import check_finished
from training.layer_sharing import TeacherText, load_teacher, text_of
from training.layer_sharing_settings import SharingSettings


def load_student(directory: str) -> AlbertModel:
    """The trained student in `directory`; UserError when there is none."""
    check_finished(directory)
    path = Path(directory) / "config.json"
    values = read_json(path)
    if values.get("model_type") != "albert":
        raise UserError(f"{path}: not an ALBERT that share_layers.py wrote")
    model = AlbertModel(make_config(path, values, AlbertConfig))
    adopt(model, read_weights(directory), directory, heads=())
    return model


def check_teacher(settings: SharingSettings, student: AlbertModel, teacher: Teacher) -> None:
    """Raise UserError for a student that cannot be the teacher's."""
    for key in ("hidden_size", "vocab_size"):
        mine, wanted = getattr(student.config, key), getattr(teacher.config, key)
        if mine != wanted:
            raise UserError(
                f"{settings.run.output_dir}/config.json: {key} is {mine}, that of "
                f"{settings.student.model_name_or_path} is {wanted}; give the teacher of this "
                "student with --model_name_or_path"
            )


def evaluate_student(settings: SharingSettings, accelerator: Accelerator) -> dict[str, Any]:
    """Every pass's share of the teacher's variance that is left unexplained on --eval_file."""
    student, device = load_student(settings.run.output_dir), accelerator.device
    passes = student.config.num_hidden_layers
    teacher, tokenizer = load_teacher(settings, passes, device)
    check_teacher(settings, student, teacher)
    path = settings.evaluation.eval_file
    batch_size = settings.evaluation.per_gpu_eval_batch_size * accelerator.num_processes
    text = text_of(settings, [path], tokenizer, batch_size)
    sums = accelerator.reduce(all_sums(accelerator, student, teacher, text), "sum")
    shares = (sums["errors"] / sums["tokens"] / variances(sums)).tolist()
    return {
        "passes": shares[1:],
        "embeddings": shares[0],
        "followed_layers": teacher.followed[1:],
        "tokens": int(sums["tokens"]),
        "eval_file": path,
        "environment": environment(device),
    }


def all_sums(
    accelerator: Accelerator, student: AlbertModel, teacher: Teacher, text: TeacherText
) -> Sums:
    """errors (N+1,), and what `variances` needs, of this process's part of the text."""
    shard = accelerator.process_index, accelerator.num_processes
    student.to(accelerator.device).eval()
    # A text may have fewer examples than there are processes: without any, the sums are zeros.
    states = len(teacher.followed)
    nothing = torch.zeros(states, 0, 1, teacher.config.hidden_size, device=accelerator.device)
    errors = torch.zeros(states, dtype=torch.double, device=accelerator.device)
    sums: Sums = {"errors": errors, **variance_sums(nothing, None)}
    with packed_weights(teacher.backbone):
        for inputs in text.evaluation_batches(shard):
            inputs = send_to_device(inputs, accelerator.device)
            targets, mask = teacher.states(inputs), inputs.get("attention_mask")
            states = student(**inputs, output_hidden_states=True).hidden_states
            errors = squared_errors(states, targets, mask).double()
            sums = add_sums(sums, {"errors": errors, **variance_sums(targets, mask)})
    return sums


def report_student(summary: dict[str, Any], directory: Path) -> None:
    """Print the share of every pass, and write eval_results.json."""
    print(f"Variance of the teacher left unexplained, {summary['tokens']} tokens")
    print("| pass | teacher's layer | share |\n|---|---|---|")
    rows = zip(summary["followed_layers"], summary["passes"], strict=True)
    for number, (layer, share) in enumerate([(0, summary["embeddings"]), *rows]):
        print(f"| {number or 'embeddings'} | {layer} | {share:.4f} |")
    write_json(directory / "eval_results.json", summary)
