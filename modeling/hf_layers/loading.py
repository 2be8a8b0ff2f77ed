"""Read an encoder's weights by transformers' own code: its names, shards, types and renamings."""

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedConfig
from transformers.utils import logging

from ..errors import UserError
from .configs import encoder_config

# Where a model has the tensors of transformers' encoder, and those of its classifier's head.
ENCODER = "albert.model."
HEAD = "albert.encoder.kept_head."
# Tensors of an encoder that no model may leave unread; the numbers of positions are no weights.
ENCODER_WEIGHTS = r"(^|[._])(layers?\.\d+|embeddings)\.(?!position_ids|token_type_ids)"

# What is damaged, or something else, fails in many ways.
READING_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    pickle.UnpicklingError,
    SafetensorError,
    StrictDataclassError,
)


def read_by_transformers(config: PreTrainedConfig, folder: Path) -> dict[str, Tensor]:
    """Read a checkpoint of an encoder, or of a classifier, under an ELBERT's names.

    config: the ELBERT's. With `keep_head` the classifier's head is read as well.

    Raises UserError for what transformers cannot read, for tensors of other shapes than the
    configuration's, and for weights of the encoder that have no place.
    """
    elbert: Any = config
    kind: Any = AutoModelForSequenceClassification if elbert.keep_head else AutoModel
    try:
        with quiet():
            loaded, report = kind.from_pretrained(
                folder,
                config=encoder_config(config),
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
            )
    # What is damaged, or something else, fails in many ways.
    except (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        SafetensorError,
        StrictDataclassError,
    ) as e:
        reason = " ".join(str(e).split())[:300]
        raise UserError(f"{folder}: transformers cannot read the weights: {reason}") from e
    check_report(report, loaded.base_model_prefix, folder)
    absent = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    prefix = f"{loaded.base_model_prefix}." if elbert.keep_head else ""
    # What was not read is named, for the caller's report, without its values.
    ignored = dict.fromkeys(report["unexpected_keys"], torch.empty(0))
    read = {
        place_of(name, prefix): tensor
        for name, tensor in loaded.state_dict().items()
        if name not in absent
    }
    return {**ignored, **read}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from writing its own report and progress beside the caller's."""
    level = logging.get_verbosity()
    has_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()


def place_of(name: str, prefix: str) -> str:
    """Return the name that an ELBERT has for a tensor of transformers' encoder or classifier.

    prefix: what the names of the encoder's begin with. A pooler belongs to the head.
    """
    is_pooler = name.startswith(f"{prefix}pooler.")
    if name.startswith(prefix) and not is_pooler:
        return ENCODER + name.removeprefix(prefix)
    return f"{HEAD}classifier.{name}"


def check_report(report: dict[str, Any], prefix: str, folder: Path) -> None:
    """Raise UserError for weights of an encoder that were left unread, or have other shapes."""
    unread = sorted(name for name in report["unexpected_keys"] if re.search(ENCODER_WEIGHTS, name))
    if unread:
        raise UserError(
            f"{folder}: the configuration has no place for {len(unread)} weights of the encoder, "
            f"such as {unread[0]}: give the config.json that belongs to the weights"
        )
    for name, found, expected in report["mismatched_keys"]:
        if name.startswith(f"{prefix}.") or re.search(ENCODER_WEIGHTS, name):
            raise UserError(
                f"{folder}: {name} has shape {tuple(found)}, the configuration asks for "
                f"{tuple(expected)}; is the config.json that of another model?"
            )
