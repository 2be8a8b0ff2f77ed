"""Seconds of early exit against what else a user has, measured in one run.

    OMP_NUM_THREADS=2 python benchmarks/speed.py            the first table of docs/speed.md, in
                            ten minutes; --chart docs/speed.png draws its first column
    OMP_NUM_THREADS=2 python benchmarks/speed.py --lengths  texts of real lengths, too
    python benchmarks/speed.py --models ALBERT-base MiniLM  on a GPU: CUDA graphs beside HF's
                            models, compiled ones too; benchmarks/gpu.sh runs all of it
    OMP_NUM_THREADS=2 python benchmarks/speed.py --encoder FOLDER
                            a BERT at full depth instead: by transformers, by this library's own
                            layers, and by transformers' layers one at a time

Others are HF's ALBERT and, on a CPU, ONNX Runtime and OpenVINO at full depth; our ONNX file
runs there, too. No trained weights are needed: exits are forced, so that a computation cost c is
exact, while the exit checks are computed as ever. Every contender has a process of its own, as its
user would run it; ours keep freed memory and wait briefly, as our scripts do. All contenders of a
case run in turn, ten rounds; a row gives the median time of a text over the rounds, the
range of the rounds, and the ratio of the first row's median to it. With a CUDA device, everything
runs there. Needs requirements/bench.txt, but not for
--models.
"""

import gc
import itertools
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from transformers.utils import is_flash_attn_2_available

from benchmarks import contenders, runtimes
from benchmarks.contenders import (
    DEVICE,
    HALF_TYPES,
    LENGTHS,
    MOST_SPREAD,
    ids_of,
    processor_flags,
    run_hf,
    run_layers,
    run_ours,
    spread,
    texts_of,
)
from glue.tables import as_csv
from modeling.errors import UserError
from modeling.runtime import environment, spin_environment
from runs.console import markdown_table
from runs.flags import FlagParser
from runs.processes import run_script

Texts = list[list[int]]
Run = Callable[[Any, Texts], None]  # of texts, by what a process has made
Clock = Callable[..., float]  # seconds of a run in a process of its own; see `timed`
WITHOUT_CHECKS = "ours, without exit checks"
# Seconds between runs: a processor's threads that wait awake for more work fall asleep.
REST = 0.1 if DEVICE.type == "cpu" else 0.01
MODEL: list[Any] = []  # in a contender's process: what it has made
# Batch and length; the first four are those of the first table.
SHAPES = {
    "1x32": (1, 32),
    "1x128": (1, 128),
    "8x64": (8, 64),
    "32x128": (32, 128),
    "128x128": (128, 128),
}
# On a GPU, of models that are no ALBERT-base: a compiler takes half a minute for a shape of theirs.
FEW_SHAPES = ("1x32", "32x128")
COSTS = (0.75, 0.5, 0.25)
MIDDLE_COST = 0.5  # the one of all shapes but the first
ROUNDS = 10


@contextmanager
def own_process(make: Callable[[], Any], more: Mapping[str, str] | None = None) -> Iterator[Clock]:
    """Start a process that makes something; yield what times a run there.

    What one model has left in the memory allocator changes another's times by a third: contenders
    with processes of their own run as they do for their users. more: environment variables.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit this one's threads
    with ProcessPoolExecutor(1, spawn, initializer=keep, initargs=(make,)) as pool:
        with patch.dict(os.environ, more or {}):
            pool.submit(int)  # starts it; several become ready side by side

        def clock(run: Run, texts: Texts, first: int = 1) -> float:
            seconds = pool.submit(timed, run, texts, first).result()
            time.sleep(REST)
            return seconds

        yield clock


def keep(make: Callable[[], Any]) -> None:
    MODEL.append(make())


def timed(run: Run, texts: Texts, first: int = 1) -> float:
    """Seconds of `run(made, texts)`, with the work that it leaves to a GPU.

    first: texts that are run before the clock, as in the middle of its work.
    """
    (made,), wait = MODEL, torch.cuda.synchronize if torch.cuda.is_initialized() else int
    run(made, texts[:first])
    wait()
    start = time.perf_counter()
    run(made, texts)
    wait()
    return time.perf_counter() - start


class Contender(NamedTuple):
    """A row of the table."""

    name: str
    clock: Clock
    run: Run
    texts: Texts
    first: int = 1  # texts before the clock


class Table:
    """Seconds a text, of all cases and contenders."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, list[float]]] = {}  # of each contender, in every round
        columns = "case|contender|examples|ms per example|range|times as fast as the first"
        print(markdown_table(columns.split("|"), ()))

    def compare(self, case: str, rows: Sequence[Contender]) -> None:
        """Run the contenders in turn, round after round; print their rows.

        A row has the median of the rounds, their range, and the ratio of the first row's median
        to this one.
        """
        rows = self.warmed(case, rows)
        times = self.cases[case] = {row.name: [] for row in rows}
        for _ in range(ROUNDS):  # in turn: what slows one slows them all
            for row in rows:
                seconds = row.clock(row.run, row.texts, row.first)
                times[row.name].append(seconds / len(row.texts))
        first = statistics.median(times[rows[0].name])
        for row in rows:
            rounds, median = times[row.name], statistics.median(times[row.name])
            print(
                f"| {case} | {row.name} | {len(row.texts)} | {milliseconds(median)} "
                f"| {milliseconds(min(rounds))}–{milliseconds(max(rounds))} "
                f"| {first / median:.2f} |",
                flush=True,
            )

    def warmed(self, case: str, rows: Sequence[Contender]) -> list[Contender]:
        """Let each contender run once, so that it is ready; say which ones cannot run."""
        ready = []
        for row in rows:
            try:
                row.clock(row.run, row.texts[: max(2, row.first)], row.first)
                ready.append(row)
            except UserError as error:
                print(f"\n{case}: {row.name} is left out: {error}", flush=True)
        return ready

    def noisy_rows(self) -> list[str]:
        """List rows whose rounds' quartiles lie further apart than a share of their median."""
        noisy = []
        for case, times in self.cases.items():
            for name, seconds in times.items():
                if spread(seconds) > MOST_SPREAD:
                    noisy.append(f"{case}, {name}: {spread(seconds):.0%}")
        return noisy

    def summary(
        self, cases: Sequence[str], left_out: tuple[str, ...] = ("0.75", "0.25"), digits: int = 1
    ) -> str:
        """These cases side by side, "20.1 (3.8×)": milliseconds, times as fast as the first.

        A cell is "busy" where the rounds differ by more than MOST_SPREAD. left_out: ends of names;
        of the costs below 1, the one in the middle is shown.
        """
        shown = {case: self.cases[case] for case in cases if case in self.cases}
        names = dict.fromkeys(itertools.chain.from_iterable(shown.values()))
        rows = {name: [name] for name in names if not name.endswith(left_out)}
        for times in shown.values():
            first = statistics.median(next(iter(times.values())))
            for name, row in rows.items():
                if name not in times:
                    row.append("")
                elif spread(times[name]) > MOST_SPREAD:
                    row.append("busy")
                else:
                    median = statistics.median(times[name])
                    row.append(f"{median * 1e3:.{digits}f} ({first / median:.1f}×)")
        return markdown_table(["ms per example", *shown], rows.values())

    def write_chart(self, path: Path) -> None:
        from evaluation.figures import save_figure, styled

        save_figure(styled(self.chart)(), path)

    def chart(self) -> Any:
        """Draw the first case: milliseconds by cost with the range of the rounds.

        HF's time, the first row, is a level line. What was busy is left out.
        """
        from evaluation.figures import COLOURS, INK, Figure

        case, all_times = next(iter(self.cases.items()))
        times = {
            name: rounds for name, rounds in all_times.items() if spread(rounds) <= MOST_SPREAD
        }
        first, rounds = next(iter(times.items()))
        hf = 1e3 * statistics.median(rounds)
        figure = Figure(figsize=(5.2, 5.4), layout="constrained")
        axes = figure.subplots()
        axes.axhline(hf, color=INK, linewidth=1.2)
        axes.text(0.26, hf, f"{first}, always all layers", va="bottom", color=INK)
        names = [name for name in times if any(f"{name}, c = {cost}" in times for cost in COSTS)]
        for name, colour in zip(names, COLOURS, strict=False):
            rounds_at = {1.0: times[name]}
            for cost in COSTS:
                if f"{name}, c = {cost}" in times:
                    rounds_at[cost] = times[f"{name}, c = {cost}"]
            medians = np.array([1e3 * statistics.median(x) for x in rounds_at.values()])
            below = medians - [1e3 * min(x) for x in rounds_at.values()]
            above = [1e3 * max(x) for x in rounds_at.values()] - medians
            axes.errorbar(
                list(rounds_at),
                medians,
                yerr=np.stack([below, above]),
                color=colour,
                marker="o",
                capsize=2,
                label=name.replace("ours", "ours, PyTorch"),
            )
        axes.set(xlabel="computation cost: mean share of layers that run", ylabel="ms per example")
        axes.set(title=f"ALBERT-base, {case}", ylim=(0, None), xticks=[1.0, *COSTS])
        figure.legend(loc="outside lower left", ncol=1)
        return figure

    def write_csv(self, path: Path) -> None:
        """Write a row for every round."""
        rows = []
        for case, times in self.cases.items():
            for name, values in times.items():
                for number, value in enumerate(values, start=1):
                    row = {"case": case, "contender": name, "round": number}
                    rows.append({**row, "seconds_a_text": f"{value:.6g}"})
        if rows:
            path.write_text(as_csv(rows), encoding="utf-8")


def milliseconds(seconds: float) -> str:
    """Write seconds as milliseconds; a GPU needs some hundredths of one."""
    return f"{1e3 * seconds:.2f}" if seconds > 1e-3 else f"{1e3 * seconds:.4f}"


def fixed_length_case(table: Table, clocks: Mapping[str, Clock], batch: int, length: int) -> None:
    """Time a row for every process and cost."""
    # With exits, more texts than slots: admissions are part of what is timed.
    some, many = ids_of([length] * max(3, batch)), ids_of([length] * max(6, 2 * batch))
    hf, ours = partial(run_hf, batch, None), partial(run_ours, batch)
    rows = [
        ("HF eager bf16", "hf bf16", hf, some),  # the first row there is: HF at its best
        ("HF eager fp16", "hf fp16", hf, some),
        ("HF eager", "hf", hf, some),
        ("ours", "fp32", partial(ours, 1.0), some),
        ("ours bf16", "bf16", partial(ours, 1.0), some),
        ("ours fp16", "fp16", partial(ours, 1.0), some),
    ]
    if batch == 1:  # what the exit checks cost
        rows.append((WITHOUT_CHECKS, "fp32", run_layers, some))
        rows.append((f"{WITHOUT_CHECKS}, bf16", "bf16", run_layers, some))
    costs = COSTS if (batch, length) == SHAPES["1x32"] else (MIDDLE_COST,)
    for cost in costs:
        rows.append((f"ours, c = {cost}", "fp32", partial(ours, cost), many))
        rows.append((f"ours bf16, c = {cost}", "bf16", partial(ours, cost), many))
        rows.append((f"ours fp16, c = {cost}", "fp16", partial(ours, cost), many))
    for name in runtimes.ROWS:
        run, exits = partial(runtimes.run_file, batch), name.startswith("our")
        rows.append((name, name, partial(run, 1.0 if exits else None), some))
        # A batch of our file goes on until its last text has exited.
        for cost in costs if exits and batch == 1 else ():
            rows.append((f"{name}, c = {cost}", name, partial(run, cost), many))
    contenders = [
        Contender(name, clocks[clock], run, texts)
        for name, clock, run, texts in rows
        if clock in clocks
    ]
    table.compare(f"batch {batch}, length {length}", contenders)


def written_files(stack: ExitStack) -> dict[str, Callable]:
    """Write the runtimes' files, until the stack ends; returns what loads them."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    runtimes.write_files(folder)
    return {row: partial(load, folder / name) for row, (name, load) in runtimes.ROWS.items()}


def pipeline_cases(table: Table, clocks: Mapping[str, Clock]) -> None:
    """Time the way from ids to answers, texts of a task's lengths in random order.

    The slots' queue is long enough to be full most of the time; HF's way takes as long for every
    text, so a few tell.
    """
    for task in LENGTHS:
        few, some, many = (texts_of(task, count) for count in (8, 16, 192))
        hf_cases = {
            "batch 1, padded to 128": (1, 128, few),
            "batch 1": (1, None, some),
            "batches of 32": (32, None, many),
        }
        rows = []
        for name, (batch, width, texts) in hf_cases.items():
            hf = partial(run_hf, batch, width)
            rows.append(Contender(f"HF eager, {name}", clocks["hf"], hf, texts))
        for cost in (1.0, 0.5):
            for name, batch, texts in (("batch 1", 1, some), ("32 slots", 32, many)):
                run = partial(run_ours, batch, cost)
                rows.append(Contender(f"ours, c = {cost}, {name}", clocks["fp32"], run, texts))
        table.compare(f"{task} lengths", rows)


def both_ways_case(table: Table, clocks: Mapping[str, Clock], batch: int, length: int) -> None:
    """Time a row for every way to run an encoder, all layers, with exit checks in ours."""
    texts = ids_of([length] * max(6, batch))
    run = partial(run_hf, batch, None)
    rows = [Contender(name, clock, run, texts) for name, clock in clocks.items()]
    table.compare(f"batch {batch}, length {length}", rows)


def start_both_ways(stack: ExitStack, folder: Path) -> dict[str, Clock]:
    """Start a process for every way to run the encoder in a folder, until the stack ends."""
    made = {
        "HF eager": (partial(contenders.hf_encoder, folder),),
        "our layers": (partial(contenders.our_encoder, folder), spin_environment()),
        "HF's layers, one at a time": (
            partial(contenders.general_encoder, folder),
            spin_environment(),
        ),
    }
    return {name: stack.enter_context(own_process(*made[name])) for name in made}


def start_processes(stack: ExitStack) -> dict[str, Clock]:
    """Start all contenders, until the stack ends."""
    hf, ours = contenders.hf_model, contenders.our_model
    made = {"hf": (hf,), "fp32": (ours, spin_environment())}
    for name, dtype in HALF_TYPES.items():
        made[f"hf {name}"] = (partial(hf, dtype=dtype),)
        made[name] = partial(ours, dtype), spin_environment()
    if DEVICE.type == "cpu":
        made |= {name: (make,) for name, make in written_files(stack).items()}
    return {name: stack.enter_context(own_process(*made[name])) for name in made}


# On a GPU.


class GpuModels:
    """What a contender's process has on a GPU: one model at a time, by its name."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self.make = make
        self.name = ""
        self.model: Any = None

    def run(self, name: str, run: Run, texts: Texts) -> None:
        """Run the model of that name over texts; make it first, if it is not there."""
        if name != self.name:
            if isinstance(self.model, contenders.ForcedExits):
                self.model.graphs.forget()
            self.model = None
            gc.collect()
            torch.cuda.empty_cache()
            self.model = self.make(name)
            self.name = name
        run(self.model, texts)
        if isinstance(self.model, contenders.ForcedExits):
            graphs = self.model.graphs
            if graphs.refused or not graphs.entries:
                raise UserError(f"{name}: not captured, so its times are not those of graphs")


def run_named(name: str, run: Run, models: GpuModels, texts: Texts) -> None:
    models.run(name, run, texts)


def gpu_makers() -> dict[str, tuple[Callable[[str], Any], bool]]:
    """List what makes the contenders on a GPU, all in bf16, and whether each has exits."""
    hf, ours = contenders.hf_model, contenders.our_model
    bf16 = torch.bfloat16
    makers = {
        "HF eager": (partial(hf, bf16), False),  # with torch's fused attention
        "HF compiled": (partial(contenders.compiled_hf_model, bf16), False),
        "ours, graphs": (partial(ours, bf16), True),
        "ours, compiled graphs": (partial(ours, bf16, compile=True), True),
    }
    if is_flash_attn_2_available():
        flash = partial(hf, bf16, attention="flash_attention_2")
        makers["HF eager, FlashAttention"] = (flash, False)
    return makers


def gpu_case(table: Table, clocks: Mapping[str, Clock], name: str, shape: str) -> str:
    """Time a model in a shape, with exits at all costs; return the case's name."""
    batch, length = SHAPES[shape]
    some, many = ids_of([length] * max(8, batch)), ids_of([length] * max(12, 4 * batch))
    rows = []
    for contender, (_, has_exits) in gpu_makers().items():
        if contender == "ours, compiled graphs" and name == "BERT-large":
            continue  # its 24 layers are compiled one by one, which takes a minute
        if not has_exits:
            run = partial(run_named, name, partial(run_hf, batch, None))
            rows.append(Contender(contender, clocks[contender], run, some, first=batch))
            continue
        for cost in (1.0, 0.5, 0.25):
            run = partial(run_named, name, partial(run_ours, batch, cost))
            row_name = contender if cost == 1 else f"{contender}, c = {cost}"
            rows.append(Contender(row_name, clocks[contender], run, many, first=batch))
    case = f"{name}, batch {batch}, length {length}"
    table.compare(case, rows)
    return case


def gpu_lengths_case(table: Table, clocks: Mapping[str, Clock]) -> str:
    """Time ALBERT-base on texts of SST-2's lengths: HF's sorted batches of 128, and 128 slots."""
    texts = texts_of("SST-2", 1024)
    in_order = sorted(texts, key=len)
    rows = []
    for contender, (_, has_exits) in gpu_makers().items():
        for cost in (1.0, 0.5) if has_exits else (1.0,):
            run_model = partial(run_ours, 128, cost) if has_exits else partial(run_hf, 128, None)
            if contender == "HF compiled":  # compiled for a few widths, not for every one
                run_model = partial(run_hf, 128, None, is_rounded=True)
            run = partial(run_named, "ALBERT-base", run_model)
            row_name = contender if cost == 1 else f"{contender}, c = {cost}"
            row_texts = texts if has_exits else in_order
            rows.append(Contender(row_name, clocks[contender], run, row_texts, first=len(texts)))
    case = "ALBERT-base, SST-2's lengths, 128 at a time"
    table.compare(case, rows)
    return case


def gpu_table(table: Table, models: Sequence[str], shapes: Sequence[str], minutes: float) -> None:
    """Time models on a GPU, in as many cases as begin within some minutes; print the table."""
    ends = time.monotonic() + 60 * minutes
    cases: list[str] = []
    with ExitStack() as stack:
        clocks = {
            name: stack.enter_context(own_process(partial(GpuModels, make), spin_environment()))
            for name, (make, _) in gpu_makers().items()
        }
        runs: list[Callable[[], str]] = []
        for name in models:
            for shape in shapes if name == "ALBERT-base" else FEW_SHAPES:
                runs.append(partial(gpu_case, table, clocks, name, shape))
            if name == "ALBERT-base":
                runs.append(partial(gpu_lengths_case, table, clocks))
        for run in runs:
            if time.monotonic() < ends:
                cases.append(run())
    print("", table.summary(cases, left_out=("0.75",), digits=3), sep="\n")
    if len(cases) < len(runs):
        missing = f"{len(runs) - len(cases)} of {len(runs)} cases are missing"
        print(f"\n{missing}: the {minutes:g} minutes were over")


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    names = [*contenders.ALBERTS, *contenders.BERTS]
    add("--models", nargs="+", default=[], choices=names, help="models to time on a GPU")
    add("--minutes", type=float, default=4, help="with --models: begin no case after so long")
    add("--shapes", nargs="*", default=list(SHAPES)[:4], choices=list(SHAPES), help="of a batch")
    add("--lengths", action="store_true", help="texts of the lengths of SST-2's and RTE's, too")
    add("--encoder", type=Path, help="folder of a BERT, timed in place of ALBERT-base")
    add("--csv", type=Path, help="write every round's time to this file")
    add("--chart", type=Path, help="draw the first shape's times by cost (docs/speed.png)")
    args = parser.parse_args()
    if args.models and DEVICE.type != "cuda":
        raise UserError("--models: torch finds no GPU here, and these times are of one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no contender is left behind
    torch.manual_seed(0)
    print(", ".join(environment(DEVICE).values()))
    print(f"flags: {processor_flags()}\n")
    shapes = [SHAPES[name] for name in args.shapes]
    table = Table()
    with ExitStack() as stack:
        if args.csv:
            stack.callback(table.write_csv, args.csv)  # of an interrupted run, too
        if args.models:
            gpu_table(table, args.models, args.shapes, args.minutes)
        else:
            if args.encoder:
                case, clocks = both_ways_case, start_both_ways(stack, args.encoder)
            else:
                case, clocks = fixed_length_case, start_processes(stack)
            for batch, length in shapes:
                case(table, clocks, batch, length)
            if args.lengths:
                pipeline_cases(table, clocks)
    if args.chart:
        table.write_chart(args.chart)
    if shapes and not args.models:
        print("", table.summary([f"batch {batch}, length {n}" for batch, n in shapes]), sep="\n")
    if noisy := table.noisy_rows():
        sys.exit(
            f"not to be published: {'; '.join(noisy)}. The machine was busy: the quartiles of "
            f"these rounds lie further apart than {MOST_SPREAD:.0%} of their median"
        )


if __name__ == "__main__":
    run_script(main)
