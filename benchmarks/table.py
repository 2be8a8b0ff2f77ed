"""speed.py's table: contenders in turn, a row for each, all times in a CSV file."""

import csv
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contenders import BASE, DEVICE, FORCED
from benchmarks.timing import OwnProcess, Times, seconds, spread_of, take_turns
from modeling import ElbertConfig
from modeling.flops import early_exit_flops

Run = Callable[[Any, list[list[int]]], None]  # of texts, by what a process has made


def timed(made: Any, run: Run, texts: list[list[int]]) -> float:
    """Seconds of `run(made, texts)`, in the middle of its work as it were: a text goes before."""
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


class Table:
    """Seconds a text, of all cases and contenders; `notes` are for below it.

    rate: FLOPs a second that this machine reaches, by the type of numbers. rounds: of each case.
    """

    def __init__(self, rate: Mapping[str, float], rounds: int) -> None:
        self.rate, self.rounds = rate, rounds
        self.cases: dict[str, Times] = {}
        self.notes: list[str] = []
        print(
            "| case | contender | texts | ms a text | times as fast as the first | spread | share |"
        )
        print("|---|---|---|---|---|---|---|")

    def compare(self, case: str, contenders: Sequence[Contender], more: int = 1) -> Times:
        """Run the contenders in turn and print a row for each, as a ratio to the first.

        There are `more` times as many rounds as elsewhere. Returns seconds a text.
        """
        timers = {}
        for name, process, run, texts, _ in contenders:
            process.ask(timed, run, texts[:2])  # warms caches
            timers[name] = partial(process.ask, timed, run, texts)
        times = take_turns(timers, self.rounds * more)
        for contender in contenders:
            count = len(contender.texts)
            times[contender.name] = [total / count for total in times[contender.name]]
        base = times[contenders[0].name]
        for contender in contenders:
            values = times[contender.name]
            rate = self.rate["bf16" if "bf16" in contender.name else "fp32"]
            median = statistics.median(values)
            print(
                f"| {case} | {contender.name} | {len(contender.texts)} | {median * 1e3:.2f} "
                f"| {spread_of(base, values)} | {contender.flops / median / rate:.0%} |",
                flush=True,
            )
        self.cases[case] = times
        return times

    def summary(self, cases: Sequence[str], details: Sequence[str] = ()) -> str:
        """The median milliseconds of these cases side by side, in Markdown; see `cell`.

        A contender has no row that is in none of them, or has one of `details` in its name.
        """
        shown = {case: self.cases[case] for case in cases}
        names = dict.fromkeys(
            name
            for times in shown.values()
            for name in times
            if not any(detail in name for detail in details)
        )
        lines = ["| ms a text | " + " | ".join(shown) + " |", "|---" * (1 + len(shown)) + "|"]
        for name in names:
            cells = [cell(times, name) for times in shown.values()]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def write_csv(self, path: Path) -> None:
        """A row for every round."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["case", "contender", "round", "seconds_a_text"])
            for case, times in self.cases.items():
                for name, values in times.items():
                    for number, value in enumerate(values, start=1):
                        writer.writerow([case, name, number, f"{value:.6g}"])


def cell(times: Times, name: str) -> str:
    """ "20.1 (3.8×)": milliseconds, and how many times as fast as the case's first contender."""
    if name not in times:
        return ""
    median = statistics.median
    base = next(iter(times.values()))
    ratio = median(b / t for b, t in zip(base, times[name], strict=True))
    return f"{median(times[name]) * 1e3:.1f} ({ratio:.1f}×)"
