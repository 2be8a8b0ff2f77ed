"""`run_glue.py --hp_search`: from its flags to the search that `training/study.py` runs.

The same command goes on after an interruption, and other machines take part in it.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.metric import MetricAtCost
from evaluation.modes import MODES
from glue.splits import Split
from glue.tasks import Task
from modeling.errors import UserError
from modeling.files import weight_files
from runs.fingerprint import file_fingerprint, fingerprint
from runs.flags import fixed_flags, flags_of, spellings
from runs.job import find_task
from runs.settings import (
    GROUPS,
    DataSettings,
    GlueSettings,
    ModelSettings,
    ModeSettings,
    SearchSettings,
)
from training.fine_tune import check_files, parse_metric
from training.search_space import Dimension, parse_space
from training.study import SEARCHED_FLAGS, TRIALS, Search

# The published search uses one seed on these, five on the smaller tasks.
ONE_SEED = ("mnli", "qnli", "qqp")
OF_THE_CALL = ("do_predict", "onnx")  # flags that are not passed on to the runs
# The flags that list the values of those that are searched.
VALUES_FLAGS = {
    "learning_rate": "--hp_learning_rates",
    "batch_size": "--hp_batch_sizes",
    "epochs": "--hp_epochs",
    "seed": "--hp_seeds",
}


def search(settings: GlueSettings, argv: Sequence[str]) -> Path:
    """Run a search, alone or beside other workers; return the folder of its best model.

    argv: the command's flags. Raises UserError for flags that do not go together, for a metric that
    the mode does not have, and for a study that was begun with other flags, weights or examples.
    """
    flags = flags_of_every_run(argv)
    space = parse_space(settings.search.hp_space, settings.mode)
    check_searched_once(space, settings.mode, argv)
    mode = MODES[settings.mode.model_type]
    task = find_task(settings.data, None)
    metric = parse_metric(mode, task, settings.search.hp_metric, "--hp_metric")
    check_files(task, settings.data, dev=True, test=settings.evaluation.do_predict)
    # ELBERT by its published name: an earlier version's search goes on.
    mode_name = "albert" if mode.name == "elbert" else mode.name
    plan = make_search(
        settings.search,
        task,
        metric,
        name=settings.search.hp_study or f"{mode_name}-{task.name}",
        output_dir=Path(settings.run.output_dir),
        flags=flags,
        space=space,
        set_keys=settings.mode.set,
        fingerprint={
            **fixed_flags(*settings),
            "dtype": settings.evaluation.dtype,
            "model_type": mode_name,
            **content_hashes(settings.model, settings.data, task),
        },
    )
    return plan.run()


def make_search(
    settings: SearchSettings,
    task: Task,
    metric: MetricAtCost,
    *,
    name: str,
    output_dir: Path,
    flags: Sequence[str],
    fingerprint: Mapping[str, Any],
    space: Mapping[str, Dimension] = {},
    set_keys: Sequence[str] = (),
) -> Search:
    """Make a search from its flags; the defaults depend on the task and the sampler.

    Raises UserError for a grid with a range that has no step.
    """
    values = {
        "learning_rate": without_repeats(settings.hp_learning_rates),
        "batch_size": without_repeats(settings.hp_batch_sizes),
        "epochs": without_repeats(settings.hp_epochs),
    }
    values = {key: choices for key, choices in values.items() if key not in space}
    usual_seeds = [0] if task.name in ONE_SEED else [0, 1, 2, 3, 4]
    all_settings = math.prod(len(choices) for choices in values.values())
    all_settings *= math.prod(dimension.size for dimension in space.values())
    if settings.hp_sampler == "grid" and math.isinf(all_settings):
        raise UserError("--hp_sampler grid tries all settings: give --hp_space ranges a step")
    usual_size = all_settings if settings.hp_sampler == "grid" else TRIALS
    return Search(
        values=values,
        seeds=without_repeats(settings.hp_seeds or usual_seeds),
        size=int(min(all_settings, settings.hp_trials or usual_size)),
        sampler=settings.hp_sampler,
        metric=metric,
        name=name,
        output_dir=output_dir,
        storage=settings.hp_storage or f"sqlite:///{output_dir.absolute()}/hp_search.db",
        flags=flags,
        fingerprint=fingerprint,
        space=space,
        set_keys=set_keys,
    )


def check_searched_once(
    space: Mapping[str, Dimension], mode: ModeSettings, argv: Sequence[str]
) -> None:
    """Raise UserError for what --hp_space searches and a flag of the command sets as well."""
    flag_names = {text.partition("=")[0] for text in argv}
    keys_set = {assignment.partition("=")[0] for assignment in mode.set}
    for name, dimension in space.items():
        flags = [f"--{name}"]
        if dimension.flag:
            flags = [*spellings(dimension.flag.removeprefix("--")), VALUES_FLAGS.get(name, "")]
        elif name in keys_set:
            raise UserError(f"--set {name}=… and --hp_space {name}=…: give one of them")
        for flag in flag_names.intersection(flags):
            raise UserError(f"{flag} and --hp_space {name}=…: give one of them")


def without_repeats(values: Sequence[Any]) -> list[Any]:
    """List values in their order, each once."""
    return list(dict.fromkeys(values))


def flags_of_every_run(argv: Sequence[str]) -> list[str]:
    """Select the flags of a command that a search passes on to its runs.

    Raises UserError for a flag that the search itself sets.
    """
    flag_names = {text.partition("=")[0] for text in argv}
    for name, searched_flag in SEARCHED_FLAGS.items():
        if flag_names.intersection(spellings(searched_flag.removeprefix("--"))):
            raise UserError(
                f"{searched_flag} is what --hp_search varies; give its values as "
                f"{VALUES_FLAGS[name]}"
            )
    if "--resume_from_checkpoint" in flag_names:
        raise UserError("--hp_search continues by itself: leave out --resume_from_checkpoint")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for group in GROUPS:
        for flag in flags_of(group):
            if flag.name.startswith("hp_") or flag.name in OF_THE_CALL:
                flag.add_to(parser)
    _, passed_on = parser.parse_known_args(argv)
    return passed_on


def content_hashes(start: ModelSettings, data: DataSettings, task: Task) -> dict[str, str]:
    """Hash the files that the runs of a search start from, wherever these lie.

    Returns a fingerprint of each kind, by the flags that say where they lie.
    """
    config = Path(start.config_name or start.model_name_or_path)
    model_files = [config if config.is_file() else config / "config.json"]
    if not start.from_scratch:
        model_files.extend(weight_files(start.model_name_or_path))
    teacher_files = []
    if data.unlabelled_file:
        teacher_files.append(Path(data.unlabelled_file))
    if start.teacher:
        teacher_files.extend(weight_files(start.teacher))
    example_files = [Split(task, data.folder, name).path for name in ("train", "dev")]
    kinds = {
        "the model of --teacher, or --unlabelled_file": teacher_files,
        "the model of --model_name_or_path and --config_name": model_files,
        "the examples of --data_dir or --train_file": example_files,
    }
    return {kind: fingerprint(*map(file_fingerprint, files)) for kind, files in kinds.items()}
