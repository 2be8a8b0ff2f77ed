"""The table with the details of a prediction."""

import io

import numpy as np
import pytest
import torch
from scipy.special import softmax

from evaluation.prediction_files import predictions_table
from glue.splits import Example
from glue.tasks import TASKS


def test_a_table_has_a_line_an_example_which_no_spreadsheet_calculates():
    examples = [
        Example("0", "=1+1\tand", "a\nb", label=None),
        Example("-7", "-7", "- 7", label=1),
    ]
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    text = predictions_table(TASKS["rte"], examples, logits, {"exit_layer": [3, 12]})
    header, first, second = (line.split("\t") for line in text.splitlines())
    assert header == [
        *("index", "label", "prediction", "confidence", "exit_layer"),
        *("probability of entailment", "probability of not_entailment"),
        *("sentence1", "sentence2"),
    ]
    assert first[:3] + first[4:5] == ["0", "", "entailment", "3"]
    assert first[7:] == ["'=1+1 and", "a b"]
    assert second[:3] + second[4:5] == ["-7", "not_entailment", "not_entailment", "12"]
    assert second[7:] == ["-7", "'- 7"]


def test_a_text_that_begins_with_a_quote_is_one_cell_to_pandas():
    pandas = pytest.importorskip("pandas")
    texts = ['"half a quote', '"all" of it', "plain", 'an "inner" one']
    examples = [Example(str(number), text, "b", label=None) for number, text in enumerate(texts)]
    table = predictions_table(TASKS["rte"], examples, torch.zeros(4, 2), {})
    assert pandas.read_csv(io.StringIO(table), sep="\t")["sentence1"].tolist() == texts


def test_confidence_and_probabilities_have_all_digits_of_float32():
    logits = np.array([[2.0, 0.0], [0.0, 0.001], [9.0, -9.0]], np.float32)
    examples = [Example(str(number), "a", "b", label=None) for number in range(len(logits))]
    table = predictions_table(TASKS["rte"], examples, torch.from_numpy(logits), {})
    found = np.array([line.split("\t")[3:6] for line in table.splitlines()[1:]], np.float64)
    expected = softmax(logits.astype(np.float64), axis=1)
    np.testing.assert_allclose(found[:, 1:], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[:, 0], found[:, 1:].max(1))


def test_values_have_no_confidence():
    examples = [Example("0", "a", "b", label=2.5)]
    text = predictions_table(TASKS["sts-b"], examples, torch.tensor([[7.0]]), {})
    assert text == (
        "index\tlabel\tprediction\tconfidence\tsentence1\tsentence2\n0\t2.500\t5.000\t\ta\tb\n"
    )
