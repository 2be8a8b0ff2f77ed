"""MNLI-from-SICK: SICK's sentence pairs in MNLI's files, a small task of three classes.

    python examples/sick_as_mnli.py --sick SICK_train.txt SICK_trial.txt SICK_test_annotated.txt \\
        --output glue_data/MNLI-from-SICK

The three files are what SemEval 2014 gave out for its task 1, with 4,500, 500 and 4,927 pairs.
Training pairs become train.tsv, trial pairs dev_matched.tsv and test pairs dev_mismatched.tsv.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from glue.tasks import NLI, Split, Task
from modeling.errors import UserError
from utils.files import run_script, write_text

# MNLI's files, and how many annotators' columns they have.
FILES = {"train": 1, "dev_matched": 5, "dev_mismatched": 5}
PARSES = [f"sentence{i}_{kind}parse" for kind in ("binary_", "") for i in (1, 2)]
NEEDED = ("pair_ID", "sentence_A", "sentence_B", "entailment_judgment")
START = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2"]


def mnli_lines(path: Path, annotators: int) -> list[str]:
    """The lines of MNLI's file for one of SICK's."""
    labels = [*(f"label{i}" for i in range(1, annotators + 1)), "gold_label"]
    lines = ["\t".join([*START, *labels])]
    sick = Task("sick", "", "", files={"train": str(path.absolute())})
    for line, row in Split(sick, "", "train").rows(NEEDED):
        label = row["entailment_judgment"].lower()
        if label not in NLI:
            raise UserError(f"{path}, line {line}: {label!r}; allowed are {', '.join(NLI)}")
        start = [str(len(lines) - 1), row["pair_ID"], f"{row['pair_ID']}s", "sick"]
        texts = [row["sentence_A"], row["sentence_B"]]
        lines.append("\t".join([*start, *("-" for _ in PARSES), *texts, *(label for _ in labels)]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files = "the training, trial and test file, in this order"
    parser.add_argument("--sick", type=Path, required=True, nargs=3, help=files)
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    for path, (name, annotators) in zip(args.sick, FILES.items(), strict=True):
        lines = mnli_lines(path, annotators)
        write_text(args.output / f"{name}.tsv", "\n".join(lines) + "\n")
        print(f"{args.output / name}.tsv: {len(lines) - 1} pairs")


if __name__ == "__main__":
    run_script(main)
