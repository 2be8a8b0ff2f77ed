"""A trained model's folder on the Hugging Face hub: what is sent, and what stays private."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi

from modeling.errors import UserError
from modeling.exit_settings import EXIT_FILE, overriding_file, read_exit_file, read_overrides
from modeling.files import TOKENIZER_FILES, read_json, resolve_within, weight_files
from modeling.keys import keys_of
from runs.files import as_json
from runs.flags import option
from runs.provenance import PASSWORD

CARD = "README.md"
PICTURE = "exits.png"
# The files that are sent, those of them that are there, and the weights. No other file is.
SENT_FILES = (
    "config.json",
    EXIT_FILE,
    *TOKENIZER_FILES,
    CARD,
    PICTURE,
)
# Files that, left from an earlier push, would win over what is sent now.
REMOVED_UNLESS_SENT = (EXIT_FILE, "model.safetensors", "model.safetensors.index.json")
# Keys of these files that are about the machine of the training.
PRIVATE_KEYS = ("_name_or_path", "name_or_path", "my_out_dir", "command", "flags")
# A path from a root, with two names at least, or from a home or a drive; or a URL with a password.
PRIVATE_VALUE = rf"^(/[^/]+/|~|[A-Za-z]:[\\/]|\\\\|file:)|{PASSWORD}"


@dataclass(frozen=True, kw_only=True)
class HubSettings:
    """The model and its repository."""

    model_dir: Path = option(..., "folder of the trained and evaluated model")
    hub_model_id: str | None = option(
        None, "repository on the hub, e.g. me/rte; default: only write the card"
    )
    license: str | None = option(None, "licence on the card, e.g. apache-2.0")
    language: str | None = option(None, "language of the texts, e.g. en")
    dataset: str | None = option(
        None, "name of the training data on the hub; default: that of GLUE, for its tasks"
    )
    base_model: str | None = option(
        None, "name of the starting model on the hub; default: that of the training"
    )
    hub_private_repo: bool = option(False, "make a new repository private")


def files_to_send(folder: Path) -> dict[str, Path]:
    """Find the files to send, by the names that they get on the hub.

    The exit keys of whatever file config.json names are sent as exit_config.json.

    Raises UserError for a link that leads out of the folder.
    """
    exit_file = overriding_file(read_json(folder / "config.json"), folder)
    names = [name for name in SENT_FILES if name != EXIT_FILE]
    files = {name: folder / name for name in names if (folder / name).exists()}
    files |= {path.name: path for path in weight_files(folder)}
    for path in files.values():
        if not resolve_within(folder, path.absolute()):
            raise UserError(f"{path} is a link that leads out of {folder}: copy its file there")
    return {**files, EXIT_FILE: exit_file} if exit_file else files


def public_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file without what is private: keys, local paths and passwords."""
    public = {}
    for key, value in values.items():
        is_private_text = isinstance(value, str) and re.search(PRIVATE_VALUE, value)
        if key in PRIVATE_KEYS or is_private_text:
            continue
        if key == "provenance" and isinstance(value, Mapping):
            value = public_json(value)
        public[key] = value
    return public


def put_together(folder: Path, target: Path) -> None:
    """Put into `target` what is sent of a model's folder, and nothing that is private.

    config.json has the exit keys that are in force: transformers' Auto classes read no other file
    of a repository.
    """
    files = files_to_send(folder)
    for name, path in files.items():
        if name in ("config.json", EXIT_FILE, "tokenizer_config.json"):
            values = read_exit_file(path) if name == EXIT_FILE else read_json(path)
            if name == "config.json" and EXIT_FILE in files:
                values |= read_overrides(files[EXIT_FILE], keys_of(values.get("model_type")))
            values = public_json(values)
            if "exit_config_path" in values:
                values["exit_config_path"] = EXIT_FILE
            (target / name).write_text(as_json(values), encoding="utf-8")
        else:
            (target / name).symlink_to(path.resolve())


def send(folder: Path, repository: str, is_private: bool) -> None:
    """Send a model's folder to its repository, which is made where there is none.

    Raises UserError where the hub does not take it.
    """
    with TemporaryDirectory() as name:
        target = Path(name)
        put_together(folder, target)  # refuses what must not leave before the hub is asked
        hub = HfApi()
        names = sorted(path.name for path in target.iterdir())
        try:
            hub.create_repo(repository, private=is_private, exist_ok=True)
            url = hub.upload_folder(
                repo_id=repository,
                folder_path=target,
                allow_patterns=names,
                delete_patterns=list(REMOVED_UNLESS_SENT),
            )
        except Exception as error:  # of the hub, or of the HTTP client that it happens to use
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{repository}: the upload failed ({reason})") from error
    print(f"sent: {url}")
    print(f"files: {', '.join(names)}")
