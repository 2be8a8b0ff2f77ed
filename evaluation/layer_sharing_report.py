"""How closely a shared layer follows the BERT that it was made of, pass by pass."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from transformers import AlbertConfig, AlbertModel

from modeling.cpu_packing import packed_weights
from modeling.errors import UserError
from modeling.layer_sharing import Teacher, squared_errors, variance_sums, variances
from modeling.loading.configs import make_config
from modeling.loading.files import read_json
from modeling.loading.weights import load_into, read_weights
from modeling.pretraining import Sums, add_sums
from training.checkpoints import check_finished
from training.layer_sharing import TeacherText, load_teacher, text_of
from training.layer_sharing_settings import SharingSettings
from utils.environment import environment
from utils.files import write_json
from utils.markdown import markdown_table


def load_student(directory: str) -> AlbertModel:
    """Load the trained student in `directory`; UserError when there is none."""
    check_finished(directory)
    path = Path(directory) / "config.json"
    values = read_json(path)
    if values.get("model_type") != "albert":
        raise UserError(f"{path}: not an ALBERT that share_layers.py wrote")
    model = AlbertModel(make_config(path, values, AlbertConfig))
    load_into(model, read_weights(directory), directory, heads=())
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
    effects = (sums["effect_errors"] / sums["effect"]).tolist()  # 0 / 0 without pairs
    return {
        "passes": shares[1:],
        "embeddings": shares[0],
        "second_sentence": [None if isnan(effect) else effect for effect in effects[1:]],
        "followed_layers": teacher.followed[1:],
        "tokens": int(sums["tokens"]),
        "eval_file": path,
        "environment": environment(device),
    }


def all_sums(
    accelerator: Accelerator, student: AlbertModel, teacher: Teacher, text: TeacherText
) -> Sums:
    """Squared errors (N+1,), what `variances` needs, and `effect_sums`, of this process's part."""
    shard = accelerator.process_index, accelerator.num_processes
    student.to(accelerator.device).eval()
    # A text may have fewer examples than there are processes: without any, the sums are zeros.
    states = len(teacher.followed)
    nothing = torch.zeros(states, 0, 1, teacher.config.hidden_size, device=accelerator.device)
    zeros = torch.zeros(states, dtype=torch.double, device=accelerator.device)
    sums: Sums = dict.fromkeys(("errors", "effect_errors", "effect"), zeros)
    sums |= variance_sums(nothing, None)

    def both(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        states = student(**inputs, output_hidden_states=True).hidden_states
        return torch.stack(states), teacher.states(inputs)

    with packed_weights(teacher.backbone), torch.no_grad():
        for inputs in text.evaluation_batches(shard):
            inputs = send_to_device(inputs, accelerator.device)
            found, wanted = both(inputs)
            mask = inputs.get("attention_mask")
            errors = {"errors": squared_errors(found, wanted, mask).double()}
            sums |= add_sums(sums, {**errors, **variance_sums(wanted, mask)})
            second = inputs["token_type_ids"] == 1  # padding is 0
            if second.any():
                first = ~second if mask is None else mask.bool() & ~second
                alone = both({**inputs, "attention_mask": first.long()})
                counted = first & second.any(1, keepdim=True)
                sums |= add_sums(sums, effect_sums((found, wanted), alone, counted))
    return sums


def effect_sums(
    pairs: Sequence[torch.Tensor], alone: Sequence[torch.Tensor], first: torch.Tensor
) -> Sums:
    """Sum what second sentences do to the states of the first: (N+1,) squared, in float64.

    pairs, alone: the student's and the teacher's states with the second sentence and without it.
    first: (batch, length), the tokens that count.
    effect: of the teacher's change; effect_errors: of what the student's differs from it.
    """
    changes = [with_both - without for with_both, without in zip(pairs, alone, strict=True)]
    return {
        "effect_errors": squared_errors(*changes, first).double(),
        "effect": squared_errors(pairs[1], alone[1], first).double(),
    }


def report_student(summary: dict[str, Any], directory: Path) -> None:
    """Print the shares of every pass, and write eval_results.json."""
    print(
        f"What is left unexplained, {summary['tokens']} tokens: of the teacher's variance, and of"
    )
    print("what a second sentence does to the states of the first (1: as good as ignoring it)")
    parts = (summary[name] for name in ("followed_layers", "passes", "second_sentence"))
    rows = [("embeddings", 0, f"{summary['embeddings']:.4f}", "–")]
    for number, (layer, share, effect) in enumerate(zip(*parts, strict=True), 1):
        rows.append((number, layer, f"{share:.4f}", "–" if effect is None else f"{effect:.4f}"))
    print(markdown_table(("pass", "teacher's layer", "share", "second sentence"), rows))
    write_json(directory / "eval_results.json", summary)
