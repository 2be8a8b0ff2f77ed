"""Time and memory by length, batch, depth, classes and rows.

    OMP_NUM_THREADS=2 python benchmarks/growth.py --sizes    one size of a batch at a time
    OMP_NUM_THREADS=2 python benchmarks/growth.py --rows 1000 1000000    tables of so many rows

--sizes: an ELBERT with MiniLM's widths and random weights does one training step, answers one batch
at full depth, and 1,000 recorded examples are swept with the rule optimal_stopping. One size
varies; the others stay at 128 tokens, 8 examples, 6 layers and 2 classes. --rows: the bundled
sample's model is trained for one step on a table of so many rows, evaluated on the same table, and
swept on it twice: the first sweep records the answers of all layers, the second finds them
recorded. Every cell is measured in a process of its own; memory is the process's peak.
"""

import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import ROOT, run_script

WIDTHS = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
REPEATS = 5  # of a cell; the median counts
SWEPT_EXAMPLES = 1000
SAMPLE = ROOT / "configs/sample"


class Sizes(NamedTuple):
    """Sizes of a cell."""

    length: int = 128
    batch: int = 8
    depth: int = 6
    classes: int = 2


VARIED = {
    "length": (32, 64, 128, 256, 512),
    "batch": (1, 8, 32, 128),
    "depth": (6, 12, 24),
    "classes": (2, 10, 100, 1000),
}


def make_model(sizes: Sizes):
    import torch

    from modeling import ElbertConfig, ElbertForSequenceClassification
    from modeling.runtime import keep_freed_memory

    keep_freed_memory()
    torch.manual_seed(0)
    config = ElbertConfig(
        **WIDTHS,
        num_hidden_layers=sizes.depth,
        num_hidden_groups=sizes.depth,
        num_labels=sizes.classes,
        thres_name="entropy",
        exit_thres=0.0,  # nobody exits early
    )
    return ElbertForSequenceClassification(config)


def train(sizes: Sizes) -> Callable[[], object]:
    """Prepare one step on a batch: forward, backward, AdamW."""
    import torch

    model = make_model(sizes).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(5, 30000, (sizes.batch, sizes.length))
    labels = torch.randint(sizes.classes, (sizes.batch,))

    def step() -> None:
        optimizer.zero_grad()
        model(ids, labels=labels).loss.backward()
        optimizer.step()

    return step


def evaluate(sizes: Sizes) -> Callable[[], object]:
    """Prepare the answers to a batch, with all exit checks."""
    import torch

    from modeling import packed_copy

    model = packed_copy(make_model(sizes).eval())
    ids = torch.randint(5, 30000, (sizes.batch, sizes.length))

    @torch.inference_mode()
    def answer() -> None:
        model.exit_early(ids)

    return answer


def sweep(sizes: Sizes) -> Callable[[], object]:
    """Prepare the fit of optimal_stopping to recorded answers, and the sweep of its prices."""
    import numpy as np
    import torch

    from evaluation.sweep import Recording, make_grids, sweep as sweep_recording
    from exit_lab.stopping import fit_stopping
    from glue.tasks import get_task
    from modeling import ElbertConfig

    torch.manual_seed(0)
    config = ElbertConfig(num_hidden_layers=sizes.depth, num_labels=sizes.classes)
    logits = torch.randn(sizes.depth, SWEPT_EXAMPLES, sizes.classes)
    labels = logits.sum(0).argmax(-1).numpy()
    recording = Recording({"all_logits": logits}, labels)
    rows = np.arange(SWEPT_EXAMPLES)

    def fit_and_sweep() -> None:
        fitted = fit_stopping(config, recording, rows)
        grids = make_grids(fitted, ["optimal_stopping"], {})
        sweep_recording(fitted, grids, recording, get_task("SST-2"))

    return fit_and_sweep


PARTS = {"training": train, "evaluation": evaluate, "sweep": sweep}


def time_cell(part: str, sizes: Sizes) -> None:
    """Print the median seconds of one call."""
    call = PARTS[part](sizes)
    call()
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    print(statistics.median(seconds))


def run_measured(command: Sequence[str]) -> tuple[str, float, float]:
    """Run a command; return its output, its seconds and its peak memory in MB."""
    started = time.perf_counter()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, **streams) as process:
        output, errors = process.communicate()
    seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {errors[-2000:]}")
    return output, seconds, float(errors.rsplit("peak memory:", 1)[1])


# Runs a script in place of `python script`, and writes its process's peak memory at the end.
MEASURE = """
import atexit, resource, runpy, sys
def tell():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("peak memory:", peak, file=sys.stderr)
atexit.register(tell)
sys.argv = sys.argv[1:]
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def sizes_table() -> str:
    """Measure all cells of --sizes."""
    rows = []
    for name, values in VARIED.items():
        for value in values:
            cells = [f"{name} {value}"]
            for part in PARTS:
                if part == "sweep" and name in ("length", "batch"):
                    cells.append("")
                    continue
                sizes = Sizes()._replace(**{name: value})
                words = ["-c", MEASURE, __file__, "--cell", part, *map(str, sizes)]
                output, _, memory = run_measured(words)
                cells.append(f"{1000 * float(output):.0f} ms, {memory:.0f} MB")
            print(" | ".join(cells), file=sys.stderr)
            rows.append(cells)
    return markdown_table(["", *PARTS], rows)


def write_table(path: Path, count: int) -> None:
    """Write a table of `count` rows: the sample's, again and again."""
    with (SAMPLE / "RTE/train.tsv").open(newline="", encoding="utf-8") as file:
        sample = list(csv.DictReader(file, delimiter="\t"))
    columns = ["sentence1", "sentence2", "label"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for number in range(count):
            writer.writerow(sample[number % len(sample)])


def rows_table(counts: Sequence[int]) -> str:
    """Measure all cells of --rows."""
    rows = []
    with TemporaryDirectory() as scratch:
        few = Path(scratch, "few.csv")
        write_table(few, 100)
        for count in counts:
            table = Path(scratch, "many.csv")
            write_table(table, count)
            folder = Path(scratch, f"model{count}")
            training = ["run_glue.py", "--model_type", "elbert", "--do_train", "--max_steps", "1"]
            training += ["--model_name_or_path", str(SAMPLE), "--output_dir", str(folder)]
            training += ["--train_file", str(table), "--validation_file", str(few)]
            rows_to_answer = ["--validation_file", str(table)]
            evaluation = ["run_glue.py", "--do_eval", "--output_dir", str(folder)]
            evaluation += ["--per_gpu_eval_batch_size", "128", *rows_to_answer]
            sweep = ["sweep_exits.py", "--model_dir", str(folder), "--batch_size", "128"]
            sweep += ["--rules", "optimal_stopping", *rows_to_answer]
            cells = [f"{count:,} rows"]
            for command in (training, evaluation, sweep, sweep):
                _, seconds, memory = run_measured(["-c", MEASURE, *command])
                cells.append(f"{seconds:.0f} s, {memory:.0f} MB")
                print(" | ".join(cells), file=sys.stderr)
            rows.append(cells)
    columns = ["", "training, one step", "evaluation", "sweep that records", "sweep of a recording"]
    return markdown_table(columns, rows)


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--sizes", action="store_true", help="vary the sizes of a batch")
    add("--rows", type=int, nargs="+", metavar="N", help="measure tables of so many rows")
    add("--cell", nargs="+", help="measure one cell: its part, then its four sizes")
    args = parser.parse_args()
    if args.cell:
        part, *sizes = args.cell
        time_cell(part, Sizes(*map(int, sizes)))
        return
    if args.sizes:
        print(sizes_table())
    if args.rows:
        print(rows_table(args.rows))


if __name__ == "__main__":
    run_script(main)
