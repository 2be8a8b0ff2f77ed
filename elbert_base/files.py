"""A model's folder, its files, and the JSON in them. Loads no torch."""

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # the first that exists is read
HUB_FILES = ["*.json", "spiece.model", "vocab.txt", "merges.txt"]  # beside the weights
LARGEST_JSON = 1 << 25  # bytes; a configuration has a few thousand


def resolve_within(folder: str | Path, name: str | Path) -> Path | None:
    """Return the path of `name` in `folder`, links followed; None where it leads out of the folder.

    In the hub's cache a model's files are links to the blobs of its repository, which count as
    inside.
    """
    try:
        path = (Path(folder) / name).resolve()
        root = Path(folder).resolve()
        if root.parent.name == "snapshots" and (root.parents[1] / "blobs").is_dir():
            root = root.parents[1]
        return path if path.is_relative_to(root) else None
    except (OSError, RuntimeError, ValueError):  # a circle of links, or a NUL in the name
        return None


def local_folder(
    source: str | Path, flag: str = "", cache_dir: str | None = None, weights: bool = True
) -> Path:
    """Return a directory or file as it is; fetch a hub repository once, and return its folder.

    Args:
        source: a directory, a file, or a hub name.
        flag: the flag that named the source, for an error.
        cache_dir: where the hub's files are kept; huggingface_hub's own place by default.
        weights: whether to fetch the weights as well.

    Raises:
        UserError: there is no such directory, and the hub does not give the files.
    """
    if os.path.exists(source):
        return Path(source)
    # The import takes half a second, and a directory does without it.
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, str(source), cache_dir=cache_dir)
    safetensors, older_format = WEIGHT_FILES
    try:
        folder = fetch(allow_patterns=[*HUB_FILES, safetensors] if weights else HUB_FILES)
        if weights and not has_weights(folder):
            fetch(allow_patterns=older_format)
    except Exception as error:  # the hub's, or one of the HTTP client that the hub happens to use
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{flag} {source}: is no directory, and the hub does not give it ({reason[:200]}). "
            f"Give a directory, or fetch it where there is a network: hf download {source} "
            "--local-dir DIR"
        ) from error
    return Path(folder)


def find_file(folder: str | Path, name: str) -> Path | None:
    """Return the path of file `name` in `folder`; None where there is none.

    Raises UserError where `folder` is not a directory.
    """
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is not a directory; give the one that holds {name}")
    path = Path(folder) / name
    return path if path.is_file() else None


def read_json(path: str | Path) -> dict[str, Any]:
    """Read the JSON object in `path`; raises UserError with the file and the line."""
    content = read_regular_file(Path(path))
    try:
        value = json.loads(content.decode())
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: not valid JSON ({error}): correct or restore it") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds {type(value).__name__}, expected an object {{...}}")
    return value


def read_regular_file(path: Path) -> bytes:
    """Read a regular file of at most LARGEST_JSON bytes; raises UserError for any other.

    Reading a pipe may wait for ever, and a device may never end.
    """
    try:
        if path.exists():
            is_small_file = path.is_file() and path.stat().st_size <= LARGEST_JSON
            if not is_small_file:
                raise UserError(f"{path}: not a regular file of at most {LARGEST_JSON} bytes")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hash(source: str | Path) -> str:
    """Return the SHA-256 of a checkpoint's file of weights."""
    return file_hash(weight_file(source))


def has_weights(folder: str | Path) -> bool:
    """Tell whether a model's folder holds weights."""
    return any((Path(folder) / name).exists() for name in WEIGHT_FILES)


def weight_file(source: str | Path) -> Path:
    """Return the file of a checkpoint's tensors; raises UserError where there is none."""
    for name in WEIGHT_FILES:
        path = find_file(source, name)
        if path is not None:
            return path
    raise UserError(
        f"no weights in {source}: looked for {', '.join(WEIGHT_FILES)}. Give a directory with "
        "pre-trained weights (TensorFlow checkpoints: convert them first with "
        "convert_albert_original_tf_checkpoint_to_pytorch.py); run_glue.py can start without, "
        "by --from_scratch"
    )
