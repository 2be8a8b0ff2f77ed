"""MNLI-from-SICK: SICK's sentence pairs in MNLI's files, a small task of three classes.

    python examples/sick_as_mnli.py --sick SICK.txt --output glue_data/MNLI-from-SICK

SICK.txt is in SICK.zip, the main file of https://zenodo.org/records/2787612. Its SemEval training
pairs become train.tsv, the trial pairs dev_matched.tsv and the test pairs dev_mismatched.tsv.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from glue.files import run_script, write_text
from glue.tables import read_table, require_columns
from glue.tasks import NLI
from modeling.errors import UserError

COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "entailment_label", "SemEval_set")
# SemEval's parts, each with its file and how many annotators' columns MNLI's has.
PARTS = {"TRAIN": ("train", 1), "TRIAL": ("dev_matched", 5), "TEST": ("dev_mismatched", 5)}
PARSES = tuple(f"sentence{i}_{kind}parse" for kind in ("binary_", "") for i in (1, 2))


def lines_of(path: Path) -> dict[str, list[str]]:
    """The lines of MNLI's files, by SemEval's name of the part."""
    header, rows = read_table(path, ())
    require_columns(path, header, COLUMNS)
    lines: dict[str, list[str]] = {part: [] for part in PARTS}
    for number, row in rows:
        where = f"{path}, line {number}"
        if missing := [name for name in COLUMNS if name not in row]:
            raise UserError(f"{where}: no {missing[0]!r}; is the line cut off?")
        pair, first, second, label, part = (row[name] for name in COLUMNS)
        label = label.lower()
        if label not in NLI or part not in PARTS:
            raise UserError(
                f"{where}: {label!r} in {part!r}; allowed are {', '.join(NLI)} in "
                f"{', '.join(PARTS)}"
            )
        labels = [label] * (PARTS[part][1] + 1)  # the annotators', and the one that counts
        cells = [pair, f"{pair}s", "sick", *("-" for _ in PARSES), first, second, *labels]
        lines[part].append("\t".join([str(len(lines[part])), *cells]))
    return lines


def header_of(annotators: int) -> str:
    named = [f"label{i}" for i in range(1, annotators + 1)]
    start = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2"]
    return "\t".join([*start, *named, "gold_label"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sick", type=Path, required=True, help="SICK.txt")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    parts = lines_of(args.sick)
    if empty := [part for part, lines in parts.items() if not lines]:
        raise UserError(f"{args.sick} has no pairs of SemEval_set {empty[0]}")
    for part, lines in parts.items():
        name, annotators = PARTS[part]
        path = args.output / f"{name}.tsv"
        write_text(path, "\n".join([header_of(annotators), *lines]) + "\n")
        print(f"{path}: {len(lines)} pairs")


if __name__ == "__main__":
    run_script(main)
