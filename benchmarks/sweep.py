"""Seconds and memory of a sweep after its recorded pass, and of the bootstrap behind its figures.

    OMP_NUM_THREADS=2 python benchmarks/sweep.py
    OMP_NUM_THREADS=2 python benchmarks/sweep.py --settings 10000 --task sts-b

Random answers stand in for a model: 5,500 examples × 12 layers, a thousand settings of the seven
rules. Prints seconds of each step, and the peak of resident memory, of which the libraries take
most.
"""

import argparse
import math
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from evaluation.modes import MODES
from exit_lab.choice import split
from exit_lab.curves import curves_of
from exit_lab.frontiers import make_field
from exit_lab.grids import make_grids
from exit_lab.recording import Recording
from exit_lab.run import BAND_DRAWS
from exit_lab.sweep import sweep
from exit_lab.tables import frontier_table, sweep_table
from glue.tables import as_csv
from glue.tasks import TASKS, primary_metric


def random_recording(layers: int, examples: int, classes: int, seed: int = 0) -> Recording:
    """Answers that drift from layer to layer, as a model's do."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(layers, examples, classes, generator=generator)
    logits = 0.5 * steps.cumsum(0)
    labels = logits[-1].argmax(-1) if classes > 1 else logits[-1, :, 0] + steps[0, :, 0]
    return Recording({"all_logits": logits}, labels.numpy())


def grid_for(settings: int, layers: int, regression: bool) -> dict[str, str]:
    """Grids whose seven rules have `settings` settings together, or some more."""
    if regression:
        steps = max(2, settings // (4 * layers))
        return {"exit_thres": f"0:1:{1 / steps}", "range_tmp": f"0:1:{1 / steps}"}
    per_threshold = 3 + layers * 3 * 2 + layers * 3 * 3
    steps = max(2, math.ceil(settings / per_threshold) - 1)
    return {"exit_thres": f"0:1:{1 / steps}"}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="qnli", choices=sorted(TASKS))
    parser.add_argument("--settings", default=1000, type=int)
    parser.add_argument("--examples", default=5500, type=int)
    parser.add_argument("--layers", default=12, type=int)
    args = parser.parse_args()
    task, rule_set = TASKS[args.task], MODES["albert"].rules()
    recording = random_recording(args.layers, args.examples, task.num_labels)
    regression = task.is_regression
    texts = grid_for(args.settings, args.layers, regression)
    rules = rule_set.swept(regression)
    grids = make_grids(rule_set, rules, texts, args.layers, regression)
    before, start = peak_mib(), time.perf_counter()

    swept = sweep(rule_set, grids, recording, task)
    scanned = time.perf_counter()
    rows = sweep_table(swept)
    text = as_csv(rows) + as_csv(frontier_table(rows, primary_metric(task)))
    tabled, memory = time.perf_counter(), peak_mib()
    curves_of(make_field([swept], split(args.examples, 0.5, seed=0), BAND_DRAWS, seed=0))
    banded = time.perf_counter()

    print(
        f"{task.name}: {len(rows)} settings × {args.examples} examples × {args.layers} layers, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"exit layers           {scanned - start:6.2f} s")
    print(f"metrics and tables    {tabled - scanned:6.2f} s   ({len(text) / 1e6:.1f} MB of CSV)")
    print(f"sweep in all          {tabled - start:6.2f} s")
    print(f"bootstrap of curves   {banded - tabled:6.2f} s")
    print(f"peak memory           {memory:6.0f} MiB after the sweep, {before:.0f} MiB before it")
    print(f"                      {peak_mib():6.0f} MiB after the bootstrap")


if __name__ == "__main__":
    main()
