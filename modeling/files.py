"""A model's folder, its files, and the JSON in them. Loads no torch."""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from .errors import UserError
from .families import check_computation, check_family
from .keys import keys_of

logger = logging.getLogger(__name__)

# The first that exists is read. An index names the files of a checkpoint in shards.
INDEX_ENDING = ".index.json"
WEIGHT_FILES = (
    "model.safetensors",
    f"model.safetensors{INDEX_ENDING}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_ENDING}",
)
# Whatever a tokenizer may be read from.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
)
# Keys of a config.json that change no answer.
IDLE_KEYS = frozenset(
    {"exit_config_path", "my_out_dir", "_name_or_path", "transformers_version", "dtype"}
)
# Beside the weights.
HUB_FILES = ["*.json", "spiece.model", "sentencepiece.bpe.model", "vocab.txt", "merges.txt"]
SAFETENSORS = ["model.safetensors", "model-*-of-*.safetensors"]  # of the hub, indices beside them
OLDER_WEIGHTS = ["pytorch_model.bin", "pytorch_model-*-of-*.bin"]
# What a folder without weights may have in their place, and what to do with it.
OTHER_WEIGHTS = {
    "adapter_model.*": "an adapter of PEFT alone: merge it with its model first, by "
    "merge_and_unload() and save_pretrained()",
    "*.ckpt*.index": "a TensorFlow checkpoint: convert it first, with "
    "convert_albert_original_tf_checkpoint_to_pytorch.py",
    "tf_model.h5": "weights of TensorFlow: convert them first, with transformers 4's "
    "from_pretrained(…, from_tf=True) and save_pretrained()",
    "flax_model.msgpack": "weights of Flax: convert them first, with transformers 4's "
    "from_pretrained(…, from_flax=True) and save_pretrained()",
    "*-of-*.safetensors": "a shard, without the index model.safetensors.index.json: fetch all "
    "files again",
    "*-of-*.bin": "a shard, without the index pytorch_model.bin.index.json: fetch all files again",
    "*.safetensors": "weights under another name: if they are the whole model's, rename the file "
    "to model.safetensors",
    "*.bin": "weights under another name: if they are the whole model's, rename the file to "
    "pytorch_model.bin",
    "*.pt": "perhaps a state dict: if so, rename the file to pytorch_model.bin",
    "*.pth": "perhaps a state dict: if so, rename the file to pytorch_model.bin",
    "*.ckpt": "perhaps a state dict: if so, rename the file to pytorch_model.bin",
}
# Files that a training leaves beside its weights, with endings of weights.
NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler", "answers-")
LARGEST_JSON = 1 << 25  # bytes; a configuration has a few thousand
LFS_POINTER = b"version https://git-lfs"  # begins what git has in place of a large file


def resolve_within(folder: str | Path, name: str | Path) -> Path | None:
    """Return the path of `name` in `folder`, links followed; None where it leads out of the folder.

    In the hub's cache a model's files are links to the blobs of its repository, which count as
    inside.
    """
    try:
        path = (Path(folder) / name).resolve()
        root = Path(folder).resolve()
        if is_in_hub_cache(root):
            root = root.parents[1]
        return path if path.is_relative_to(root) else None
    except (OSError, RuntimeError, ValueError):  # a circle of links, or a NUL in the name
        return None


def is_in_hub_cache(folder: str | Path) -> bool:
    """Tell whether a model's folder is a snapshot of a repository in the hub's cache."""
    root = Path(folder).resolve()
    return root.parent.name == "snapshots" and (root.parents[1] / "blobs").is_dir()


def local_folder(
    source: str | Path,
    flag: str = "",
    cache_dir: str | None = None,
    weights: bool = True,
    any_family: bool = False,
    **hub_options: Any,
) -> Path:
    """Return a directory or file as it is; fetch a hub repository once, and return its folder.

    Args:
        source: a directory, a file, or a hub name; ~ stands for the home folder.
        flag: the flag that named the source, for an error.
        cache_dir: where the hub's files are kept; huggingface_hub's own place by default.
        weights: whether to fetch the weights as well.
        any_family: whether to fetch weights that only transformers can read.
        hub_options: further arguments of huggingface_hub's `snapshot_download`.

    Raises:
        UserError: there is no such directory, the hub does not give the files, or the weights are
            of a family that cannot be read, or need an adapter or a computation that is not here,
            which is found before they are fetched.
    """
    source = os.path.expanduser(source)
    check_file(source)
    if os.path.exists(source):
        return Path(source)
    # The import takes half a second, and a directory does without it.
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, str(source), cache_dir=cache_dir, **hub_options)
    try:
        folder = Path(fetch(allow_patterns=HUB_FILES))
        path = folder / "config.json"
        if weights and not any_family:
            check_no_adapter(folder)
        if weights and not any_family and path.exists():
            values = read_json(path)
            check_family(path, values.get("model_type"))
            check_computation(path, values)
        if weights:
            fetch(allow_patterns=SAFETENSORS)
        if weights and not has_weights(folder):
            fetch(allow_patterns=OLDER_WEIGHTS)
    except UserError:
        raise
    except Exception as error:  # the hub's, or one of the HTTP client that the hub happens to use
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{flag} {source}: there is no such directory, and the hub cannot be asked or does not "
            f"have it ({reason[:200]}). Give a directory, or fetch it on a machine with a network: "
            f"hf download {source} --local-dir DIR"
        ) from error
    return folder


def check_hub_name(source: Any, options: Mapping[str, Any]) -> None:
    """Raise UserError for a hub name whose configuration the hub does not give.

    transformers asks the hub for a model's files one after the other, and again and again where
    there is no network.

    Args:
        source: of `from_pretrained`: a directory, a file, a hub name, or None.
        options: of `from_pretrained`.
    """
    if source is None or os.path.exists(source) or options.get("local_files_only"):
        return
    names = ("cache_dir", "revision", "token")
    local_folder(
        source, weights=False, **{name: options[name] for name in names if name in options}
    )


def find_file(folder: str | Path, name: str) -> Path | None:
    """Return the path of file `name` in `folder`; None where there is none.

    Raises UserError where `folder` is not a directory, and for a file that is not all there.
    """
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is not a directory; give the one that holds {name}")
    path = Path(folder) / name
    check_file(path)
    return path if path.is_file() else None


def check_file(path: str | Path) -> None:
    """Raise UserError for a link to nothing, and for what Git LFS has in place of a file.

    It says nothing of a path where nothing is.
    """
    path = Path(path)
    if path.is_symlink() and not path.exists():
        raise UserError(
            f"{path} is a link to {os.readlink(path)}, which does not exist: copy the folder again "
            "with what its links lead to (cp -rL), or fetch it again"
        )
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError:
        return  # whoever reads it says so
    if start == LFS_POINTER:
        raise UserError(
            f"{path} is a pointer of Git LFS in place of the file: fetch it with git lfs pull"
        )


def check_no_adapter(folder: str | Path) -> None:
    """Raise UserError for a folder with an adapter of PEFT, which transformers would load."""
    path = find_file(folder, "adapter_config.json")
    if path is not None:
        raise UserError(
            f"{path}: the model is that of an adapter of PEFT, which is not read here: merge the "
            "adapter with its model first, by merge_and_unload() and save_pretrained() into "
            "another folder; to do without the adapter, copy the model without this file"
        )


def read_json(path: str | Path) -> dict[str, Any]:
    """Read the JSON object in `path`; raises UserError with the file and the line.

    Of a key that stands there twice the last value counts, as for transformers; a warning says so.
    """
    content = read_regular_file(Path(path))
    try:
        value = json.loads(content.decode(), object_pairs_hook=partial(as_object, Path(path)))
    except (RecursionError, ValueError) as error:
        raise UserError(
            f"{path}: not valid JSON ({error}): correct it, or fetch it again if it was cut"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds {type(value).__name__}, expected an object {{...}}")
    return value


def as_object(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of an object's keys and values in a file; warns of a key that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        for key, count in counts.items():
            if count > 1:
                warn_of_repeated_key(path, key, json.dumps(found[key]))
    return found


@cache
def warn_of_repeated_key(path: Path, key: str, value: str) -> None:
    """Say once that a file gives a key several values."""
    logger.warning(
        "%s: the key %s stands there more than once; the last value, %s, counts", path, key, value
    )


def read_regular_file(path: Path) -> bytes:
    """Read a regular file of at most LARGEST_JSON bytes; raises UserError for any other.

    Reading a pipe may wait for ever, and a device may never end.
    """
    check_file(path)
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
    """Return the SHA-256 of a checkpoint's file of weights, or of all its files where in shards."""
    return joint_hash([file_hash(path) for path in weight_files(source)])


def model_hashes(folder: str | Path) -> dict[str, str]:
    """Return SHA-256 of all that a model's answers follow from but its exit keys, by their names.

    They are `weights`, `tokenizer` and `configuration`; what is not in the folder is left out. The
    exit keys are left out because they may be changed at any time, and stand in every result.
    """
    hashes = {}
    if has_weights(folder):
        hashes["weights"] = weights_hash(folder)
    paths = [Path(folder) / name for name in TOKENIZER_FILES]
    tokenizer_files = [path for path in paths if path.is_file()]
    if tokenizer_files:
        hashes["tokenizer"] = joint_hash([file_hash(path) for path in tokenizer_files])
    config_file = Path(folder) / "config.json"
    if config_file.is_file():
        config = read_json(config_file)
        ignored = IDLE_KEYS | keys_of(config.get("model_type")).exit_keys.keys()
        values = {key: value for key, value in config.items() if key not in ignored}
        text = json.dumps(values, sort_keys=True)
        hashes["configuration"] = hashlib.sha256(text.encode()).hexdigest()
    return hashes


def joint_hash(hashes: Sequence[str]) -> str:
    """Return one hash for those of several files in their order: of one file, its own."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def has_weights(folder: str | Path) -> bool:
    """Tell whether a model's folder holds weights, all or the index of their shards.

    Raises UserError for a file that is not all there.
    """
    for name in WEIGHT_FILES:
        check_file(Path(folder) / name)
    return any((Path(folder) / name).exists() for name in WEIGHT_FILES)


def weight_files(source: str | Path) -> list[Path]:
    """List the files of a checkpoint's tensors: one, or the index and then its shards.

    Raises UserError where there is none, or a shard is missing.
    """
    path = weight_file(source)
    if not path.name.endswith(INDEX_ENDING):
        return [path]
    shards = [path.with_name(name) for name in sorted(set(weight_map(path).values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise UserError(
            f"{path} names {len(shards)} shards, of which {', '.join(missing[:4])} "
            f"{'is' if len(missing) == 1 else 'are'} missing: fetch all files again"
        )
    return [path, *shards]


def weight_map(index: Path) -> dict[str, str]:
    """Read the file of each tensor, by the tensor's name, from the index of a checkpoint in shards.

    Raises UserError for an index that says something else, or names files elsewhere.
    """
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{index}: no weight_map with the file of each tensor: fetch it again")
    for name in files.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise UserError(f"{index}: weight_map names {name!r}: allowed are files beside it")
    return files


def weight_file(source: str | Path) -> Path:
    """Return the file of a checkpoint's tensors, or the index of its shards.

    Raises UserError where there is none, with what is there in its place, and beside an adapter.
    """
    check_no_adapter(source)
    for name in WEIGHT_FILES:
        path = find_file(source, name)
        if path is not None:
            return path
    for pattern, meaning in OTHER_WEIGHTS.items():
        for path in sorted(Path(source).glob(pattern)):
            if not path.name.startswith(NO_WEIGHTS):
                raise UserError(f"no weights in {source}: {path.name} is {meaning}")
    if (Path(source) / "model" / "config.json").is_file():  # as make_classifier.py leaves it
        raise UserError(f"no weights in {source}: give {Path(source) / 'model'}")
    raise UserError(
        f"no weights in {source}: looked for {', '.join(WEIGHT_FILES)}. Give a directory with "
        "pre-trained weights (TensorFlow checkpoints: convert them first with "
        "convert_albert_original_tf_checkpoint_to_pytorch.py); run_glue.py can start without, "
        "by --from_scratch"
    )
