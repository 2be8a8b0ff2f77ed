"""MNLI-from-SICK: SICK's sentence pairs in MNLI's files, a small task of three classes.

    python examples/sick_as_mnli.py --sick SICK_train.txt SICK_trial.txt SICK_test_annotated.txt \\
        --output glue_data/MNLI-from-SICK

The three files are what SemEval 2014 gave out for its task 1, with 4,500, 500 and 4,927 pairs.
Training pairs become train.tsv, trial pairs dev_matched.tsv and test pairs dev_mismatched.tsv.
"""

import argparse
import csv
from pathlib import Path

# MNLI's files, and how many annotators' columns they have.
FILES = {"train": 1, "dev_matched": 5, "dev_mismatched": 5}
PARSES = [f"sentence{i}_{kind}parse" for kind in ("binary_", "") for i in (1, 2)]
START = ["index", "promptID", "pairID", "genre", *PARSES, "sentence1", "sentence2"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sick", type=Path, required=True, nargs=3, help="train, trial, test")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for path, (name, annotators) in zip(args.sick, FILES.items(), strict=True):
        labels = [*(f"label{i}" for i in range(1, annotators + 1)), "gold_label"]
        lines = ["\t".join([*START, *labels])]
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                start = [str(len(lines) - 1), row["pair_ID"], f"{row['pair_ID']}s", "sick"]
                texts = [row["sentence_A"], row["sentence_B"]]
                judgments = [row["entailment_judgment"].lower()] * len(labels)
                lines.append("\t".join([*start, *("-" for _ in PARSES), *texts, *judgments]))
        table = args.output / f"{name}.tsv"
        table.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        print(f"{table}: {len(lines) - 1} pairs")


if __name__ == "__main__":
    main()
