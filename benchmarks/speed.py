"""Seconds of early exit against what else a user has, measured in one run.

    OMP_NUM_THREADS=2 python benchmarks/speed.py            the first table of docs/speed.md
    OMP_NUM_THREADS=2 python benchmarks/speed.py --more     every other row and case, too
    OMP_NUM_THREADS=2 python benchmarks/speed.py --quick    a part of it, within 60 s
    OMP_NUM_THREADS=2 python benchmarks/speed.py --looks 0 1000 3000 300000
                            how threads wait: alone, and beside one busy process

Others are HF's ALBERT and, with requirements-bench.txt, ONNX Runtime and OpenVINO at full depth;
our exported file runs there, too. No trained weights are needed: exits are forced, so that a
computation cost c is exact, while the exit checks are computed as ever. Every contender has a
process of its own, as its user would run it; ours keep freed memory and wait briefly, as our
scripts do. All contenders of a case run in turn, round after round; a row gives the median time of
a text over the rounds, the range of the rounds, and the ratio of the first row's median to it. With
a CUDA device, everything runs there.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks import runtimes
from benchmarks.contenders import (
    DEVICE,
    HAS_BF16,
    LENGTHS,
    act_model,
    hf_model,
    ids_of,
    made_to_train,
    our_model,
    run_act,
    run_hf,
    run_ours,
    run_steps,
    texts_of,
)
from benchmarks.timing import Contender, OwnProcess, Table
from modeling.runtime import waiting
from utils.environment import environment

Processes = Mapping[str, OwnProcess]
SHAPES = ((1, 32), (1, 128), (8, 64), (32, 128))  # of the first table: batch, length


def contenders_of(processes: Processes, batch: int, length: int, more: bool) -> list[Contender]:
    """Return a row for every process and cost."""
    # With exits, more texts than slots: admissions are part of what is timed.
    some, many = ids_of([length] * max(3, batch)), ids_of([length] * max(6, 2 * batch))
    hf, ours = partial(run_hf, batch, None), partial(run_ours, batch)
    rows = [
        ("HF eager", "hf", hf, some),
        ("HF eager, freed memory kept", "hf keeping", hf, some),
        ("HF compiled", "hf compiled", hf, some),
        ("ours", "fp32", partial(ours, 1.0), some),
        ("ours compiled", "compiled", partial(ours, 1.0), some),
        ("ours bf16", "bf16", partial(ours, 1.0), some),
    ]
    for cost in (0.75, 0.5, 0.25) if more else (0.5,):
        rows.append((f"ours c = {cost}", "fp32", partial(ours, cost), many))
    for name, process, cost in runtimes.ROWS:
        if batch == 1 or cost != 0.5:
            texts = many if cost == 0.5 else some
            rows.append((name, process, partial(runtimes.run_file, batch, cost), texts))
    return [Contender(x, processes[p], run, texts) for x, p, run, texts in rows if p in processes]


def fixed_length_cases(table: Table, args: argparse.Namespace, processes: Processes) -> None:
    for batch, length in args.shapes:
        rows = contenders_of(processes, batch, length, args.more)
        # Short runs vary.
        table.compare(f"batch {batch}, length {length}", rows, 3 if batch == 1 else 1)


def waiting_cases(table: Table, looks: list[int]) -> None:
    """Time a text of 32 tokens by how often a thread looks before it sleeps (docs/speed.md)."""
    texts = ids_of([32] * 3)
    with ExitStack() as stack:
        made = {"HF eager": (hf_model, {}, partial(run_hf, 1, None))}
        for number in looks:
            setting = {"GOMP_SPINCOUNT": str(number)}
            made[f"ours, {number} looks"] = (our_model, setting, partial(run_ours, 1, 1.0))
        there = written_files(stack)
        for name, process, cost in runtimes.ROWS:
            if process in there and cost != 0.5:
                made[name] = (there[process], {}, partial(runtimes.run_file, 1, cost))
        rows = []
        for name, (make, setting, run) in made.items():
            process = stack.enter_context(OwnProcess(make, setting))
            rows.append(Contender(name, process, run, texts))
        table.compare("alone", rows, 3)
        neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        stack.callback(neighbour.kill)
        table.compare("beside one busy process", rows, 3)


def written_files(stack: ExitStack) -> dict[str, Callable]:
    """Write the runtimes' files, until the stack ends; returns what loads them."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    there = runtimes.makers(folder) if DEVICE.type == "cpu" else {}
    if there:
        runtimes.write_files(folder)
    else:
        print("Without ONNX Runtime and OpenVINO: pip install -r requirements-bench.txt\n")
    return there


def pipeline_cases(table: Table, quick: bool, processes: Processes) -> None:
    """Time the way from ids to answers, texts of a task's lengths in random order.

    The slots' queue is long enough to be full most of the time; HF's way takes as long for every
    text, so a few tell.
    """
    for task in LENGTHS:
        rows = [("HF eager, batch 1, padded to 128", "hf", partial(run_hf, 1, 128), 8)]
        for cost in (0.5,) if quick else (1.0, 0.5, 0.25):
            rows.append((f"ours c = {cost}, batch 1", "fp32", partial(run_ours, 1, cost), 16))
            run = partial(run_ours, 32, cost)
            rows.append((f"ours c = {cost}, 32 slots", "fp32", run, 64 if quick else 192))
        table.compare(
            f"{task} lengths",
            [
                Contender(name, processes[process], run, texts_of(task, count))
                for name, process, run, count in rows
            ],
        )


def training_cases(table: Table) -> None:
    """Time steps of 32 texts: HF fp32 padded to 128 against ours with all exits.

    Ours is in bf16 where the device has it, and takes batches of about one length, as run_glue.py.
    """
    texts, name = texts_of("RTE", 256), f"ours {'bf16' if HAS_BF16 else 'fp32'}, 12 exits"
    hf, run = partial(run_steps, 128, False), partial(run_steps, None, HAS_BF16)
    with (
        OwnProcess(partial(made_to_train, False)) as theirs,
        OwnProcess(partial(made_to_train, True), waiting()) as ours,
    ):
        rows = [
            Contender("HF fp32, padded to 128", theirs, hf, texts[:32]),
            Contender(name, ours, run, sorted(texts, key=len)),
        ]
        table.compare("training steps, batch 32, RTE lengths", rows)


def act_cases(table: Table) -> None:
    """Time Adaptive Depth, of base size and all 24 updates at most, over 128 tokens."""
    with OwnProcess(act_model, waiting()) as act:
        for batch in (1, 8):
            texts = ids_of([128] * batch)
            rows = [
                Contender("ACT, all tokens computed", act, partial(run_act, False), texts),
                Contender("ACT, running tokens alone", act, partial(run_act, None), texts),
            ]
            table.compare(f"30% of the updates, batch {batch}", rows, 5)


def start_processes(args: argparse.Namespace, stack: ExitStack) -> Processes:
    """Start all contenders, until the stack ends; the runtimes' where they are installed."""
    made = {"hf": OwnProcess(hf_model), "fp32": OwnProcess(our_model, waiting())}
    if HAS_BF16 and (args.more or args.quick):
        made["bf16"] = OwnProcess(partial(our_model, torch.bfloat16), waiting())
    if args.more:
        made["hf keeping"] = OwnProcess(partial(hf_model, keeping=True))
        made["hf compiled"] = OwnProcess(partial(hf_model, compiled=True))
        made["compiled"] = OwnProcess(partial(our_model, compiled=True), waiting())
    if not args.quick:
        made |= {name: OwnProcess(make) for name, make in written_files(stack).items()}
    for process in made.values():
        stack.enter_context(process)
        process.ask(id)  # waits until it is ready
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a part of the table, within 60 s")
    add("--more", action="store_true", help="all rows and cases")
    add("--shapes", nargs="+", metavar="BATCHxLENGTH", help="default: 1x32 1x128 8x64 32x128")
    add("--looks", type=int, nargs="+", help="only this: ours with each GOMP_SPINCOUNT")
    add("--csv", type=Path, help="write every round's time to this file")
    args = parser.parse_args()
    args.shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes or ()]
    args.shapes = args.shapes or (SHAPES[:2] if args.quick else SHAPES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no contender is left behind
    torch.manual_seed(0)
    print(", ".join(environment(DEVICE).values()), "\n")
    table = Table(rounds=1 if args.quick else 3)
    with ExitStack() as stack:
        if args.csv:
            stack.callback(table.write_csv, args.csv)  # of an interrupted run, too
        if args.looks:
            waiting_cases(table, args.looks)
            return
        with ExitStack() as running:  # the trainings need the memory of what runs here
            processes = start_processes(args, running)
            fixed_length_cases(table, args, processes)
            if args.more or args.quick:
                pipeline_cases(table, args.quick, processes)
        if args.more:
            training_cases(table)
            act_cases(table)
    print("", table.summary([f"batch {batch}, length {n}" for batch, n in SHAPES]), sep="\n")


if __name__ == "__main__":
    main()
