"""Runs in turn, each in a process of its own, and the table of their times."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from glue.tables import as_csv
from utils.console import markdown_table

Run = Callable[[Any, list[list[int]]], None]  # of texts, by what a process has made
Times = dict[str, list[float]]  # of each run by name, seconds in every round


REST = 0.1  # seconds between runs: threads that wait awake for more work fall asleep


class OwnProcess:
    """A process that makes something, and then does with it what it is asked.

    What one model has left in the memory allocator changes another's times by a third: contenders
    with processes of their own run as they do for their users.

        with OwnProcess(make) as process:
            process.ask(function, 1)      # function(make(), 1), in the process

    environment: variables that it has beside this one's.
    """

    def __init__(
        self, make: Callable[[], Any], environment: Mapping[str, str] | None = None
    ) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit this one's threads
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(make, theirs), daemon=True)
        with patch.dict(os.environ, environment or {}):
            self.process.start()
        theirs.close()

    def ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return its answer. Raises EOFError if it has died, after its own traceback."""
        self.pipe.send((function, args))
        answer = self.pipe.recv()
        time.sleep(REST)
        return answer

    def __enter__(self) -> "OwnProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def serve(make: Callable[[], Any], pipe: Connection) -> None:
    """Run an `OwnProcess`, until its owner kills it."""
    made = make()
    while True:
        function, args = pipe.recv()
        pipe.send(function(made, *args))


def timed(made: Any, run: Run, texts: list[list[int]]) -> float:
    """Seconds of `run(made, texts)`, with the work that it leaves to a GPU."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else int
    run(made, texts[:1])  # as in the middle of its work
    wait()
    start = time.perf_counter()
    run(made, texts)
    wait()
    return time.perf_counter() - start


class Contender(NamedTuple):
    """A row of the table."""

    name: str
    process: OwnProcess
    run: Run
    texts: list[list[int]]


class Table:
    """Seconds a text, of all cases and contenders; rounds: of each case."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.cases: dict[str, Times] = {}
        columns = "case", "contender", "texts", "ms a text", "range", "times as fast as the first"
        print(markdown_table(columns, ()))

    def compare(self, case: str, contenders: Sequence[Contender], more: int = 1) -> None:
        """Run the contenders in turn, `more` times as many rounds as elsewhere; print their rows.

        A row has the median of the rounds, their range, and the ratio of the first row's median
        to this one.
        """
        times = self.cases[case] = {contender.name: [] for contender in contenders}
        for _, process, run, texts in contenders:
            process.ask(timed, run, texts[:2])  # warms caches
        for _ in range(self.rounds * more):  # in turn: what slows one slows them all
            for name, process, run, texts in contenders:
                times[name].append(process.ask(timed, run, texts) / len(texts))
        first = statistics.median(times[contenders[0].name])
        for name, _, _, texts in contenders:
            seconds, median = times[name], statistics.median(times[name])
            print(
                f"| {case} | {name} | {len(texts)} | {median * 1e3:.2f} "
                f"| {min(seconds) * 1e3:.2f}–{max(seconds) * 1e3:.2f} | {first / median:.2f} |",
                flush=True,
            )

    def summary(self, cases: Sequence[str]) -> str:
        """These cases side by side, "20.1 (3.8×)": milliseconds, times as fast as the first."""
        cases = [case for case in cases if case in self.cases]
        shown = [self.cases[case] for case in cases]
        rows: dict[str, list[str]] = {name: [name] for times in shown for name in times}
        for name, row in rows.items():
            for times in shown:
                median = statistics.median(times.get(name, [1]))
                first = statistics.median(next(iter(times.values())))
                shown_time = f"{median * 1e3:.1f} ({first / median:.1f}×)"
                row.append(shown_time if name in times else "")
        return markdown_table(["ms a text", *cases], rows.values())

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
