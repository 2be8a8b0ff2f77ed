"""A script's settings: dataclasses whose fields say what they mean, allow and may change.

A field declared by `setting` is a flag. `parse` reads the flags of several dataclasses, each a
group of --help. Nothing here imports torch, so that --help and a wrong flag answer at once;
transformers' HfArgumentParser, which does the same, takes six times as long to import as a whole
--help takes here.
"""

import argparse
import difflib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from modeling.errors import UserError
from modeling.keys import LARGEST
from modeling.loading.files import local_folder, read_json

Group = TypeVar("Group")  # a dataclass of settings


@dataclass(frozen=True)
class Allowed:
    """What the flag of a field may be, and when it may differ.

    low, high: the range of a number, both included.
    resuming: may a run that goes on have another value than the run that it continues?
    searching: may machines that share a search have different values?
    passed_on: does a search give the flag to its runs?
    """

    low: float = -LARGEST
    high: float = LARGEST
    resuming: bool = False
    searching: bool = False
    passed_on: bool = True

    def reader(self, kind: type) -> Callable[[str], Any]:
        """An argparse type: a text as `kind`; of a number with a range, only what lies within."""
        if (self.low, self.high) == (-LARGEST, LARGEST):
            return kind
        allowed = f"a number from {self.low:.10g} to {self.high:.10g}"
        if self.high == LARGEST:
            allowed = f"{self.low:g} or more"

        def read(text: str) -> float:
            value = kind(text)
            if not self.low <= value <= self.high:  # nor is NaN
                raise argparse.ArgumentTypeError(f"{text}: allowed is {allowed}")
            return value

        # argparse's word for what it cannot read
        read.__name__ = "whole number" if kind is int else "number"
        return read


ANY = Allowed()
AT_LEAST_0, AT_LEAST_1 = Allowed(low=0), Allowed(low=1)
PLACE = Allowed(resuming=True, searching=True)  # where things lie and how fast: alters no step
RESUMING = Allowed(resuming=True)
SEED = Allowed(low=0, high=2**32 - 1)  # NumPy's


def setting(default: Any, meaning: str, allowed: Allowed = ANY, **words: Any) -> Any:
    """A dataclass field that is a flag.

    Args:
        default: its value without the flag; `...` makes the flag required.
        meaning: for --help.
        words: argparse's choices, metavar, nargs, const, type.
    """
    metadata = {"help": meaning.replace("%", "%%"), "allowed": allowed, **words}
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def add_flag(parser: argparse._ActionsContainer, field: Field) -> None:
    """The flag of a dataclass field that `setting` made."""
    words, kind = dict(field.metadata), field.type
    allowed, name = words.pop("allowed"), f"--{field.name}"
    if isinstance(kind, types.UnionType):  # something, or None
        kind = get_args(kind)[0]
    if kind is bool:
        parser.add_argument(name, action="store_true", default=field.default, **words)
        return
    if get_origin(kind) is list:
        kind, words["nargs"] = get_args(kind)[0], "+"
    if field.default_factory is not MISSING:
        words["default"] = field.default_factory()
    elif field.default is not MISSING:
        words["default"] = field.default
    else:
        words["required"] = True
    parser.add_argument(name, **{"type": allowed.reader(kind), **words})


class FlagParser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line: of an unknown flag, with the
    nearest names."""

    def __init__(self, description: str | None = None) -> None:
        super().__init__(
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(self, *arguments: Any) -> argparse.Namespace:
        found, unknown = self.parse_known_args(*arguments)
        if unknown:
            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions)
            advice = f"did you mean {' or '.join(near)}?" if near else "--help lists all"
            self.error(f"unknown flag {flag}; {advice}")
        return found

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


class SettingsParser(FlagParser):
    """The flags of some dataclasses.

    A class names its group of --help as `_argument_group_name`; its docstring describes the group.
    """

    def __init__(self, classes: Sequence[type], description: str | None = None) -> None:
        super().__init__(description)
        for kind in classes:
            group = self.add_argument_group(kind._argument_group_name, inspect.getdoc(kind))
            for entry in fields(kind):
                add_flag(group, entry)


def parse(
    classes: Sequence[type], description: str | None, argv: Sequence[str] | None = None
) -> tuple[Any, ...]:
    """The command line as an instance of each class, in their order.

    It may begin with a JSON or YAML file of flags; those that follow win. A class's own `check()`,
    where it has one, then looks at its values together.
    """
    parser = SettingsParser(classes, description)
    found = vars(parser.parse_args(with_file(sys.argv[1:] if argv is None else argv)))
    parsed = tuple(
        kind(**{entry.name: found[entry.name] for entry in fields(kind)}) for kind in classes
    )
    for settings in parsed:
        if hasattr(settings, "check"):
            settings.check()
    return parsed


def with_file(argv: Sequence[str]) -> list[str]:
    """The command line with the flags of the JSON or YAML file that it begins with, if any.

    The file holds one object of values by the flags' names: true is a flag without a value, false
    and null leave a flag out, a list is several values.
    """
    if not argv or Path(argv[0]).suffix not in (".json", ".yaml", ".yml"):
        return list(argv)
    flags = []
    for name, value in read_flags(Path(argv[0])).items():
        values = value if isinstance(value, list) else [value]
        if value is None or value is False:
            continue
        flags += [f"--{name}", *(str(x) for x in values if x is not True)]
    return [*flags, *argv[1:]]


def read_flags(path: Path) -> dict[str, Any]:
    """The object in a JSON or YAML file; UserError for anything else."""
    if path.suffix == ".json":
        return read_json(path)
    import yaml  # only for whoever has such a file

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a line 'flag: value' for each flag")
    return values


def fetch_models(group: Group, **weights: bool) -> Group:
    """Replace the hub names in a group of settings by the folders that their files are fetched to.

    weights: the flags that may name a hub repository, and whether its weights are read, too.
    """
    cache_dir = getattr(group, "cache_dir", None)
    names = {flag: getattr(group, flag) for flag in weights}
    folders = {
        flag: str(local_folder(name, f"--{flag}", cache_dir, weights[flag]))
        for flag, name in names.items()
        if name and not Path(name).exists()
    }
    return replace(group, **folders)


def entries(*many: Any) -> Iterator[tuple[str, Any, Allowed]]:
    """Name, value and `Allowed` of every field of some settings, or of their classes' defaults."""
    for settings in many:
        for entry in fields(settings):
            yield entry.name, getattr(settings, entry.name, None), entry.metadata["allowed"]


def as_dict(*many: Any) -> dict[str, Any]:
    """All values of some settings by their flags' names."""
    return {name: value for name, value, _ in entries(*many)}


# accelerate's, each named as its package.
TRACKERS = tuple("tensorboard wandb mlflow comet_ml clearml aim dvclive swanlab trackio".split())


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Where a run writes, how it goes on, and what it runs on."""

    _argument_group_name = "run"

    do_train: bool = setting(False, "train, from the beginning or from a checkpoint", PLACE)
    output_dir: str = setting(..., "where the trained model and the results go", PLACE)
    overwrite_output_dir: bool = setting(False, "write over what --output_dir holds", PLACE)
    resume_from_checkpoint: str | None = setting(
        None,
        "go on with a training that was stopped, from its latest checkpoint or from this one; "
        "nothing to go on from: begin it",
        Allowed(resuming=True, passed_on=False),
        nargs="?",
        const="latest",
        metavar="PATH|latest",
    )
    save_total_limit: int | None = setting(
        None,
        "keep only so many checkpoints, the newest",
        Allowed(low=1, resuming=True, searching=True),
    )
    seed: int = setting(42, "of everything that is left to chance", SEED)
    do_lower_case: bool = setting(False, "for uncased models")
    no_cuda: bool = setting(False, "stay on the CPU", PLACE)
    bf16: bool = setting(False, "bfloat16 mixed precision in training")
    report_to: list[str] = setting(
        ["tensorboard"],
        "what curves go to: tensorboard (in --output_dir/runs), none, or other trackers",
        PLACE,
        choices=("none", *TRACKERS),
    )
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm", Allowed(low=0))

    def check(self) -> None:
        for name in self.trackers:
            if find_spec(name) is None:
                raise UserError(f"--report_to {name}: not installed; pip install {name}")

    @property
    def trackers(self) -> list[str]:
        return [name for name in dict.fromkeys(self.report_to) if name != "none"]
