"""Edit one key of a trained model's configuration.

    python ./change_config.py --key exit_thres --value 0.1 --task RTE --model albert_base \\
        --out_dir out/albert_base

edits OUT_DIR/TASK/config.json. If the file that its `exit_config_path` names has the key, the
command edits that file instead, since its value wins. Files are replaced atomically.
"""

import json
from pathlib import Path
from typing import Any

from elbert_base.errors import UserError
from elbert_base.exit_settings import depth_of, overriding_file, read_exit_file
from elbert_base.files import has_weights, read_json
from elbert_base.keys import SIZES, keys_of, nearest_names, parse_value
from runs.files import write_json
from runs.flags import FlagParser
from runs.processes import run_script


def change(directory: Path, key: str, text: str) -> tuple[Path, Any, Any]:
    """Set `key` of the model in `directory`; returns the file, the key's old and its new value.

    Raises UserError, and leaves the file as it is, for an unknown key, one that fixes the shape of
    weights that are there, or a value not allowed.
    """
    path = directory / "config.json"
    values = config = read_json(path)
    table = keys_of(config.get("model_type"))
    winner = overriding_file(config, directory) if key in table.exit_keys else None
    if winner and key in (overrides := read_exit_file(winner)):
        path, values = winner, overrides
    keys = {**SIZES, **table.keys}
    fixed = {name for name in keys if keys[name].shapes} if has_weights(directory) else set()
    if key not in keys:
        raise UserError(f"{path}: unknown key {key}; {nearest_names(key, sorted({*keys} - fixed))}")
    if key in fixed:
        raise UserError(
            f"{path}: {key} fixes the shape of the weights beside it. Another value needs another "
            f"training: run_glue.py --do_train, with {key} in the config.json of --config_name"
        )
    try:
        new = parse_value(key, text, keys, depth_of(config))
        if key == "exit_config_path":
            overriding_file({key: new}, directory)  # refuses a path that leads elsewhere
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    write_json(path, {**values, key: new})
    return path, values.get(key), new


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--key", required=True, help="key to set, e.g. exit_thres, cnt_thres, thres_name")
    add("--value", required=True, help="new value")
    add("--task", required=True, help="folder of the task under --out_dir")
    add("--model", required=True, help="name of the model, printed in the message")
    add("--out_dir", default=".", help="folder that holds the tasks' folders")
    args = parser.parse_args()
    directory = Path(args.out_dir) / args.task
    if not (directory / "config.json").exists():
        raise UserError(
            f"{directory / 'config.json'}: no such file; train first with run_glue.py "
            f"--do_train --output_dir {directory}, or check --out_dir and --task"
        )
    path, old, new = change(directory, args.key, args.value)
    print(f"{args.model} {path}: {args.key} {json.dumps(old)} -> {json.dumps(new)}")


if __name__ == "__main__":
    run_script(main)
