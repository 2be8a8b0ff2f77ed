"""A script's flags, as dataclasses whose fields say what a flag means and which values it takes.

A field declared by `option` is a flag. `parse` reads the flags of several dataclasses, each a
group of --help. As transformers' HfArgumentParser, but --help and a wrong flag answer at once, for
transformers alone takes half a second to load.
"""

import argparse
import difflib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml

from elbert_base.errors import UserError
from elbert_base.files import read_regular_file
from elbert_base.keys import LARGEST, Key


@dataclass(frozen=True)
class Allowed:
    """The range of a flag's number, both ends included; `resuming`: a flag that may change on
    resume, and between machines that share a search."""

    low: float = -LARGEST
    high: float = LARGEST
    resuming: bool = False

    def reader(self, kind: type) -> Callable[[str], Any]:
        """Make an argparse type that reads `kind`, a number within the range."""
        if kind not in (int, float):
            return kind
        key = Key(kind, None, "", self.low, self.high)

        def read(text: str) -> float:
            with suppress(ValueError):
                if key.is_valid(value := kind(text)):
                    return value
            raise argparse.ArgumentTypeError(f"{text}: allowed is {key.allowed()}")

        return read


ANY = Allowed()
AT_LEAST_0 = Allowed(low=0)
AT_LEAST_1 = Allowed(low=1)
FREE = Allowed(resuming=True)  # alters no step: places, speed, what is logged
COUNT = Allowed(low=1, resuming=True)
COUNT_OR_NONE = Allowed(low=0, resuming=True)
SEED = Allowed(low=0, high=2**32 - 1)  # NumPy's
SHARE = Allowed(low=0, high=1)


# transformers' names of some flags.
ALIASES = {
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "optimizer": "optim",
    "no_cuda": "use_cpu",
}


def option(default: Any, meaning: str, allowed: Allowed = ANY, **words: Any) -> Any:
    """Declare a dataclass field that is a flag; one with the default `...` is required.

    meaning: for --help. words: argparse's choices, metavar, nargs, const, type.
    """
    metadata = {"help": meaning.replace("%", "%%"), "allowed": allowed, **words}
    if default is ...:
        return field(metadata={**metadata, "required": True})
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={**metadata, "default": default})
    return field(default=default, metadata=metadata)


def flags_of(kind: type) -> Iterator[tuple[Field, Mapping[str, Any]]]:
    """Yield the fields of a class of settings, each with what `option` says of it, here or in a
    base: a subclass may give a flag another default, as it may any field."""
    for entry in fields(kind):
        declared = (base.__dataclass_fields__.get(entry.name) for base in kind.__mro__[:-1])
        yield entry, next(x.metadata for x in declared if x and x.metadata)


def spellings(name: str) -> list[str]:
    """List the names of a field's flag."""
    return [f"--{spelling}" for spelling in (name, ALIASES.get(name)) if spelling]


def add_flag(parser: argparse._ActionsContainer, field: Field, metadata: Mapping[str, Any]) -> None:
    """Add the flag of a dataclass field, see `flags_of`."""
    words, kind = dict(metadata), field.type
    allowed = words.pop("allowed")
    if field.default is not MISSING:
        words["default"] = field.default
    if isinstance(kind, types.UnionType):  # something, or None
        kind = get_args(kind)[0]
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
        words.setdefault("nargs", "+")
    reads: dict[str, Any] = {"action": "store_true"}
    if kind is not bool:
        reads = {"type": allowed.reader(kind)}
    parser.add_argument(*spellings(field.name), **reads | words)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with the default of every flag that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        said = action.help or ""
        tells = action.nargs == 0 or action.default in (None, "", []) or "default" in said
        return said if tells else f"{said} (default: %(default)s)"


class FlagParser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line, with the nearest flags. Each of
    `classes` is a group of --help, named after it."""

    def __init__(self, description: str | None = None, classes: Sequence[type] = ()) -> None:
        options = {"formatter_class": HelpFormatter, "usage": "%(prog)s [FLAGS]"}
        super().__init__(description=description, allow_abbrev=False, **options)
        for kind in classes:
            words = re.findall("[A-Z][a-z]+", kind.__name__.removesuffix("Settings"))
            group = self.add_argument_group(words[-1].lower(), inspect.getdoc(kind))
            for entry, metadata in flags_of(kind):
                add_flag(group, entry, metadata)

    # argparse's has overloads for a namespace, which no script here gives.
    def parse_args(  # pyrefly: ignore[bad-override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args)
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
    """Read the command line, which may begin with a file of flags, as an instance of each class. A
    class's own `check()`, where it has one, then looks at its values together."""
    parser = FlagParser(description, classes)
    found = parser.parse_args(expand_config_file(sys.argv[1:] if argv is None else argv))
    parsed = []
    for kind in classes:
        parsed.append(kind(**{entry.name: getattr(found, entry.name) for entry in fields(kind)}))
        if hasattr(kind, "check"):
            parsed[-1].check()
    return tuple(parsed)


def expand_config_file(argv: Sequence[str]) -> list[str]:
    """Put the flags of the JSON or YAML file that a command line begins with in its place: true is
    a flag without a value, false and null leave one out, a list is several values."""
    if not argv or argv[0][:1] == "-" or not argv[0].endswith((".json", ".yaml", ".yml")):
        return list(argv)
    path = argv[0]
    try:
        text = read_regular_file(Path(path)).decode()
        found = yaml.load(text, Loader=yaml.BaseLoader)  # JSON is YAML, too
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is no JSON or YAML: {' '.join(str(error).split())[:200]}"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(x, str | list) for x in found.values()):
        raise UserError(f"{path}: flags are written as NAME: VALUE, one a line")
    flags = []
    for name, value in found.items():
        if value not in ("false", "null", ""):
            values = value if isinstance(value, list) else [value]
            flags += [f"--{name}", *(str(x) for x in values if x != "true")]
    return [*flags, *argv[1:]]


def entries(*many: Any) -> Iterator[tuple[str, Any, Allowed]]:
    """Yield name, value and `Allowed` of every field of settings."""
    for settings in many:
        for entry, metadata in flags_of(type(settings)):
            yield entry.name, getattr(settings, entry.name), metadata["allowed"]


def as_dict(*many: Any) -> dict[str, Any]:
    """Return all values of some settings by their flags' names."""
    return {name: value for name, value, _ in entries(*many)}
