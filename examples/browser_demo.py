"""Make the model of docs/demo anew: a page on which two texts exit, layer by layer.

    python examples/browser_demo.py --model_dir out/sst2 --data_dir glue_data/SST-2 \
      --task_name SST-2 --int8 --pieces_of glue_data/SST-2/train.tsv --labels negative,positive \
      --intro "The task: is this film review positive or negative?"

Writes model.onnx, config.json and the tokenizer's two files, with which elbert.Classifier runs it,
and about.json, what the page has to know: the labels, the rule, a slider for every number that it
reads, and some texts with their labels. --pieces_of
makes a WordPiece model smaller: it keeps the pieces that a file uses, and all parts of words. How
to serve the page: docs/onnx.md.

Needs requirements/onnx.txt.
"""

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import BertTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from elbert import UserError
from evaluation.modes import trained_mode
from glue.splits import read_examples
from glue.tasks import get_task
from modeling.loading.tokenizers import load_tokenizer
from runs.files import write_text
from runs.flags import FlagParser
from runs.job import load_finished
from runs.processes import call, run_script

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json")
ENTROPY_RULES = ("entropy", "bias_1", "bias_2", "bias_3")  # exit_thres is one of entropy


def page_model(args: argparse.Namespace, folder: Path) -> Path:
    """Copy a trained model, with the labels and WordPiece pieces that the page is to have."""
    model = load_finished(args.model_dir)
    shutil.copytree(args.model_dir, folder, ignore=shutil.ignore_patterns("checkpoint-*", "sweep"))
    if args.labels:
        model.config.id2label = dict(enumerate(args.labels.split(",")))
    if args.pieces_of:
        tokenizer = load_tokenizer(args.model_dir)
        lines = args.pieces_of.read_text(encoding="utf-8").splitlines()
        used = {*tokenizer.all_special_ids}.union(*tokenizer(lines)["input_ids"])
        pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        ids = [i for piece, i in pieces if i in used or piece.startswith("##") or len(piece) == 1]
        vocabulary = folder / "vocab.txt"
        write_text(vocabulary, "\n".join(tokenizer.convert_ids_to_tokens(ids)) + "\n")
        BertTokenizer(str(vocabulary), do_lower_case=True).save_pretrained(folder)
        rows = model.get_input_embeddings().weight.detach()[ids]
        model.set_input_embeddings(torch.nn.Embedding.from_pretrained(rows))
        model.config.vocab_size = len(ids)
    model.save_pretrained(folder)
    return folder


def plain(text: str) -> str:
    """Write GLUE's "it 's slow ." as people do."""
    return re.sub(r"\s+([.,!?;:)]|'\w|n't\b)", r"\1", text).strip()


def page_facts(model_dir: Path) -> dict[str, Any]:
    """Facts of a model for the page; UserError for one that has nothing to show there."""
    mode = trained_mode(model_dir)
    model = load_finished(model_dir)
    config, loop = model.config, mode.export_loop(model)
    rule = config.exit_keys()[config.rule_key]
    manual = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    meaning = re.search(rf"^\| `{rule}` \| (.*?) \|", manual, re.MULTILINE)
    if config.num_labels == 1 or not meaning:
        raise UserError(f"{model_dir}: the page shows classes and ELBERT's rules")
    sliders = []
    for name, now in config.keys_read().items():
        if not (key := config.table.exit_keys[name]).grid:
            continue
        slider = {"key": name, "meaning": key.meaning, "values": sorted({*config.grid(name), now})}
        sliders.append({**slider, "value": now})
    return {
        "labels": [config.id2label[i] for i in range(config.num_labels)],
        "layers": config.num_hidden_layers,
        "longest": config.max_position_embeddings,
        "rule": rule,
        "entropy_key": "exit_thres" if rule in ENTROPY_RULES else None,
        "exits_when": re.sub(r"\*\*|`|\[|\]\(.*?\)", "", meaning[1]),  # no Markdown
        "sliders": sliders,
        "settings": {name: value.item() for name, value in loop.settings().items()},
        "types": {n: "int64" if key.kind is int else "float32" for n, key in loop.keys.items()},
        "unknown_id": load_tokenizer(model_dir).unk_token_id,
    }


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument("--model_dir", type=Path, required=True, help="folder of a trained model")
    parser.add_argument(
        "--data_dir", type=Path, required=True, help="folder of the task, whose dev texts are shown"
    )
    parser.add_argument("--task_name", required=True)
    parser.add_argument("--intro", default="", help="what the page says of the texts")
    parser.add_argument("--opening", nargs="+", default=[], help="texts to show first")
    parser.add_argument("--labels", help="names to show in place of the model's: A,B")
    parser.add_argument("--int8", action="store_true", help="as in export_onnx.py")
    parser.add_argument("--pieces_of", type=Path, help="text whose WordPiece pieces are kept")
    here = Path(os.path.relpath(ROOT / "docs" / "demo"))  # a file says how it was made
    parser.add_argument("--output_dir", type=Path, default=here)
    args = parser.parse_args()
    rows = read_examples(get_task(args.task_name), args.data_dir, "dev", limit=12)
    pairs = [([plain(text) for text in (r.text_a, r.text_b) if text], r.label) for r in rows]
    examples = [{"texts": texts, "label": label} for texts, label in pairs]
    examples = [{"texts": [text]} for text in args.opening] + examples
    with TemporaryDirectory() as folder:
        model_dir = page_model(args, Path(folder) / "model")
        facts = page_facts(model_dir) | {"intro": args.intro, "examples": examples}
        # With every layer's answer, and the rule's numbers as inputs that JavaScript can set.
        flags = ["--model_dir", str(model_dir), "--output", str(args.output_dir / "model.onnx")]
        flags += ["--layer_logits", "--no_defaults"]
        if args.int8:
            flags.append("--int8")
        call("export_onnx.py", flags)
        for name in COPIED:
            shutil.copy(model_dir / name, args.output_dir)
    write_text(args.output_dir / "about.json", json.dumps(facts) + "\n")


if __name__ == "__main__":
    run_script(main)
