"""What a configuration key may hold, and the keys of every mode. Loads no torch.

The keys are the published ones, at top level in `config.json`. modeling/configuration.py,
exit_settings.py, change_config.py and docs/configuration.md follow these tables.
"""

import difflib
import json
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from typing import Any, NamedTuple

from .errors import UserError

logger = logging.getLogger(__name__)

LARGEST_FLOAT32 = 3.4e38  # models compute in float32
ROWS = list[list[float]]
NOUNS = {  # what an error calls a value of a key's type
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    ROWS: "rows of numbers",
}


@dataclass(frozen=True)
class Key:
    """What a configuration key may hold, and what a sweep tries of it.

    Attributes:
        kind: the type of its values; ROWS for a matrix.
        default: the value where a file has none.
        meaning: a noun phrase for help and docs/configuration.md.
        minimum, maximum: the range of a number, both ends included.
        choices: all that a string may be, where it is not free.
        counts_layers: whether it is at most num_hidden_layers.
        shapes: whether it fixes the shape of the weights, and so cannot change after training.
        grid: what a sweep tries, for example "0:1:0.02"; "1:N" is 1 to num_hidden_layers.
        regression_grid: the grid for predicted values, which have the labels' scale; "" for `grid`.
        eager_when_low: whether low values let examples exit early; otherwise high ones do.
    """

    kind: type
    default: Any
    meaning: str
    minimum: float = -LARGEST_FLOAT32
    maximum: float = LARGEST_FLOAT32
    _: KW_ONLY
    choices: Collection[str] = ()
    counts_layers: bool = False
    shapes: bool = False
    grid: str = ""
    regression_grid: str = ""
    eager_when_low: bool = False

    def grid_of(self, regression: bool) -> str:
        """Return what a sweep tries, for predicted values or for classes."""
        if regression and self.regression_grid:
            return self.regression_grid
        return self.grid

    def initial(self, layers: int | None = None) -> Any:
        """Return the default for a model of so many layers; None where they are not known."""
        if self.counts_layers and layers:
            return min(self.default, layers)
        return self.default

    def allowed(self) -> str:
        """Say what the key may hold: "a number from 0 to 1"."""
        noun = NOUNS.get(self.kind, self.kind.__name__)
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind not in (int, float) or self.minimum == -LARGEST_FLOAT32:
            return noun
        if self.maximum == LARGEST_FLOAT32:
            return f"{noun} of at least {self.minimum:g}"
        return f"{noun} from {self.minimum:g} to {self.maximum:g}"

    def is_valid(self, value: Any) -> bool:
        """Tell whether the key may hold `value`; NaN, True and False do not count as numbers."""
        if self.kind == ROWS:
            return isinstance(value, list) and all(is_row(row) for row in value)
        if self.kind not in (int, float):
            return isinstance(value, self.kind) and (not self.choices or value in self.choices)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        if not self.minimum <= value <= self.maximum:
            return False
        # The published change_config.py writes every value as a float: 8.0 is a window of 8.
        return self.kind is float or value == int(value)


def is_row(value: Any) -> bool:
    """Tell whether `value` is a list of finite numbers."""
    number = float_key(0.0, "an element of a matrix")
    return isinstance(value, list) and all(number.is_valid(element) for element in value)


# Each makes one row of a table below.
str_key = partial(Key, str)
float_key = partial(Key, float)
int_key = partial(Key, int)
bool_key = partial(Key, bool)
shape_key = partial(int_key, shapes=True)


class KeyTable(NamedTuple):
    """The keys of one mode's `config.json`.

    Attributes:
        keys: all keys of the mode's own, beside ALBERT's.
        exit_keys: those of `keys` that decide an exit; they are read at every call, so that an edit
            takes effect at once.
        ignored: published keys that are kept without effect, each with the name of its feature for
            a warning, or "".
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


# ALBERT's own keys that fix the shape of its weights.
SIZE_NAMES = (
    "vocab_size embedding_size hidden_size num_hidden_layers num_hidden_groups num_attention_heads "
    "intermediate_size inner_group_num max_position_embeddings type_vocab_size"
)
# A far larger value is a typo that would exhaust the machine's memory.
SIZES = {name: shape_key(None, "a size", 1, 10**7) for name in SIZE_NAMES.split()}

# ELBERT. Published keys, and this suite's own: window_score, learnt_weights, label_smoothing,
# teacher_share, teacher_temperature, self_distillation and its two further keys, exit_layers,
# correction_rank, and the rules patience and learnt.

# The names in RULES of modeling/exits/rules.py, which loads torch.
RULE_NAMES = (
    "entropy",
    "logits",
    "max_prob",
    "bias_1",
    "bias_2",
    "bias_3",
    "patience",
    "learnt",
    "optimal_stopping",
)
# Prices of computation that optimal_stopping is fitted for: 0, then in equal ratios to 3.
PRICES = (0.0, *(round(0.02 * 150 ** (step / 31), 4) for step in range(32)))
POOLER_INPUTS = ("cls", "cls-mean", "cls-max", "mean", "max", "mean-max")

# Keys that every exit rule reads, in every mode that has rules (docs/extending.md adds one).
SHARED_EXIT_KEYS: dict[str, Key] = {}

EXIT_KEYS = {
    "thres_name": str_key("bias_1", "exit rule", choices=RULE_NAMES),
    "exit_thres": float_key(0.1, "threshold of the exit rule", 0, 1, grid="0:1:0.02"),
    "cnt_thres": int_key(
        8, "confidence window, in layers", 1, counts_layers=True, grid="1:N", eager_when_low=True
    ),
    "margin": float_key(
        0.0, "a class leads by more than 2·margin", 0, 0.5, grid="0,0.05,0.1", eager_when_low=True
    ),
    "range_tmp": float_key(
        0.2,
        "largest range of a class's probability, or of a predicted value, in the window",
        0,
        grid="0.05,0.1,0.2",
        regression_grid="0.05:1:0.05,1.2:5:0.2",
    ),
    "window_score": str_key(
        "lead", "the window follows the leading class, or class 0", choices=("lead", "class0")
    ),
    "learnt_weights": Key(ROWS, [], "weights of the rule `learnt`, a row for each layer"),
    "exit_price": float_key(
        0.1,
        "price of a pass through all layers, in shares of right answers, for optimal_stopping",
        0,
        1000,
        grid=",".join(map(str, PRICES)),
    ),
    "stopping_thresholds": Key(
        ROWS, [], "thresholds of optimal_stopping: a price, then one for each layer but the last"
    ),
    "exit_calibration": Key(ROWS, [], "recalibration of the exits' logits, a row for each layer"),
    **SHARED_EXIT_KEYS,
}
# Exit keys that a sweep fits to one model's answers: they mean nothing of other weights.
FITTED_KEYS = ("learnt_weights", "stopping_thresholds", "exit_calibration")
SELF_DISTILLATION_KEYS = {
    "self_distillation": float_key(
        0.0, "share of a deeper exit's answer in the loss of every exit but the last", 0, 1
    ),
    "self_distillation_from": str_key(
        "last", "exit that teaches each exit before the last", choices=("last", "next")
    ),
    "self_distillation_temperature": float_key(
        1.0, "temperature that softens the answers of both exits", 0.01
    ),
}
ELBERT_KEYS = {
    **EXIT_KEYS,
    **path_keys("elbert"),
    "weight_name": str_key("dyn", "exits' loss weights: learned, or 1", choices=("dyn", "equal")),
    "w_init": float_key(4.0, "initial W of the learned weights σ(W)"),
    "w_lr": float_key(0.01, "constant learning rate of W, for weight_name dyn", 0),
    "exit_lr_factor": float_key(
        1.0,
        "learning rate of the exits' poolers and classifiers, as a multiple of --learning_rate",
        0,
    ),
    "layer_lr_decay": float_key(
        1.0,
        "learning rate of each layer, and of embeddings below the first, as a multiple of the next "
        "deeper layer's; 1 where layers share their weights",
        0.01,
        1,
    ),
    "label_smoothing": float_key(
        0.0, "share of each label spread over all classes, in the losses of all exits", 0, 1
    ),
    "teacher_share": float_key(
        0.5, "share of the teacher's soft labels in the loss of an example with a label", 0, 1
    ),
    "teacher_temperature": float_key(
        2.0, "temperature that softens the teacher's and the exits' logits", 0.01
    ),
    **SELF_DISTILLATION_KEYS,
    "pooler_input": str_key("cls", "what an exit reads", choices=POOLER_INPUTS, shapes=True),
    "use_out_pooler": bool_key(
        True, "exits share ALBERT's pooler instead of having their own", shapes=True
    ),
    "exit_layers": Key(
        list,
        [],
        "layers that have an exit, such as [2, 4, 6], the last one among them; []: all",
        shapes=True,
    ),
    "num_exit_layers": shape_key(
        1,
        "number of exit classifiers, without a kept head; 1: all layers share one; 0: one for each "
        "layer with an exit and weights of its own, or for each exit below a kept head",
        0,
        counts_layers=True,
    ),
    "keep_head": bool_key(
        False,
        "the last exit is the head of the fine-tuned classifier that the weights come from, with "
        "its own pooler, which reads [CLS]",
        shapes=True,
    ),
    "head_activation": str_key(
        "tanh",
        "activation of the kept head's pooler; read from the classifier's family",
        choices=("tanh", "gelu", "relu"),
        shapes=True,
    ),
    "correction_rank": shape_key(
        0,
        "rank of each layer's correction to matrices that all layers share; 0: none are shared",
        0,
        1024,
    ),
    "use_fc2": bool_key(False, "two-layer exit classifier", shapes=True),
    "fc_size1": shape_key(None, "width of the exit's pooled state", 1, 65536),
    "fc_size2": shape_key(None, "width between classifier1 and classifier2", 1, 65536),
}
# Keys of ELBERT's published code that no published run turns on. Those of INERT_KEYS that name a
# feature are warned of; the others are plumbing, or follow from the architecture.
NO_EFFECT = (
    "exit_layer_name shared num_teachers cls_hidden_size cls_num_attention_heads kd_T kd_range "
    "kd_T_s kd_T_l kd_T_idx_s num_exit idx_lst e_label_smoothing thres_lst exit_weight_lst "
    "exit_w output_attentions"
)
INERT_KEYS = {
    **dict.fromkeys(NO_EFFECT.split(), ""),
    "kd_enable": "distillation",
    "use_dml": "mutual learning",
    "use_label_smooth": "label smoothing",
}
ELBERT = KeyTable(ELBERT_KEYS, EXIT_KEYS, INERT_KEYS)

# PonderNet and PALBERT.

CRITERIA = ("sample", "threshold", "expectation")
HALTING_HEADS = ("mlp", "linear", "linear_cat", "linear_diff")
# The grid is fine at 0: early layers of a trained model may halt with a hundredth of a percent.
CDF_GRID = "0:0.002:0.0001,0.002:0.02:0.001,0.02:1:0.02"

PONDER_EXIT_KEYS = {
    "exit_criteria": str_key("sample", "halting criterion", choices=CRITERIA),
    "exit_thres": float_key(
        0.5, "threshold on the halting CDF", 0, 1, grid=CDF_GRID, eager_when_low=True
    ),
    **SHARED_EXIT_KEYS,
}
PONDER_KEYS = {
    **PONDER_EXIT_KEYS,
    "target_halt_probability": float_key(
        0.2, "λ_p of the prior, which expects 1/λ_p layers if N is large", 1e-6, 1
    ),
    "kl_penalty_factor": float_key(5e-3, "weight of the KL divergence in the loss", 0),
    "kl_direction": str_key(
        "to_prior",
        "KL divergence in the loss: KL(p ‖ prior), or KL(prior ‖ p), as in PALBERT's code",
        choices=("to_prior", "from_prior"),
    ),
    "prior_type": str_key("geometric", "shape of the prior", choices=("geometric", "normal")),
    "halt_normalization": str_key(
        "renormalise",
        "which layers get the probability left after the last one: all, or the last",
        choices=("renormalise", "last_layer"),
    ),
    "lambda_layer_arch": str_key("mlp", "halting head", choices=HALTING_HEADS, shapes=True),
    "num_lambda_layers": shape_key(3, "depth of PALBERT's halting head", 1, 64),
    "pooler_input": str_key(
        "two_cls",
        "what the two heads read: a [CLS] each, or, as in PALBERT, the same pooled state",
        choices=("two_cls", *POOLER_INPUTS),
        shapes=True,
    ),
    "lambda_lr": float_key(None, "separate learning rate for the halting head", 0),
    **SELF_DISTILLATION_KEYS,
    **path_keys("ponder_albert"),
}
PONDER = KeyTable(PONDER_KEYS, PONDER_EXIT_KEYS)

# Adaptive Depth.

ACT_EXIT_KEYS = {"act_epsilon": float_key(0.01, "a token halts at 1 − act_epsilon", 1e-6, 0.999)}
ACT_KEYS = {
    **ACT_EXIT_KEYS,
    "tau": float_key(5e-4, "weight τ of the ponder cost in the loss", 0),
    "act_update": str_key(
        "published",
        "what an update reads: the new state mixed with the old, or the new state alone (Graves)",
        choices=("published", "graves"),
        shapes=True,
    ),
    "halting_bias": float_key(
        0.0, "bias of a new halting head: −1.6 gives a halting probability of 1/6", -30, 30
    ),
    "pooler_input": str_key("cls", "what the pooler reads", choices=POOLER_INPUTS, shapes=True),
}
ACT = KeyTable(ACT_KEYS, ACT_EXIT_KEYS)

# The keys that --recipe sets, by its name and mode; docs/results.md has the measurements.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "published": {},
    "recommended": {
        "elbert": {
            "weight_name": "equal",
            "exit_lr_factor": 4.0,
            "use_out_pooler": False,
            "num_exit_layers": 0,
            "pooler_input": "mean",
            "thres_name": "entropy",
        }
    },
}
# The same exits below the head of a classifier that is already fine-tuned.
RECIPES["add_exits"] = {"elbert": RECIPES["recommended"]["elbert"] | {"keep_head": True}}

MODE_KEYS = {"elbert": ELBERT, "ponder_albert": PONDER, "albert_act": ACT}


def mode_name(model_type: object) -> str:
    """Name the mode of a --model_type or a config.json's model_type.

    ELBERT's published name is `albert`. A config.json without a type, or with the type of another
    encoder, is ELBERT's.
    """
    name = str(model_type)
    return name if name in MODE_KEYS else "elbert"


def keys_of(model_type: object) -> KeyTable:
    """Look up the keys of a config.json with this model_type."""
    return MODE_KEYS[mode_name(model_type)]


def training_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json's keys by which its model was made and trained, where not the default.

    Keys that decide an exit are not among them, nor those that name files.
    """
    table = keys_of(config.get("model_type"))
    others = {*table.exit_keys, *path_keys("")}
    layers = config.get("num_hidden_layers")
    changed = {}
    for name, key in table.keys.items():
        default = key.initial(layers)
        if key.shapes and default is None:  # the width of an exit
            default = config.get("hidden_size")
        value = config.get(name)
        if value is not None and value != default and name not in others:
            changed[name] = value
    return changed


def checked(name: str, value: Any, keys: Mapping[str, Key], layers: int | None = None) -> Any:
    """Convert `value` to the type of key `name`.

    Args:
        name: a key of `keys`.
        value: of a file or a flag, as JSON has it. A published default that counts more layers than
            the model has, as cnt_thres = 8, means all of them.
        keys: a table of this file.
        layers: the model's num_hidden_layers, where it is known.

    Raises:
        UserError: the key cannot have the value; says what is allowed.
    """
    key = keys[name]
    if not key.is_valid(value):
        raise UserError(f"{name} = {value!r}: allowed is {key.allowed()}")
    if key.counts_layers and layers is not None and value > layers:
        if value == key.default:
            warn_of_few_layers(name, key.default, layers)
            return layers
        raise UserError(f"{name} = {value}: allowed is 1 to num_hidden_layers = {layers}")
    return key.kind(value)


@cache
def warn_of_few_layers(name: str, default: int, layers: int) -> None:
    """Say once that a published default counts more layers than a model has."""
    logger.warning(
        "%s = %d: the model has %d layers, so it means all of them", name, default, layers
    )


def plain_value(text: str) -> Any:
    """Parse a text of a command line: JSON, or else the text itself."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # raises for NaN and Infinity, which are not JSON
        return value
    except (ValueError, RecursionError):
        # True and False as Python and shells write them; anything else is a name.
        return {"true": True, "false": False}.get(text.lower(), text)


def parse_value(name: str, text: str, keys: Mapping[str, Key], layers: int | None = None) -> Any:
    """Parse a command line's `text` for key `name`; raises UserError as `checked` does."""
    value = text if keys[name].kind is str else plain_value(text)
    return checked(name, value, keys, layers)


def grid_values(name: str, text: str, keys: Mapping[str, Key], layers: int) -> tuple[float, ...]:
    """List the values of key `name` that `text` names, in its order.

    "0.1,0.3" is a list, "0:1:0.02" a range with both ends, "1:N" goes to the number of layers.
    Raises UserError for values that the key cannot have, and for a key that is not a number.
    """
    number_keys = [name for name, key in keys.items() if key.kind in (int, float)]
    if name not in number_keys:
        raise UserError(f"grid {name}={text}: {nearest_names(name, number_keys)}")
    values: list[float] = []
    try:
        for piece in text.split(","):
            values.extend(expand_range(piece, layers))
        return tuple(checked(name, value, keys, layers) for value in values)
    except UserError as error:
        raise UserError(f"grid {name}={text}: {error}") from error


def expand_range(piece: str, layers: int) -> list[float]:
    """List the numbers of "0.3", "1:N" or "0:1:0.02"; raises UserError for anything else."""
    try:
        numbers = [float(layers if part == "N" else part) for part in piece.split(":")]
        if len(numbers) == 1:
            return numbers
        if len(numbers) == 2:
            numbers.append(1.0)
        start, stop, step = numbers
        # Rounding must not lose the last value of a range such as 0:1:0.02.
        count = math.floor((stop - start) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise UserError("expected a number, FROM:TO, or FROM:TO:STEP") from error
    if count < 1:
        raise UserError("an empty range")
    if count > 100_000:
        raise UserError("too large a range")
    return [round(start + i * step, 10) for i in range(count)]


def nearest_names(name: str, names: list[str]) -> str:
    """Name the valid names closest to a misspelt one, for an error message."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(names)}"
