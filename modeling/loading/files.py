"""Files of a source, which is a directory or a hub name, and the JSON in them. Loads no torch."""

import hashlib
import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ..errors import UserError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

HUB_SECONDS = 5  # to wait for the hub's first answer
LARGEST_JSON = 1 << 25  # bytes; a configuration has a few thousand, an index of shards a million


def resolve_within(folder: str | Path, name: str | Path) -> Path | None:
    """`name` as a path within `folder`, links followed; None where it leads out of it."""
    try:
        path = (Path(folder) / name).resolve()
        return path if path.is_relative_to(Path(folder).resolve()) else None
    except (OSError, RuntimeError, ValueError):  # a circle of links, a NUL
        return None


def find_file(source: str | Path, name: str, cache_dir: str | None = None) -> Path | None:
    """Path of file `name` of a local directory or a hub repository; None where it has none."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    if Path(source).exists():
        raise UserError(f"{source} is a file; give the directory that holds {name}")
    return from_hub(str(source), name, cache_dir)


def from_hub(source: str, name: str, cache_dir: str | None) -> Path | None:
    """File `name` of a hub repository, or None; without the hub, of what was fetched before.

    Raises UserError at once where the hub cannot be reached and nothing was fetched.
    """
    from transformers.utils import cached_file  # takes seconds, and a directory has no need of it

    problem = hub_problem()

    def fetched(name: str) -> str | None:
        how = {"cache_dir": cache_dir, "local_files_only": bool(problem)}
        return cached_file(source, name, **how, _raise_exceptions_for_missing_entries=False)

    try:
        found = fetched(name)
        known = found or not problem or fetched("config.json")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source} is neither a directory nor a model that the hub can give: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if not known:
        raise UserError(
            f"{source} is no directory, and the hub cannot be reached ({problem}). Give the "
            f"directory of a model, or fetch it where there is a network: hf download {source} "
            "--local-dir DIR"
        )
    return Path(found) if found else None


@cache
def hub_problem() -> str:
    """Why the hub cannot be reached, asked once and without retries; "" where it can."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except Exception as error:  # of the HTTP client that huggingface_hub happens to use
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def read_json(path: str | Path) -> dict[str, Any]:
    """The JSON object in `path`; raises UserError naming the file and the line that is wrong."""
    try:
        value = json.loads(read_text(Path(path)))
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}: not valid JSON ({error.msg}); the file is incomplete or "
            "was edited by hand: restore it, or train again"
        ) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not a JSON text in UTF-8") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds {type(value).__name__}, expected an object {{...}}")
    return value


def read_text(path: Path) -> str:
    """Of a regular file of bounded size: a pipe may have no beginning, a device no end."""
    status = path.stat()
    if not (path.is_file() or path.is_dir()) or status.st_size > LARGEST_JSON:
        raise UserError(f"{path}: not a regular file of at most {LARGEST_JSON} bytes")
    return path.read_text(encoding="utf-8")


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache
def _kept_hash(path: Path, size: int, time: int) -> str:
    return file_hash(path)


def weights_hash(source: str | Path) -> str:
    """SHA-256 of the files with a checkpoint's tensors; each is read again when it has changed."""
    states = [(path, path.stat()) for path in weight_files(source)]
    hashes = [_kept_hash(path, state.st_size, state.st_mtime_ns) for path, state in states]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def weight_files(source: str | Path, cache_dir: str | None = None) -> list[Path]:
    """The files with the tensors of a checkpoint; raises UserError when one or all are missing."""
    for name in WEIGHT_FILES:
        path = find_file(source, name, cache_dir)
        if path is None:
            continue
        if not name.endswith(".index.json"):
            return [path]
        shards = read_json(path).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(x, str) for x in shards.values()):
            raise UserError(f"{path}: weight_map must name the file of every tensor")
        shards = sorted(set(shards.values()))
        paths = [find_file(source, Path(shard).name, cache_dir) for shard in shards]
        if None in paths:
            raise UserError(f"{path} names {shards[paths.index(None)]}, which is missing")
        return paths
    raise UserError(
        f"no weights in {source}: looked for {', '.join(WEIGHT_FILES)}. Give a directory with "
        "pre-trained weights (TensorFlow checkpoints: convert them first with "
        "convert_albert_original_tf_checkpoint_to_pytorch.py); run_glue.py can start without, by "
        "--from_scratch"
    )
