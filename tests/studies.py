"""What tests of a search's queue share."""

from pathlib import Path

from training.study import SearchRun

RUNS = [SearchRun(rate, 16, 3.0, seed) for rate in (2e-5, 5e-5) for seed in (0, 1)]


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'search.db'}"
