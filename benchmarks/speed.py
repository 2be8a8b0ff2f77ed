"""Seconds of early exit against what else a user has, as ratios measured in one run.

    OMP_NUM_THREADS=2 python benchmarks/speed.py            the whole table
    OMP_NUM_THREADS=2 python benchmarks/speed.py --quick    a part of it, within 60 s

Others are HF's ALBERT and, with requirements-bench.txt, ONNX Runtime and OpenVINO at full depth;
our exported file runs there, too. No trained weights are needed: exits are forced, so that a
computation cost c is exact, while the exit checks are computed as ever. Every contender has a
process of its own, as its user would run it; ours keep freed memory and wait briefly, as our
scripts do, and a second one of HF keeps freed memory. All contenders of a case run in turn, round
after round; a row gives the median time of a text, the median of the rounds' ratios and their
spread (lowest to highest). Slow contenders get fewer texts, of the same lengths, so that the table
ends in time: the column says how many. The share is that of the rate that this machine's matrix
products of 128 rows reach on the layer's own shapes. With a CUDA device, everything runs there.
"""

import argparse
import itertools
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks import runtimes
from benchmarks.contenders import (
    ALL,
    DEVICE,
    HAS_BF16,
    LENGTHS,
    QUICK,
    hf_trained,
    ids_of,
    our_model,
    ours_trained,
    run_hf,
    run_ours,
    run_steps,
    texts_of,
)
from benchmarks.parts import compile_case, exit_check_case, matmul_rates
from benchmarks.table import Contender, Table
from benchmarks.timing import OwnProcess, Times, busy_neighbour, machine
from glue.features import epoch_batches
from modeling.runtime import waiting

Processes = Mapping[str, OwnProcess]
COSTS = (0.75, 0.5, 0.25)
SUMMARY = ((1, 32), (1, 128), (32, 128))  # of all cases, texts at a time and tokens of each
# Rows with these in their names are not in the summary.
DETAILS = ("kept", "padded", "compiled", "c = 0.75", "c = 0.25", "file, OpenVINO")


def case_of(batch: int, length: int) -> str:
    return f"batch {batch}, length {length}"


def fixed_length_cases(table: Table, args: argparse.Namespace, processes: Processes) -> None:
    for batch, length in itertools.product(args.batches, args.lengths):
        # With exits, more texts than slots: admissions are part of what is timed.
        some = ids_of([length] * max(3, batch))
        many = ids_of([length] * max(6, 2 * batch))
        rows = [
            ("HF eager", "hf", partial(run_hf, batch, None), 1.0),
            ("HF eager, freed memory kept", "hf keeping", partial(run_hf, batch, None), 1.0),
            ("HF eager, padded to 128", "hf", partial(run_hf, batch, 128), 1.0),
            ("HF compiled", "hf compiled", partial(run_hf, batch, None), 1.0),
            *runtimes.rows(batch),
            ("ours", "fp32", partial(run_ours, batch, 1.0), 1.0),
            ("ours compiled", "compiled", partial(run_ours, batch, 1.0), 1.0),
            ("ours bf16", "bf16", partial(run_ours, batch, 1.0), 1.0),
            *((f"ours c = {c}", "fp32", partial(run_ours, batch, c), c) for c in COSTS),
        ]
        contenders = [
            Contender(name, processes[process], run, some if cost == 1 else many, cost)
            for name, process, run, cost in rows
            if process in processes and not (length == 128 and "padded" in name)
        ]
        name, more = case_of(batch, length), 3 if batch == 1 else 1  # short runs vary
        times = table.compare(name, contenders, more)
        cost_ratios(table, name, times, "ours", {cost: f"ours c = {cost}" for cost in COSTS})


def neighbour_cases(table: Table, args: argparse.Namespace, processes: Processes) -> None:
    """Time a text of 32 tokens beside a busy process, and on its own.

    --looks adds ours whose threads look so often before they sleep.
    """
    texts, run = ids_of([32] * 3), partial(run_ours, 1, 1.0)
    with ExitStack() as stack:
        contenders = [
            Contender("HF eager", processes["hf"], partial(run_hf, 1, None), texts),
            Contender("ours", processes["fp32"], run, texts),
        ]
        for looks in args.looks:
            process = OwnProcess(our_model, {"GOMP_SPINCOUNT": str(looks)})
            stack.enter_context(process)
            contenders.append(Contender(f"ours, {looks} looks", process, run, texts))
        for name, process, run_there, cost in runtimes.rows(1):
            if process in processes and cost == 1:
                contenders.append(Contender(name, processes[process], run_there, texts))
        alone_and_beside(table, "batch 1, length 32", contenders)


def alone_and_beside(table: Table, case: str, contenders: Sequence[Contender]) -> None:
    for count, neighbour in enumerate((nullcontext, busy_neighbour)):
        with neighbour():
            table.compare(f"{case}, beside {count} busy", contenders, 3)


def pipeline_cases(table: Table, args: argparse.Namespace, processes: Processes) -> None:
    """Time the way from ids to answers, texts of a task's lengths in random order.

    The slots' queue is long enough to be full most of the time; HF's way takes as long for every
    text, so a few tell.
    """
    kinds = [kind for kind in ("fp32", "bf16") if kind in processes]
    costs, batches = ((0.5,), (32,)) if args.quick else ((1.0, 0.5, 0.25), (1, 32))
    for task in LENGTHS:
        few, queue = texts_of(task, 8), texts_of(task, 64 if args.quick else 192)
        hf = processes["hf"]
        rows = [Contender("HF eager, batch 1, padded to 128", hf, partial(run_hf, 1, 128), few)]
        if not args.quick:
            run = partial(run_hf, 32, None)
            rows.append(Contender("HF eager, batch 32, padded to longest", hf, run, queue[:32]))
        for kind, cost, batch in itertools.product(kinds, costs, batches):
            name = f"ours {kind} c = {cost}, " + ("batch 1" if batch == 1 else "32 slots")
            texts = texts_of(task, 16) if batch == 1 else queue
            run = partial(run_ours, batch, cost)
            rows.append(Contender(name, processes[kind], run, texts, cost))
        times = table.compare(f"{task} lengths", rows)
        for kind in () if args.quick else kinds:
            names = {cost: f"ours {kind} c = {cost}, 32 slots" for cost in costs}
            case = f"{task} lengths, {kind}, 32 slots"
            cost_ratios(table, case, times, names.pop(1.0), names)


def training_case(table: Table) -> None:
    """Time steps of 32 texts of RTE's lengths: HF fp32 padded to 128, ours with all exits.

    Ours is in bf16 where the device has it, and takes run_glue.py's batches, whose texts are of
    about one length: of an epoch over as many texts as RTE has, eight whose lengths spread as the
    epoch's.
    """
    texts = texts_of("RTE", 38 * 64)
    batches = epoch_batches(np.array([*map(len, texts)]), 32, seed=0, epoch=0)
    batches.sort(key=lambda batch: sum(len(texts[row]) for row in batch))
    eighth = len(batches) / 8
    chosen = [row for i in range(8) for row in batches[int((i + 0.5) * eighth)]]
    mine = [texts[row] for row in chosen]
    name = f"ours {'bf16' if HAS_BF16 else 'fp32'}, 12 exits"
    with OwnProcess(hf_trained) as hf, OwnProcess(ours_trained, waiting()) as ours:
        contenders = [
            Contender("HF fp32, padded to 128", hf, partial(run_steps, 128, False), texts[:32]),
            Contender(name, ours, partial(run_steps, None, HAS_BF16), mine),
        ]
        table.compare("training steps, batch 32, RTE lengths (share: × 3)", contenders)


def training_neighbour_cases(table: Table) -> None:
    """Time a training step of 32 texts of SST-2's lengths beside a busy process, and alone."""
    texts, run = texts_of("SST-2", 32), partial(run_steps, None, HAS_BF16)
    with OwnProcess(ours_trained, waiting()) as brief, OwnProcess(ours_trained) as awake:
        contenders = [
            Contender("ours, OpenMP's own waiting", awake, run, texts),
            Contender("ours, waiting briefly", brief, run, texts),
        ]
        case = "a training step, batch 32, SST-2 lengths (share: × 3)"
        alone_and_beside(table, case, contenders)


def cost_ratios(
    table: Table, name: str, times: Times, full: str, by_cost: dict[float, str]
) -> None:
    """Note how our own time falls with the computation cost."""
    for cost, contender in by_cost.items():
        ratio = statistics.median(np.divide(times[contender], times[full]).tolist())
        table.notes.append(
            f"- {name}: time at c = {cost} over full depth {ratio:.3f} = {ratio / cost:.2f} · c; "
            f"throughput {cost / ratio:.2f} / c."
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a part of the table, within 60 s")
    add("--rounds", type=int, help="of each case; three times as many at batch 1")
    add("--batches", type=int, nargs="+", help="default: 1 8 32")
    add("--lengths", type=int, nargs="+", help="default: 32 64 128")
    add("--looks", type=int, nargs="*", default=[], help="more rows of ours: GOMP_SPINCOUNT")
    add("--csv", type=Path, help="write every round's time to this file")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.batches = args.batches or ([1] if args.quick else [1, 8, 32])
    args.lengths = args.lengths or ([32, 128] if args.quick else [32, 64, 128])
    return args


def start_processes(quick: bool, stack: ExitStack) -> Processes:
    """Start all contenders, until the stack ends; the runtimes' where they are installed."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    made = {
        name: OwnProcess(make, {} if name.startswith("hf") else waiting())
        for name, make in (QUICK if quick else ALL).items()
    }
    if not quick and DEVICE.type == "cpu":
        there = runtimes.makers(folder)
        if there:
            runtimes.write_files(folder)
        else:
            print("Without ONNX Runtime and OpenVINO: pip install -r requirements-bench.txt\n")
        made |= {name: OwnProcess(make) for name, make in there.items()}
    for process in made.values():
        stack.enter_context(process)
        process.ask(id)  # waits until it is ready
    return made


def main() -> None:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no contender is left behind
    torch.manual_seed(0)
    print(f"{machine(DEVICE)}.\n")
    table = Table(matmul_rates(), args.rounds)
    with ExitStack() as stack:
        if args.csv:
            stack.callback(table.write_csv, args.csv)  # of an interrupted run, too
        with ExitStack() as running:  # the trainings need the memory of what runs here
            processes = start_processes(args.quick, running)
            fixed_length_cases(table, args, processes)
            pipeline_cases(table, args, processes)
            if not args.quick:
                neighbour_cases(table, args, processes)
        if not args.quick:
            training_case(table)
            training_neighbour_cases(table)
        print("", *table.notes, sep="\n")
        with OwnProcess(our_model, waiting()) as fp32:
            exit_check_case(fp32, args.rounds)
    if not args.quick:
        compile_case()
    if summarised := [case_of(*shape) for shape in SUMMARY if case_of(*shape) in table.cases]:
        print("", table.summary(summarised, DETAILS), sep="\n")


if __name__ == "__main__":
    main()
