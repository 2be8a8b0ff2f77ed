"""The texts that set the scales of an int8 ONNX file: `export_onnx.py --int8`."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import numpy as np

from evaluation.scorer import trained_columns
from glue.custom import custom_task, join_column_names
from glue.features import collate, encode
from glue.splits import Split
from glue.tasks import TWO_SENTENCES
from modeling.configuration import AdaptiveConfig
from modeling.encoder import AlbertPreTrainedModel
from modeling.errors import UserError
from modeling.loading.configs import trained_labels
from modeling.loading.tokenizers import check_vocab_size, load_tokenizer
from runs.job import named_task
from runs.provenance import training_flags
from runs.settings import DataSettings

TEXTS = 200
SEED = 0  # of the choice of texts


@dataclass(frozen=True)
class CalibrationTexts:
    """Where the texts are, and how they are read."""

    split: Split
    path: Path  # the split's file
    max_length: int  # tokens at which a text is cut


def find_texts(directory: Path, file: Path | None) -> CalibrationTexts:
    """Find the texts to calibrate on.

    Args:
        directory: of the model.
        file: a table with the columns of the training, or sentence1[,sentence2]; None: the file
            that the model was trained on, by the flags in its training.json.

    Raises:
        UserError: there is no such file.
    """
    if file:
        columns = trained_columns(directory)
        task = custom_task(
            {"test": file},
            labels=trained_labels(directory),
            text_columns=None if columns == TWO_SENTENCES else join_column_names(columns),
            label_column="",
        )
        split = Split(task, "", "test")
        max_length = load_tokenizer(directory).model_max_length
        return CalibrationTexts(split, split.path, max_length)
    flags = training_flags(directory)
    data_flags = {entry.name for entry in fields(DataSettings)} & flags.keys()
    data = DataSettings(**{name: flags[name] for name in data_flags})
    try:
        split = Split(named_task(data, directory), data.folder, "train")
        return CalibrationTexts(split, split.path, data.max_seq_length)
    except UserError as error:
        raise UserError(
            f"--int8 calibrates on the texts that {directory} was trained on: {error}; or give "
            "--calibration_file, a table with the columns sentence1[,sentence2]"
        ) from error


def deepest_settings(config: AdaptiveConfig) -> dict[str, np.ndarray]:
    """Return values of the exit keys that are numbers, under which the fewest examples exit early.

    They are inputs of an ONNX file, by name, of shape () each.
    """
    deepest = {}
    for name, key in config.table.exit_keys.items():
        if key.kind not in (int, float):
            continue
        if key.eager_when_low:
            value = config.num_hidden_layers if key.counts_layers else key.maximum
        else:
            value = key.minimum
        deepest[name] = np.array(value, np.int64 if key.kind is int else np.float32)
    return deepest


def calibration_feeds(
    directory: Path, model: AlbertPreTrainedModel, texts: CalibrationTexts
) -> Iterator[dict[str, np.ndarray]]:
    """Yield an ONNX file's inputs for some texts, one at a time, which then run all layers.

    directory: of the model.
    """
    examples = list(texts.split.examples())
    rng = np.random.default_rng(SEED)
    chosen = rng.choice(len(examples), min(TEXTS, len(examples)), replace=False)
    tokenizer = load_tokenizer(directory)
    config = cast(AdaptiveConfig, model.config)  # of all models that are exported
    check_vocab_size(tokenizer, str(directory), config)
    length = min(texts.max_length, config.max_position_embeddings)
    features = encode([examples[i] for i in sorted(chosen)], tokenizer, length, config, SEED)
    settings = deepest_settings(config)
    # The rule `sample` compares these draws with the halting CDF: 1 lets no example exit early.
    draws = {name: np.ones(1, np.float32) for name in features.inputs}
    for row in range(len(features)):
        batch = collate(features, [row], tokenizer.pad_token_id)
        ids = batch["input_ids"].numpy()
        yield {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": batch["token_type_ids"].numpy(),
            **settings,
            **draws,
        }
