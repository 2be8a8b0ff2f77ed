"""The table with the details of a prediction."""

import torch

from answers.prediction_files import predictions_table
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
    assert first == [
        *("0", "", "entailment", "0.8808", "3", "0.8808", "0.1192"),
        *("'=1+1 and", "a b"),
    ]
    assert second == [
        *("-7", "not_entailment", "not_entailment", "0.7311", "12", "0.2689", "0.7311"),
        *("-7", "'- 7"),
    ]


def test_values_have_no_confidence():
    examples = [Example("0", "a", "b", label=2.5)]
    text = predictions_table(TASKS["sts-b"], examples, torch.tensor([[7.0]]), {})
    assert text == (
        "index\tlabel\tprediction\tconfidence\tsentence1\tsentence2\n0\t2.500\t5.000\t\ta\tb\n"
    )
