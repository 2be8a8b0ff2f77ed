"""What tests of a search's queue share, and those of a comparison of methods."""

from pathlib import Path

from glue.tasks import TASKS
from tests.conftest import PAIRS, sentence, tsv, write_rte
from training.study import SearchRun

RUNS = [SearchRun(rate, 16, 3.0, seed) for rate in (2e-5, 5e-5) for seed in (0, 1)]


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'search.db'}"


def write_study_data(folder: Path) -> Path:
    """RTE, and MNLI of 24 training and 12 dev examples in a folder of another name."""
    write_rte(folder / "RTE")
    labels = TASKS["mnli"].labels
    for name, count in (("train", 24), ("dev_matched", 12), ("dev_mismatched", 12)):
        rows = [(i, sentence(i), sentence(i + 1), labels[i % 3]) for i in range(count)]
        tsv(folder / "MNLI-tiny" / f"{name}.tsv", f"{PAIRS}\tgold_label", rows)
    return folder
