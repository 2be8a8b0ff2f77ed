"""Edit one key of a trained model's configuration.

    python ./change_config.py --key exit_thres --value 0.1 --task RTE --model albert_base \\
        --out_dir out/albert_base

edits OUT_DIR/TASK/config.json. If the file that its `exit_config_path` names has the key, the
command edits that file instead, since its value wins. Files are replaced atomically. With
--starts_from, which is for use before the training, the edit is only checked.
"""

import json
from pathlib import Path
from typing import Any

from modeling.errors import UserError
from modeling.exit_settings import depth_of, overriding_file, read_exit_file
from modeling.keys import SIZES, Key, keys_of, nearest_names, parse_value, plain_value
from modeling.loading.files import has_weights, read_json
from utils.files import write_json
from utils.flags import FlagParser
from utils.processes import run_script


def change(path: Path, key: str, text: str, directory: Path | None = None) -> tuple[Any, Any]:
    """Set `key` in the JSON file `path`; returns its old and new value.

    directory: of the model, by default the file's. Raises UserError, and leaves the file as it is,
    for an unknown key, one that fixes the shape of weights that are there, or a value not allowed.
    """
    directory = directory or path.parent
    config = directory / "config.json"
    values = read_json(path) if path == config else read_exit_file(path)
    model = read_json(config) if config.exists() else values
    table, old = keys_of(model.get("model_type")), values.get(key)
    names = {*table.keys, *values} if path == config else set(table.exit_keys)
    keys, trained = {**SIZES, **table.keys}, has_weights(directory)
    fixed = {name for name in keys if trained and keys[name].shapes}
    if key not in names:
        raise UserError(f"{path}: unknown key {key}; {nearest_names(key, sorted(names - fixed))}")
    if key in fixed:
        raise UserError(
            f"{path}: {key} fixes the shape of the weights beside it. Another value needs another "
            f"training: run_glue.py --do_train, with {key} in the config.json of --config_name"
        )
    try:
        if key not in table.keys and old is None:
            new = plain_value(text)
        else:  # a key of no table keeps its type
            known = {key: Key(type(old), None, ""), **table.keys}
            new = parse_value(key, text, known, depth_of(model))
        if key == "exit_config_path":
            overriding_file({key: new}, directory)  # refuses a path that leads elsewhere
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    write_json(path, {**values, key: new})
    return old, new


def file_to_edit(directory: Path, key: str) -> Path:
    """Return the file whose value of `key` counts."""
    config = read_json(directory / "config.json")
    if key in keys_of(config.get("model_type")).exit_keys:
        winner = overriding_file(config, directory)
        if winner and key in read_exit_file(winner):
            return winner
    return directory / "config.json"


def check_edit(key: str, text: str, model_type: str, config: Path) -> None:
    """Raise UserError unless a model of this type, trained from `config`, can be given the key."""
    table, layers = keys_of(model_type), depth_of(read_json(config)) if config.exists() else None
    if key not in table.exit_keys:
        near = nearest_names(key, list(table.exit_keys))
        raise UserError(f"{key}: decides no exit of --model_type {model_type}; {near}")
    parse_value(key, text, table.keys, layers)


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument(
        "--key", required=True, help="key to set, e.g. exit_thres, cnt_thres, thres_name"
    )
    parser.add_argument("--value", required=True, help="new value")
    parser.add_argument("--task", required=True, help="folder of the task under --out_dir")
    parser.add_argument("--model", required=True, help="name of the model, printed in the message")
    parser.add_argument("--out_dir", default=".", help="folder that holds the tasks' folders")
    add = parser.add_argument
    add("--starts_from", help="check only: folder of the model to train from")
    add("--model_type", default="elbert", help="mode of that training")
    args = parser.parse_args()
    if args.starts_from:
        check_edit(args.key, args.value, args.model_type, Path(args.starts_from) / "config.json")
        return
    directory = Path(args.out_dir) / args.task
    if not (directory / "config.json").exists():
        raise UserError(
            f"{directory / 'config.json'}: no such file; train first with run_glue.py "
            f"--do_train --output_dir {directory}, or check --out_dir and --task"
        )
    path = file_to_edit(directory, args.key)
    old, new = change(path, args.key, args.value, directory)
    print(f"{args.model} {path}: {args.key} {json.dumps(old)} -> {json.dumps(new)}")


if __name__ == "__main__":
    run_script(main)
