"""The one full-depth pass that a sweep reads: every layer's answer to every example, kept on disk.

A kept recording is used while its fingerprint, of weights, architecture and data, matches.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm

from evaluation.running import labels_of, predictions_of, to_device
from glue.features import Features, collate, sorted_batches
from glue.files import share
from modeling import UserError
from modeling.albert import attention_mask_of
from modeling.cpu_packing import packed_weights
from modeling.depth import EarlyExitModel, run_depths

# Keys of a config.json that change no answer; nor do the keys of the exit rule.
IDLE_KEYS = (
    "exit_config_path my_out_dir model_name weight_name w_init w_lr target_halt_probability "
    "kl_penalty_factor prior_type lambda_lr transformers_version _name_or_path architectures dtype "
    "torch_dtype"
).split()


class Recording(NamedTuple):
    """What a sweep needs to know of a model and a data set."""

    tensors: dict[str, torch.Tensor]  # as `record` gives them
    labels: np.ndarray  # (examples,)

    @property
    def predictions(self) -> np.ndarray:
        """Class ids, or values, of every layer: (layers, examples)."""
        return predictions_of(self.tensors["all_logits"])


def record(
    model: EarlyExitModel, features: Features, pad_token_id: int, batch_size: int = 1
) -> dict[str, torch.Tensor]:
    """What every layer says of every example, float32.

    all_logits: (layers, examples, num_labels). Of a ponder model also halt_probabilities
    (examples, layers) and draws (examples,).

    Goes through the depths as inference does, with the exit check after each, so that at batch
    size 1 the answers are those of an early-exit run to the last bit. Larger batches are faster
    on a GPU and differ in that bit, which a setting exactly at a tie can show.

    Raises UserError when an answer is not finite.
    """
    config, count = model.config, len(features.labels)
    answers = torch.empty(config.num_hidden_layers, count, config.num_labels)
    tensors = {"all_logits": answers}
    if features.draws is not None:
        tensors["halt_probabilities"] = torch.empty(count, config.num_hidden_layers)
        tensors["draws"] = torch.tensor(features.draws)
    model.eval()
    with packed_weights(model):
        for rows in tqdm(list(batches_of(features, batch_size)), desc="Recording", unit="batch"):
            batch = to_device(collate(features, rows, pad_token_id), model.device)
            hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
            mask = attention_mask_of(batch.get("attention_mask"))
            for layer, _, check, _ in run_depths(model, hidden, mask, leave=False):
                answers[layer - 1, rows] = check.answer.cpu()
                if "halt_probability" in check.state:
                    halts = check.state["halt_probability"].cpu()
                    tensors["halt_probabilities"][rows, layer - 1] = halts
    if not answers.isfinite().all():
        layer = int((~answers.isfinite()).flatten(1).any(1).nonzero()[0]) + 1
        raise UserError(f"the answers of layer {layer} are not finite; train the model again")
    return tensors


def batches_of(features: Features, batch_size: int) -> Sequence[list[int]]:
    if batch_size == 1:
        return [[row] for row in range(len(features.labels))]
    return list(sorted_batches(features.lengths, batch_size))


def fingerprint(model: EarlyExitModel, features: Features, batch_size: int) -> str:
    """Hash of everything that the recorded answers and labels follow from."""
    config, idle = model.config.to_dict(), {*IDLE_KEYS, *model.config.exit_keys()}
    kept = {name: value for name, value in config.items() if name not in idle}
    digest = hashlib.sha256(json.dumps([kept, batch_size], sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    digest.update(json.dumps(features).encode())
    return digest.hexdigest()


def recorded(
    path: Path,
    model: EarlyExitModel,
    features: Features,
    pad_token_id: int,
    batch_size: int = 1,
) -> Recording:
    """The recording kept at `path` if it is of this model and data, else a new one, kept there.

    Says in one line which. Raises UserError when the examples have no labels.
    """
    labels = labels_of(features)
    stamp = fingerprint(model, features, batch_size)
    tensors, problem = read_recording(path, stamp)
    if tensors is None:
        print(f"{path} {problem}: recording {len(labels)} examples at full depth")
        tensors = record(model, features, pad_token_id, batch_size)
        keep_recording(path, {**tensors, "labels": torch.from_numpy(labels)}, stamp)
    else:
        print(f"{path} reused: its weights and data are these")
    return Recording({name: t for name, t in tensors.items() if name != "labels"}, labels)


def read_recording(path: Path, stamp: str) -> tuple[dict[str, torch.Tensor] | None, str]:
    """The tensors kept at `path` under `stamp`; otherwise None, and why there are none."""
    if not path.exists():
        return None, "does not exist yet"
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("fingerprint") != stamp:
                return None, "is of other weights or data"
            return {name: file.get_tensor(name) for name in file.keys()}, ""  # noqa: SIM118
    except (OSError, SafetensorError):
        return None, "is damaged"


def keep_recording(path: Path, tensors: dict[str, torch.Tensor], stamp: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata={"fingerprint": stamp})
        share(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        if temporary.exists():
            temporary.unlink()
