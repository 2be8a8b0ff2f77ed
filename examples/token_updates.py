"""Count how often Adaptive Depth updates each token of a text, as on the published model card.

    python examples/token_updates.py --model_dir asi/albert-act-base \\
        --text "a lump in the middle of the monkeys stirred and then fell quiet ."

Prints each piece with its updates; --output writes them as JSON, by the piece's number and text.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the project's scripts

from modeling.errors import UserError
from modeling.files import local_folder
from runs.files import write_json
from runs.flags import FlagParser
from runs.processes import run_script


def count_updates(source: str, text: str) -> dict[str, int]:
    """Count the updates of each piece of a text, by the piece's number and text.

    source: folder or hub name of an Adaptive Depth model, pre-trained or fine-tuned. Raises
    UserError for weights without a halting head, whose updates would be chance.
    """
    import torch

    from elbert import load_act, load_tokenizer

    folder = local_folder(source)
    classifier, report = load_act(folder)
    if any(".act." in name for name in report.initialised):
        raise UserError(f"{source} has no halting head: give an Adaptive Depth model")
    tokenizer = load_tokenizer(folder)
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        updates = classifier.albert.eval()(**inputs).updates.flatten().tolist()
    pieces = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    counted = zip(pieces, updates, strict=True)
    return {f"{number} {piece}": int(count) for number, (piece, count) in enumerate(counted, 1)}


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument("--model_dir", required=True, help="folder or hub name of the model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    counts = count_updates(args.model_dir, args.text)
    for piece, count in counts.items():
        print(f"{piece}: {count}")
    if args.output:
        write_json(args.output, counts)


if __name__ == "__main__":
    run_script(main)
