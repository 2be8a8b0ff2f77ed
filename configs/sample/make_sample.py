"""Make the bundled sample: an entailment task in RTE's layout, and its tokenizer.

    python configs/sample/make_sample.py         writes RTE/*.tsv and spiece.model beside this file

A premise states one fact: when, who did what to which thing. Hypotheses are

    easy  decidable without the premise: "Somebody did something." follows from every fact,
          "Nobody did anything." from none;
    part  about one of the four details: "It was red.";
    full  a whole fact, active or passive, entailed when all four details are the premise's, else
          wrong in one, two or three of them: a single wrong detail takes a comparison of all four.

Of every kind half the pairs are entailed, so that no kind gives the label away.
"""

import argparse
import random
from pathlib import Path
from typing import NamedTuple

import sentencepiece

DETAILS = (
    ("Anna", "Tom", "Lucy"),
    ("bought", "sold", "found"),
    ("red", "blue", "green"),
    ("hat", "coat", "lamp"),
)
# No hypothesis asks when: it makes premises differ, and is to be overlooked.
WHEN = (
    *("On Monday", "On Tuesday", "On Wednesday", "On Thursday", "On Friday", "On Saturday"),
    *("On Sunday", "In May", "In June", "In July", "In winter", "In spring"),
)
ACTIVE, PASSIVE = "{0} {1} a {2} {3}.", "The {2} {3} was {1} by {0}."
PARTS = ("It was {}.", "Somebody {} it.", "It was {}.", "It was a {}.")
EASY = {
    True: ("Somebody did something.", "At least one person had something."),
    False: ("Nobody did anything.", "No one had anything at all."),
}
# The kinds of ten pairs in a row, each once entailed and once not.
KINDS = ("easy", "part", "part", "full", "full")
SPLITS = {"train": 4800, "dev": 450, "test": 450}
LABELS = {True: "entailment", False: "not_entailment"}

Fact = list[str]


class Pair(NamedTuple):
    premise: str
    hypothesis: str
    entailed: bool


def with_wrong(fact: Fact, positions: list[int], draw: random.Random) -> Fact:
    """`fact` with another value of each of the details at `positions`."""
    wrong = list(fact)
    for i in positions:
        wrong[i] = draw.choice([value for value in DETAILS[i] if value != fact[i]])
    return wrong


def make_pair(kind: str, entailed: bool, draw: random.Random) -> Pair:
    fact = [draw.choice(values) for values in DETAILS]
    premise = f"{draw.choice(WHEN)} {ACTIVE.format(*fact)}"
    if kind == "easy":
        return Pair(premise, draw.choice(EASY[entailed]), entailed)
    if kind == "part":
        i = draw.randrange(len(DETAILS))
        told = fact if entailed else with_wrong(fact, [i], draw)
        return Pair(premise, PARTS[i].format(told[i]), entailed)
    count = 0 if entailed else draw.choice((1, 2, 3))
    told = with_wrong(fact, draw.sample(range(len(DETAILS)), count), draw)
    return Pair(premise, draw.choice((ACTIVE, PASSIVE)).format(*told), entailed)


def make_splits(seed: int) -> dict[str, list[Pair]]:
    """Train, dev and test pairs; no pair stands twice, in one split or in two."""
    draw, seen, splits = random.Random(seed), set(), {}
    for split, size in SPLITS.items():
        pairs = []
        while len(pairs) < size:
            kind, entailed = KINDS[len(pairs) % 5], len(pairs) // 5 % 2 == 0
            pair = make_pair(kind, entailed, draw)
            if pair[:2] not in seen:
                seen.add(pair[:2])
                pairs.append(pair)
        draw.shuffle(pairs)
        splits[split] = pairs
    return splits


def as_tsv(pairs: list[Pair], labelled: bool) -> str:
    header = ["index", "sentence1", "sentence2"] + ["label"] * labelled
    lines = ["\t".join(header)]
    for index, pair in enumerate(pairs):
        row = [str(index), pair.premise, pair.hypothesis]
        lines.append("\t".join(row + [LABELS[pair.entailed]] * labelled))
    return "\n".join(lines) + "\n"


def train_tokenizer(sentences: list[str], directory: Path) -> None:
    """spiece.model with ALBERT's special pieces, every word of the sample one piece."""
    words = sorted({word for text in sentences for word in text.lower().rstrip(".").split()})
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.lower() for text in sentences),
        model_prefix=str(directory / "spiece"),
        vocab_size=5 + len(words) + 60,
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    splits = make_splits(args.seed)
    (args.output_dir / "RTE").mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        path = args.output_dir / "RTE" / f"{split}.tsv"
        path.write_text(as_tsv(pairs, split != "test"), encoding="utf-8", newline="\n")
    train_tokenizer([text for pair in splits["train"] for text in pair[:2]], args.output_dir)


if __name__ == "__main__":
    main()
