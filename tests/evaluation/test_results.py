"""Reports against scikit-learn and hand-worked tables; tokens.html."""

import csv
import io
import re
from concurrent.futures import ThreadPoolExecutor
from html import unescape

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from answers.report import DepthSummary, Report, Summary, append_results, layer_table
from answers.scores import ClassScores
from modes.adaptive_depth import token_section
from runs.job import Origin
from runs.provenance import provenance


def summary_of(cost=0.58812, exit_thres=0.1, weights="", **metrics) -> Summary:
    rule = {"thres_name": "bias_1", "exit_thres": exit_thres, "cnt_thres": 8}
    rule |= {"margin": 0.0, "range_tmp": 0.2}
    return Summary(
        task="rte",
        dataset="rte",
        examples=4,
        metrics=metrics or {"acc": 0.8122743},
        class_scores=ClassScores(),
        remarks=[],
        latency_ms={"median": 1.0, "p95": 2.0},
        latency_means="one text at a time",
        texts_per_second=1000.0,
        rule=rule,
        origin=Origin(provenance({}, weights=weights, data="d"), dtype="fp32"),
        batch_size=1,
        depth=DepthSummary(computation_cost=cost, flops_ratio=cost),
    )


def test_all_appends_rows_under_one_header_and_one_starts_anew(tmp_path):
    path = tmp_path / "eval_results.txt"
    append_results(path, summary_of(exit_thres=0.2), "all")
    path.write_text(path.read_text().rstrip("\n"))  # as an editor may leave it
    append_results(path, summary_of(), "all")
    rows = list(csv.reader(path.open()))
    assert rows[0][:4] == ["", "exit_thres", "acc", "compute_ratio"]
    assert [row[:4] for row in rows[1:]] == [
        ["0", "0.20", "0.8123", "0.5881"],
        ["0", "0.10", "0.8123", "0.5881"],
    ]
    append_results(path, summary_of(exit_thres=0.0049), "one")  # of a ponder model, say
    rows = list(csv.reader(path.open()))
    assert [row[1] for row in rows] == ["exit_thres", "0.0049"]


def test_rows_of_other_weights_are_said(tmp_path, caplog):
    first, second = (Report(summary_of(weights=name)) for name in "ab")
    for report, out_mode in ((first, "all"), (first, "all"), (second, "one"), (second, "all")):
        report.write(tmp_path, tmp_path, out_mode)
    assert not caplog.records
    first.write(tmp_path, tmp_path, "all")
    assert "holds rows of other weights;" in caplog.text


def test_rows_that_are_written_at_once_are_all_there(tmp_path):
    path, thresholds = tmp_path / "eval_results.txt", [i / 100 for i in range(48)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda x: append_results(path, summary_of(exit_thres=x), "all"), thresholds))
    assert sorted(float(row["exit_thres"]) for row in csv.DictReader(path.open())) == thresholds
    assert {x.name for x in tmp_path.iterdir()} == {path.name, "written.json"}


def table(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("classes", [2, 3])
def test_layer_statistics_are_those_of_scikit_learn(classes):
    generator = torch.Generator().manual_seed(classes)
    all_logits = torch.randn(4, 30, classes, generator=generator)
    labels = torch.arange(30) % classes
    exit_layer = torch.tensor([1, 2, 4])[torch.arange(30) % 3 - 1]
    for exits_only in (False, True):
        rows = table(layer_table(all_logits, labels, exit_layer if exits_only else None))
        assert [row["layer"] for row in rows] == ["1", "2", "3", "4"]
        for layer, row in enumerate(rows, start=1):
            here = (exit_layer == layer).numpy() if exits_only else np.ones(30, bool)
            assert int(row["samples"]) == here.sum()
            if not here.any():
                assert (row["loss"], row["entropy"], row["accuracy"]) == ("", "", "")
                continue
            p = all_logits[layer - 1].double().softmax(-1).numpy()[here]
            truth = labels.numpy()[here]
            assert float(row["accuracy"]) == pytest.approx(
                accuracy_score(truth, p.argmax(-1)), abs=1e-6
            )
            assert float(row["loss"]) == pytest.approx(
                log_loss(truth, p, labels=range(classes)), abs=1e-5
            )
            entropy = -(p * np.log(p)).sum(-1).mean() / np.log(classes)
            assert float(row["entropy"]) == pytest.approx(entropy, abs=1e-5)


def test_layer_statistics_of_regression_are_squared_errors():
    all_logits = torch.tensor([[[1.0], [2.0]], [[0.0], [5.0]]])
    rows = table(layer_table(all_logits, torch.tensor([0.0, 4.0])))
    assert [row["loss"] for row in rows] == ["2.500000", "0.500000"]
    assert [row["entropy"] + row["accuracy"] for row in rows] == ["", ""]


def test_every_token_stands_over_its_number_of_updates_and_is_never_markup():
    tokens = ["[CLS]", "▁a", "▁thrill", "ing", "▁", "<b>&\"'", "$x$", "[SEP]"]
    updates = [6, 0, 3, 1, 2, 5, 4, 6]
    page = token_section(tokens, updates, 6, ["positive", "<negative>"])
    found = re.findall(r'style="--n:(.)" title="(.*?)">(.*?)<small>(.)</small></span>', page)
    texts = ["[CLS]", "a", "thrill", "ing", "▁", "<b>&\"'", "$x$", "[SEP]"]
    assert [tuple(map(unescape, one)) for one in found] == [
        (f"{n}", f"{n} of 6 updates", text, f"{n}") for n, text in zip(updates, texts, strict=True)
    ]
    assert not re.search(r"<(b|negative)\b", page)
