"""A script's flags, as dataclasses whose fields say what a flag means and which values it takes.

A field declared by `option` is a flag. `parse` reads the flags of several dataclasses, each a
group of --help. Nothing here imports torch, so that --help and a wrong flag answer at once;
transformers' HfArgumentParser would load it.
"""

import argparse
import difflib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin

import yaml

from modeling.errors import UserError
from modeling.keys import LARGEST
from modeling.loading.files import local_folder, read_json, read_regular_file

Group = TypeVar("Group")  # a dataclass of settings


@dataclass(frozen=True)
class FlagRules:
    """The values that a flag takes, and when they may differ.

    low, high: the range of a number, both included.
    resuming: may change on resume, and between machines that share a search.
    """

    low: float = -LARGEST
    high: float = LARGEST
    resuming: bool = False

    def reader(self, kind: type) -> Callable[[str], Any]:
        """Make an argparse type that reads `kind`, within the range."""
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


ANY = FlagRules()
AT_LEAST_0, AT_LEAST_1 = FlagRules(low=0), FlagRules(low=1)
FREE = FlagRules(resuming=True)  # alters no step: places, speed, what is logged
COUNT, COUNT_OR_NONE = FlagRules(low=1, resuming=True), FlagRules(low=0, resuming=True)
SEED = FlagRules(low=0, high=2**32 - 1)  # NumPy's
SHARE = FlagRules(low=0, high=1)


def option(default: Any, meaning: str, allowed: FlagRules = ANY, **words: Any) -> Any:
    """Declare a dataclass field that is a flag.

    Args:
        default: its value without the flag; `...` makes the flag required.
        meaning: for --help.
        words: argparse's choices, metavar, nargs, const, type.
    """
    metadata = {"help": meaning.replace("%", "%%"), "allowed": allowed, **words}
    if default is ...:
        return field(metadata={**metadata, "required": True})
    metadata["default"] = default
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def add_flag(parser: argparse._ActionsContainer, field: Field) -> None:
    """Add the flag of a dataclass field that `option` made."""
    words, kind = dict(field.metadata), field.type
    allowed, name = words.pop("allowed"), f"--{field.name}"
    if isinstance(kind, types.UnionType):  # something, or None
        kind = get_args(kind)[0]
    if kind is bool:
        parser.add_argument(name, action="store_true", **words)
        return
    if get_origin(kind) is list:
        kind, words["nargs"] = get_args(kind)[0], "+"
    parser.add_argument(name, **{"type": allowed.reader(kind), **words})


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with the default of every flag that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        said = action.help or ""
        tells = action.nargs == 0 or action.default in (None, "") or "default" in said
        return said if tells else f"{said} (default: %(default)s)"


class FlagParser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line, with the nearest flags.

    classes: dataclasses whose fields are flags: each a group of --help, named after its class.
    """

    def __init__(self, description: str | None = None, classes: Sequence[type] = ()) -> None:
        how = {"formatter_class": HelpFormatter, "allow_abbrev": False, "usage": "%(prog)s [FLAGS]"}
        super().__init__(description=description, **how)
        for kind in classes:
            words = re.findall("[A-Z][a-z]+", kind.__name__.removesuffix("Settings"))
            group = self.add_argument_group(words[-1].lower(), inspect.getdoc(kind))
            for entry in fields(kind):
                add_flag(group, entry)

    def parse_args(self, *arguments: Any) -> argparse.Namespace:
        for text in arguments[0] if arguments else sys.argv[1:]:
            if text != text.encode(errors="replace").decode():  # no result could name it
                self.error(f"{text!r} is not UTF-8")
        found, unknown = self.parse_known_args(*arguments)
        if unknown:
            flag = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(flag, self._option_string_actions)
            advice = f"did you mean {' or '.join(near)}?" if near else "--help lists all"
            self.error(f"unknown flag {flag}; {advice}")
        return found

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def parse(
    classes: Sequence[type], description: str | None, argv: Sequence[str] | None = None
) -> tuple[Any, ...]:
    """Read the command line as an instance of each class, in their order.

    It may begin with a JSON or YAML file of flags; those that follow win. A class's own `check()`,
    where it has one, then looks at its values together.
    """
    parser = FlagParser(description, classes)
    found = parser.parse_args(expand_config_file(sys.argv[1:] if argv is None else argv))
    parsed = []
    for kind in classes:
        parsed.append(kind(**{entry.name: getattr(found, entry.name) for entry in fields(kind)}))
        if hasattr(kind, "check"):
            parsed[-1].check()
    return tuple(parsed)


def expand_config_file(argv: Sequence[str]) -> list[str]:
    """Put the flags of the JSON or YAML file that a command line begins with in its place.

    The file holds one object of values by the flags' names: true is a flag without a value, false
    and null leave a flag out, a list is several values.
    """
    if not argv or not argv[0].endswith((".json", ".yaml", ".yml")):
        return list(argv)
    read, flags = read_json if argv[0].endswith(".json") else read_yaml, []
    for name, value in read(argv[0]).items():
        values = value if isinstance(value, list) else [value]
        if value is not None and value is not False:
            flags += [f"--{name}", *(str(x) for x in values if x is not True)]
    return [*flags, *argv[1:]]


def read_yaml(path: str) -> dict[str, Any]:
    """Read a YAML file of flags, its numbers as they are written; UserError for anything else."""
    constants = {"true": True, "false": False, "null": None, "": None}
    try:
        text = read_regular_file(Path(path)).decode()
        # A few aliases of aliases make gigabytes.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise UserError(f"{path} has an alias (*name), which is not read; write the value")
        found = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(found, dict) or not all(isinstance(x, str | list) for x in found.values()):
        raise UserError(f"{path}: flags are written as NAME: VALUE, one a line")
    return {k: constants.get(v, v) if isinstance(v, str) else v for k, v in found.items()}


def fetch_models(group: Group, **weights: bool) -> Group:
    """Replace the hub names in a group of settings by the folders that their files are fetched to.

    weights: the flags that may name a hub repository, and whether its weights are read, too.
    """
    cache_dir = getattr(group, "cache_dir", None) or None  # "": the hub's own
    for flag, wanted in weights.items():
        name = getattr(group, flag)
        if name and not Path(name).exists():
            folder = str(local_folder(name, f"--{flag}", cache_dir, wanted))
            group = replace(group, **{flag: folder})
    return group


def entries(*many: Any) -> Iterator[tuple[str, Any, FlagRules]]:
    """Yield name, value and `FlagRules` of every field of settings, or of classes of settings."""
    for settings in many:
        for entry in fields(settings):
            yield entry.name, getattr(settings, entry.name, None), entry.metadata["allowed"]


def as_dict(*many: Any) -> dict[str, Any]:
    """Return all values of some settings by their flags' names."""
    return {name: value for name, value, _ in entries(*many)}


# accelerate's, each named as its package.
TRACKERS = tuple("tensorboard wandb mlflow comet_ml clearml aim dvclive swanlab trackio".split())


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Where a run writes, how it goes on, and what it runs on."""

    do_train: bool = option(False, "train, from the beginning or from a checkpoint", FREE)
    output_dir: str = option(..., "where the trained model and the results go", FREE)
    overwrite_output_dir: bool = option(False, "write over what --output_dir holds", FREE)
    resume_from_checkpoint: str | None = option(
        None,
        "go on with a stopped training, from its latest checkpoint or from this one, or begin it",
        FREE,
        nargs="?",
        const="latest",
        metavar="PATH|latest",
    )
    save_total_limit: int | None = option(None, "keep so many checkpoints, the newest", COUNT)
    seed: int = option(42, "of everything that is left to chance", SEED)
    do_lower_case: bool = option(False, "for uncased models")
    no_cuda: bool = option(False, "stay on the CPU", FREE)
    bf16: bool = option(False, "bfloat16 mixed precision in training")
    report_to: list[str] = option(
        ["tensorboard"], "curves; default: in --output_dir/runs", FREE, choices=("none", *TRACKERS)
    )
    max_grad_norm: float = option(1.0, "gradients are clipped to this norm", FlagRules(low=0))

    def check(self) -> None:
        for name in self.trackers:
            if find_spec(name) is None:
                raise UserError(f"--report_to {name}: not installed; pip install {name}")

    @property
    def trackers(self) -> list[str]:
        return [name for name in dict.fromkeys(self.report_to) if name != "none"]
