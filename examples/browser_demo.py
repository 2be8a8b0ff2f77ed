"""Make the model of docs/demo anew: a page on which a model stops, layer by layer.

    python examples/browser_demo.py --model_dir out/demo/RTE --data_dir configs/sample/RTE \
      --task_name RTE \
      --intro "Whoever asks somebody says what that one says. Is the second text true?"

Writes model.onnx, the tokenizer's two files and about.json, what the page has to know: the labels,
the rule, a slider for every number that it reads, and some texts with their labels. Serve the page
by

    npm install --prefix docs/demo
    python -m http.server --directory docs/demo

Needs requirements-onnx.txt. `make demo` trains the model of the bundled sample.
"""

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from evaluation.job import load_finished
from evaluation.modes import trained_mode
from evaluation.modes.base import Mode
from exit_lab.grids import parse_values
from glue.tasks import get_task, read_examples
from modeling import ElbertConfig, UserError
from modeling.loading.files import read_json
from training.runs import call
from utils.files import run_script, write_text

ROOT = Path(__file__).parent.parent
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def sliders_of(mode: Mode, config: ElbertConfig) -> list[dict[str, Any]]:
    """Of every number that the model's rule reads: what it means, its values, the one now."""
    keys, now, sliders = mode.table.exit_keys, config.exit_keys(), []
    for name in config.exit_rule().reads:
        if keys[name].kind in (int, float):
            grid = parse_values(name, keys[name].grid, config.num_hidden_layers, keys)
            slider = {"key": name, "meaning": keys[name].meaning}
            sliders.append({**slider, "values": sorted({*grid, now[name]}), "value": now[name]})
    return sliders


def page_facts(model_dir: Path) -> dict[str, Any]:
    """What the page has to know of a model; UserError for one that has nothing to show there."""
    mode = trained_mode(model_dir)
    model = load_finished(model_dir, mode)
    config, loop = model.config, mode.export_loop(model)
    rule = config.exit_keys()[mode.rule_key]
    manual = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    meaning = re.search(rf"^\| `{rule}` \| (.*?) \|", manual, re.MULTILINE)
    if config.num_labels == 1 or not meaning:
        raise UserError(f"{model_dir}: the page shows classes and ELBERT's rules")
    return {
        "labels": [config.id2label[i] for i in range(config.num_labels)],
        "layers": config.num_hidden_layers,
        "longest": config.max_position_embeddings,
        "rule": rule,
        "exits_when": meaning[1].replace("**", ""),
        "sliders": sliders_of(mode, config),
        "settings": {name: value.item() for name, value in loop.settings().items()},
        "types": {n: "int64" if key.kind is int else "float32" for n, key in loop.keys.items()},
        "unknown_id": read_json(model_dir / TOKENIZER[0])["model"].get("unk_id"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model_dir", type=Path, required=True, help="folder of a trained model")
    parser.add_argument("--data_dir", type=Path, required=True, help="whose dev texts are shown")
    parser.add_argument("--task_name", required=True)
    parser.add_argument("--intro", default="", help="what the page says of the texts")
    here = Path(os.path.relpath(ROOT / "docs" / "demo"))  # a file says how it was made
    parser.add_argument("--output_dir", type=Path, default=here)
    args = parser.parse_args()
    rows = read_examples(get_task(args.task_name), args.data_dir, "dev", limit=12)
    examples = [{"texts": [x for x in (r.text_a, r.text_b) if x], "label": r.label} for r in rows]
    known = {**page_facts(args.model_dir), "intro": args.intro, "examples": examples}
    # With every layer's answer, and the rule's numbers as inputs that JavaScript can set.
    where = ["--model_dir", str(args.model_dir), "--output", str(args.output_dir / "model.onnx")]
    call("export_onnx.py", [*where, "--layer_logits", "--no_defaults"])
    for name in TOKENIZER:
        shutil.copy(args.model_dir / name, args.output_dir)
    write_text(args.output_dir / "about.json", json.dumps(known) + "\n")


if __name__ == "__main__":
    run_script(main)
