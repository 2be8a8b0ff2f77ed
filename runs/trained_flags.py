"""The command line of a script that works with a trained model.

Flags that describe the model and its task, and that the command leaves out, are those of the
model's training. Loads no torch.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from glob import glob
from itertools import chain
from typing import Any

from modeling.errors import UserError
from modeling.files import file_hash, read_json
from modeling.keys import MODE_KEYS
from runs.flags import as_dict, expand_config_file, parse
from runs.provenance import COLUMN_FLAGS, TASK_FLAGS, training_file, training_flags

# The flags that are taken from a training.
FILE_FLAGS = frozenset({"validation_file", "test_file"})  # for a task of the user's own
LABEL_FLAGS = frozenset({"label_column_name", "label_separator"})  # they say the type anew
MODEL_FLAGS = frozenset({"model_type", "model_name_or_path", "max_seq_length", "do_lower_case"})
METRIC_FLAGS = frozenset({"metric_name", "positive_label"})
TAKEN_FLAGS = TASK_FLAGS | FILE_FLAGS | COLUMN_FLAGS | MODEL_FLAGS | METRIC_FLAGS
PATH_FLAGS = FILE_FLAGS | {"data_dir"}
NO_LENGTH = 10**6  # transformers writes 10**30 for a tokenizer without a limit
# Of the folder of a trained model, which every script knows as --model_dir.
SAME_FOLDER = {"--output_dir": ["--model_dir"]}


def parse_with_trained_model(
    classes: Sequence[type], description: str | None, folder_flags: Sequence[str]
) -> tuple[Any, ...]:
    """Read the command line of a script with a trained model, as `parse` does.

    One line tells which flags were taken from the model's training, and in which flags the command
    differs from it.

    Args:
        classes, description: see `parse`.
        folder_flags: flags that may name the model's folder. The first is set to the folder where
            the command leaves it out. Without any, all flags are the command's own.
    """
    argv = expand_config_file(sys.argv[1:])
    folders = stated_folders(argv, folder_flags)
    model_dir = find_model_dir(folders)
    models_together = stated_folders(argv, folder_flags[:1])
    if not model_dir:
        check_folders(models_together)
    flags_then = training_flags(model_dir) if model_dir else {}
    stated_names = {text.partition("=")[0].removeprefix("--") for text in argv}
    if not model_dir:
        return parse(classes, description, argv)
    if not flags_then:
        taken = length_flag(model_dir) if "max_seq_length" in flag_names(classes) else []
        if "max_seq_length" in stated_names or not taken:
            return parse(classes, description, argv)
        groups = parse(classes, description, [*taken, *argv])
        print(f"{model_dir}: flags from the tokenizer: {shlex.join(taken)}", flush=True)
        return groups
    flags_then = {name: place_now(name, flags_then, model_dir) for name in flags_then}
    shared_names = TAKEN_FLAGS & flag_names(classes) & flags_then.keys()
    if len(models_together) > 1:
        # Each model's own tokenizer knows its case.
        shared_names -= {"do_lower_case"}
        check_agreement(models_together, flags_then, shared_names - stated_names)
    check_no_code(flags_then, shared_names - stated_names, model_dir)
    taken = flags_to_take({name: flags_then[name] for name in shared_names}, stated_names)
    if not models_together:
        taken.append(f"{folder_flags[0]}={model_dir}")
    groups = parse(classes, description, [*taken, *argv])
    remarks = [f"flags from the training: {shlex.join(taken)}"] if taken else []
    # Weights that a command is given are others than the training's by nature.
    compared_names = (shared_names & stated_names) - {"model_name_or_path"}
    flags_now = as_dict(*groups)
    for name in sorted(compared_names):
        if str(flags_now[name]) != str(flags_then[name]):
            remarks.append(
                f"--{name} was {flags_then[name]} in the training, is {flags_now[name]} now"
            )
    is_main_process = os.environ.get("RANK", "0") == "0"
    if remarks and is_main_process:
        print(f"{training_file(model_dir)}: {'; '.join(remarks)}", flush=True)
    return groups


def length_flag(model_dir: str) -> list[str]:
    """Return --max_seq_length as the tokenizer of a trained model has it; [] where it says none.

    The hub does not get a training's flags, but the tokenizer is saved with the training's length.
    Models of other code have a tokenizer with their own, whatever they were fine-tuned with.
    """
    if read_json(os.path.join(model_dir, "config.json")).get("model_type") not in MODE_KEYS:
        return []
    path = os.path.join(model_dir, "tokenizer_config.json")
    length = read_json(path).get("model_max_length") if os.path.exists(path) else None
    is_length = isinstance(length, int) and 0 < length < NO_LENGTH
    return [f"--max_seq_length={length}"] if is_length else []


def place_now(name: str, flags_then: Mapping[str, Any], model_dir: str) -> Any:
    """Return the value of a training's flag, a path as it is where the model's folder is now.

    Data beside a model, as make_classifier.py puts them, are moved and copied with it. Data that
    lie elsewhere are looked for where they were.
    """
    value = flags_then[name]
    folder_then = flags_then.get("output_dir")
    if name not in PATH_FLAGS or not value or not folder_then:
        return value
    is_comparable = os.path.isabs(str(value)) == os.path.isabs(str(folder_then))
    way = os.path.relpath(str(value), str(folder_then)) if is_comparable else os.pardir
    if os.path.join(os.pardir, os.pardir) in way or way == os.pardir:
        return value  # not within the folder that holds the model's
    path = os.path.normpath(os.path.join(os.path.abspath(model_dir), way))
    if not os.path.exists(path):
        return value
    is_where_it_was = os.path.exists(str(value)) and os.path.samefile(str(value), path)
    return value if is_where_it_was else path


def stated_folders(argv: Sequence[str], folder_flags: Sequence[str]) -> list[str]:
    """List the folders that some flags name, in the flags' order; see `folders_of`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in folder_flags:
        parser.add_argument(flag, *SAME_FOLDER.get(flag, ()), nargs="*", default=[])
    values, _ = parser.parse_known_args(argv)
    texts = chain.from_iterable(vars(values).values())
    return list(chain.from_iterable(map(folders_of, texts)))


def name_and_folder(text: str) -> tuple[str, str]:
    """Split NAME=FOLDER, where FOLDER may be a pattern; any other text is its own name."""
    name, _, folder = text.partition("=")
    is_path = "/" in name or os.path.exists(text) or bool(glob(text))
    if not is_path and folder and (os.path.exists(folder) or glob(folder)):
        return name, folder
    return text, text


def folders_of(text: str) -> list[str]:
    """List the folders that a flag's value means: one, or all that a pattern of it matches.

    Raises UserError for a pattern, as `out/seed-*`, that no folder matches.
    """
    _, text = name_and_folder(text)
    is_pattern = any(character in text for character in "*?[")
    if not is_pattern or os.path.exists(text):  # a folder's name may have a bracket
        return [text]
    folders = sorted(path for path in glob(text) if os.path.isdir(path))
    if not folders:
        raise UserError(f"{text}: no folder matches this pattern")
    return folders


def find_model_dir(folders: Sequence[str]) -> str | None:
    """Find the first of some folders with a model."""
    for folder in folders:
        if os.path.exists(os.path.join(folder, "config.json")):
            return folder
    return None


def check_folders(folders: Sequence[str]) -> None:
    """Raise UserError for a model's folder that is not there.

    Without this, the flags that the folder would have given would be asked for instead.
    """
    for folder in folders:
        if not os.path.exists(folder):
            raise UserError(f"{folder}: no such folder")


def check_agreement(
    model_dirs: Sequence[str], flags_of_first: Mapping[str, Any], names: Collection[str]
) -> None:
    """Raise UserError for models that are used together, but were trained with different flags.

    model_dirs: the first has the flags `flags_of_first`. names: the flags in which they must agree.
    """
    first, *others = model_dirs
    for other in others:
        flags_then = training_flags(other)
        for name in sorted(names & flags_then.keys()):
            value, value_there = flags_of_first[name], place_now(name, flags_then, other)
            is_same = value == value_there or (
                name in PATH_FLAGS and same_content(str(value), str(value_there))
            )
            if not is_same:
                raise UserError(
                    f"{first} was trained with --{name} {value}, {other} with {value_there}: give "
                    f"the --{name} that all are to have here"
                )


def check_no_code(flags_then: Mapping[str, Any], names: Collection[str], model_dir: str) -> None:
    """Raise UserError for a metric that is a function: a model's folder must not make code run.

    names: the flags that the command would take from the training.
    """
    metric = str(flags_then.get("metric_name") or "")
    if "metric_name" in names and "." in metric:
        raise UserError(
            f"{model_dir} was trained with --metric_name {metric}, which is code: give the flag "
            "again to run it, or another metric, such as acc"
        )


def same_content(path: str, other: str) -> bool:
    """Tell whether two paths lead to the same file or folder, or to files with one content."""
    if not (os.path.exists(path) and os.path.exists(other)):
        return False
    if os.path.isfile(path) and os.path.isfile(other):
        return file_hash(path) == file_hash(other)
    return os.path.samefile(path, other)


def flag_names(classes: Sequence[type]) -> set[str]:
    """Return the names of all flags of some classes of settings."""
    names = set()
    for settings_class in classes:
        names.update(entry.name for entry in fields(settings_class))
    return names


def flags_to_take(flags_then: Mapping[str, Any], stated_names: Collection[str]) -> list[str]:
    """List those flags of a training that a command takes from it.

    They are flags that the command leaves out. Beside another task, or other files, the training's
    do not count, and neither do files that are no longer there.

    Args:
        flags_then: values of the training's flags, by name.
        stated_names: flags of the command.
    """
    left_aside = set(stated_names)
    if not FILE_FLAGS.isdisjoint(stated_names):
        left_aside |= TASK_FLAGS
    if "dataset_name" in stated_names:
        left_aside |= TASK_FLAGS | FILE_FLAGS
    if "task_name" in stated_names and FILE_FLAGS.isdisjoint(stated_names):
        left_aside |= FILE_FLAGS | COLUMN_FLAGS | METRIC_FLAGS
    if not LABEL_FLAGS.isdisjoint(stated_names):
        left_aside.add("task_type")
    flags = []
    for name in sorted(flags_then.keys() - left_aside):
        value = flags_then[name]
        is_gone = name in PATH_FLAGS and not os.path.exists(str(value))
        if not value or is_gone:
            continue
        flags.append(f"--{name}" if value is True else f"--{name}={value}")
    return flags
