"""Per-layer statistics against scikit-learn and tables worked by hand."""

import csv
import io

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from evaluation.measures import layer_table, predictions_of


def table(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_are_classes_values_or_labels():
    logits = torch.tensor([[0.1, 2.0, -1.0], [3.0, 0.5, 0.4]])
    assert predictions_of(logits).tolist() == [1, 0]
    assert predictions_of(logits, multi_label=True).tolist() == [[1, 1, 0], [1, 1, 1]]
    assert predictions_of(torch.tensor([[1.5], [-2.0]])).tolist() == [1.5, -2.0]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("exits_only", [False, True])
def test_layer_statistics_are_those_of_scikit_learn(classes, exits_only):
    generator = torch.Generator().manual_seed(classes)
    all_logits = torch.randn(4, 30, classes, generator=generator)
    labels = torch.arange(30) % classes
    exit_layer = torch.tensor([1, 2, 4])[torch.arange(30) % 3 - 1]
    rows = table(layer_table(all_logits, labels, exit_layer if exits_only else None))
    assert [row["layer"] for row in rows] == ["1", "2", "3", "4"]
    for layer, row in enumerate(rows, start=1):
        counts = (exit_layer == layer).numpy() if exits_only else np.ones(30, bool)
        assert int(row["samples"]) == counts.sum()
        if not counts.any():
            assert (row["loss"], row["entropy"], row["accuracy"]) == ("", "", "")
            continue
        p = all_logits[layer - 1].double().softmax(-1).numpy()[counts]
        truth = labels.numpy()[counts]
        accuracy = accuracy_score(truth, p.argmax(-1))
        loss = log_loss(truth, p, labels=range(classes))
        entropy = -(p * np.log(p)).sum(-1).mean() / np.log(classes)
        assert float(row["accuracy"]) == pytest.approx(accuracy, abs=1e-6)
        assert float(row["loss"]) == pytest.approx(loss, abs=1e-5)
        assert float(row["entropy"]) == pytest.approx(entropy, abs=1e-5)


def test_layer_statistics_of_regression_are_squared_errors():
    all_logits = torch.tensor([[[1.0], [2.0]], [[0.0], [5.0]]])
    rows = table(layer_table(all_logits, torch.tensor([0.0, 4.0])))
    assert [row["loss"] for row in rows] == ["2.500000", "0.500000"]
    assert [row["entropy"] + row["accuracy"] for row in rows] == ["", ""]


def test_layer_statistics_of_several_labels_are_those_of_two_choices():
    """Probabilities of 0.75 and 0.5; the first example is right in both labels."""
    logits = torch.tensor([[0.75, 0.75], [0.75, 0.5]]).logit() + torch.tensor([0.0, 1e-6])
    rows = table(layer_table(logits[None], torch.tensor([[1.0, 1.0], [1.0, 0.0]])))
    loss = -(3 * np.log(0.75) + np.log(0.5)) / 4
    entropy = (3 * (0.75 * np.log2(4 / 3) + 0.25 * np.log2(4)) + 1) / 4
    (row,) = rows
    assert float(row["accuracy"]) == 0.5
    assert float(row["loss"]) == pytest.approx(loss, abs=1e-5)
    assert float(row["entropy"]) == pytest.approx(entropy, abs=1e-5)
