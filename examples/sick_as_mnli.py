"""MNLI-from-SICK: SICK's sentence pairs in MNLI's files, a small task of three classes.

    python examples/sick_as_mnli.py --sick SICK.txt --output glue_data/MNLI-from-SICK
    python examples/sick_as_mnli.py --sick SICK_train.txt SICK_trial.txt SICK_test_annotated.txt \\
        --output glue_data/MNLI-from-SICK

SICK.txt is in SICK.zip, the main file of https://zenodo.org/records/2787612, with 9,840 pairs. The
three files are what SemEval 2014 gave out for its task 1, with 4,500, 500 and 4,927 pairs.
Training pairs become train.tsv, trial pairs dev_matched.tsv and test pairs dev_mismatched.tsv.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from glue.tasks import NLI, Split, Task
from modeling.errors import UserError
from utils.files import run_script, write_text

# SemEval's parts, each with its file and how many annotators' columns MNLI's has.
PARTS = {"TRAIN": ("train", 1), "TRIAL": ("dev_matched", 5), "TEST": ("dev_mismatched", 5)}
PARSES = tuple(f"sentence{i}_{kind}parse" for kind in ("binary_", "") for i in (1, 2))


def rows_of(path: Path, part: str | None) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield each pair's SemEval part, label and cells.

    part: of a file that is all of one part; None: every line says its own.
    """
    label_column = "entailment_judgment" if part else "entailment_label"
    needed = ["pair_ID", "sentence_A", "sentence_B", label_column]
    task = Task("sick", "", "", files={"train": str(path.absolute())})
    for line, row in Split(task, "", "train").rows(needed + ["SemEval_set"] * (not part)):
        found, label = part or row["SemEval_set"], row[label_column].lower()
        if label not in NLI or found not in PARTS:
            raise UserError(
                f"{path}, line {line}: {label!r} in {found!r}; allowed are {', '.join(NLI)} in "
                f"{', '.join(PARTS)}"
            )
        yield found, label, row


def lines_of(paths: Sequence[Path]) -> dict[str, list[str]]:
    """The lines of MNLI's files, by SemEval's name of the part."""
    lines: dict[str, list[str]] = {part: [] for part in PARTS}
    for path, of_file in zip(paths, PARTS if len(paths) == len(PARTS) else [None], strict=True):
        for part, label, row in rows_of(path, of_file):
            labels = [label] * (PARTS[part][1] + 1)  # the annotators', and the one that counts
            start = [str(len(lines[part])), row["pair_ID"], f"{row['pair_ID']}s", "sick"]
            texts = [row["sentence_A"], row["sentence_B"]]
            lines[part].append("\t".join([*start, *("-" for _ in PARSES), *texts, *labels]))
    return lines


def header_of(annotators: int) -> str:
    named = [f"label{i}" for i in range(1, annotators + 1)]
    start = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2"]
    return "\t".join([*start, *named, "gold_label"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files = "SICK.txt, or the training, trial and test file in this order"
    parser.add_argument("--sick", type=Path, required=True, nargs="+", help=files)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    if len(args.sick) not in (1, len(PARTS)):
        raise UserError(f"--sick: {len(args.sick)} files; give SICK.txt, or the three of SemEval")
    parts = lines_of(args.sick)
    if empty := [part for part, lines in parts.items() if not lines]:
        raise UserError(f"{args.sick[0]} has no pairs of SemEval_set {empty[0]}")
    for part, lines in parts.items():
        name, annotators = PARTS[part]
        path = args.output / f"{name}.tsv"
        write_text(path, "\n".join([header_of(annotators), *lines]) + "\n")
        print(f"{path}: {len(lines)} pairs")


if __name__ == "__main__":
    run_script(main)
