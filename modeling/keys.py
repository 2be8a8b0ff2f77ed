"""What a configuration key may hold: a table for each type of model, without torch.

The keys are the published ones, at top level in `config.json`. `configuration.py`, the exit-config
reader, `change_config.py` and docs/configuration.md follow these tables.
"""

import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from .errors import UserError

POOLER_INPUTS = ("cls", "cls-mean", "cls-max", "mean", "max", "mean-max")
LARGEST = 3.4028234663852886e38  # of float32: what a model computes with
NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class Key:
    """What a configuration key may hold."""

    kind: type
    default: Any
    meaning: str
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    open: bool = False  # are minimum and maximum themselves excluded?
    counts_layers: bool = False  # is it at most num_hidden_layers?
    shapes: bool = False  # does it fix the shape of the weights?
    grid: str = ""  # what a sweep tries, e.g. "0:1:0.02"; "1:N" is 1 to num_hidden_layers

    def options(self) -> tuple[str, ...]:
        """The choices; those of a table that needs torch are looked up now."""
        return self.choices() if callable(self.choices) else self.choices

    def initial(self, layers: int | None = None) -> Any:
        """The default, of a model of so many layers."""
        return min(self.default, layers) if self.counts_layers and layers else self.default

    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.options())
        noun = NOUNS[self.kind]
        if self.kind not in (int, float):
            return noun
        if self.minimum == -math.inf:
            return f"{noun} from -{LARGEST:.2g} to {LARGEST:.2g}"
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
        # Comparing also refuses whole numbers that no float32 can hold.
        inside = self.minimum <= value <= self.maximum and -LARGEST <= value <= LARGEST
        if not inside or (self.open and value in (self.minimum, self.maximum)):
            return False
        # The published change_config.py writes every value as a float: 8.0 is a window of 8.
        return self.kind is float or value == int(value)


# A row is Number(default, meaning, minimum, maximum); what else it says has a name.
Text, Number = partial(Key, str), partial(Key, float)
Whole, Flag = partial(Key, int), partial(Key, bool)


class KeyTable(NamedTuple):
    """The keys of one type of model, and those of them that an edit changes at once."""

    keys: dict[str, Key]
    exit_keys: dict[str, Key]


def rule_names() -> tuple[str, ...]:
    from .elbert.rules import RULES  # torch: only for whoever names a rule

    return tuple(RULES)


def criterion_names() -> tuple[str, ...]:
    from .ponder.criteria import CRITERIA

    return tuple(CRITERIA)


# What decides an exit: read at every call, so an edit takes effect at once.
EXIT_KEYS = {
    "thres_name": Text("bias_1", "exit rule", choices=rule_names),
    "exit_thres": Number(
        0.1,
        "threshold of the rule; entropy and bias_1 to 3: of normalised entropy",
        0,
        1,
        grid="0:1:0.02",
    ),
    "cnt_thres": Whole(
        8, "window size, in layers; at most num_hidden_layers", 1, counts_layers=True, grid="1:N"
    ),
    "margin": Number(
        0.0, "a class leads when p_top1 − p_top2 > 2·margin", 0, 0.5, grid="0,0.05,0.1"
    ),
    "range_tmp": Number(
        0.2, "bias_3: how far p may move within the window", 0, grid="0.05,0.1,0.2"
    ),
    "window_score": Text(
        "lead",
        "what the window follows; class0: as ELBERT's published code",
        choices=("lead", "class0"),
    ),
}


def places(model_name: str) -> dict[str, Key]:
    """Where a mode writes and reads its files."""
    return {
        "model_name": Text(model_name, "names the folder of statistics under my_out_dir"),
        "my_out_dir": Text("stat_out", "folder of per-layer statistics"),
        "exit_config_path": Text("", "JSON file whose exit keys override these at evaluation"),
    }


ELBERT_KEYS = {
    **EXIT_KEYS,
    **places("albert"),
    "weight_name": Text(
        "dyn", "weights of the exits' losses: learned or equal", choices=("dyn", "equal")
    ),
    "w_init": Number(4.0, "initial W of the learned weights σ(W)"),
    "w_lr": Number(0.01, "learning rate of W", 0),
    "pooler_input": Text(
        "cls", "what an exit sees of the layer", choices=POOLER_INPUTS, shapes=True
    ),
    "use_out_pooler": Flag(
        True, "exits share ALBERT's pooler (false: one pooler per exit)", shapes=True
    ),
    "num_exit_layers": Whole(
        1,
        "number of exit classifiers; 1 is shared by all layers",
        1,
        counts_layers=True,
        shapes=True,
    ),
    "use_fc2": Flag(False, "two-layer exit classifier", shapes=True),
    "fc_size1": Whole(
        None, "width of the exit's pooled state (hidden_size)", 1, 65536, shapes=True
    ),
    "fc_size2": Whole(None, "width between classifier1 and classifier2", 1, 65536, shapes=True),
}

# What decides a ponder model's exit: read at every call, so an edit takes effect at once.
PONDER_EXIT_KEYS = {
    "exit_criteria": Text(
        "sample",
        "who halts: a draw (PonderNet), the halting CDF (PALBERT), or nobody (mix of all layers)",
        choices=criterion_names,
    ),
    "exit_thres": Number(
        0.5, "threshold: exit when the halting CDF exceeds it", 0, 1, grid="0:1:0.02"
    ),
}

PONDER_KEYS = {
    **PONDER_EXIT_KEYS,
    "target_halt_probability": Number(0.2, "λ_p of the prior: 1/λ_p layers are expected", 1e-6, 1),
    "kl_penalty_factor": Number(5e-3, "weight of the KL to the prior in the loss", 0),
    "prior_type": Text(
        "geometric", "shape of the prior over layers", choices=("geometric", "normal")
    ),
    "halt_normalization": Text(
        "renormalise",
        "where the last layer's leftover goes: to all layers, or to the last (its λ is 1)",
        choices=("renormalise", "last_layer"),
    ),
    "lambda_layer_arch": Text(
        "mlp",
        "halting head: PonderALBERT's, or PALBERT's on this (and the previous) layer's state",
        choices=("mlp", "linear", "linear_cat", "linear_diff"),
        shapes=True,
    ),
    "num_lambda_layers": Whole(3, "depth of PALBERT's halting head", 1, 64, shapes=True),
    "lambda_lr": Number(None, "learning rate of the halting head (the model's own)", 0),
    **places("ponder_albert"),
}

# Adaptive Depth. What decides when a token halts: read at every call.
ACT_EXIT_KEYS = {"act_epsilon": Number(0.01, "a token halts at 1 − act_epsilon", 0, 1, open=True)}
ACT_KEYS = {**ACT_EXIT_KEYS, "tau": Number(5e-4, "weight τ of the ponder cost in the loss", 0)}

# Published keys that no published run turns on; they are carried along so that files stay whole.
INERT_KEYS = (
    "exit_layer_name shared use_dml num_teachers cls_hidden_size cls_num_attention_heads "
    "kd_enable kd_T kd_range kd_T_s kd_T_l kd_T_idx_s num_exit idx_lst use_label_smooth "
    "e_label_smoothing thres_lst exit_weight_lst exit_w output_attentions"
).split()

# Of these the switches: a training that they were to change goes on without them.
IDLE_SWITCHES = {
    "kd_enable": "distillation",
    "use_dml": "mutual learning",
    "use_label_smooth": "label smoothing",
}

# ALBERT's own keys that fix the shape of its weights.
SIZES = (
    "vocab_size embedding_size hidden_size num_hidden_layers num_hidden_groups "
    "num_attention_heads intermediate_size inner_group_num max_position_embeddings "
    "type_vocab_size"
).split()

# By model_type; a mode of one's own joins on definition of its configuration's class.
KEY_TABLES = {
    "elbert": KeyTable(ELBERT_KEYS, EXIT_KEYS),
    "ponder_albert": KeyTable(PONDER_KEYS, PONDER_EXIT_KEYS),
    "albert_act": KeyTable(ACT_KEYS, ACT_EXIT_KEYS),
}


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
        number = key.kind in (int, float) and isinstance(value, (int, float))
        unsaid = number and value > LARGEST and key.minimum > -math.inf
        also = f", and up to {LARGEST:.2g}" if unsaid else ""
        raise UserError(f"{name} = {value!r}: allowed is {key.allowed()}{also}")
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
