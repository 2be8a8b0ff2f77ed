"""The trainings of a comparison of methods, which any number of processes share.

A training is taken under a file lock, goes on from its last checkpoint, and is finished when the
answers of all layers are recorded. A process that ends, however it ends, frees its lock.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from evaluation.glue_run import GlueRun
from exit_lab.recording import recorded
from exit_lab.study_settings import MethodRun, Study
from glue.tasks import Task, evaluation_tasks, get_task
from modeling.errors import UserError
from modeling.loading.files import read_json, weight_files
from training.settings import entries
from utils.files import write_json
from utils.fingerprint import file_fingerprint

POLL = 10.0  # seconds between looks at the trainings of other processes


def recording_path(place: Path, part: Task) -> Path:
    return place / f"answers-{part.name}.safetensors"


def is_recorded(study: Study, run: MethodRun) -> bool:
    parts = evaluation_tasks(get_task(run.plan.name))
    return all(recording_path(study.place(run), part).exists() for part, _ in parts)


def identity(study: Study, run: MethodRun) -> dict[str, Any]:
    """What a training is of: its flags, and the hash of the weights that it starts from."""
    settings = study.glue_settings(run)
    flags = {name: value for name, value, allowed in entries(*settings) if not allowed.resuming}
    if not settings.model.from_scratch:
        start = weight_files(settings.model.model_name_or_path, settings.model.cache)
        flags["weights of the starting model"] = [
            file_fingerprint(path)["sha256"] for path in start
        ]
    return json.loads(json.dumps(flags))


def note_of(study: Study, run: MethodRun) -> Path:
    return study.place(run) / "run.json"


def check_same_run(study: Study, run: MethodRun) -> None:
    """UserError where the note in a training's folder says that it was begun as another."""
    old, now = read_json(note_of(study, run)), identity(study, run)
    changed = next((name for name in now if old.get(name) != now[name]), None)
    if changed:
        raise UserError(
            f"{study.place(run)} was begun with {changed} {old.get(changed)}, not {now[changed]}; "
            "give the same, or another --output_dir"
        )


def train_and_record(study: Study, run: MethodRun, progress: str) -> None:
    """Train, or go on, and record the answers to the dev sets; nothing that is done is repeated."""
    if note_of(study, run).exists():
        check_same_run(study, run)
    else:
        write_json(note_of(study, run), identity(study, run))
    if is_recorded(study, run):
        return
    print(f"{progress}: {study.place(run)}", flush=True)
    glue = GlueRun(study.glue_settings(run))
    with glue.started():
        glue.fine_tune()
        loaded = glue.trained(glue.directory)
        for part, _ in evaluation_tasks(glue.task):
            recorded(recording_path(glue.directory, part), glue.job(loaded, part, "dev"))


def check_study(study: Study) -> None:
    """UserError for missing files, an encoder that one of the methods cannot use, or a folder with
    a training of other flags, whose results would mix with these.
    """
    for plan in study.plans.values():
        for run in study.runs(plan)[: len(study.methods)]:
            glue = GlueRun(study.glue_settings(run))
            try:
                glue.check_files(dev=True)
            except UserError as error:
                later = [other.name for other in study.plans.values() if other.start == plan.name]
                why = f" (start of {', '.join(later)})" if later else ""
                there = Path(glue.settings.data.folder).is_dir()
                hint = "" if there else f"; for a folder of another name, --tasks {plan.name}=NAME"
                raise UserError(f"{plan.name}{why}: {error}{hint}") from error
            if not plan.start:
                glue.new_tokenizer(glue.new_config())
    for plan in study.plans.values():
        for run in study.runs(plan):
            if note_of(study, run).exists():
                check_same_run(study, run)


@contextmanager
def reserved(study: Study, run: MethodRun) -> Iterator[bool]:
    """Is the training this process's? Then until the end of the block."""
    path = study.directory / "locks" / run.name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, blocking=False):
            yield True
    except Timeout:
        yield False


def train_all(study: Study) -> None:
    """Train whatever is not finished and nobody else is training, until all is finished.

    A training that ends in a UserError is left out, with all that would have started from it; the
    error is raised where it leaves nothing.
    """
    waiting = [run for plan in study.plans.values() for run in study.runs(plan)]
    lost: dict[MethodRun, UserError] = {}
    count = len(waiting)
    while waiting:
        before = len(waiting)
        for run in waiting.copy():
            start = study.start(run)
            if start in lost:
                waiting.remove(run)
            if start in lost or (start and not is_recorded(study, start)):
                continue
            with reserved(study, run) as mine:
                if not mine:
                    continue
                waiting.remove(run)
                try:
                    train_and_record(study, run, f"{count - len(waiting)} of {count}")
                except UserError as error:
                    lost[run] = error
                    print(f"{run.name} is left out: {error}", flush=True)
        if len(waiting) == before:
            print(f"{before} trainings wait for those of other processes", flush=True)
            time.sleep(POLL)
    if len(lost) == count:
        raise next(iter(lost.values()))
