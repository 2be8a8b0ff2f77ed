"""sweep_exits.py in a test's hands: tiny models and dev sets to sweep, and the commands on them."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import sweep_exits
from glue.tasks import TASKS
from tests.commands import Outcome, report_of
from tests.conftest import PAIRS, sentence, tiny_model, tsv

LABELS = {"rte": TASKS["rte"].labels, "mnli": TASKS["mnli"].labels, "sts-b": ()}
EXAMPLES = 70


def head_of(task: str) -> dict:
    """What the configuration of a model says that was trained on `task`."""
    labels = LABELS[task] or ("score",)
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
        "finetuning_task": task,
    }


def save(model, folder: Path, spiece: Path) -> None:
    """A model with its tokenizer."""
    model.save_pretrained(folder)
    shutil.copy(spiece, folder / "spiece.model")


def write_data(folder: Path, task: str) -> None:
    """A dev set (MNLI: two) of 70 pairs; labels follow the running number."""
    column = {"rte": "label", "mnli": "gold_label", "sts-b": "score"}[task]
    files = {"dev_matched": EXAMPLES, "dev_mismatched": 40} if task == "mnli" else {"dev": EXAMPLES}
    labels = LABELS[task] or [i / 2 for i in range(11)]
    for name, count in files.items():
        rows = [
            (i, sentence(i), sentence(i + 3, i % 5 + 2), labels[i % len(labels)])
            for i in range(count)
        ]
        tsv(folder / f"{name}.tsv", f"{PAIRS}\t{column}", rows)


def flags(place: Path, task: str, *more) -> list:
    """Of sweep_exits.py, on place/models/TASK and place/data/TASK."""
    where = ["--model_dir", place / "models" / task, "--data_dir", place / "data" / task]
    where += ["--task_name", task, "--max_seq_length", 32, "--do_lower_case", "--no_cuda"]
    return [*where, *more]


def evaluated(glue, place: Path, task: str, *more) -> dict:
    """The report of a real run."""
    model = place / "models" / task
    glue(model, "--do_eval", *more, weights=model, data=place / "data" / task, task=task).done()
    return report_of(model)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def sweep(script) -> Callable[..., Outcome]:
    """`sweep(place, "rte", "--tables_only", ...)` sweeps the model of a task."""

    def run(place: Path, task: str, *more) -> Outcome:
        return script(sweep_exits.main, *flags(place, task, *more))

    return run


@pytest.fixture(scope="session")
def originals(tmp_path_factory, spiece) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    for task in LABELS:
        model = tiny_model(seed=3, cnt_thres=3, **head_of(task))
        with torch.no_grad():  # sharper answers than random weights give, so that exits differ
            model.albert.encoder.exit_out_layer.classifier.weight.mul_(4)
        save(model, folder / "models" / task, spiece)
        write_data(folder / "data" / task, task)
    return folder


@pytest.fixture
def place(originals, tmp_path) -> Path:
    """A fresh copy of models and data: place/models/TASK and place/data/TASK."""
    return Path(shutil.copytree(originals, tmp_path / "lab"))
