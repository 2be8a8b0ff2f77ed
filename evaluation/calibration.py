"""The texts that set the scales of an int8 file: `export_onnx.py --int8`."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
from transformers import AlbertConfig, PreTrainedModel

from evaluation.job import find_task
from evaluation.modes.base import Mode
from glue.custom import custom_task
from glue.features import collate
from glue.tasks import Split
from modeling.errors import UserError
from modeling.loading.configs import trained_labels
from modeling.loading.files import trained_length, training_flags
from modeling.loading.tokenizers import load_tokenizer
from training.settings import DataSettings

TEXTS = 200
SEED = 0  # of the choice of texts


def calibration_split(directory: Path, file: Path | None) -> tuple[Split, int]:
    """Find the texts, and the tokens that each is cut at.

    file: a table with the columns sentence1[,sentence2]; None: the training file of the model in
    `directory`, by the flags in its training.json.
    """
    if file:
        task = custom_task({"test": file}, labels=trained_labels(directory))
        return Split(task, "", "test"), trained_length(directory, 128)
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


def deepest_settings(mode: Mode, config: AlbertConfig) -> dict[str, np.ndarray]:
    """Give the rule's numbers under which the fewest examples exit early."""
    found = {}
    for name, key in mode.table.exit_keys.items():
        if key.kind in (int, float):
            highest = config.num_hidden_layers if key.counts_layers else key.maximum
            value = highest if key.eager_when_low else key.minimum
            found[name] = np.array(value, np.int64 if key.kind is int else np.float32)
    return found


def calibration_feeds(
    directory: Path, mode: Mode, model: PreTrainedModel, split: Split, length: int
) -> Iterator[dict[str, np.ndarray]]:
    """Give an exported file's inputs for some texts, one at a time, which then run all layers."""
    examples = list(split.examples())
    rng = np.random.default_rng(SEED)
    chosen = rng.choice(len(examples), min(TEXTS, len(examples)), replace=False)
    tokenizer = load_tokenizer(directory)
    length = min(length, model.config.max_position_embeddings)
    texts = [examples[i] for i in sorted(chosen)]
    features = mode.features(model.config, texts, tokenizer, length, seed=SEED)
    settings = deepest_settings(mode, model.config)
    settings |= {name: np.ones(1, np.float32) for name in features.inputs}  # a draw halts nobody
    for row in range(len(features)):
        batch = collate(features, [row], tokenizer.pad_token_id)
        ids, segments = batch["input_ids"].numpy(), batch["token_type_ids"].numpy()
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
        yield inputs | settings
