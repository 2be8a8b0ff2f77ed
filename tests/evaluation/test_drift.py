"""The drift alarm: against scipy, a hand-worked table, simulations, and real texts of two kinds."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2_contingency

import check_drift
from elbert import Classifier, UserError
from evaluation.drift import (
    EXITS,
    LENGTH,
    SCORE,
    UNKNOWN,
    Histogram,
    Reference,
    compare,
    histograms_like,
    judge,
    make_reference,
    measures_of,
    needed_effective,
)
from glue.tables import read_records
from tests.commands import ROOT
from tests.conftest import edit_json, sentence, tiny_config

DATA = Path(os.environ.get("GLUE_DATA", ROOT.parent / "shared/glue_data"))
CONFIG = tiny_config(num_hidden_layers=6)


def drawn(rng: np.random.Generator, texts: int, later: float = 0.0) -> dict[str, np.ndarray]:
    """Draw the measures of texts; `later`: share whose exit layer is one of the last two."""
    exits = rng.choice(6, texts, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]) + 1
    moved = rng.random(texts) < later
    exits[moved] = rng.integers(5, 7, moved.sum())
    return {
        EXITS: exits,
        SCORE: rng.beta(4, 1, texts),
        LENGTH: rng.poisson(14, texts).astype(float),
        UNKNOWN: rng.choice([0, 0.05, 0.2], texts, p=[0.9, 0.07, 0.03]),
    }


def test_two_histograms_are_compared_as_scipy_and_the_formula_do():
    old, new = Histogram((1, 2), (40, 30, 30)), Histogram((1, 2), (20, 30, 50))
    change = compare(EXITS, old, new)
    expected = chi2_contingency([[40, 30, 30], [20, 30, 50]], correction=False)
    assert change.p_value == pytest.approx(expected.pvalue)
    # 0.2 · ln 2 + 0 + 0.2 · ln(5 / 3), but for half a text added to each bin
    assert change.psi == pytest.approx(0.2408, abs=0.01)
    rare = compare(EXITS, Histogram((1, 2, 3), (50, 1, 0, 49)), Histogram((1, 2, 3), (5, 0, 1, 4)))
    # Bins in which fewer than 5 texts are expected are joined with the next.
    assert (rare.reference.tolist(), rare.now.tolist()) == ([50, 50], [5, 5])
    assert rare.p_value == 1


def test_without_a_change_there_are_as_many_alarms_as_stated():
    rng = np.random.default_rng(0)
    runs, rate, alarms = 500, 0.05, 0
    for _ in range(runs):
        reference = make_reference(drawn(rng, 400), CONFIG, 64)
        now = histograms_like(reference, drawn(rng, 600))
        alarms += bool(judge(reference, now, rate).alarms)
    assert binomtest(alarms, runs, rate, alternative="greater").pvalue > 0.01
    assert alarms > 0.2 * rate * runs  # it is not deaf either


def test_a_change_shows_as_often_as_the_number_of_texts_promises():
    """Exits whose PSI to the reference's distribution is 0.1, in samples of the stated sizes."""
    p = np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    last = np.array([0, 0, 0, 0, 0.5, 0.5])
    shares = np.linspace(0.01, 0.5, 2000)
    psi = [((q - p) * np.log(q / p)).sum() for q in (p * (1 - s) + last * s for s in shares)]
    share = shares[np.argmin(np.abs(np.array(psi) - 0.1))]
    rng = np.random.default_rng(1)
    level = 0.01 / 4
    size = round(2 * needed_effective(6, level))  # of each sample: n · n / (n + n) = n / 2
    found = 0
    for _ in range(300):
        reference = make_reference({EXITS: drawn(rng, size)[EXITS]}, CONFIG, 64)
        now = histograms_like(reference, {EXITS: drawn(rng, size, later=share)[EXITS]})
        found += bool(judge(reference, now, level).alarms)
    assert 0.82 < found / 300 < 0.97


def test_a_reference_is_what_its_json_says():
    reference = make_reference(drawn(np.random.default_rng(2), 200), CONFIG, 64)
    values = json.loads(json.dumps(reference.as_json()))
    assert Reference.from_json(values) == reference
    assert sum(values["exits_per_layer"]) == values["examples"] == 200
    for broken in ({"score": {"edges": [1], "counts": [2]}}, {"exits_per_layer": [1, "x"]}):
        with pytest.raises((ValueError, TypeError)):
            Reference.from_json(values | broken)


def test_the_alarm_is_a_command(trained, glue, script, tmp_path, rte):
    """Its exit status tells: 3 too few texts, 1 changed, 2 an error."""
    data = Path(shutil.copytree(rte, tmp_path / "data"))
    header, *dev_rows = (rte / "dev.tsv").read_text().splitlines()
    (data / "dev.tsv").write_text("\n".join([header, *dev_rows * 8]) + "\n")
    flags = ("--model_dir", trained, "--input_file")
    rows = [f"{sentence(i)},{sentence(i + 1)}" for i in range(8)]
    like = tmp_path / "like.csv"
    like.write_text("\n".join(["sentence1,sentence2", *rows]))
    script(check_drift.main, *flags, like).refused("has no reference", "run_glue.py --do_eval")
    glue(trained, "--do_eval", data=data).done()
    assert script(check_drift.main, *flags, like).status == check_drift.TOO_FEW_TEXTS
    # A row counts whatever else it has, since no table is written.
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"sentence1": "a dog", "sentence2": "a man", "more": [NaN]}\n')
    assert "1 texts against" in script(check_drift.main, *flags, odd).out
    other = tmp_path / "other.csv"
    rows = [f"{sentence(i, 12)},{sentence(i, 12)}" for i in range(60)]
    other.write_text("\n".join(["sentence1,sentence2", *rows]))
    outcome = script(check_drift.main, *flags, other)
    assert outcome.status == check_drift.CHANGED
    assert "CHANGED" in outcome.out
    assert "| length |" in outcome.out
    edit_json(trained / "config.json", exit_thres=0.77)
    script(check_drift.main, *flags, like).refused("reference of another exit rule")
    script(check_drift.main, "--model_dir", trained).refused("give --input_file")
    script(check_drift.main, *flags, "-").refused("save the texts as a file")


@pytest.mark.realdata
def test_phrases_are_told_from_sentences_and_sentences_from_none():
    """SST-2: its training rows are phrases of reviews, its dev rows whole sentences."""
    pytest.importorskip("onnxruntime")
    classifier = Classifier(ROOT / "docs/demo", onnx="model.onnx")

    def texts_of(name: str, count: int) -> list[str]:
        _, records = read_records(DATA / "SST-2" / name, "", None, True)
        texts = [record["sentence"] for _, record in records]
        return list(np.random.default_rng(0).permutation(texts)[:count])

    def measured(texts: list[str]) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            encoded = classifier.encode(texts)
            outputs = classifier.run(encoded, 32)
        return measures_of(
            torch.stack([logits for logits, _ in outputs]),
            [ids for ids, _ in encoded],
            classifier.tokenizer,
            np.array([depth["exit_layer"] for _, depth in outputs]),
            multi_label=False,
        )

    sentences = texts_of("dev.tsv", 872)
    reference = make_reference(measured(sentences[:436]), classifier.config, 128)
    verdicts = {
        name: judge(reference, histograms_like(reference, measured(texts)), 0.01)
        for name, texts in (("same", sentences[436:]), ("phrases", texts_of("train.tsv", 436)))
    }
    assert not verdicts["same"].alarms
    assert {LENGTH, EXITS} <= {change.measure for change in verdicts["phrases"].alarms}


def test_texts_that_are_none_are_no_verdict():
    reference = make_reference(drawn(np.random.default_rng(2), 200), CONFIG, 64)
    with pytest.raises(UserError, match="no texts"):
        judge(reference, {}, 0.01)
