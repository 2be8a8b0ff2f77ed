"""The bundled sample: small, reproducible, and solvable only along the chain."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from glue.splits import read_examples
from glue.tables import read_table
from glue.tasks import get_task

SAMPLE = Path(__file__).parents[2] / "configs" / "sample"


def answer_of(premise: str, person: str) -> tuple[str, int]:
    """What a person says, and after how many sentences of the premise it is known."""
    facts = {words[0]: words[1:] for words in map(str.split, premise.rstrip(".").split(". "))}
    for step in range(1, len(facts) + 1):
        does, what = facts[person]
        if does == "says":
            return what, step
        person = what
    raise AssertionError(f"{person} asks in a circle")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_labels_and_steps_follow_from_asking_along_the_chain(split):
    _, rows = read_table(SAMPLE / f"RTE/{split}.tsv")
    counts = Counter()
    for _, row in rows:
        person, says, claimed = row["sentence2"].rstrip(".").split()
        answer, steps = answer_of(row["sentence1"], person)
        assert (says, steps) == ("says", int(row["steps"]))
        assert (row["label"] == "entailment") == (answer == claimed)
        counts[steps, row["label"]] += 1
    assert len(counts) == 12  # 1 to 6 steps, entailed or not
    assert len(set(counts.values())) == 1


def test_bags_of_words_do_not_solve_it():
    """Nor do pairs of neighbouring words, but for the sixth whose answer stands in the text."""
    texts, labels = {}, {}
    for name in ("train", "dev"):
        examples = read_examples(get_task("rte"), SAMPLE / "RTE", name)
        texts[name] = [f"{e.text_a} so {e.text_b}" for e in examples]
        labels[name] = [e.label for e in examples]
    model = make_pipeline(CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    model.fit(texts["train"], labels["train"])
    assert model.score(texts["dev"], labels["dev"]) < 0.65


@pytest.mark.slow
def test_the_trained_sample_goes_deeper_for_harder_texts_and_keeps_its_accuracy():
    """What `make demo` leaves behind: accuracy climbs over six layers, cost is well below 1."""
    trained = SAMPLE.parent.parent / "out" / "demo" / "RTE"
    if not (trained / "eval_results.json").exists():
        pytest.skip("needs the trained sample: run `make demo` first")
    results = json.loads((trained / "eval_results.json").read_text())
    accuracies = results["acc_per_layer"]
    assert all(later >= earlier + 0.01 for earlier, later in pairwise(accuracies[:6]))
    assert accuracies[-1] >= 0.97  # 0.986 here; others round otherwise
    assert results["computation_cost"] <= 0.45  # 0.426
    assert results["metrics"]["acc"] >= accuracies[-1] - 0.017  # 0.986
