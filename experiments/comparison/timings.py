"""How long networks take with one example at a time, from experiments/recorded/milliseconds."""

import json
from dataclasses import dataclass

import numpy as np
import torch

from answers.exit_metrics import at_exit
from elbert.configuration import ElbertConfig
from elbert.rules import scan
from experiments.comparison.recordings import RECORDED, load, seeds
from runs.console import markdown_table

# How a network runs, by folder, and its column's title.
FORMS = {"float32": "PyTorch", "bf16": "PyTorch, bf16", "onnx": "ONNX", "int8": "ONNX, int8"}


@dataclass(frozen=True)
class Timed:
    """A network that was timed, under the rule `entropy`."""

    title: str
    files: str  # how its files begin
    network: str  # that of its recordings
    threshold: float


TIMED = (
    Timed("MiniLM with exits, switched off", "untied-0", "untied-exits-equal", 0.0),
    Timed("MiniLM, exits: entropy below 0.6", "untied-0.6", "untied-exits-equal", 0.6),
    Timed("MiniLM's first three layers", "untied-3-0", "untied-3", 0.0),
)


@dataclass(frozen=True)
class Timing:
    """What run_glue.py measured of a network in one form, on SST-2's dev set."""

    accuracy: float  # in percent, of the seed that was timed
    milliseconds: list[float]  # mean per example, of each run

    @property
    def range(self) -> tuple[float, float, float]:
        """The least, the middle and the most milliseconds."""
        least, middle, most = np.quantile(self.milliseconds, (0, 0.5, 1)).tolist()
        return least, middle, most


def load_timings(network: Timed) -> dict[str, Timing]:
    """Load a network's timings, by form; {} where one of the forms was not timed."""
    timings = {}
    for form in FORMS:
        paths = sorted((RECORDED / "milliseconds" / form).glob(f"{network.files}-run*.json"))
        if not paths:
            return {}
        runs = [json.loads(path.read_text()) for path in paths]
        timings[form] = Timing(
            accuracy=100 * runs[0]["metrics"]["acc"],
            milliseconds=[1000 / run["texts_per_second"] for run in runs],
        )
    return timings


def mean_accuracy(network: Timed) -> float:
    """Compute the accuracy on SST-2 in percent, mean of the recorded seeds."""
    rule = ElbertConfig().exit_rule(thres_name="entropy", exit_thres=network.threshold)
    accuracies = []
    for seed in seeds("SST-2", network.network):
        answers = load("SST-2", network.network, seed)
        exit_layer = scan(rule, {"all_logits": torch.tensor(answers.logits)}).numpy()
        accuracies.append(at_exit(answers.scores, exit_layer).mean())
    return 100 * float(np.mean(accuracies))


def milliseconds_table() -> str:
    """Tabulate accuracy, and the milliseconds per example in each form."""
    rows = []
    for network in TIMED:
        timings = load_timings(network)
        if not timings:
            continue
        float32, int8 = timings["float32"].accuracy, timings["int8"].accuracy
        row = [network.title, f"{mean_accuracy(network):.1f}", f"{float32:.1f} / {int8:.1f}"]
        for timing in timings.values():
            least, middle, most = timing.range
            row.append(f"{middle:.1f} ({least:.1f}–{most:.1f})")
        rows.append(row)
    columns = [
        "mean ms per example (range of three runs)",
        "accuracy, five seeds",
        "this seed, float32 / int8",
        *FORMS.values(),
    ]
    return markdown_table(columns, rows)
