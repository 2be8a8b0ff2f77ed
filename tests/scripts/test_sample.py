"""The bundled sample: small, reproducible, and not solvable by looking at one side."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from glue.tasks import Example, get_task, read_examples
from modeling import load_config, load_tokenizer

SAMPLE = Path(__file__).parents[2] / "configs" / "sample"
TEXTS = ("RTE/train.tsv", "RTE/dev.tsv", "RTE/test.tsv")


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Example]]:
    return {name: read_examples(get_task("rte"), SAMPLE / "RTE", name) for name in ("train", "dev")}


def test_the_sample_is_under_one_megabyte():
    shipped = [SAMPLE / name for name in (*TEXTS, "config.json", "spiece.model", "make_sample.py")]
    assert sum(path.stat().st_size for path in shipped) < 1_000_000


def test_the_script_makes_the_files_again_byte_for_byte(tmp_path):
    command = [sys.executable, str(SAMPLE / "make_sample.py"), "--output_dir", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    for name in TEXTS:
        assert (tmp_path / name).read_bytes() == (SAMPLE / name).read_bytes()


def test_half_of_each_split_is_entailed(splits):
    for examples in splits.values():
        assert sum(example.label for example in examples) == len(examples) / 2


def test_no_dev_pair_is_in_the_training_file(splits):
    pairs = [{example[1:3] for example in examples} for examples in splits.values()]
    assert not pairs[0] & pairs[1]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - {"a", "the", "it", "was", "by", "somebody"}


def test_a_hypothesis_with_details_is_entailed_when_the_premise_has_them_all(splits):
    """Labels against set inclusion of words, which knows nothing of how pairs are made."""
    cues = {"something", "anything"}
    for example in splits["dev"]:
        told = words(example.text_b)
        if told & cues:
            assert (example.label == 0) == ("something" in told)
        else:
            assert (example.label == 0) == (told <= words(example.text_a))


@pytest.mark.parametrize("both", [False, True])
def test_bags_of_words_do_not_solve_it(splits, both):
    """Easy pairs need no premise; the others take a comparison that a linear model cannot make."""

    def texts(examples: list[Example]) -> list[str]:
        premises = [" ".join(f"p{word}" for word in e.text_a.split()) * both for e in examples]
        return [f"{p} {e.text_b}" for p, e in zip(premises, examples, strict=True)]

    model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000))
    model.fit(texts(splits["train"]), [e.label for e in splits["train"]])
    accuracy = model.score(texts(splits["dev"]), [e.label for e in splits["dev"]])
    assert accuracy < 0.75


def test_the_tokenizer_is_an_albert_one_with_whole_words():
    tokenizer = load_tokenizer(SAMPLE)
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.convert_ids_to_tokens(range(5)) == special
    text = "On Monday Anna found a red hat."
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == 2 + 7 + 1  # a piece a word, one for the full stop
    assert tokenizer.decode(ids, skip_special_tokens=True).replace(" .", ".") == text.lower()
    assert len(tokenizer) <= load_config(SAMPLE).vocab_size


@pytest.mark.slow
def test_the_trained_sample_saves_layers_and_keeps_its_accuracy():
    """What `make demo` leaves behind, at the default thresholds."""
    report = SAMPLE.parent.parent / "out" / "demo" / "RTE" / "eval_results.json"
    if not report.exists():
        pytest.skip("needs the trained sample: run `make demo` first")
    results = json.loads(report.read_text())
    full_depth = results["acc_per_layer"][-1]
    assert full_depth >= 0.90
    assert results["computation_cost"] <= 0.60
    assert results["metrics"]["acc"] >= full_depth - 0.01
