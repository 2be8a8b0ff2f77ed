"""Tables on the pages, against the files that their numbers are from."""

from itertools import takewhile

import torch
from safetensors.torch import load_file

from elbert import ElbertConfig
from exit_lab.choice import split
from modeling.rules import scan
from tests.commands import ROOT


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def is_part(row: str, written: str) -> bool:
    """Tell whether a row is a written one, of which columns may be left out."""
    rest = iter(cells(written))
    return all(cell in rest for cell in cells(row))


def test_the_comparison_s_tables_are_those_that_report_wrote():
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    thresholds = (ROOT / "docs/threshold.md").read_text(encoding="utf-8")
    _, _, section = thresholds.partition("## Which threshold to start with")
    page += section.partition("## What a sweep shows")[0]
    results = ROOT / "experiments/comparison/results"
    written = []
    for name in ("tables.md", "confirmation.md", "milliseconds.md"):
        written += (results / name).read_text(encoding="utf-8").splitlines()
    twelve_layers = ROOT / "experiments/twelve_layers/results.md"
    written += twelve_layers.read_text(encoding="utf-8").splitlines()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) > 30
    tables = [line for line in written if line.startswith("|")]
    assert [row for row in rows if not any(is_part(row, line) for line in tables)] == []


def test_early_exit_on_sst2_is_what_the_recording_gives():
    recorded = load_file(ROOT / "experiments/recorded/SST-2-all-1.safetensors")
    logits, labels = recorded["all_logits"], recorded["labels"]
    held_out = split(len(labels), 0.5, 42).report
    rule = ElbertConfig(thres_name="bias_3", exit_thres=0.7, range_tmp=0.1).exit_rule(cnt_thres=3)
    layer = scan(rule, {"all_logits": logits})[held_out]
    right = 100.0 * (logits.argmax(-1) == labels)[:, held_out].double()  # (layers, examples)
    mean, taken = layer.double().mean(), right[layer - 1, torch.arange(len(layer))].mean()
    random_exits = (2 - mean) * right[0].mean() + (mean - 1) * right[1].mean()
    scores = (1, right[-1].mean()), (mean / len(logits), taken), (mean / len(logits), random_exits)
    page = (ROOT / "docs/sharing.md").read_text(encoding="utf-8")
    lines = page.partition("| on the 436 held-out")[2].splitlines()[2:]
    rows = takewhile(bool, lines)
    printed = [[cell.strip(" *") for cell in row.split("|")[2:4]] for row in rows]
    assert printed == [[f"{cost:.2f}".replace("1.00", "1"), f"{acc:.1f}"] for cost, acc in scores]
