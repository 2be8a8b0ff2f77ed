"""The recorded pass of a model over a data set, kept in a file and reused while it is true."""

from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from evaluation.measures import labels_of
from evaluation.predict import Predictions, is_main, record_layers
from evaluation.sweep import Recording, flops_of
from modeling.errors import UserError
from modeling.files import IDLE_KEYS
from runs.console import counted
from runs.fingerprint import fingerprint
from runs.folder import RunFolder
from runs.job import Job

RECORDING = "all_logits.safetensors"
OTHERS = "the recording is of other weights, keys, data, batch size, number type, device or threads"


def load_or_record(folder: Path, job: Job) -> Recording:
    """Load the recording in `folder` if it is of this model and data; else record and keep it.

    One line says which. Several processes share the work of recording; the main one keeps the
    file. Raises UserError when the examples have no labels, or an answer is not finite.
    """
    path = folder / RECORDING
    labels = labels_of(job.features)
    current = recording_fingerprint(job)
    tensors, problem = read_recording(path, current)
    # The main process decides for all: disks may differ.
    (problem,) = broadcast_object_list([problem])
    if problem:
        tensors = record_anew(job, f"{path}: {problem}")
    job.check_unchanged()
    if problem and is_main():
        content = save({**tensors, "labels": torch.from_numpy(labels)}, {"fingerprint": current})
        RunFolder(folder).write(RECORDING, lambda file: file.write(content))
    elif is_main():
        print(f"{path}: reused, since weights, data and number type are the same")
    tensors = dict(tensors)
    tensors.pop("labels", None)
    if job.batch_size > 1:  # the times are those of whole batches
        tensors.pop("seconds")
    return Recording(tensors, labels, flops_of(job.config, job.features.lengths))


def recording_fingerprint(job: Job) -> str:
    """Return the fingerprint of all that a recording depends on."""
    ignored = IDLE_KEYS | job.config.exit_keys().keys()
    values = {
        key: value for key, value in sorted(job.config.to_dict().items()) if key not in ignored
    }
    weights, data = job.origin.provenance.weights, job.features.digest()
    # The number type changes answers; so do device and threads, at times, and always the latency.
    way = f"{job.origin.dtype}, compiled" if job.compile else job.origin.dtype
    computed_with = (way, str(job.model.device), torch.get_num_threads())
    return fingerprint(values, job.batch_size, weights, data, computed_with)


def record_anew(job: Job, reason: str) -> Predictions:
    """Record every layer's answers to the examples, and say why.

    Raises UserError for an answer that is not finite.
    """
    if is_main():
        count = counted(len(job.features), "example")
        print(f"{reason}; recording the answers of all layers to {count}")
    tensors = record_layers(job, job.batch_size)
    is_finite = tensors["all_logits"].isfinite().flatten(1).all(1)  # (layers,)
    if not is_finite.all():
        layer = int((~is_finite).nonzero()[0]) + 1
        raise UserError(f"the answers of layer {layer} are not finite; train the model again")
    return tensors


def read_recording(path: Path, current: str) -> tuple[dict[str, torch.Tensor], str]:
    """Read the tensors kept at `path` under the fingerprint `current`.

    Returns the tensors by name and ""; or none, and why the file cannot be used.
    """
    if not path.exists():
        return {}, "there is no recording yet"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("fingerprint") != current:
                return {}, OTHERS
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, ""
    except (OSError, SafetensorError):
        return {}, "the recording is damaged"
