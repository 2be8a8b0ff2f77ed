"""What a configuration key may hold: a table for each type of model, without torch.

The keys are the published ones, at top level in `config.json`. `configuration.py`, the exit-config
reader, `change_config.py` and the README follow these tables.
"""

import difflib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from modeling.errors import UserError

POOLER_INPUTS = ("cls", "cls-mean", "cls-max", "mean", "max", "mean-max")
LARGEST = sys.float_info.max
NOUNS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a configuration key may hold."""

    kind: type
    default: Any
    meaning: str
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    minimum: float = -math.inf
    maximum: float = math.inf
    open: bool = False  # are minimum and maximum themselves excluded?
    counts_layers: bool = False  # is it at most num_hidden_layers?
    grid: str = ""  # what a sweep tries, e.g. "0:1:0.02"; "1:N" is 1 to num_hidden_layers

    def options(self) -> tuple[str, ...]:
        """The choices; those of a table that needs torch are looked up now."""
        return self.choices() if callable(self.choices) else self.choices

    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.options())
        noun = NOUNS[self.kind]
        if self.minimum == -math.inf:
            return noun
        if self.maximum == math.inf:
            return f"{noun} of at least {self.minimum:g}"
        bounds = f"from {self.minimum:g} to {self.maximum:g}"
        return f"{noun} {bounds}, both excluded" if self.open else f"{noun} {bounds}"

    def admits(self, value: Any) -> bool:
        """May the key hold `value`? NaN is no number, True and False are none either."""
        if self.kind not in (int, float):
            return isinstance(value, self.kind) and (not self.choices or value in self.options())
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        # Comparing also refuses whole numbers that no float can hold.
        if not self.minimum <= value <= self.maximum or not -LARGEST <= value <= LARGEST:
            return False
        if self.open and value in (self.minimum, self.maximum):
            return False
        # The published change_config.py writes every value as a float: 8.0 is a window of 8.
        return self.kind is float or value == int(value)


class KeyTable(NamedTuple):
    """The keys of one type of model, and those of them that an edit changes at once."""

    keys: dict[str, Key]
    exit_keys: dict[str, Key]


def rule_names() -> tuple[str, ...]:
    from modeling.elbert.rules import RULES  # torch: only for whoever names a rule

    return tuple(RULES)


# What decides an exit: read at every call, so an edit takes effect at once.
EXIT_KEYS = {
    "thres_name": Key(kind=str, default="bias_1", meaning="exit rule", choices=rule_names),
    "exit_thres": Key(
        kind=float,
        default=0.1,
        meaning="threshold of the rule (normalised entropy)",
        grid="0:1:0.02",
        minimum=0,
        maximum=1,
    ),
    "cnt_thres": Key(
        kind=int,
        default=8,
        meaning="window size, in layers; at most num_hidden_layers",
        minimum=1,
        counts_layers=True,
        grid="1:N",
    ),
    "margin": Key(
        kind=float,
        grid="0,0.05,0.1",
        default=0.0,
        meaning="a class leads when p_top1 − p_top2 > 2·margin",
        minimum=0,
        maximum=0.5,
    ),
    "range_tmp": Key(
        kind=float,
        default=0.2,
        meaning="bias_3: how far p may move within the window",
        minimum=0,
        grid="0.05,0.1,0.2",
    ),
    "window_score": Key(
        kind=str,
        default="lead",
        meaning="what the window follows; class0 as published",
        choices=("lead", "class0"),
    ),
}

# Where every mode writes and reads its files.
OUT_DIR = Key(kind=str, default="stat_out", meaning="folder of per-layer statistics")
EXIT_CONFIG_PATH = Key(
    kind=str, default="", meaning="JSON file whose exit keys override these at evaluation"
)

ELBERT_KEYS = {
    **EXIT_KEYS,
    "model_name": Key(
        kind=str, default="albert", meaning="names the folder of statistics under my_out_dir"
    ),
    "my_out_dir": OUT_DIR,
    "exit_config_path": EXIT_CONFIG_PATH,
    "weight_name": Key(
        kind=str,
        default="dyn",
        meaning="weights of the exits' losses: learned or equal",
        choices=("dyn", "equal"),
    ),
    "w_init": Key(kind=float, default=4.0, meaning="initial W of the learned weights σ(W)"),
    "w_lr": Key(kind=float, default=0.01, meaning="learning rate of W", minimum=0),
    "pooler_input": Key(
        kind=str, default="cls", meaning="what an exit sees of the layer", choices=POOLER_INPUTS
    ),
    "use_out_pooler": Key(
        kind=bool, default=True, meaning="exits share ALBERT's pooler (false: one pooler an exit)"
    ),
    "num_exit_layers": Key(
        kind=int,
        default=1,
        meaning="number of exit classifiers; 1 is shared by all layers",
        minimum=1,
        counts_layers=True,
    ),
    "use_fc2": Key(kind=bool, default=False, meaning="two-layer exit classifier"),
    "fc_size1": Key(
        kind=int,
        default=None,
        meaning="width of the exit's pooled state (hidden_size)",
        minimum=1,
        maximum=65536,
    ),
    "fc_size2": Key(
        kind=int,
        default=None,
        meaning="width between classifier1 and classifier2",
        minimum=1,
        maximum=65536,
    ),
}

# What decides a ponder model's exit: read at every call, so an edit takes effect at once.
PONDER_EXIT_KEYS = {
    "exit_criteria": Key(
        kind=str,
        default="sample",
        meaning=(
            "who halts: a draw (PonderNet), the halting CDF (PALBERT), or nobody "
            "(mix of all layers)"
        ),
        choices=("sample", "threshold", "expectation"),
    ),
    "exit_thres": Key(
        kind=float,
        default=0.5,
        meaning="threshold: exit when the halting CDF exceeds it",
        grid="0:1:0.02",
        minimum=0,
        maximum=1,
    ),
}

PONDER_KEYS = {
    **PONDER_EXIT_KEYS,
    "target_halt_probability": Key(
        kind=float,
        default=0.2,
        meaning="λ_p of the prior: 1/λ_p layers are expected",
        minimum=1e-6,
        maximum=1,
    ),
    "kl_penalty_factor": Key(
        kind=float, default=5e-3, meaning="weight of the KL to the prior in the loss", minimum=0
    ),
    "prior_type": Key(
        kind=str,
        default="geometric",
        meaning="shape of the prior over layers",
        choices=("geometric", "normal"),
    ),
    "halt_normalization": Key(
        kind=str,
        default="renormalise",
        meaning="where the last layer's leftover goes: to all layers, or to the last (its λ is 1)",
        choices=("renormalise", "last_layer"),
    ),
    "lambda_layer_arch": Key(
        kind=str,
        default="mlp",
        meaning=(
            "halting head: PonderALBERT's, or PALBERT's on this (and the previous) layer's state"
        ),
        choices=("mlp", "linear", "linear_cat", "linear_diff"),
    ),
    "num_lambda_layers": Key(
        kind=int, default=3, meaning="depth of PALBERT's halting head", minimum=1, maximum=64
    ),
    "lambda_lr": Key(
        kind=float,
        default=None,
        meaning="learning rate of the halting head (the model's own)",
        minimum=0,
    ),
    "model_name": Key(
        kind=str,
        default="ponder_albert",
        meaning="names the folder of statistics under my_out_dir",
    ),
    "my_out_dir": OUT_DIR,
    "exit_config_path": EXIT_CONFIG_PATH,
}

# Adaptive Depth. What decides when a token halts: read at every call.
ACT_EXIT_KEYS = {
    "act_epsilon": Key(
        kind=float,
        default=0.01,
        meaning="a token halts at 1 − act_epsilon",
        minimum=0,
        maximum=1,
        open=True,
    )
}
ACT_KEYS = {
    **ACT_EXIT_KEYS,
    "tau": Key(
        kind=float, default=5e-4, meaning="weight τ of the ponder cost in the loss", minimum=0
    ),
}

# Published keys that no published run turns on; they are carried along so that files stay whole.
INERT_KEYS = (
    "exit_layer_name shared use_dml num_teachers cls_hidden_size cls_num_attention_heads "
    "kd_enable kd_T kd_range kd_T_s kd_T_l kd_T_idx_s num_exit idx_lst use_label_smooth "
    "e_label_smoothing thres_lst exit_weight_lst exit_w output_attentions"
).split()

KEY_TABLES = {
    "elbert": KeyTable(ELBERT_KEYS, EXIT_KEYS),
    "ponder_albert": KeyTable(PONDER_KEYS, PONDER_EXIT_KEYS),
    "albert_act": KeyTable(ACT_KEYS, ACT_EXIT_KEYS),
}


def register_keys(model_type: str, table: KeyTable) -> None:
    """Make the keys of another type of model known to all that read a config.json."""
    KEY_TABLES[model_type] = table


def key_table(model_type: Any) -> KeyTable:
    """The keys of a config.json by its model_type; any other is read as an ELBERT's."""
    return KEY_TABLES.get(str(model_type), KEY_TABLES["elbert"])


def checked(
    name: str, value: Any, keys: dict[str, Key] = ELBERT_KEYS, layers: int | None = None
) -> Any:
    """`value` in the type of key `name`; raises UserError saying what is allowed.

    layers: the model's num_hidden_layers, where it is known.
    """
    key = keys[name]
    if not key.admits(value):
        raise UserError(f"{name} = {value!r}: allowed is {key.allowed()}")
    if key.counts_layers and layers is not None and value > layers:
        raise UserError(f"{name} = {value}: allowed is 1 to num_hidden_layers = {layers}")
    return key.kind(value)


def plain_value(text: str) -> Any:
    """What a text on a command line stands for: JSON, or else the text itself."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # NaN and Infinity are no JSON
    except (ValueError, RecursionError):
        # True/False as Python and shells write them; anything else is a name.
        return {"true": True, "false": False}.get(text.lower(), text)
    return value


def typed(name: str, text: str, keys: dict[str, Key], layers: int | None = None) -> Any:
    """`text` from a command line as `checked` wants it for key `name`."""
    value = text if keys[name].kind is str else plain_value(text)
    return checked(name, value, keys, layers)


def nearest_names(name: str, names: list[str]) -> str:
    """The valid names closest to a misspelt one, for an error message."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known keys: {', '.join(names)}"
