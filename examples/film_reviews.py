"""Fetch film reviews (SST-2) and write two tables: one to train on, and one of new texts.

    python examples/film_reviews.py

reviews.csv has the 6,885 sentences of SST-2's training set, with the columns text and label, which
is positive or negative. Their phrases, most of the training set, are left out: a phrase among the
dev rows and its sentence among the training rows would flatter a model. new.csv has the 872 dev
rows, with the columns id, text and truth. SST-2 is fetched to --data_dir, unless it is there.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from download_glue_data import BASE_URL, fetch_task
from glue.splits import Example, read_examples
from glue.tables import as_csv
from glue.tasks import get_task
from runs.files import write_text
from runs.flags import FlagParser
from runs.processes import run_script


def whole_sentences(examples: Iterable[Example]) -> list[Example]:
    """Leave out each text that is a part of a longer one, and each that was there before."""
    by_text: dict[str, Example] = {}
    for example in examples:
        by_text.setdefault(example.text_a.strip(), example)
    parts: set[str] = set()
    for text in sorted(by_text, key=len, reverse=True):
        if text not in parts:
            parts.update(parts_of(text.split()))
    return [example for text, example in by_text.items() if text not in parts]


def parts_of(words: list[str]) -> Iterable[str]:
    """Yield every run of words of a text that is shorter than the text."""
    for length in range(1, len(words)):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])


def opinion(example: Example) -> str:
    """Name the label of a film review."""
    return "positive" if example.label == 1 else "negative"


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument("--data_dir", type=Path, default="glue_data", help="GLUE's folder")
    parser.add_argument(
        "--output_dir", type=Path, default=".", help="folder of reviews.csv and new.csv"
    )
    parser.add_argument("--base_url", default=BASE_URL, help="address of the server or of a mirror")
    args = parser.parse_args()
    fetch_task("SST-2", args.data_dir, args.base_url.rstrip("/"), path_to_mrpc=None)
    task = get_task("SST-2")
    folder = args.data_dir / "SST-2"
    reviews = []
    for example in whole_sentences(read_examples(task, folder, "train")):
        reviews.append({"text": example.text_a.strip(), "label": opinion(example)})
    new = []
    for number, example in enumerate(read_examples(task, folder, "dev")):
        text = example.text_a.strip()
        new.append({"id": str(number), "text": text, "truth": opinion(example)})
    for name, rows in (("reviews.csv", reviews), ("new.csv", new)):
        path = args.output_dir / name
        write_text(path, as_csv(rows))
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    run_script(main)
