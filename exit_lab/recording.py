"""The one full-depth pass that a sweep reads: every layer's answer to every example, kept on disk.

A kept recording is used while its fingerprint, of weights, architecture and data, matches.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from evaluation.job import Job
from evaluation.results import labels_of, predictions_of
from modeling.errors import UserError
from modeling.flops import early_exit_flops, full_depth_flops
from utils.files import write_file
from utils.fingerprint import fingerprint

# Keys of a config.json that change no answer; nor do the keys of the exit rule.
IDLE_KEYS = (
    "exit_config_path my_out_dir model_name weight_name w_init w_lr target_halt_probability "
    "kl_penalty_factor prior_type lambda_lr transformers_version _name_or_path architectures dtype "
    "torch_dtype"
).split()


@dataclass(frozen=True)
class Recording:
    """What a sweep needs to know of a model and a data set.

    tensors: as the mode's `record` gives them; labels: (examples,).
    flops: of an exit at each layer, as shares of the mean full depth, (layers, examples).
    """

    tensors: dict[str, torch.Tensor]
    labels: np.ndarray
    flops: np.ndarray | None = None

    @property
    def predictions(self) -> np.ndarray:
        """Class ids, or values, of every layer: (layers, examples)."""
        return predictions_of(self.tensors["all_logits"])

    @property
    def seconds(self) -> np.ndarray | None:
        """To the answer of every layer: (layers, examples); None where the mode records none."""
        return self.tensors["seconds"].T.numpy() if "seconds" in self.tensors else None


def load_or_record(path: Path, job: Job, weights: str) -> Recording:
    """The recording kept at `path` if it is of this model and data, else a new one, kept there.

    weights: their hash. Says in one line which. Raises UserError when the examples have no labels,
    or an answer is not finite.
    """
    labels, idle = labels_of(job.features), {*IDLE_KEYS, *job.model.config.exit_keys()}
    config = {k: v for k, v in sorted(job.model.config.to_dict().items()) if k not in idle}
    known = fingerprint(config, job.batch_size, weights, job.features.digest())
    tensors, problem = read_recording(path, known)
    if tensors is None:
        print(f"{path} {problem}: recording {len(labels)} examples at full depth")
        tensors = job.mode.record(job)
        finite = tensors["all_logits"].isfinite()
        if not finite.all():
            layer = int((~finite).flatten(1).any(1).nonzero()[0]) + 1
            raise UserError(f"the answers of layer {layer} are not finite; train the model again")
        kept = save({**tensors, "labels": torch.from_numpy(labels)}, {"fingerprint": known})
        write_file(path, lambda file: file.write(kept))
    else:
        print(f"{path} reused: its weights and data are these")
    left_out = {"labels", "seconds"} if job.batch_size > 1 else {"labels"}  # times of a batch
    tensors = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    return Recording(tensors, labels, flops_of(job))


def read_recording(path: Path, known: str) -> tuple[dict[str, torch.Tensor] | None, str]:
    """The tensors kept at `path` under a fingerprint; otherwise None, and why there are none."""
    if not path.exists():
        return None, "does not exist yet"
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("fingerprint") != known:
                return None, "is of other weights or data"
            return {name: file.get_tensor(name) for name in file.keys()}, ""  # noqa: SIM118
    except (OSError, SafetensorError):
        return None, "is damaged"


def flops_of(job: Job) -> np.ndarray:
    """FLOPs of an exit at each layer, as shares of the mean full depth: (layers, examples)."""
    config = job.model.config
    lengths, row = np.unique(np.asarray(job.features.lengths), return_inverse=True)
    depths = range(1, config.num_hidden_layers + 1)
    spent = [[early_exit_flops(config, n, depth) for n in lengths.tolist()] for depth in depths]
    full = np.array([full_depth_flops(config, n) for n in lengths.tolist()], dtype=float)
    return np.array(spent, dtype=float)[:, row] / full[row].mean()
