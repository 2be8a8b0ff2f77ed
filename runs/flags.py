"""A script's flags, as dataclasses whose fields say what a flag means and which values it takes.

A field declared by `option` is a flag. `parse` reads the flags of several dataclasses, each a group
of --help:

    @dataclass(frozen=True, kw_only=True)
    class SpeedSettings:
        \"\"\"Measurement.\"\"\"

        repeats: int = option(3, "number of repetitions", AT_LEAST_1)

    (speed,) = parse([SpeedSettings], "Measure the speed.")

This is what transformers' HfArgumentParser does, but --help and a wrong flag answer at once, since
transformers alone takes half a second to load. Loads no torch.
"""

import argparse
import difflib
import glob
import inspect
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml

from modeling.errors import UserError
from modeling.files import read_regular_file
from modeling.keys import LARGEST_FLOAT32, Key

# Flags that take files, and those that take one: there, a pattern stands for what it matches.
FILES_FLAGS = ("--input_file", "--train_files")
PATH_FLAGS = (
    "--model_dir",
    "--model_name_or_path",
    "--train_file",
    "--validation_file",
    "--test_file",
    "--unlabelled_file",
    "--eval_file",
    "--calibration_file",
)
HOME = r"((?:--)?\w+=)?(~[\w.-]*/.*)"  # a path within a home folder, perhaps behind NAME=
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")  # of a file of flags


@dataclass(frozen=True)
class Allowed:
    """The values that a flag may have.

    Attributes:
        low, high: the range of a number, both ends included.
        resuming: whether the flag may change when a run is resumed, and between machines that share
            a search: it alters no step.
    """

    low: float = -LARGEST_FLOAT32
    high: float = LARGEST_FLOAT32
    resuming: bool = False

    def reader(self, kind: type) -> Callable[[str], Any]:
        """Make an argparse type that reads a value of type `kind`; a number within the range."""
        if kind not in (int, float):
            return kind
        key = Key(kind, None, "", self.low, self.high)

        def read(text: str) -> float:
            try:
                value = kind(text)
            except ValueError:
                value = math.nan  # which no flag may have
            if not key.is_valid(value):
                raise argparse.ArgumentTypeError(f"{text}: allowed is {key.allowed()}")
            return value

        return read


ANY = Allowed()
AT_LEAST_0 = Allowed(low=0)
AT_LEAST_1 = Allowed(low=1)
FREE = Allowed(resuming=True)  # alters no step: places, speed, what is logged
COUNT = Allowed(low=1, resuming=True)
COUNT_OR_NONE = Allowed(low=0, resuming=True)
SEED = Allowed(low=0, high=2**32 - 1)  # NumPy's
SHARE = Allowed(low=0, high=1)

# What a switch may have behind it, as in transformers' scripts and in YAML.
SWITCH_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}

# transformers' names of some flags.
ALIASES = {
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "optimizer": "optim",
    "no_cuda": "use_cpu",
}


# Flags of the published scripts, of transformers' and of earlier versions that no script here has,
# each with what to use instead. A script that has one reads it as its own.
REPLACEMENTS = {
    "local_rank": "leave it out: torchrun says the rank by a variable",
    "server_ip": "leave it out: a debugger attaches by `python -m debugpy --listen`",
    "server_port": "leave it out: a debugger attaches by `python -m debugpy --listen`",
    "eval_all_checkpoints": "run_glue.py --do_eval has it",
    "evaluation_strategy": "use --eval_strategy steps",
    "eval_steps": "use --logging_steps, at which the dev set is evaluated as well",
    "save_strategy": "use --save_steps N, or 0 for no checkpoints",
    "save_safetensors": "leave it out: weights are safetensors; see --save_format",
    "logging_dir": "leave it out: curves are in the folder `runs` of --output_dir",
    "logging_strategy": "use --logging_steps",
    "greater_is_better": "leave it out: every metric here is maximised",
    "warmup_proportion": "use --warmup_ratio",
    "half_precision_backend": "use --bf16, or --fp16",
    "bf16_full_eval": "use --dtype bf16",
    "fp16_full_eval": "use --dtype fp16",
    "deepspeed": "leave it out: these models fit one device; torchrun trains data-parallel",
    "fsdp": "leave it out: these models fit one device; torchrun trains data-parallel",
    "compile": "use --torch_compile",
    "pad_to_max_length": "leave it out: batches are padded to their longest example",
    "group_by_length": "leave it out: batches are of like lengths",
    "push_to_hub": "use push_to_hub.py on the trained folder",
    "hub_model_id": "use push_to_hub.py on the trained folder",
    "token": "set the variable HF_TOKEN",
    "use_auth_token": "set the variable HF_TOKEN",
    "hub_token": "set the variable HF_TOKEN",
    "vary": "use sweep_exits.py --grid KEY=VALUES",
    "runtime": "ONNX Runtime alone runs ONNX files: leave it out",
}


# Declaring flags.


def option(
    default: Any,
    meaning: str,
    allowed: Allowed = ANY,
    is_common: bool = False,
    **argparse_options: Any,
) -> Any:
    """Declare a dataclass field that is a flag.

    Args:
        default: `...` for a flag that must be given.
        meaning: a noun phrase for --help.
        is_common: whether most users need it, so that --help has it in its first group.
        argparse_options: choices, metavar, nargs, const or type, as `add_argument` has them; and
            alias, another name of the flag.
    """
    metadata = {
        "help": meaning.replace("%", "%%"),  # argparse formats it
        "allowed": allowed,
        "is_common": is_common,
        **argparse_options,
    }
    if default is ...:
        return field(metadata={**metadata, "required": True})
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={**metadata, "default": default})
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Flag:
    """A flag: a dataclass field, and what `option` says of it.

    Attributes:
        field: the field.
        allowed: its values.
        is_common: whether most users need it.
        argparse_options: keyword arguments of `add_argument`.
        alias: another name of the flag; "" where it has none.
    """

    field: Field
    allowed: Allowed
    is_common: bool
    argparse_options: Mapping[str, Any]
    alias: str = ""

    @property
    def name(self) -> str:
        """Name of the field, and of the flag behind its two dashes."""
        return self.field.name

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the flag to a parser, or to a group of one."""
        argparse_options = dict(self.argparse_options)
        if self.field.default is not MISSING:
            argparse_options["default"] = self.field.default
        kind: Any = self.field.type
        if isinstance(kind, types.UnionType):  # something, or None
            kind = get_args(kind)[0]
        if get_origin(kind) is list:
            kind = get_args(kind)[0]
            argparse_options.setdefault("nargs", "+")
        if kind is bool:
            argparse_options.update(nargs="?", const=True, type=read_switch)
        else:
            argparse_options.setdefault("type", self.allowed.reader(kind))
        names = spellings(self.name)
        if self.alias:
            names.append(f"--{self.alias}")
        parser.add_argument(*names, **argparse_options)


def read_switch(text: str) -> bool:
    """Read what stands behind a switch: true or false, in any spelling of SWITCH_WORDS."""
    if text.lower() not in SWITCH_WORDS:
        raise argparse.ArgumentTypeError(f"{text}: allowed is true, false or nothing")
    return SWITCH_WORDS[text.lower()]


def is_on(name: str, argv: Sequence[str]) -> bool:
    """Tell whether a command line has the switch of a field's name, without false behind it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{name}", nargs="?", const="true", default="false")
    values, _ = parser.parse_known_args(argv)
    return SWITCH_WORDS.get(getattr(values, name).lower(), True)  # other words: the script's error


def spellings(name: str) -> list[str]:
    """List how the flag of a field may be written: by its own name, and by transformers'."""
    names = [name]
    if name in ALIASES:
        names.append(ALIASES[name])
    return [f"--{name}" for name in names]


def flags_of(settings_class: type) -> Iterator[Flag]:
    """Yield the flags of a class of settings.

    A subclass may give a flag of its base another default, as it may any field: what `option` says
    of the flag is then the base's.
    """
    for entry in fields(settings_class):
        for base in settings_class.__mro__:
            declared = getattr(base, "__dataclass_fields__", {}).get(entry.name)
            if declared and declared.metadata:
                metadata = dict(declared.metadata)
                allowed = metadata.pop("allowed")
                alias = metadata.pop("alias", "")
                is_common = metadata.pop("is_common")
                yield Flag(entry, allowed, is_common, metadata, alias)
                break


# Reading a command line.


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter of --help that adds the default of every flag that has one.

    A switch stands there alone.
    """

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.const is True:
            return ", ".join(action.option_strings)
        return super()._format_action_invocation(action)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_switch = action.nargs == 0 or action.const is True
        has_default = action.default not in (None, "", [])
        if is_switch or not has_default or "default" in text:
            return text
        return f"{text} (default: %(default)s)"


class FlagParser(argparse.ArgumentParser):
    """An argparse parser without abbreviations, whose errors are one line with the nearest flags.

    classes: of settings. Each is a group of --help, with the last word of the class's name for a
    title; the flags that most users need stand before these, in a group of their own.
    """

    def __init__(self, description: str | None = None, classes: Sequence[type] = ()) -> None:
        super().__init__(
            description=description,
            usage="%(prog)s [FLAGS]",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.add_common_flags(classes)
        for settings_class in classes:
            group = self.add_argument_group(
                group_title(settings_class), inspect.getdoc(settings_class)
            )
            for flag in flags_of(settings_class):
                if not flag.is_common:
                    flag.add_to(group)

    def add_common_flags(self, classes: Sequence[type]) -> None:
        """Add the flags that most users need."""
        common = [
            flag
            for settings_class in classes
            for flag in flags_of(settings_class)
            if flag.is_common
        ]
        if common:
            group = self.add_argument_group("flags that most users need")
            for flag in common:
                flag.add_to(group)

    # argparse's has overloads for a namespace, which no script here gives.
    def parse_args(  # pyrefly: ignore[bad-override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Parse a command line; for an unknown flag, say what to use, and exit with status 2."""
        # Flags that are required come last: an unknown one tells more of what was meant.
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        _, unknown = self.parse_known_args(args)
        for action in required:
            action.required = True
        unknown = self.without_rank(unknown)
        if unknown:
            flag = unknown[0].partition("=")[0]
            replacement = REPLACEMENTS.get(flag.removeprefix("--"))
            if replacement:
                self.error(f"there is no flag {flag}: {replacement}")
            nearest = difflib.get_close_matches(flag, self._option_string_actions)
            advice = f"did you mean {' or '.join(nearest)}?" if nearest else "--help lists all"
            self.error(f"unknown flag {flag}; {advice}")
        values, _ = self.parse_known_args(args)
        return values

    def without_rank(self, unknown: Sequence[str]) -> list[str]:
        """Leave out --local_rank, or --local-rank, where it says what the launcher's variable says.

        `python -m torch.distributed.launch` gives both. −1 is the published default: no launcher.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--local_rank", "--local-rank")
        rank, others = parser.parse_known_args(unknown)
        launched_rank = os.environ.get("LOCAL_RANK")
        if rank.local_rank not in (None, "-1", launched_rank):
            self.error(f"--local_rank {rank.local_rank}: {REPLACEMENTS['local_rank']}")
        return others

    def error(self, message: str) -> NoReturn:
        """Print an error in one line, and exit with status 2."""
        self.exit(2, f"error: {message}\n")


def group_title(settings_class: type) -> str:
    """Return the title of a group of --help: "training" for TrainingSettings."""
    words = re.findall("[A-Z][a-z]+", settings_class.__name__.removesuffix("Settings"))
    return words[-1].lower()


def parse(
    classes: Sequence[type], description: str | None, argv: Sequence[str] | None = None
) -> tuple[Any, ...]:
    """Read a command line, which may begin with a file of flags, as an instance of each class.

    The method `check` of a class, where it has one, looks at its values together, and may raise
    UserError. A wrong flag ends the process with status 2.

    Args:
        classes: dataclasses of settings.
        description: begins --help.
        argv: the command line; by default, the process's own.
    """
    parser = FlagParser(description, classes)
    values = parser.parse_args(expand_config_file(sys.argv[1:] if argv is None else argv))
    groups = []
    for settings_class in classes:
        names = [entry.name for entry in fields(settings_class)]
        group = settings_class(**{name: getattr(values, name) for name in names})
        if hasattr(group, "check"):
            group.check()
        groups.append(group)
    return tuple(groups)


def expand_paths(argv: Sequence[str]) -> list[str]:
    """Put paths in the place of ~/… and of patterns such as data/*.csv, which a shell may leave.

    A shell does neither within quotes, nor behind --flag=. What exists is no pattern, and neither
    is what matches nothing.

    Raises UserError for a pattern that matches several files, where a flag takes one.
    """
    expanded: list[str] = []
    flag = ""
    for argument in argv:
        home = re.fullmatch(HOME, argument, flags=re.DOTALL)
        if home:
            argument = (home[1] or "") + os.path.expanduser(home[2])
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
        else:
            equals, value = "", argument
        matches = matching_paths(flag, value) if flag in (*FILES_FLAGS, *PATH_FLAGS) else []
        if not matches:
            expanded.append(argument)
            continue
        if equals:
            expanded.append(flag)
        expanded += matches
    return expanded


def matching_paths(flag: str, pattern: str) -> list[str]:
    """List the paths that a flag's value matches, in their order; [] where it is no pattern.

    Raises UserError for several, where the flag takes one.
    """
    if glob.escape(pattern) == pattern or os.path.exists(pattern):
        return []
    matches = sorted(glob.glob(pattern))
    if len(matches) > 1 and flag in PATH_FLAGS:
        raise UserError(
            f"{flag} {pattern}: {len(matches)} paths match ({', '.join(matches)[:200]}), and the "
            "flag takes one"
        )
    return matches


def expand_config_file(argv: Sequence[str]) -> list[str]:
    """Put the flags in the JSON or YAML file that a command line begins with, if any, in its place.

    In the file, true stands for a flag without a value, false and null leave a flag out, and a list
    is several values; YAML has further words for these. Raises UserError for a file that holds no
    flags.
    """
    if not argv or argv[0].startswith("-") or not argv[0].endswith(CONFIG_SUFFIXES):
        return list(argv)
    path, *other_flags = argv
    flags = []
    for name, value in read_config_file(Path(path)).items():
        if not isinstance(value, list) and value.lower() in ("false", "null", "~", ""):
            continue
        values = value if isinstance(value, list) else [value]
        flags.append(f"--{name}")
        flags += [str(text) for text in values if str(text).lower() != "true"]
    return expand_paths([*flags, *other_flags])


def read_config_file(path: Path) -> dict[str, str | list[Any]]:
    """Read a file of flags; raises UserError where it holds anything else."""
    try:
        text = read_regular_file(path).decode()
        # JSON is YAML as well. The base loader leaves all values as they are written.
        content = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is neither JSON nor YAML: {reason}") from error
    holds_flags = isinstance(content, dict) and all(
        isinstance(value, str | list) for value in content.values()
    )
    if not holds_flags:
        raise UserError(f"{path}: flags are written as NAME: VALUE, one per line")
    return content


# The values of settings.


def as_dict(*groups: Any) -> dict[str, Any]:
    """Return all values of some settings, by their flags' names."""
    values = {}
    for settings in groups:
        for flag in flags_of(type(settings)):
            values[flag.name] = getattr(settings, flag.name)
    return values


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value that was read from JSON may be that of a field; None may be.

    kind: the type of the field.
    """
    if value is None:
        return True
    if isinstance(kind, types.UnionType):
        return any(fits(value, each) for each in get_args(kind))
    if get_origin(kind) is list:
        (kind_of_part,) = get_args(kind)
        return isinstance(value, list) and all(fits(part, kind_of_part) for part in value)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, int if kind is int else str)


def fixed_flags(*groups: Any) -> dict[str, Any]:
    """Return the values of those flags that must not change when a run is resumed, by name."""
    values = {}
    for settings in groups:
        for flag in flags_of(type(settings)):
            if not flag.allowed.resuming:
                values[flag.name] = getattr(settings, flag.name)
    return values
