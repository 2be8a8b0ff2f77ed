"""The recorded pass of a model over a data set: kept in a file, and reused while it is true."""

from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from answers.predict import Predictions, is_main, record_layers
from answers.report import labels_of
from answers.sweep import Recording, flops_of
from elbert_base.errors import UserError
from runs.files import RunFolder, fingerprint
from runs.job import Job

RECORDING = "all_logits.safetensors"
# Keys of a config.json that change no answer; nor do the keys of the exit rule.
IDLE_KEYS = {"exit_config_path", "my_out_dir", "_name_or_path"}


def load_or_record(folder: Path, job: Job) -> Recording:
    """The recording kept in a folder if it is of this model and data, else a new one, kept there.

    Says in one line which. Processes share the recording's work; what follows is the main one's.
    Raises UserError when the examples have no labels, or an answer is not finite.
    """
    path, weights = folder / RECORDING, job.origin.provenance.weights
    labels = labels_of(job.features)
    idle = IDLE_KEYS | job.config.exit_keys().keys()
    config = {key: x for key, x in sorted(job.config.to_dict().items()) if key not in idle}
    known = fingerprint(config, job.batch_size, weights, job.features.digest())
    tensors, problem = read_recording(path, known)
    (problem,) = broadcast_object_list([problem])  # the main process's: disks may differ
    if problem:
        tensors = record_anew(job, f"{path} {problem}")
    job.check_unchanged()
    if problem and is_main():
        kept = save({**tensors, "labels": torch.from_numpy(labels)}, {"fingerprint": known})
        RunFolder(folder).write(RECORDING, lambda file: file.write(kept))
    elif is_main():
        print(f"{path} reused: its weights and data are these")
    left_out = {"labels", "seconds"} if job.batch_size > 1 else {"labels"}  # times of a batch
    tensors = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    return Recording(tensors, labels, flops_of(job.config, job.features.lengths))


def record_anew(job: Job, why: str) -> Predictions:
    """Record every layer's answers to the examples; UserError for an answer that is not finite."""
    if is_main():
        print(f"{why}: recording {len(job.features)} examples at full depth")
    tensors = record_layers(job, job.batch_size)
    finite = tensors["all_logits"].isfinite()
    if not finite.all():
        layer = int((~finite).flatten(1).any(1).nonzero()[0]) + 1
        raise UserError(f"the answers of layer {layer} are not finite; train the model again")
    return tensors


def read_recording(path: Path, known: str) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors kept at `path` under a fingerprint; otherwise none, and why."""
    if not path.exists():
        return {}, "does not exist yet"
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("fingerprint") != known:
                return {}, "is of other weights or data"
            return {name: file.get_tensor(name) for name in file.keys()}, ""  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}, "is damaged"
