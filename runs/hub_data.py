"""Data from the Hugging Face hub: data sets by the `datasets` library, files by hf:// addresses."""

import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from glue.custom import join_column_names
from glue.tasks import TASKS
from modeling.errors import UserError, in_one_line
from runs.files import write_file
from runs.settings import DataSettings

# The flag of a file, and the splits that it may have the rows of: the first that there is.
SPLITS = {
    "train_file": ("train",),
    "validation_file": ("validation", "dev", "validation_matched"),
    "test_file": ("test", "test_matched"),
}
# Columns of texts, those of GLUE's files and what the hub has in their place. The first that are
# all there are read; pairs come before single columns.
GLUE_COLUMNS = dict.fromkeys(task.text_columns for task in TASKS.values())
TEXT_COLUMNS = sorted([*GLUE_COLUMNS, ("premise", "hypothesis"), ("text",)], key=len, reverse=True)
NO_REASON = "An error occurred while generating the dataset"  # begins some of the library's errors
HF_FILE = re.compile(r"hf://(datasets/)?([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")


def fetch_data(data: DataSettings) -> DataSettings:
    """Return the settings with --dataset_name and hf:// addresses replaced by local files.

    A file that is given takes the place of the data set's split. Raises UserError for what cannot
    be fetched, and for a data set without texts.
    """
    if data.dataset_config_name and not data.dataset_name:
        raise UserError(f"--dataset_config_name {data.dataset_config_name}: give --dataset_name")
    files: dict[str, Any] = {}
    for flag in (*SPLITS, "unlabelled_file"):
        address = getattr(data, flag)
        if address and address.startswith("hf://"):
            files[flag] = fetch_file(flag, address)
    data = replace(data, **files)
    return fetch_dataset(data) if data.dataset_name else data


def fetch_file(flag: str, address: str) -> str:
    """Fetch a file of the hub into its cache; return its path."""
    match = HF_FILE.fullmatch(address)
    if not match:
        raise UserError(
            f"--{flag} {address}: an address is hf://datasets/OWNER/NAME/FILE, or with a revision "
            "hf://datasets/OWNER/NAME@REVISION/FILE"
        )
    is_dataset, repository, revision, name = match.groups()
    try:
        return hf_hub_download(
            repository, name, repo_type="dataset" if is_dataset else None, revision=revision
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(f"--{flag} {address}: {in_one_line(error)}") from error


def fetch_dataset(data: DataSettings) -> DataSettings:
    """Load --dataset_name by the `datasets` library, and write its splits as Parquet files.

    A split whose file is given is left out.

    They lie in the library's cache, in a folder for each content. Labels are names there, as the
    data set says them; a split without labels has none.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError("--dataset_name: pip install datasets") from error
    name = str(data.dataset_name)
    try:
        loaded = datasets.load_dataset(name, data.dataset_config_name or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason: BaseException = error
        while reason.__cause__ and str(reason).strip() == NO_REASON:
            reason = reason.__cause__
        told = in_one_line(reason).removeprefix(f"{NO_REASON} ")
        raise UserError(f"--dataset_name {name}: {told}") from error
    chosen = chosen_splits(name, loaded)
    splits = {flag: split for flag, split in chosen.items() if not getattr(data, flag)}
    if not splits:
        raise UserError(f"--dataset_name {name}: files are given for all of its splits")
    text_columns = data.text_column_names or text_columns_of(name, next(iter(splits.values())))
    fingerprints = [split._fingerprint for split in chosen.values()]
    digest = sha256(" ".join(fingerprints).encode()).hexdigest()[:16]
    folder = Path(datasets.config.HF_DATASETS_CACHE, "elbert", digest)
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {}
    for flag, split in splits.items():
        path = folder / f"{flag.removesuffix('_file')}.parquet"
        if not path.exists():
            write_file(path, with_label_names(split).to_parquet)
        files[flag] = str(path)
    return replace(data, text_column_names=text_columns, **files)


def chosen_splits(name: str, loaded: Any) -> dict[str, Any]:
    """Return the data set's split for each flag of a file; UserError where there is none."""
    splits = {}
    for flag, names in SPLITS.items():
        present = [split for split in names if split in loaded]
        if present:
            splits[flag] = loaded[present[0]]
    if not splits:
        raise UserError(
            f"--dataset_name {name}: its splits are {', '.join(loaded)}; looked for: train, "
            "validation, test"
        )
    return splits


def text_columns_of(name: str, split: Any) -> str:
    """Return the columns of texts, as --text_column_names has them."""
    for columns in TEXT_COLUMNS:
        if set(columns) <= set(split.column_names):
            return join_column_names(columns)
    raise UserError(
        f"--dataset_name {name}: which columns are texts? --text_column_names names one or two of: "
        f"{', '.join(split.column_names)}"
    )


def with_label_names(split: Any) -> Any:
    """Replace the numbers of classes by their names; a column without any label is left out."""
    from datasets import ClassLabel

    for column, feature in split.features.items():
        of_list = getattr(feature, "feature", None)
        if isinstance(feature, ClassLabel):
            values: Sequence[Any] = [label_name(feature.names, number) for number in split[column]]
        elif isinstance(of_list, ClassLabel):
            values = [label_names(of_list.names, numbers) for numbers in split[column]]
        else:
            continue
        split = split.remove_columns(column)
        if any(value is not None for value in values):
            split = split.add_column(column, values)
    return split


def label_names(names: Sequence[str], numbers: Sequence[int | None] | None) -> list[str] | None:
    """Return the names of a row's classes, without −1; None where a label is missing."""
    if numbers is None or None in numbers:
        return None
    return [names[number] for number in numbers if number is not None and number >= 0]


def label_name(names: Sequence[str], number: int | None) -> str | None:
    """Return the name of a class; None for −1, by which GLUE's test sets hide it."""
    return None if number is None or number < 0 else names[number]
