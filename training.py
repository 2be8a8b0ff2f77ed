"""What the training scripts share: optimiser, schedule, and whole checkpoints."""

import math
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from files import write_json
from modeling.errors import UserError

IN_PROGRESS = "training_in_progress.json"


def make_optimizer(
    model: PreTrainedModel, learning_rate: float, weight_decay: float, adam_epsilon: float
) -> torch.optim.AdamW:
    """AdamW in the published groups: with decay, without (biases, layer norms), and W.

    W, the learned weights of the exits' losses, has its own learning rate `config.w_lr` and no
    decay; it is the last group where there is one.
    """
    own = getattr(model, "exit_weights", None)
    rest = [(name, p) for name, p in model.named_parameters() if p is not own]
    plain = ("bias", "LayerNorm.weight", "layer_norm.weight")
    groups = [
        {
            "params": [p for name, p in rest if not name.endswith(plain)],
            "weight_decay": weight_decay,
        },
        {"params": [p for name, p in rest if name.endswith(plain)], "weight_decay": 0.0},
    ]
    if own is not None:
        groups.append({"params": [own], "weight_decay": 0.0, "lr": model.config.w_lr})
    return torch.optim.AdamW(groups, lr=learning_rate, eps=adam_epsilon)


def make_schedule(
    optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int
) -> LambdaLR:
    """Linear warm-up, then linear decay to 0 at `total_steps`; W's learning rate stays constant."""

    def linear(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    scales = [linear, linear, lambda step: 1.0]
    return LambdaLR(optimizer, scales[: len(optimizer.param_groups)])


def clipped_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """The parameters that gradient clipping sees: all but W, as published."""
    return [p for group in optimizer.param_groups[:2] for p in group["params"]]


def check_loss(loss: float, step: int, learning_rate: float, output_dir: str | Path) -> None:
    """Raise UserError for a loss that is not finite, naming the step and the last checkpoint."""
    if math.isfinite(loss):
        return
    kept = latest_checkpoint(output_dir)
    raise UserError(
        f"the loss is {loss} at step {step} (learning rate {learning_rate:.3g}); training stopped. "
        + (f"The last good checkpoint is {kept}. " if kept else "No checkpoint was due yet. ")
        + "Lower --learning_rate, add --warmup_steps, or train without --fp16"
    )


def latest_checkpoint(output_dir: str | Path) -> Path | None:
    """The checkpoint-STEP of `output_dir` with the highest step."""
    found = sorted(checkpoints_of(output_dir), key=checkpoint_step)
    return found[-1] if found else None


def checkpoints_of(output_dir: str | Path) -> list[Path]:
    return [
        path
        for path in Path(output_dir).glob("checkpoint-*")
        if checkpoint_step(path) >= 0 and (path / "config.json").exists()
    ]


def checkpoint_step(path: Path) -> int:
    step = path.name.removeprefix("checkpoint-")
    return int(step) if step.isdigit() else -1


def save_model(
    directory: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write model and tokenizer to a temporary directory beside `directory`, then move them in.

    A new `directory` appears whole, by a rename. Into one that exists the files are moved one by
    one, the configuration last. Raises UserError when the disk is full or not writable, and for
    weights that are not finite.
    """
    broken = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if broken:
        raise UserError(
            f"{broken[0]} is not finite after training; {directory} is not written. "
            "Lower --learning_rate, add --warmup_steps, or train without --fp16"
        )
    directory = Path(directory)
    temporary = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        if not directory.exists():
            os.replace(temporary, directory)
            return
        names = sorted(path.name for path in temporary.iterdir())
        for name in sorted(names, key=lambda name: name == "config.json"):
            os.replace(temporary / name, directory / name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write the model to {directory}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def begin_training(output_dir: str | Path, arguments: dict) -> None:
    """Mark `output_dir` as being trained, so that an evaluation can tell an unfinished run.

    Checkpoints of a run that this one overwrites go: they would pass for its own.
    """
    write_json(Path(output_dir) / IN_PROGRESS, arguments)
    for stale in checkpoints_of(output_dir):
        shutil.rmtree(stale)


def finish_training(output_dir: str | Path) -> None:
    (Path(output_dir) / IN_PROGRESS).unlink(missing_ok=True)


def check_finished(output_dir: str | Path) -> None:
    """Raise UserError unless `output_dir` holds a model whose training came to its end."""
    directory = Path(output_dir)
    if (directory / IN_PROGRESS).exists():
        kept = latest_checkpoint(directory)
        raise UserError(
            f"training in {directory} did not finish; train again with --overwrite_output_dir"
            + (f", or evaluate its last checkpoint with --output_dir {kept}" if kept else "")
        )
    if not (directory / "config.json").exists():
        raise UserError(
            f"no trained model in {directory}; run the same command with --do_train first"
        )
