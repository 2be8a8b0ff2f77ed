"""speed.py's table: contenders in turn, a row for each, all times in a CSV file."""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contenders import BASE, DEVICE, FORCED
from benchmarks.timing import OwnProcess, Times, ratios, seconds, take_turns
from glue.tables import as_csv
from modeling import ElbertConfig
from modeling.flops import early_exit_flops
from utils.markdown import markdown_table

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
        config, exits = ElbertConfig(**BASE), itertools.cycle(FORCED[self.cost])
        pairs = zip(self.texts, exits, strict=False)
        return statistics.fmean(early_exit_flops(config, len(text), exit_) for text, exit_ in pairs)


class Table:
    """Seconds a text, of all cases and contenders; `notes` are for below it.

    rate: FLOPs a second that this machine reaches, by the type of numbers. rounds: of each case.
    """

    def __init__(self, rate: Mapping[str, float], rounds: int) -> None:
        self.rate, self.rounds = rate, rounds
        self.cases: dict[str, Times] = {}
        self.notes: list[str] = []
        columns = "case", "contender", "texts", "ms a text", "times as fast as the first"
        print(markdown_table((*columns, "spread", "share"), ()))

    def compare(self, case: str, contenders: Sequence[Contender], more: int = 1) -> Times:
        """Run the contenders in turn and print a row for each, as a ratio to the first.

        There are `more` times as many rounds as elsewhere. Returns seconds a text.
        """
        timers = {}
        for name, process, run, texts, _ in contenders:
            process.ask(timed, run, texts[:2])  # warms caches
            timers[name] = partial(process.ask, timed, run, texts)
        times = self.cases[case] = take_turns(timers, self.rounds * more)
        for name, _, _, texts, _ in contenders:
            times[name] = [total / len(texts) for total in times[name]]
        for contender in contenders:
            name, count = contender.name, len(contender.texts)
            median, faster = statistics.median(times[name]), sorted(ratios(times, name))
            share = contender.flops / median / self.rate["bf16" if "bf16" in name else "fp32"]
            print(
                f"| {case} | {name} | {count} | {median * 1e3:.2f} "
                f"| {statistics.median(faster):.2f} | {faster[0]:.2f}–{faster[-1]:.2f} "
                f"| {share:.0%} |",
                flush=True,
            )
        return times

    def summary(self, cases: Sequence[str], details: Sequence[str]) -> str:
        """Put the median milliseconds of these cases side by side, in Markdown; see `cell`.

        A contender with one of `details` in its name has no row.
        """
        shown = [self.cases[case] for case in cases]
        names = dict.fromkeys(name for times in shown for name in times)
        rows = [
            (name, *(cell(times, name) for times in shown))
            for name in names
            if not any(detail in name for detail in details)
        ]
        return markdown_table(["ms a text", *cases], rows)

    def write_csv(self, path: Path) -> None:
        """Write a row for every round."""
        rows = [
            {"case": case, "contender": name, "round": i, "seconds_a_text": f"{value:.6g}"}
            for case, times in self.cases.items()
            for name, values in times.items()
            for i, value in enumerate(values, start=1)
        ]
        if rows:
            path.write_text(as_csv(rows), encoding="utf-8")


def cell(times: Times, name: str) -> str:
    """ "20.1 (3.8×)": milliseconds, and how many times as fast as the case's first contender."""
    if name not in times:
        return ""
    faster = statistics.median(ratios(times, name))
    return f"{statistics.median(times[name]) * 1e3:.1f} ({faster:.1f}×)"
