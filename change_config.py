"""Edit one key of a trained model's configuration.

    python ./change_config.py --key exit_thres --value 0.1 --task RTE --model albert_base \
        --out_dir out/albert_base

edits OUT_DIR/TASK/config.json. `--config_file exit_config.json` edits the overrides that
`exit_config_path` points to instead. The value is typed by the key; the old file stays until the
new one is whole.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from evaluation.modes import keys_of
from glue.files import run_script, write_json
from modeling.errors import UserError
from modeling.keys import ELBERT_KEYS, INERT_KEYS, nearest_names, plain_value, typed
from modeling.loading.files import read_json


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--key", required=True, help="e.g. exit_thres, cnt_thres, thres_name")
    parser.add_argument("--value", required=True, help="its new value")
    parser.add_argument("--task", required=True, help="folder of the task under --out_dir")
    parser.add_argument("--model", required=True, help="name of the model, for the message")
    parser.add_argument("--out_dir", default=".", help="folder that holds the tasks' folders")
    parser.add_argument(
        "--config_file",
        default="config.json",
        choices=("config.json", "exit_config.json"),
        help="exit_config.json edits the overrides",
    )
    return parser.parse_args()


def typed_as(old: Any, key: str, text: str) -> Any:
    """`text` as the type of the value that `key` has now."""
    value = plain_value(text)
    if old is None or type(value) is type(old):
        return value
    if type(old) is float and type(value) is int:
        return float(value)
    if type(old) is int and type(value) is float and value.is_integer():
        return int(value)
    raise UserError(f"{key} = {text}: expected {type(old).__name__}, as {old!r} is")


def change(path: Path, key: str, text: str) -> tuple[Any, Any]:
    """Set `key` in the JSON file `path`; returns its old and new value.

    Raises UserError, and leaves the file as it is, for an unknown key or a value not allowed.
    """
    overrides = path.name == "exit_config.json"
    if overrides and (not path.exists() or not path.read_bytes().strip()):
        values = {}
    else:
        values = read_json(path)
    model = model_of(path, values)
    table, layers = keys_of(model.get("model_type")), model.get("num_hidden_layers")
    layers = layers if isinstance(layers, int) else None  # loading the model says what is wrong
    inert = INERT_KEYS if table.keys is ELBERT_KEYS else ()
    names = list(table.exit_keys) if overrides else sorted({*table.keys, *inert, *values})
    ours = key in table.keys
    if key not in names or not (ours or key in values):
        raise UserError(f"{path}: unknown key {key}; {nearest_names(key, names)}")
    try:
        new = typed(key, text, table.keys, layers) if ours else typed_as(values[key], key, text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    old = values.get(key)
    write_json(path, {**values, key: new})
    return old, new


def model_of(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the model that `path`, with these values, belongs to."""
    config = path.with_name("config.json")
    return read_json(config) if path.name != "config.json" and config.exists() else values


def main() -> None:
    args = parse_args()
    path = Path(args.out_dir) / args.task / args.config_file
    if not path.with_name("config.json").exists():
        raise UserError(
            f"{path.with_name('config.json')}: no such file; train first with run_glue.py "
            f"--do_train --output_dir {path.parent}, or check --out_dir and --task"
        )
    old, new = change(path, args.key, args.value)
    print(f"{args.model} {path}: {args.key} {json.dumps(old)} -> {json.dumps(new)}")


if __name__ == "__main__":
    run_script(main)
