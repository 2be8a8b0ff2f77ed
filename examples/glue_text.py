"""Write the sentences of GLUE tasks as text for run_pretraining.py and share_layers.py.

    python examples/glue_text.py --data_dir glue_data --output glue.txt

One sentence a line; an example's sentences make one document: a pair can teach their order, a
single sentence (CoLA, SST-2) masked words only. A folder is read as the task that its name begins
with (MNLI-from-SICK as MNLI). The sentences are the training sets', with --split dev the dev sets'.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from glue.splits import read_examples
from glue.tasks import TASKS
from modeling.errors import UserError
from runs.files import write_text
from runs.flags import FlagParser
from runs.processes import run_script


def documents(data_dir: Path, split: str) -> list[str]:
    """List the sentences of every example of "train" or "dev", a line each; no example twice."""
    tasks = [task for task in TASKS.values() if "train" in task.files and task.folder]
    unique: dict[str, None] = {}
    for folder in sorted(data_dir.glob("*/")):
        task = next((task for task in tasks if folder.name.startswith(task.folder)), None)
        for example in read_examples(task, folder, split) if task else ():
            texts = [" ".join(x.split()) for x in (example.text_a, example.text_b) if x]
            unique["\n".join(text for text in texts if text)] = None
    return list(unique)


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument(
        "--data_dir", type=Path, required=True, help="folder with one folder per task"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--split", choices=("train", "dev"), default="train")
    args = parser.parse_args()
    texts = documents(args.data_dir, args.split)
    if not texts:
        raise UserError(f"no task's folder in {args.data_dir}: download_glue_data.py fetches them")
    write_text(args.output, "\n\n".join(texts) + "\n")
    print(f"{args.output}: {len(texts)} documents")


if __name__ == "__main__":
    run_script(main)
