"""The texts that set the scales of an int8 file: `export_onnx.py --int8`."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from elbert.configuration import AdaptiveConfig
from elbert.loading.configs import trained_labels
from elbert.loading.tokenizers import load_tokenizer
from elbert_base.errors import UserError
from glue.custom import custom_task
from glue.features import collate, encode
from glue.tasks import Split
from runs.job import find_task
from runs.provenance import training_flags
from runs.settings import DataSettings

TEXTS = 200
SEED = 0  # of the choice of texts


def calibration_split(directory: Path, file: Path | None) -> tuple[Split, int]:
    """Find the texts, and the tokens that each is cut at.

    file: a table with the columns sentence1[,sentence2]; None: the training file of the model in
    `directory`, by the flags in its training.json.
    """
    if file:
        task = custom_task({"test": file}, labels=trained_labels(directory))
        return Split(task, "", "test"), load_tokenizer(directory).model_max_length
    flags = training_flags(directory)
    known = {entry.name for entry in fields(DataSettings)} & flags.keys()
    data = DataSettings(**{name: flags[name] for name in known})
    try:
        split = Split(find_task(data, directory), data.folder, "train")
        split.path  # noqa: B018 (raises where there is no file)
    except UserError as error:
        raise UserError(
            f"--int8 calibrates on the texts that {directory} was trained on: {error}; or give "
            "--calibration_file, a table with the columns sentence1[,sentence2]"
        ) from error
    return split, data.max_seq_length


def deepest_settings(config: AdaptiveConfig) -> dict[str, np.ndarray]:
    """Give the rule's numbers under which the fewest examples exit early."""
    deepest = {}
    for name, key in config.table.exit_keys.items():
        if key.kind in (int, float):
            highest = config.num_hidden_layers if key.counts_layers else key.maximum
            value = highest if key.eager_when_low else key.minimum
            deepest[name] = np.array(value, np.int64 if key.kind is int else np.float32)
    return deepest


def calibration_feeds(
    directory: Path, model: PreTrainedModel, split: Split, length: int
) -> Iterator[dict[str, np.ndarray]]:
    """Give an exported file's inputs for some texts, one at a time, which then run all layers.

    length: tokens at which a text is cut.
    """
    examples = list(split.examples())
    rng = np.random.default_rng(SEED)
    chosen = rng.choice(len(examples), min(TEXTS, len(examples)), replace=False)
    tokenizer = load_tokenizer(directory)
    config: Any = model.config
    length = min(length, config.max_position_embeddings)
    features = encode([examples[i] for i in sorted(chosen)], tokenizer, length, config, SEED)
    settings = deepest_settings(config)
    # A draw of 1 halts nobody.
    draws = {name: np.ones(1, np.float32) for name in features.inputs}
    for row in range(len(features)):
        batch = collate(features, [row], tokenizer.pad_token_id)
        ids, segments = batch["input_ids"].numpy(), batch["token_type_ids"].numpy()
        yield {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": segments,
            **settings,
            **draws,
        }
