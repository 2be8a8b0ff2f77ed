"""Seconds of early exit against HF's ALBERT, as ratios measured in one run.

    OMP_NUM_THREADS=2 python benchmarks/speed.py            the whole table
    OMP_NUM_THREADS=2 python benchmarks/speed.py --quick    a part of it, within 60 s

No trained weights are needed: exits are forced, so that a computation cost c is exact, while the
exit checks are computed as ever. Every contender has a process of its own, as its user would run
it; ours keep freed memory, as our scripts do, and so does a second one of HF. All contenders of a
case run in turn, round after round; a row gives the median time of a text, the median of the
rounds' ratios and their spread (lowest to highest). Slow contenders get fewer texts, of the same
lengths, so that the table ends in time: the column says how many. The share is that of the rate
that this machine's matrix products of 128 rows reach on the layer's own shapes. With a CUDA device,
everything runs there.
"""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.nn import functional as F

from benchmarks.contenders import (
    ALL,
    BASE,
    DEVICE,
    FORCED,
    LENGTHS,
    QUICK,
    ForcedExits,
    hf_trained,
    ids_of,
    our_model,
    ours_trained,
    run_hf,
    run_ours,
    run_steps,
    texts_of,
)
from benchmarks.timing import OwnProcess, Times, in_turn, machine, seconds, spread_of, take_turns
from glue.features import epoch_batches
from modeling import ElbertConfig, ElbertForSequenceClassification
from modeling.compilation import compile_for_inference
from modeling.depth import State
from modeling.flops import early_exit_flops

COSTS = (0.75, 0.5, 0.25)
Run = Callable[[Any, list[list[int]]], None]  # of texts, by what a process has made


def timed(made: Any, run: Run, texts: list[list[int]]) -> float:
    """Seconds of `run(made, texts)`, in the middle of its work as it were.

    In the pause the threads of the process before fall asleep; one text wakes this one's.
    """
    time.sleep(0.02)
    run(made, texts[:1])
    return seconds(partial(run, made, texts), DEVICE)


class Contender(NamedTuple):
    """A row of the table."""

    name: str
    process: OwnProcess
    run: Run
    texts: list[list[int]]
    cost: float = 1.0

    @property
    def flops(self) -> float:
        """Floating-point operations a text needs: without padding, with the exits' own."""
        exits = itertools.cycle(FORCED[self.cost])
        config = ElbertConfig(**BASE)
        pairs = zip(self.texts, exits, strict=False)
        total = sum(early_exit_flops(config, len(text), layer) for text, layer in pairs)
        return total / len(self.texts)


def compare(
    case: str, contenders: list[Contender], args: argparse.Namespace, times_rounds: int = 1
) -> Times:
    """Run the contenders in turn and print a row for each, as a ratio to the first.

    There are `times_rounds` as many rounds as the arguments say. Returns seconds a text.
    """
    timers = {}
    for name, process, run, texts, _ in contenders:
        process.ask(timed, run, texts[:2])  # warms caches
        timers[name] = partial(process.ask, timed, run, texts)
    times = take_turns(timers, args.rounds * times_rounds)
    for contender in contenders:
        count = len(contender.texts)
        times[contender.name] = [total / count for total in times[contender.name]]
    base = times[contenders[0].name]
    for contender in contenders:
        values = times[contender.name]
        rate = args.rate["bf16" if "bf16" in contender.name else "fp32"]
        median = statistics.median(values)
        print(
            f"| {case} | {contender.name} | {len(contender.texts)} | {median * 1e3:.2f} "
            f"| {spread_of(base, values)} | {contender.flops / median / rate:.0%} |",
            flush=True,
        )
    return times


def matmul_rate(dtype: torch.dtype, rows: int) -> float:
    """FLOPs a second of the layer's four matrix products, weights packed where they can be."""
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    products = []
    for inner, outer in shapes:
        x = torch.randn(rows, inner, device=DEVICE).to(dtype)
        weight = torch.randn(outer, inner, device=DEVICE).to(dtype)
        if DEVICE.type == "cpu" and torch.backends.mkldnn.is_available():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            rest = (None, "none", [], "")
            products.append(partial(torch.ops.mkldnn._linear_pointwise, x, packed, *rest))
        else:
            products.append(partial(F.linear, x, weight))

    def run() -> None:
        for product in products:
            product()

    with torch.inference_mode():
        times = in_turn({"all": run}, 30, DEVICE)["all"]
    return sum(2 * rows * i * o for i, o in shapes) / statistics.median(times)


def fixed_length_cases(
    args: argparse.Namespace, processes: Mapping[str, OwnProcess]
) -> dict[tuple[int, int], Times]:
    times = {}
    for batch, length in itertools.product(args.batches, args.lengths):
        # With exits, more texts than slots: admissions are part of what is timed.
        some = ids_of([length] * max(3, batch))
        many = ids_of([length] * max(6, 2 * batch))
        rows = [
            ("HF eager", "hf", partial(run_hf, batch, None), some),
            ("HF eager, freed memory kept", "hf keeping", partial(run_hf, batch, None), some),
            ("HF eager, padded to 128", "hf", partial(run_hf, batch, 128), some),
            ("HF compiled", "hf compiled", partial(run_hf, batch, None), some),
            ("ours", "fp32", partial(run_ours, batch, 1.0), some),
            ("ours compiled", "compiled", partial(run_ours, batch, 1.0), some),
            ("ours bf16", "bf16", partial(run_ours, batch, 1.0), some),
            *((f"ours c = {c}", "fp32", partial(run_ours, batch, c), many, c) for c in COSTS),
        ]
        contenders = [
            Contender(name, processes[process], *rest)
            for name, process, *rest in rows
            if process in processes and not (length == 128 and "padded" in name)
        ]
        name, more = f"batch {batch}, length {length}", 3 if batch == 1 else 1  # short runs vary
        times[batch, length] = compare(name, contenders, args, more)
    return times


def pipeline_cases(
    args: argparse.Namespace, processes: Mapping[str, OwnProcess]
) -> dict[str, Times]:
    """From ids to answers, texts of a task's lengths in random order.

    The slots' queue is long enough to be full most of the time; HF's way takes as long for every
    text, so a few tell.
    """
    times = {}
    for task in LENGTHS:
        few, queue = texts_of(task, 8), texts_of(task, 64 if args.quick else 192)
        hf = processes["hf"]
        rows = [Contender("HF eager, batch 1, padded to 128", hf, partial(run_hf, 1, 128), few)]
        if not args.quick:
            run = partial(run_hf, 32, None)
            rows.append(Contender("HF eager, batch 32, padded to longest", hf, run, queue[:32]))
        costs = (0.5,) if args.quick else (1.0, 0.5, 0.25)
        for kind, cost, batch in itertools.product(("fp32", "bf16"), costs, (1, 32)):
            if batch == 1 and args.quick:
                continue
            name = f"ours {kind} c = {cost}, " + ("batch 1" if batch == 1 else "32 slots")
            texts = texts_of(task, 16) if batch == 1 else queue
            run = partial(run_ours, batch, cost)
            rows.append(Contender(name, processes[kind], run, texts, cost))
        times[task] = compare(f"{task} lengths", rows, args)
    return times


def training_case(args: argparse.Namespace) -> None:
    """Steps of 32 texts of RTE's lengths: HF fp32 padded to 128, ours bf16 with all exits.

    Ours takes run_glue.py's batches, whose texts are of about one length: of an epoch over as many
    texts as RTE has, eight whose lengths spread as the epoch's.
    """
    texts = texts_of("RTE", 38 * 64)
    batches = epoch_batches([len(text) for text in texts], 32, seed=0, epoch=0)
    batches.sort(key=lambda batch: sum(len(texts[row]) for row in batch))
    eighth = len(batches) / 8
    chosen = [row for i in range(8) for row in batches[int((i + 0.5) * eighth)]]
    mine = [texts[row] for row in chosen]
    with OwnProcess(hf_trained) as hf, OwnProcess(ours_trained) as ours:
        rows = [
            Contender("HF fp32, padded to 128", hf, partial(run_steps, 128, False), texts[:32]),
            Contender("ours bf16, 12 exits", ours, partial(run_steps, None, True), mine),
        ]
        compare("training steps, batch 32, RTE lengths (share: × 3)", rows, args)


def exit_checks(model: ForcedExits, length: int, rounds: int) -> list[float]:
    """Median seconds of an exit check with its decision at hand, of a pooler, of a layer pass."""
    hidden = torch.randn(1, length, BASE["hidden_size"], device=DEVICE)
    plain_check = partial(ElbertForSequenceClassification.check_exit, model, model.exit_rule())
    times = {"check": [], "pooler": [], "pass": []}

    def clocked(name: str, function: Callable[..., Any], *args: Any) -> Any:
        outcome = []
        times[name].append(seconds(lambda: outcome.append(function(*args)), DEVICE))
        return outcome[0]

    def check(out: torch.Tensor, state: State) -> State:
        _, done, state = plain_check(out, None, 0, state)
        done.tolist()
        return state

    for _ in range(rounds * 4):
        state = model.start(1)
        for _ in range(BASE["num_hidden_layers"]):
            out = clocked("pass", model.layer_pass, hidden, None, 0)
            state = clocked("check", check, out, state)
            out = clocked("pass", model.layer_pass, hidden, None, 0)
            clocked("pooler", model.albert.pooler, out[:, 0])
    return [statistics.median(values) for values in times.values()]


def exit_check_case(process: OwnProcess, rounds: int) -> None:
    """Time of one exit check as a share of a layer pass; batch 1."""
    for length in (32, 64, 128):
        check, pooler, layer_pass = process.ask(exit_checks, length, rounds)
        print(
            f"- Exit check, length {length}: {check * 1e6:.0f} µs, {check / layer_pass:.1%} of a "
            f"layer pass; its pooler {pooler * 1e6:.0f} µs."
        )


def cost_ratios(name: str, times: Times, full: str, by_cost: dict[float, str]) -> None:
    """How our own time falls with the computation cost."""
    for cost, contender in by_cost.items():
        ratios = [t / f for t, f in zip(times[contender], times[full], strict=True)]
        ratio = statistics.median(ratios)
        print(
            f"- {name}: time at c = {cost} over full depth {ratio:.3f} = {ratio / cost:.2f} · c; "
            f"throughput {cost / ratio:.2f} / c."
        )


def compile_seconds(model: ForcedExits) -> float:
    return seconds(partial(compile_for_inference, model), DEVICE)


def compile_case() -> None:
    """Seconds to compile the first time and from the cache, each in a new process."""
    taken = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for _ in range(2):
            with OwnProcess(our_model) as process:
                taken.append(process.ask(compile_seconds))
    print(f"- Compilation: {taken[0]:.1f} s the first time, {taken[1]:.1f} s from the cache.")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a part of the table, within 60 s")
    add("--rounds", type=int, help="of each case; three times as many at batch 1")
    add("--batches", type=int, nargs="+", help="default: 1 8 32")
    add("--lengths", type=int, nargs="+", help="default: 32 64 128")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.batches = args.batches or ([1] if args.quick else [1, 8, 32])
    args.lengths = args.lengths or ([32, 128] if args.quick else [32, 64, 128])
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    print(f"{machine(DEVICE)}.\n")
    args.rate = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        rates = {rows: matmul_rate(dtype, rows) for rows in (32, 64, 128)}
        args.rate[name] = rates[128]
        shown = ", ".join(f"{rate / 1e9:.0f} of {rows} rows" for rows, rate in rates.items())
        print(f"Matrix products in {name} reach, in GFLOP/s: {shown}.\n")
    processes = {name: OwnProcess(make) for name, make in (QUICK if args.quick else ALL).items()}
    for process in processes.values():
        process.ask(id)  # waits until it is ready
    print("| case | contender | texts | ms a text | times as fast as the first | spread | share |")
    print("|---|---|---|---|---|---|---|")
    fixed = fixed_length_cases(args, processes)
    pipelines = pipeline_cases(args, processes)
    if not args.quick:
        training_case(args)
    print()
    for (batch, length), times in fixed.items():
        by_cost = {cost: f"ours c = {cost}" for cost in COSTS}
        cost_ratios(f"batch {batch}, length {length}", times, "ours", by_cost)
    for task, times in pipelines.items():
        for kind in () if args.quick else ("fp32", "bf16"):
            names = {cost: f"ours {kind} c = {cost}, 32 slots" for cost in (1.0, 0.5, 0.25)}
            cost_ratios(f"{task} lengths, {kind}, 32 slots", times, names.pop(1.0), names)
    exit_check_case(processes["fp32"], args.rounds)
    if not args.quick:
        compile_case()


if __name__ == "__main__":
    main()
