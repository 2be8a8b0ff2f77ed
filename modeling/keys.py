"""What a configuration key may hold, without torch.

Every mode has its table, `elbert/keys.py`, `ponder/keys.py`, `act/keys.py`. The keys are the
published ones, at top level in `config.json`. `configuration.py`, `exit_settings.py`,
`change_config.py` and docs/configuration.md follow these tables.
"""

import difflib
import json
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

from .errors import UserError

LARGEST = 3.4e38  # that a float32 holds: what a model computes with
NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True)
class Key:
    """What a configuration key may hold."""

    kind: type
    default: Any
    meaning: str
    _: KW_ONLY
    minimum: float = -LARGEST
    maximum: float = LARGEST
    choices: Collection[str] = ()
    open: bool = False  # are minimum and maximum themselves excluded?
    counts_layers: bool = False  # is it at most num_hidden_layers?
    shapes: bool = False  # does it fix the shape of the weights?
    grid: str = ""  # what a sweep tries, e.g. "0:1:0.02"; "1:N" is 1 to num_hidden_layers

    def initial(self, layers: int | None = None) -> Any:
        """Return the default for a model of so many layers."""
        return min(self.default, layers) if self.counts_layers and layers else self.default

    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = NOUNS[self.kind]
        if self.kind not in (int, float):
            return noun
        if self.maximum == LARGEST and self.minimum != -LARGEST:
            return f"{noun} of at least {self.minimum:g}"
        bounds = f"{noun} from {self.minimum:g} to {self.maximum:g}"
        return f"{bounds}, both excluded" if self.open else bounds

    def is_valid(self, value: Any) -> bool:
        """Tell whether the key may hold `value`; NaN, True and False are no numbers."""
        if self.kind not in (int, float):
            return isinstance(value, self.kind) and (not self.choices or value in self.choices)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        if not self.minimum <= value <= self.maximum:
            return False
        if self.open and value in (self.minimum, self.maximum):
            return False
        # The published change_config.py writes every value as a float: 8.0 is a window of 8.
        return self.kind is float or value == int(value)


# A row each of a table.
str_key, float_key = partial(Key, str), partial(Key, float)
int_key, bool_key = partial(Key, int), partial(Key, bool)


class KeyTable(NamedTuple):
    """The keys of one mode's `config.json`.

    exit_keys: those that decide an exit; read at every call, so that an edit takes effect at once.
    ignored: published keys kept but without effect; the value is a feature's name for a warning.
    """

    keys: Mapping[str, Key]
    exit_keys: Mapping[str, Key]
    ignored: Mapping[str, str] = {}


def path_keys(model_name: str) -> dict[str, Key]:
    """Return the keys that name files, with a mode's defaults."""
    return {
        "model_name": str_key(model_name, "folder of a model's statistics under my_out_dir"),
        "my_out_dir": str_key("stat_out", "folder of per-layer statistics"),
        "exit_config_path": str_key("", "JSON file whose exit keys override these at evaluation"),
    }


# ALBERT's own keys that fix the shape of its weights; far more is a typo that exhausts a machine.
SIZES = {
    name: int_key(None, "a size", minimum=1, maximum=10**7, shapes=True)
    for name in (
        "vocab_size embedding_size hidden_size num_hidden_layers num_hidden_groups "
        "num_attention_heads intermediate_size inner_group_num max_position_embeddings "
        "type_vocab_size"
    ).split()
}


def checked(name: str, value: Any, keys: Mapping[str, Key], layers: int | None = None) -> Any:
    """Convert `value` to the type of key `name`; raises UserError saying what is allowed.

    layers: the model's num_hidden_layers, where it is known.
    """
    key = keys[name]
    if not key.is_valid(value):
        raise UserError(f"{name} = {value!r}: allowed is {key.allowed()}")
    if key.counts_layers and layers is not None and value > layers:
        raise UserError(f"{name} = {value}: allowed is 1 to num_hidden_layers = {layers}")
    return key.kind(value)


def plain_value(text: str) -> Any:
    """Parse a text on a command line: JSON, or else the text itself."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # NaN and Infinity are no JSON
        return value
    except (ValueError, RecursionError):
        # True/False as Python and shells write them; anything else is a name.
        return {"true": True, "false": False}.get(text.lower(), text)


def parse_value(name: str, text: str, keys: Mapping[str, Key], layers: int | None = None) -> Any:
    """Parse a command line's `text` for key `name`."""
    value = text if keys[name].kind is str else plain_value(text)
    return checked(name, value, keys, layers)


def nearest_names(name: str, names: list[str]) -> str:
    """Name the valid names closest to a misspelt one, for an error message."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(names)}"
