"""A script's settings: dataclasses whose fields say what they mean, allow and may change.

A field declared by `setting` is a flag. `parse` reads the flags of several dataclasses, each a
group of --help, and checks every value against its field's range. Nothing here imports torch, so
that --help and a wrong flag answer at once.
"""

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from transformers.hf_argparser import HfArgumentParser

from modeling.errors import UserError

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Allowed:
    """What the flag of a field may be, and when it may differ.

    low, high: the range of a number, both included.
    resuming: may a run that goes on have another value than the run that it continues?
    searching: may machines that share a search have different values?
    """

    low: float = -LARGEST
    high: float = LARGEST
    resuming: bool = False
    searching: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise UserError unless every number of `value` is in the range."""
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int | float) or self.low <= number <= self.high:
                continue
            allowed = f"a number from {self.low:g} to {self.high:g}"
            if self.high == LARGEST:
                allowed = f"{self.low:g} or more"
            raise UserError(f"--{name} {number:g}: allowed is {allowed}")


ANY = Allowed()
PLACE = Allowed(resuming=True, searching=True)  # where things lie and how fast: alters no step


def setting(default: Any, meaning: str, allowed: Allowed = ANY, **words: Any) -> Any:
    """A dataclass field that is a flag.

    Args:
        default: its value without the flag; `...` makes the flag required.
        meaning: for --help.
        words: argparse's choices, metavar, nargs, const.
    """
    metadata = {"help": meaning.replace("%", "%%"), "allowed": allowed, **words}
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


class SettingsParser(HfArgumentParser):
    """HF's parser of dataclasses, for fields that carry `Allowed`.

    A dataclass names its group of --help as `_argument_group_name`.
    """

    def __init__(self, classes: Sequence[type], description: str | None) -> None:
        super().__init__(
            classes,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: Field) -> None:
        field = copy.copy(field)  # the class keeps its `Allowed`
        field.metadata = {name: v for name, v in field.metadata.items() if name != "allowed"}
        HfArgumentParser._parse_dataclass_field(parser, field)


def parse(
    classes: Sequence[type], description: str | None, argv: Sequence[str] | None = None
) -> tuple[Any, ...]:
    """The command line as an instance of each class; raises UserError for a value out of range.

    A class's own `check()`, where it has one, then looks at the values together.
    """
    parsed = SettingsParser(classes, description).parse_args_into_dataclasses(
        argv, look_for_args_file=False
    )
    for settings in parsed:
        for name, value, allowed in entries(settings):
            allowed.check(name, value)
        if hasattr(settings, "check"):
            settings.check()
    return parsed


def entries(*many: Any) -> Iterator[tuple[str, Any, Allowed]]:
    """Name, value and `Allowed` of every field of some settings."""
    for settings in many:
        for entry in fields(settings):
            yield entry.name, getattr(settings, entry.name), entry.metadata["allowed"]
