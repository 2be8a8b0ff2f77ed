"""How long models take with one example at a time, from experiments/recorded/milliseconds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from answers.figures import COLOURS, Figure, save_figure, styled
from elbert.configuration import ElbertConfig
from elbert.rules import scan
from experiments.comparison.analysis import RECORDED, load, seeds
from glue.metrics import at_exit
from runs.console import markdown_table

FORMS = {"float32": "PyTorch", "bf16": "PyTorch, bf16", "onnx": "file", "int8": "int8 file"}
TIMED = {  # files of milliseconds, with the threshold; the pages' names, and their recordings
    "untied-0": ("MiniLM, all six layers", "untied-exits-equal"),
    "untied-0.6": ("MiniLM, exits: entropy below 0.6", "untied-exits-equal"),
    "untied-3-0": ("MiniLM's first three layers", "untied-3"),
}


def timed() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What run_glue.py wrote of SST-2, one example at a time: by TIMED and FORMS, every run."""
    folder = RECORDED / "milliseconds"

    def runs(files: str, form: str) -> list[dict[str, Any]]:
        found = sorted(folder.glob(f"{form}/{files}-run*.json"))
        return [json.loads(path.read_text()) for path in found]

    found = {files: {form: runs(files, form) for form in FORMS} for files in TIMED}
    return {files: forms for files, forms in found.items() if all(forms.values())}


def accuracy_of_seeds(files: str, threshold: float) -> float:
    """Mean accuracy on SST-2 over the recorded seeds, exits by entropy."""
    rule = ElbertConfig().exit_rule(thres_name="entropy", exit_thres=threshold)
    found = []
    for seed in seeds("SST-2", files):
        answers = load("SST-2", files, seed)
        exits = scan(rule, {"all_logits": torch.tensor(answers.logits)}).numpy()
        found.append(at_exit(answers.scores, exits).mean())
    return 100 * float(np.mean(found))


def spent(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Least, middle and most of the runs' mean milliseconds per example."""
    return np.quantile([1e3 / x["texts_per_second"] for x in runs], (0, 0.5, 1)).tolist()


def milliseconds() -> str:
    """Accuracy, and the milliseconds of an example in PyTorch and in files."""
    rows = []
    for files, forms in timed().items():
        name, network = TIMED[files]
        scores = " / ".join(
            f"{100 * forms[x][0]['metrics']['acc']:.1f}" for x in ("float32", "int8")
        )
        mean = f"{accuracy_of_seeds(network, float(files.rpartition('-')[2])):.1f}"
        times = (spent(runs) for runs in forms.values())
        rows.append((name, mean, scores, *(f"{y:.1f} ({x:.1f}–{z:.1f})" for x, y, z in times)))
    head = "mean ms per example (range of three runs)", "accuracy, five seeds"
    head += ("this seed, float32 / int8",)
    return markdown_table([*head, *FORMS.values()], rows)


@styled
def draw_milliseconds() -> None:
    """Draw `milliseconds`, without the ranges."""
    figure = Figure(figsize=(6.9, 3.4), layout="constrained")
    panel, found = figure.subplots(), timed()
    for i, (form, title) in enumerate(FORMS.items()):
        values = [spent(forms[form])[1] for forms in found.values()]
        where = np.arange(len(found)) + 0.2 * i
        bars = panel.barh(where, values, 0.19, label=title, color=COLOURS[i])
        panel.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    panel.set_yticks(np.arange(len(found)) + 0.3, [TIMED[files][0] for files in found])
    panel.set(xlabel="ms per sentence of SST-2, mean")
    panel.invert_yaxis()
    panel.legend()
    save_figure(figure, Path(__file__).parents[2] / "docs/milliseconds.png")
