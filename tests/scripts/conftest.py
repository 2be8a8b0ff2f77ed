"""sweep_exits.py in a test's hands."""

from collections.abc import Callable
from pathlib import Path

import pytest

import sweep_exits
from tests.commands import Outcome
from tests.scripts.sweeps import flags


@pytest.fixture
def sweep(script) -> Callable[..., Outcome]:
    """`sweep(place, "rte", "--tables_only", ...)` sweeps the model of a task."""

    def run(place: Path, task: str, *more) -> Outcome:
        return script(sweep_exits.main, *flags(place, task, *more))

    return run
