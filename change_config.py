"""Change one key in the configuration of a trained model, such as its exit threshold.

    python ./change_config.py --key exit_thres --value 0.1 --model_dir out/albert_base/RTE
    python ./change_config.py --key exit_thres --value 0.1 --task RTE --model albert_base \\
        --out_dir out/albert_base

Both commands change out/albert_base/RTE/config.json. If exit_config.json, or the file that
`exit_config_path` names, has the key, the command changes that file instead, since its value wins.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from modeling.errors import UserError
from modeling.exit_settings import describe, layer_count, overriding_file, read_exit_file
from modeling.files import has_weights, read_json
from modeling.keys import SIZES, keys_of, nearest_names, parse_value
from runs.files import locked, write_json
from runs.flags import FlagParser
from runs.processes import run_script


@dataclass(frozen=True)
class Edit:
    """A change of one key.

    Attributes:
        path: the file that was changed.
        old_value: None where the file did not have the key.
        new_value: the value that the file has now.
    """

    path: Path
    old_value: Any
    new_value: Any


def change(directory: Path, key: str, text: str) -> Edit:
    """Set `key` of the model in `directory` to the value that `text` spells.

    Raises UserError, and leaves the file as it is, for an unknown key, for one that fixes the shape
    of weights that are there, and for a value that is not allowed.
    """
    # One command at a time, from reading to writing: the other's change must not be lost.
    with locked(directory / "config.json"):
        return change_alone(directory, key, text)


def change_alone(directory: Path, key: str, text: str) -> Edit:
    """Do what `change` does, where no other command changes the folder's keys meanwhile."""
    config_path = directory / "config.json"
    config = read_json(config_path)
    table = keys_of(config.get("model_type"))
    # An exit key is changed where its value counts.
    path, values = config_path, config
    override_path = overriding_file(config, directory) if key in table.exit_keys else None
    if override_path is not None:
        overrides = read_exit_file(override_path)
        if key in overrides:
            path, values = override_path, overrides
    all_keys = {**SIZES, **table.keys}
    fixed_names = set()
    if has_weights(directory):
        fixed_names = {name for name, entry in all_keys.items() if entry.shapes}
    if key not in all_keys:
        editable_names = sorted(all_keys.keys() - fixed_names)
        raise UserError(f"{path}: unknown key {key}; {nearest_names(key, editable_names)}")
    if key in fixed_names:
        raise UserError(
            f"{path}: the shape of the weights depends on {key}, so another value needs another "
            f"training: run_glue.py --do_train, with {key} in the config.json of --config_name"
        )
    try:
        new_value = parse_value(key, text, all_keys, layer_count(config))
        if key == "exit_config_path":
            overriding_file({key: new_value}, directory)  # refuses a path that leads elsewhere
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    write_json(path, {**values, key: new_value})
    return Edit(path, values.get(key), new_value)


def tell_if_idle(directory: Path, key: str) -> None:
    """Say so if the exit rule of the model in `directory` does not read this exit key."""
    # These load torch, which other keys do not need.
    from modeling.configuration import ElbertConfig, config_class_of
    from modeling.loading.configs import load_config, mode_in

    with suppress(UserError):  # what else is wrong with the file, its next reader says
        config_class = config_class_of(mode_in(directory)) or ElbertConfig
        config = load_config(directory, config_class)
        if config.idle_keys([key]):
            print(f"{key} has no effect: the exit rule is {describe(config.keys_read())}")


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument(
        "--key", required=True, help="key to set, e.g. exit_thres, cnt_thres, thres_name"
    )
    parser.add_argument("--value", required=True, help="new value")
    parser.add_argument("--model_dir", type=Path, help="folder of the trained model")
    parser.add_argument("--task", help="folder of the model in --out_dir, in place of --model_dir")
    parser.add_argument("--model", default="", help="name of the model, for the printed message")
    parser.add_argument("--out_dir", default=".", help="folder with a model's folder for each task")
    args = parser.parse_args()
    if bool(args.model_dir) == bool(args.task):
        raise UserError("give --model_dir, the folder of a trained model, or --out_dir and --task")
    directory = args.model_dir or Path(args.out_dir) / args.task
    config_path = directory / "config.json"
    if not config_path.exists():
        raise UserError(
            f"{config_path}: no such file; train first with run_glue.py "
            f"--do_train --output_dir {directory}, or check --model_dir, or --out_dir and --task"
        )
    edit = change(directory, args.key, args.value)
    old = json.dumps(edit.old_value)
    new = json.dumps(edit.new_value)
    print(f"{args.model} {edit.path}: {args.key} {old} -> {new}".lstrip())
    if args.key in keys_of(read_json(config_path).get("model_type")).exit_keys:
        tell_if_idle(directory, args.key)


if __name__ == "__main__":
    run_script(main)
