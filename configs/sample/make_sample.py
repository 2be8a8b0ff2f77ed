"""Make the bundled sample: chains of inference in RTE's layout, and their tokenizer.

    python configs/sample/make_sample.py         writes RTE/*.tsv and spiece.model beside this file

A premise says whom each of twelve people asks:

    Ann asks Ida. Ben says yes. Cat asks Hal. … Gus says no. … Ida asks Ben. …

Who asks somebody says what that one says. So Ben, Ida and Ann say yes here: "Ann says yes." is
entailed, "Gus says yes." is not. Ben's answer takes one step, Ida's two, Ann's three: the column
`steps` counts them, 1 to 6. The twelve people form two chains of six; one ends in yes, one in no.
As many pairs have 1, 2, … 6 steps, and of each half are entailed, so that neither the number of
steps nor any single sentence gives a label away.
"""

import argparse
import random
from itertools import pairwise
from pathlib import Path

import sentencepiece

PEOPLE = "Ann Ben Cat Dan Eve Fay Gus Hal Ida Joe Kim Leo".split()
CHAIN = 6  # people between a question and its answer, at most
ANSWERS = ("yes", "no")
LABELS = {True: "entailment", False: "not_entailment"}
SPLITS = {"train": 2400, "dev": 360, "test": 360}


def make_premise(draw: random.Random) -> tuple[str, dict[str, str], dict[str, int]]:
    """A premise, everybody's answer, and the number of facts that it takes."""
    people, endings = draw.sample(PEOPLE, len(PEOPLE)), draw.sample(ANSWERS, len(ANSWERS))
    facts, answers, steps = [], {}, {}
    for chain, answer in zip((people[:CHAIN], people[CHAIN:]), endings, strict=True):
        facts += [f"{who} asks {asked}." for who, asked in pairwise(chain)]
        facts.append(f"{chain[-1]} says {answer}.")
        answers |= dict.fromkeys(chain, answer)
        steps |= {who: CHAIN - i for i, who in enumerate(chain)}
    return " ".join(sorted(facts)), answers, steps


def make_splits(seed: int) -> dict[str, list[list[str]]]:
    """Rows of premise, hypothesis, steps, label; no premise stands twice, in one split or two."""
    draw, seen, splits = random.Random(seed), set(), {}
    for split, size in SPLITS.items():
        rows = splits[split] = []
        while len(rows) < size:
            steps, entailed = 1 + len(rows) % CHAIN, len(rows) // CHAIN % 2 == 0
            (premise, answers, needed), answer = make_premise(draw), ANSWERS[0 if entailed else 1]
            known = [who for who, count in needed.items() if count == steps]
            who = next(who for who in known if answers[who] == answer)
            if premise not in seen:
                seen.add(premise)
                rows.append([premise, f"{who} says yes.", str(steps), LABELS[entailed]])
        draw.shuffle(rows)
    return splits


def write_tokenizer(sentences: list[str], directory: Path) -> None:
    """spiece.model with ALBERT's special pieces, every word of the sample one piece."""
    words = sorted({word for text in sentences for word in text.lower().replace(".", "").split()})
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.lower() for text in sentences),
        model_prefix=str(directory / "spiece"),
        vocab_size=5 + len(words) + 40,
        hard_vocab_limit=False,
        pad_id=0,
        pad_piece="<pad>",
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
        user_defined_symbols=["▁" + word for word in words],
        normalization_rule_name="identity",
        minloglevel=2,
    )
    (directory / "spiece.vocab").unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output_dir", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    splits = make_splits(seed=0)
    (args.output_dir / "RTE").mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        columns = ["sentence1", "sentence2", "steps", "label"][: 3 if split == "test" else 4]
        lines = ["\t".join(["index", *columns])]
        lines += ["\t".join([str(i), *row[: len(columns)]]) for i, row in enumerate(rows)]
        path = args.output_dir / "RTE" / f"{split}.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    write_tokenizer([text for row in splits["train"] for text in row[:2]], args.output_dir)


if __name__ == "__main__":
    main()
