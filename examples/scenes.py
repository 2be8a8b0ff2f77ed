"""Make a table with several labels from the data set SICK: what sentences are about.

    python examples/scenes.py glue_data/MNLI-from-SICK/train.tsv scenes.csv

The first file is one that `examples/sick_as_mnli.py` wrote. The table has its first 1,500 different
sentences, and a column for each label: 1 where the sentence has one of the label's words.
"""

import argparse
import csv
import re
from pathlib import Path

LABELS = {
    "person": r"\b(man|men|woman|women|boys?|girls?|person|people|child|children|kids?)\b",
    "animal": r"\b(dogs?|cats?|horses?|birds?|animals?|monkeys?|pandas?|turtles?|fish)\b",
    "outdoors": r"\b(park|field|grass|snow|beach|street|river|water|lake|mountain|yard|sand)\b",
}
ROWS = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", type=Path, help="train.tsv of sick_as_mnli.py")
    parser.add_argument("table", type=Path, help="table to write, such as scenes.csv")
    args = parser.parse_args()
    with args.pairs.open(encoding="utf-8") as file:
        pairs = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    # Each sentence once, in order.
    texts = dict.fromkeys(pair[name] for pair in pairs for name in ("sentence1", "sentence2"))
    with args.table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", *LABELS])
        for text in list(texts)[:ROWS]:
            found = [int(bool(re.search(words, text.lower()))) for words in LABELS.values()]
            writer.writerow([text, *found])


if __name__ == "__main__":
    main()
