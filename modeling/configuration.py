"""Configurations of the suite's models.

The keys are the published ones, at top level in `config.json`; `ELBERT_KEYS` is the one table that
says what each may hold. `change_config.py`, the exit-config reader and the README follow it.
"""

import difflib
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import AlbertConfig
from transformers.activations import ACT2FN

from modeling.errors import UserError

if TYPE_CHECKING:
    from modeling.elbert.rules import ExitRule
    from modeling.ponder.criteria import HaltingRule

RULES = ("entropy", "logits", "max_prob", "bias_1", "bias_2", "bias_3", "patience")
LARGEST = sys.float_info.max
# ALBERT-xxlarge has 0.2 billion; twenty times that is a typo, or a file made to exhaust the memory.
MOST_PARAMETERS = 4_000_000_000
POOLER_INPUTS = ("cls", "cls-mean", "cls-max", "mean", "max", "mean-max")


class Key(NamedTuple):
    """What a configuration key may hold."""

    kind: type
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf
    open: bool = False  # are minimum and maximum themselves excluded?

    def allowed(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {int: "a whole number", float: "a number", bool: "true or false"}.get(self.kind)
        if noun is None:
            return {str: "a text", list: "a list"}[self.kind]
        if self.minimum == -math.inf:
            return noun
        if self.maximum == math.inf:
            return f"{noun} of at least {self.minimum:g}"
        bounds = f"from {self.minimum:g} to {self.maximum:g}"
        return f"{noun} {bounds}, both excluded" if self.open else f"{noun} {bounds}"

    def admits(self, number: float) -> bool:
        """Is `number` within the bounds? NaN is not."""
        if self.open:
            return self.minimum < number < self.maximum
        return self.minimum <= number <= self.maximum


# What decides an exit: read at every call, so an edit takes effect at once.
EXIT_KEYS = {
    "thres_name": Key(str, "bias_1", "exit rule", choices=RULES),
    "exit_thres": Key(float, 0.1, "threshold of the rule (normalised entropy)", (), 0.0, 1.0),
    "cnt_thres": Key(int, 8, "window size, in layers; at most num_hidden_layers", (), 1),
    "margin": Key(float, 0.0, "a class leads when p_top1 − p_top2 > 2·margin", (), 0.0, 0.5),
    "range_tmp": Key(float, 0.2, "bias_3: how far p may move within the window", (), 0.0),
    "window_score": Key(
        str, "lead", "what the window follows; class0 as published", choices=("lead", "class0")
    ),
}

ELBERT_KEYS = {
    **EXIT_KEYS,
    "model_name": Key(str, "albert", "names the folder of statistics under my_out_dir"),
    "my_out_dir": Key(str, "stat_out", "folder of per-layer statistics"),
    "exit_config_path": Key(str, "", "JSON file whose exit keys override these at evaluation"),
    "weight_name": Key(
        str, "dyn", "weights of the exits' losses: learned or equal", choices=("dyn", "equal")
    ),
    "w_init": Key(float, 4.0, "initial W of the learned weights σ(W)"),
    "w_lr": Key(float, 0.01, "learning rate of W", (), 0.0),
    "pooler_input": Key(str, "cls", "what an exit sees of the layer", choices=POOLER_INPUTS),
    "use_out_pooler": Key(bool, True, "exits share ALBERT's pooler (false: one pooler an exit)"),
    "num_exit_layers": Key(int, 1, "number of exit classifiers; 1 is shared by all layers", (), 1),
    "use_fc2": Key(bool, False, "two-layer exit classifier"),
    "fc_size1": Key(int, None, "width of the exit's pooled state (hidden_size)", (), 1, 65536),
    "fc_size2": Key(int, None, "width between classifier1 and classifier2", (), 1, 65536),
}

# ALBERT's own keys that only fail when the model is built, or later.
ALBERT_KEYS = {
    "hidden_act": Key(str, "gelu_new", "activation", choices=tuple(ACT2FN)),
    "num_labels": Key(int, 2, "classes; 1 is regression", (), 1, 2**24),
    "hidden_dropout_prob": Key(float, 0.0, "dropout of the layers", (), 0.0, 1.0),
    "attention_probs_dropout_prob": Key(float, 0.0, "dropout of the attention", (), 0.0, 1.0),
    "classifier_dropout_prob": Key(float, 0.1, "dropout of the classifiers", (), 0.0, 1.0),
    "layer_norm_eps": Key(float, 1e-12, "added to a layer norm's variance", (), 0.0),
    "initializer_range": Key(float, 0.02, "spread of new weights", (), 0.0),
}

# Adaptive Depth: when a token's halting weights add up, and what an update costs in the loss.
ACT_KEYS = {
    "act_epsilon": Key(
        float, 0.01, "a token halts at 1 − act_epsilon", minimum=0, maximum=1, open=True
    ),
    "tau": Key(float, 5e-4, "weight τ of the ponder cost in the loss", minimum=0),
}

# What decides a ponder model's exit: read at every call, so an edit takes effect at once.
PONDER_EXIT_KEYS = {
    "exit_criteria": Key(
        str,
        "sample",
        "who halts: a draw (PonderNet), the halting CDF (PALBERT), or nobody (mix of all layers)",
        choices=("sample", "threshold", "expectation"),
    ),
    "exit_thres": Key(float, 0.5, "threshold: exit when the halting CDF exceeds it", (), 0.0, 1.0),
}

HEAD_WIDTH = 128  # published width of a ponder model's heads between their two layers

PONDER_KEYS = {
    **PONDER_EXIT_KEYS,
    "target_halt_probability": Key(
        float, 0.2, "λ_p of the prior: 1/λ_p layers are expected", (), 1e-6, 1.0
    ),
    "kl_penalty_factor": Key(float, 5e-3, "weight of the KL to the prior in the loss", (), 0.0),
    "prior_type": Key(
        str, "geometric", "shape of the prior over layers", choices=("geometric", "normal")
    ),
    "halt_normalization": Key(
        str,
        "renormalise",
        "where the last layer's leftover goes: to all layers, or to the last (its λ is 1)",
        choices=("renormalise", "last_layer"),
    ),
    "lambda_layer_arch": Key(
        str,
        "mlp",
        "halting head: PonderALBERT's, or PALBERT's on this (and the previous) layer's state",
        choices=("mlp", "linear", "linear_cat", "linear_diff"),
    ),
    "num_lambda_layers": Key(int, 3, "depth of PALBERT's halting head", (), 1, 64),
    "lambda_lr": Key(float, None, "learning rate of the halting head (the model's own)", (), 0.0),
    "model_name": Key(str, "ponder_albert", "names the folder of statistics under my_out_dir"),
    "my_out_dir": ELBERT_KEYS["my_out_dir"],
    "exit_config_path": ELBERT_KEYS["exit_config_path"],
}

# What decides when a token halts: read at every call.
ACT_EXIT_KEYS = {"act_epsilon": ACT_KEYS["act_epsilon"]}


class KeyTable(NamedTuple):
    """The keys of one type of model, and those of them that an edit changes at once."""

    keys: dict[str, Key]
    exit_keys: dict[str, Key]


KEY_TABLES = {
    "elbert": KeyTable(ELBERT_KEYS, EXIT_KEYS),
    "ponder_albert": KeyTable(PONDER_KEYS, PONDER_EXIT_KEYS),
    "albert_act": KeyTable(ACT_KEYS, ACT_EXIT_KEYS),
}


def key_table(model_type: Any) -> KeyTable:
    """The keys of a config.json by its model_type; any other is read as an ELBERT's."""
    return KEY_TABLES.get(str(model_type), KEY_TABLES["elbert"])


# Published keys that no published run turns on; they are carried along so that files stay whole.
INERT_KEYS = (
    "exit_layer_name shared use_dml num_teachers cls_hidden_size cls_num_attention_heads "
    "kd_enable kd_T kd_range kd_T_s kd_T_l kd_T_idx_s num_exit idx_lst use_label_smooth "
    "e_label_smoothing thres_lst exit_weight_lst exit_w output_attentions"
).split()


def checked(name: str, value: Any, keys: dict[str, Key] = ELBERT_KEYS) -> Any:
    """`value` in the type of key `name`; raises UserError saying what is allowed."""
    key = keys[name]
    problem = UserError(f"{name} = {value!r}: allowed is {key.allowed()}")
    if key.kind is bool:
        if not isinstance(value, bool):
            raise problem
        return value
    if key.kind in (int, float):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Comparing also refuses whole numbers that no float can hold.
        if not number or not key.admits(value) or not -LARGEST <= value <= LARGEST:
            raise problem
        # The published change_config.py writes every value as a float: 8.0 is a window of 8.
        if key.kind is int and value != int(value):
            raise problem
        return key.kind(value)
    if not isinstance(value, key.kind) or (key.choices and value not in key.choices):
        raise problem
    return value


def nearest_names(name: str, names: list[str]) -> str:
    """The valid names closest to a misspelt one, for an error message."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known keys: {', '.join(names)}"


class ElbertConfig(AlbertConfig):
    """ALBERT's configuration with the published ELBERT keys at top level (`ELBERT_KEYS`).

    A plain ALBERT `config.json` gets the published defaults; the default window, 8 layers, shrinks
    to the depth of a model with fewer. `num_exit`, `idx_lst` and, where the architecture fixes
    them, `fc_size1/2` follow from the architecture whatever the file says.

    Raises:
        UserError: a key out of range, or an architecture that cannot be built.
    """

    model_type = "elbert"

    def __post_init__(self, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name) for name in ELBERT_KEYS if name in kwargs}
        super().__post_init__(**kwargs)
        check_architecture(self)
        defaults = {name: key.default for name, key in ELBERT_KEYS.items()}
        defaults["cnt_thres"] = min(8, self.num_hidden_layers)
        defaults["fc_size1"] = defaults["fc_size2"] = self.hidden_size
        for name, default in defaults.items():
            value = given.get(name)
            setattr(self, name, default if value is None else checked(name, value))
        if self.use_out_pooler:
            self.fc_size1 = self.hidden_size
        self.num_exit = self.num_hidden_layers - 1
        self.idx_lst = list(range(self.num_exit))
        if self.num_exit_layers > self.num_hidden_layers:
            raise UserError(
                f"num_exit_layers = {self.num_exit_layers}: allowed is 1 to num_hidden_layers"
                f" = {self.num_hidden_layers}"
            )
        self.exit_rule()

    def exit_keys(self) -> dict[str, Any]:
        """The settings that decide an exit, as they stand now."""
        return {name: getattr(self, name) for name in EXIT_KEYS}

    def exit_rule(self) -> "ExitRule":
        """The same as a rule; raises UserError for a value out of range."""
        from modeling.elbert.rules import ExitRule  # which needs this module's keys

        return ExitRule.from_config(self)


class AlbertActConfig(AlbertConfig):
    """ALBERT's configuration with the keys of Adaptive Depth (`ACT_KEYS`).

    `num_hidden_layers` is the most updates that a token can have. All of them apply one layer.

    Raises:
        UserError: a key out of range, or an architecture that cannot be built.
    """

    model_type = "albert_act"

    def __post_init__(self, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name) for name in ACT_KEYS if name in kwargs}
        super().__post_init__(**kwargs)
        check_architecture(self)
        for name, key in ACT_KEYS.items():
            setattr(self, name, checked(name, given.get(name, key.default), ACT_KEYS))
        for name in ("num_hidden_groups", "inner_group_num"):
            if getattr(self, name) != 1:
                raise UserError(
                    f"{name} = {getattr(self, name)}: allowed is 1, since a token that halts "
                    "early has met every layer only if there is one layer"
                )

    def exit_keys(self) -> dict[str, Any]:
        """The settings that decide when a token halts, as they stand now."""
        return {name: getattr(self, name) for name in ACT_EXIT_KEYS}


class PonderAlbertConfig(AlbertConfig):
    """ALBERT's configuration with the halting keys at top level (`PONDER_KEYS`).

    Raises:
        UserError: a key out of range, or an architecture whose layers are not all the same one.
    """

    model_type = "ponder_albert"

    def __post_init__(self, **kwargs: Any) -> None:
        given = {name: kwargs.pop(name) for name in PONDER_KEYS if name in kwargs}
        super().__post_init__(**kwargs)
        check_architecture(self)
        for name in ("num_hidden_groups", "inner_group_num"):
            if getattr(self, name) != 1:
                raise UserError(
                    f"{name} = {getattr(self, name)}: a ponder model applies one layer at every "
                    "depth, allowed is 1"
                )
        for name, key in PONDER_KEYS.items():
            value = given.get(name)
            setattr(self, name, key.default if value is None else checked(name, value, PONDER_KEYS))

    def exit_keys(self) -> dict[str, Any]:
        """The settings that decide an exit, as they stand now."""
        return {name: getattr(self, name) for name in PONDER_EXIT_KEYS}

    def exit_rule(self) -> "HaltingRule":
        """The same as a rule; raises UserError for a value out of range."""
        from modeling.ponder.criteria import HaltingRule  # which needs this module's keys

        return HaltingRule.from_config(self)


def parameter_count(config: AlbertConfig) -> int:
    """Weights of embeddings and layers; biases, norms and heads, which are small, left out."""
    width, inner = config.hidden_size, config.intermediate_size
    layers = config.num_hidden_groups * config.inner_group_num
    entries = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    embeddings = config.embedding_size * (entries + width)
    return embeddings + layers * (4 * width**2 + 2 * width * inner) + width**2


def check_architecture(config: AlbertConfig) -> None:
    """Raise UserError for sizes that no ALBERT can have."""
    sizes = (
        "vocab_size embedding_size hidden_size num_hidden_layers num_hidden_groups "
        "num_attention_heads intermediate_size inner_group_num max_position_embeddings "
        "type_vocab_size"
    ).split()
    for name in sizes:
        value = getattr(config, name)
        # 2**24 is far above any published model and far below what exhausts a machine by a typo.
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**24:
            raise UserError(f"{name} = {value!r}: allowed is a whole number from 1 to {2**24}")
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"hidden_size = {config.hidden_size} is not a multiple of num_attention_heads"
            f" = {config.num_attention_heads}"
        )
    if config.num_hidden_groups > config.num_hidden_layers:
        raise UserError(
            f"num_hidden_groups = {config.num_hidden_groups}: allowed is 1 to num_hidden_layers"
            f" = {config.num_hidden_layers}"
        )
    layers, parameters = config.num_hidden_groups * config.inner_group_num, parameter_count(config)
    if layers > 1024 or parameters > MOST_PARAMETERS:
        raise UserError(
            f"these sizes (vocab_size {config.vocab_size}, embedding_size {config.embedding_size}, "
            f"hidden_size {config.hidden_size}, intermediate_size {config.intermediate_size}, "
            f"{layers} untied layers) make {parameters / 1e9:.3g} billion parameters; allowed are "
            f"{MOST_PARAMETERS / 1e9:g} billion in 1024 untied layers. Is it the model's own file?"
        )
    for name in ALBERT_KEYS:
        checked(name, getattr(config, name), ALBERT_KEYS)
    if config.pad_token_id is not None and not 0 <= config.pad_token_id < config.vocab_size:
        raise UserError(
            f"pad_token_id = {config.pad_token_id}: allowed is 0 to vocab_size − 1"
            f" = {config.vocab_size - 1}"
        )
