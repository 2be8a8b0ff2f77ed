"""Tables on the pages, against the files and commands that their numbers are from."""

import csv
from itertools import takewhile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from exit_lab.choice import split
from modeling.elbert.rules import RULES
from modeling.rules import scan
from tests.commands import ROOT


def table(page: str, first_line: str) -> list[list[str]]:
    """The cells below a table's first line, without marks of bold."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(first_line))
    rows = takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip(" *") for cell in row.split("|")[1:-1]] for row in rows]


@pytest.mark.parametrize(
    ("page", "first_line"),
    [("README.md", "| | computation cost"), ("docs/sharing.md", "| on the 436 held-out")],
)
def test_early_exit_on_sst2_is_what_the_recording_gives(page, first_line):
    recorded = load_file(ROOT / "experiments/recorded/SST-2-all-1.safetensors")
    logits, labels = recorded["all_logits"], recorded["labels"]
    held_out = split(len(labels), 0.5, 42).report
    rule = RULES["bias_1"][0](exit_thres=0.88, cnt_thres=3, margin=0.1)
    layer = scan(rule, {"all_logits": logits})[held_out]
    right = 100.0 * (logits.argmax(-1) == labels)[:, held_out].double()  # (layers, examples)
    mean, taken = layer.double().mean(), right[layer - 1, torch.arange(len(layer))]
    coin = (2 - mean) * right[0].mean() + (mean - 1) * right[1].mean()
    cost = f"{mean / len(logits):.2f}"
    found = [["1", f"{right[-1].mean():.1f}"], [cost, f"{taken.mean():.1f}"], [cost, f"{coin:.1f}"]]
    assert [row[1:] for row in table(page, first_line)] == found


def column(name: str, key: str) -> np.ndarray:
    """One column of one of the comparison's files; it has four decimal places."""
    with (ROOT / f"experiments/comparison/results/{name}.csv").open(encoding="utf-8") as file:
        return np.array([float(row[key]) for row in csv.DictReader(file)])


def test_results_are_those_of_the_comparisons_files():
    gains, efficiencies = column("networks", "rule - coin"), column("networks", "efficiency")
    for _, _, *cells, shares in table("docs/results.md", "| network (its coin"):
        found = [float(cell) for cell in cells if cell != "–"]
        assert all(abs(100 * gains - gain).min() < 0.0601 for gain in found)
        assert all(abs(efficiencies - float(x)).min() < 0.0051 for x in shares.split(", "))
    for _, *cells in table("docs/results.md", "| cost of the certified threshold"):
        assert all(abs(column("certified", "cost") - float(cost)).min() < 0.0051 for cost in cells)
