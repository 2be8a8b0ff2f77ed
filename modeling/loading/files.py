"""Files of a source, which is a directory or a hub name, and the JSON in them. Loads no torch."""

import json
from pathlib import Path
from typing import Any

from ..errors import UserError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def find_file(source: str | Path, name: str, cache_dir: str | None = None) -> Path | None:
    """Path of file `name` of a local directory or a hub repository; None where it has none."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    if Path(source).exists():
        raise UserError(f"{source} is a file; give the directory that holds {name}")
    from transformers.utils import cached_file  # takes seconds, and a directory has no need of it

    try:
        found = cached_file(
            str(source), name, cache_dir=cache_dir, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{source} is neither a directory nor a model that the hub can give: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return Path(found) if found else None


def read_json(path: str | Path) -> dict[str, Any]:
    """The JSON object in `path`; raises UserError naming the file and the line that is wrong."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
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
        "convert_albert_original_tf_checkpoint_to_pytorch.py), or --from_scratch"
    )
