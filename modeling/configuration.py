"""Configurations of the suite's models.

The published keys stand at top level in `config.json`; `keys.py` says what each may hold.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from transformers import AlbertConfig, AlbertTokenizer, AutoConfig, AutoTokenizer
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .errors import UserError
from .exit_settings import Setting, resolve
from .exits.rules import RULES as ELBERT_RULES
from .families import DISTANCE_BUCKETS
from .files import check_hub_name
from .hf_layers.flops import layer_flops
from .keys import MODE_KEYS, SIZES, KeyTable, checked, float_key, grid_values, str_key
from .ponder.rules import RULES as PONDER_RULES
from .rules import AnyRule, EachLabel, ExitRule, Recalibrated

MAKES_ONE = "; of a BERT, share_layers.py makes one layer"
HEAD_WIDTH = 128  # published width of a ponder model's heads between their two layers


# ALBERT's own keys that otherwise only fail when the model is built, or later.
ALBERT_KEYS = {
    **SIZES,
    "hidden_act": str_key("gelu_new", "activation", choices=tuple(ACT2FN)),
    "num_labels": replace(SIZES["vocab_size"], meaning="classes; 1 is regression"),
    "hidden_dropout_prob": float_key(0.0, "dropout", 0, 1),
    "attention_probs_dropout_prob": float_key(0.0, "dropout", 0, 1),
    "classifier_dropout_prob": float_key(0.0, "dropout", 0, 1),
    "layer_norm_eps": float_key(1e-12, "added to a variance", 0),
    "initializer_range": float_key(0.02, "spread of new weights", 0),
}


class AdaptiveConfig(AlbertConfig):
    """ALBERT's configuration with the keys of one mode at top level.

    A mode's class gives `model_type`, under which MODE_KEYS has its table. A key that a file lacks,
    or that is null there, gets its default, so that a plain ALBERT `config.json` works as well.
    Raises UserError for a key out of range, or an architecture that cannot be built.

    FLOPs count two for each multiplication with its addition in a matrix product; element-wise
    operations, below 1% at the published sizes, are left out. `length` counts a text's tokens.

    one_layer: why all layers must be shared, for an error; else "".
    """

    table: ClassVar[KeyTable]
    one_layer: ClassVar[str] = ""
    takes_several_labels: ClassVar[bool] = False
    extra_tokens = 0  # how many more [CLS] a text begins with here
    # Names of the numbers that an example brings beside its text: one each, uniform in [0, 1).
    own_inputs: ClassVar[tuple[str, ...]] = ()
    # HF's Trainer gathers logits alone: the other outputs differ in length between batches.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "exit_layer",
        "all_logits",
        "halt_probabilities",
        "updates",
        "ponder_cost",
        "hidden_states",
        "attentions",
    ]

    # HF's own looks for other names of a key, which ALBERT does not have, in Python: an exit check
    # reads keys after every layer.
    __getattribute__ = object.__getattribute__  # pyrefly: ignore[bad-override]  # it is C's

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init_subclass__(*args, **kwargs)
        if "model_type" in vars(cls):
            cls.table = MODE_KEYS[cls.model_type]
            AutoConfig.register(cls.model_type, cls, exist_ok=True)
            AutoTokenizer.register(cls, AlbertTokenizer, exist_ok=True)

    @classmethod
    def from_pretrained(  # pyrefly: ignore[bad-override]  # HF's named options arrive in kwargs
        cls, name: str | Path, **kwargs: Any
    ) -> "AdaptiveConfig":
        """Load as HF does, with the exit keys that `exit_settings.resolve` finds in the folder.

        Raises UserError for a hub name that the hub does not give.
        """
        check_hub_name(name, kwargs)
        kwargs.setdefault("name_or_path", str(name))
        return super().from_pretrained(name, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "AdaptiveConfig":
        """Make the configuration as HF does, with the folder's exit keys.

        HF's Auto classes call this without `from_pretrained`, with the folder as `name_or_path`.
        """
        values = dict(config_dict)
        folder = kwargs.get("name_or_path", "")
        # Path("") is the folder where Python runs, which is not meant.
        has_folder = bool(folder) and Path(folder).is_dir()
        if values.get("model_type") == cls.model_type and has_folder:
            values |= resolve(folder, cls.table, config=config_dict).values
            values.pop("exit_config_path", None)  # where it is saved, that file may not be
        if "problem_type" in kwargs:  # HF would set it afterwards, where nothing checks it
            values["problem_type"] = kwargs["problem_type"]
        return super().from_dict(values, **kwargs)

    def __post_init__(self, **kwargs: Any) -> None:
        mode_values = {name: kwargs.pop(name) for name in self.table.keys if name in kwargs}
        for name in kwargs.keys() - self.table.ignored.keys():
            if near := get_close_matches(name, self.table.keys, n=1, cutoff=0.83):
                raise UserError(f"unknown key {name} = {kwargs[name]!r}; did you mean {near[0]}?")
        if kwargs.get("exit_layers"):  # not among the mode's keys
            raise UserError(
                f"exit_layers = {kwargs['exit_layers']}: a model of --model_type "
                f"{self.model_type} may stop at every layer; remove the key"
            )
        super().__post_init__(**kwargs)
        check_architecture(self)
        layers = self.num_hidden_layers
        for name, key in self.table.keys.items():
            value = mode_values.get(name)
            if value is not None:
                value = checked(name, value, self.table.keys, layers)
            setattr(self, name, key.initial(layers) if value is None else value)
        if self.is_multi_label and not self.takes_several_labels:
            raise UserError(
                f"problem_type = {self.problem_type!r}: an example of --model_type "
                f"{self.model_type} has one class or one value; --model_type elbert takes several"
            )
        if self.problem_type == "regression" and self.label_count > 1:
            raise UserError(
                f"problem_type = 'regression' with num_labels = {self.label_count}: a model has "
                "one value here; give num_labels = 1, or problem_type = None for classes"
            )
        # HF's pipelines ask problem_type whether one output is a value or a probability's logit.
        if (self.num_labels == 1) != (self.problem_type == "regression"):
            self.problem_type = "regression" if self.num_labels == 1 else None
        self.finalize()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a pickled state, in which keys that are younger than the pickle are missing."""
        layers = state["num_hidden_layers"]
        defaults = {name: key.initial(layers) for name, key in self.table.keys.items()}
        vars(self).update(defaults | state)

    @property
    def label_count(self) -> int:
        """`num_labels`: how many outputs an answer has; HF's may be None while it loads."""
        return len(self.id2label or {0: ""})

    @property
    def is_multi_label(self) -> bool:
        """Tell whether an example may have several labels, each there or not."""
        return self.problem_type == "multi_label_classification"

    def with_extra_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return what the model reads of a text's token ids, or of its segment ids."""
        return [*tokens[: self.extra_tokens], *tokens]

    def check_length(self, max_seq_length: int) -> None:
        """Raise UserError for a --max_seq_length that is too short for a text, or too long."""
        shortest, longest = 3 + self.extra_tokens, self.max_position_embeddings
        if not shortest <= max_seq_length <= longest:
            raise UserError(
                f"--max_seq_length {max_seq_length}: allowed is {shortest} to "
                f"max_position_embeddings = {longest}"
            )

    def finalize(self) -> None:
        """Set what follows from keys and architecture."""

    def exit_keys(self) -> dict[str, Any]:
        """Return the keys that decide an exit, as they stand now."""
        return {name: getattr(self, name) for name in self.table.exit_keys}

    def keys_read(self, **setting: Any) -> Setting:
        """Return the exit keys that have an effect; `setting` replaces configured ones."""
        return self.exit_keys() | setting

    def idle_keys(self, names: Iterable[str]) -> list[str]:
        """List which of these exit keys have no effect under the exit rule in force."""
        # Recalibrated answers are what every rule reads.
        have_effect = {*self.keys_read(), "exit_calibration"}
        return sorted(set(names) & self.table.exit_keys.keys() - have_effect)

    def classifier_flops(self) -> int:
        """Count those of one answer for one example: pooler and classifier."""
        raise NotImplementedError

    def halting_flops(self) -> int:
        """Count those of one halting probability; 0 in a mode without any."""
        return 0

    def embedding_flops(self, length: int) -> int:
        """Count those of the mapping from embedding to hidden size."""
        return 2 * self.embedding_size * self.hidden_size * length

    def layer_pass_flops(self, length: int) -> int:
        """Count those of one layer pass."""
        hidden, inner = self.hidden_size, self.intermediate_size
        projections = 4 * hidden * hidden * length  # query, key, value, output
        attention = 2 * hidden * length * length  # scores, and the weighted sum of values
        feed_forward = 2 * hidden * inner * length
        return 2 * (projections + attention + feed_forward) * self.inner_group_num

    def early_exit_flops(self, length: int, exit_layer: int) -> int:
        """Count those of a text that exits after `exit_layer` passes, with a check after each."""
        check = self.classifier_flops() + self.halting_flops()
        return self.embedding_flops(length) + exit_layer * (self.layer_pass_flops(length) + check)

    def full_depth_flops(self, length: int) -> int:
        """Count those of a text through all layers, classified once: of a model without exits."""
        layers = self.num_hidden_layers * self.layer_pass_flops(length)
        return self.embedding_flops(length) + layers + self.classifier_flops()


class EarlyExitConfig(AdaptiveConfig):
    """The configuration of a mode whose examples exit by a rule.

    rule_key: the exit key that names the rule.
    """

    rule_key: ClassVar[str]

    @property
    def exits(self) -> list[int]:
        """The layers that have an exit, counted from 1: all, unless `exit_layers` names some."""
        return list(range(1, self.num_hidden_layers + 1))

    def newest_exits(self) -> list[int]:
        """Return the newest exit at each layer, both counted from 1; before the first, the first.

        What is said of an exit at a layer that has none is that exit's.
        """
        exits = self.exits
        layers = range(1, self.num_hidden_layers + 1)
        return [max((x for x in exits if x <= layer), default=exits[0]) for layer in layers]

    def early_exit_flops(self, length: int, exit_layer: int) -> int:
        passes = self.embedding_flops(length) + exit_layer * self.layer_pass_flops(length)
        checks = sum(layer <= exit_layer for layer in self.exits)
        return passes + checks * (self.classifier_flops() + self.halting_flops())

    def check_deeper_exit(self) -> None:
        """Raise UserError for self-distillation where no exit has a deeper one."""
        if self.self_distillation and len(self.exits) == 1:
            raise UserError(
                f"self_distillation = {self.self_distillation}: allowed is 0 for a model with a "
                "single exit, which has no deeper exit to learn from"
            )

    def exit_rules(self) -> Mapping[str, type[ExitRule]]:
        """Return the exit rules by name, for what the model predicts: classes, or a value."""
        raise NotImplementedError

    def exit_rule(self, **setting: Any) -> AnyRule:
        """Make the configured exit rule.

            rule = config.exit_rule(exit_thres=0.3)

        Args:
            setting: exit keys that replace the configured ones. A number may be a tensor, of shape
                () or, for many settings at once, (settings, 1).

        Raises:
            UserError: a configured key is out of range.
        """
        configured = {
            name: checked(name, value, self.table.exit_keys, self.num_hidden_layers)
            for name, value in self.exit_keys().items()
        }
        values = configured | setting
        rule_class = self.exit_rules()[values[self.rule_key]]
        rule = rule_class(**{name: values[name] for name in rule_class.reads if name in values})
        wrapped = EachLabel(rule) if self.is_multi_label else rule
        calibration = values.get("exit_calibration")
        if calibration:
            wrapped = Recalibrated(wrapped, calibration, self.label_count)
        if len(self.exits) < self.num_hidden_layers:
            wrapped.exits = tuple(self.exits)
        return wrapped

    def keys_read(self, **setting: Any) -> Setting:
        """Return the rule's name, first, and the exit keys that it reads."""
        values = self.exit_keys() | setting
        rule_name = values[self.rule_key]
        reads = self.exit_rules()[rule_name].reads
        keys = {name: value for name, value in values.items() if name in reads}
        return {self.rule_key: rule_name, **keys}

    def grid(self, name: str, text: str | None = None) -> tuple[float, ...]:
        """Return the values of an exit key that `text` lists, by default those that a sweep tries.

        Raises UserError for a text that lists none, or a value that the key cannot have.
        """
        keys = self.table.exit_keys
        if text is None:
            text = keys[name].grid_of(self.num_labels == 1) if name in keys else ""
        return grid_values(name, text, keys, self.num_hidden_layers)


class ElbertConfig(EarlyExitConfig):
    """ALBERT's configuration with ELBERT's keys, under their published names.

        config = elbert.ElbertConfig(num_hidden_layers=6, thres_name="entropy", exit_thres=0.3)

    Every key of HF's `AlbertConfig` is one of its arguments, and so is every key in
    `modeling.keys.ELBERT_KEYS`; docs/configuration.md lists these with their defaults. In a
    model of fewer than 8 layers, the default confidence window is its number of layers. `num_exit`
    and `idx_lst` follow from the architecture.
    """

    model_type = "elbert"
    rule_key = "thres_name"
    takes_several_labels = True
    # The config.json of an encoder whose layers are transformers' own; None for the suite's layers.
    encoder_config: dict[str, Any] | None = None

    def finalize(self) -> None:
        if self.encoder_config and self.correction_rank:
            raise UserError(
                f"correction_rank = {self.correction_rank}: allowed is 0, since the layers are "
                f"transformers' own, of model_type {self.encoder_config.get('model_type')!r}"
            )
        if self.use_out_pooler or self.fc_size1 is None:
            self.fc_size1 = self.hidden_size
        self.fc_size2 = self.fc_size2 or self.hidden_size
        self.check_exit_layers()
        self.num_exit = len(self.exits) - 1
        self.check_deeper_exit()
        shares_layers = self.correction_rank or self.num_hidden_groups < self.num_hidden_layers
        if self.layer_lr_decay != 1 and shares_layers:
            raise UserError(
                f"layer_lr_decay = {self.layer_lr_decay}: allowed is 1, since layers share their "
                "weights"
            )
        self.idx_lst = [layer - 1 for layer in self.exits[:-1]]
        if self.keep_head:
            most_classifiers = default_count = self.num_exit
            place = "exits below the kept head"
        else:
            most_classifiers = len(self.exits)
            default_count = min(self.num_hidden_groups, most_classifiers)
            place = "layers with an exit"
        self.num_exit_layers = self.num_exit_layers or default_count
        if not 1 <= self.num_exit_layers <= most_classifiers:
            kept = "keep_head = true: " if self.keep_head else ""
            raise UserError(
                f"{kept}num_exit_layers = {self.num_exit_layers}: allowed is 1 to "
                f"{most_classifiers}, the {place}"
            )

    def check_exit_layers(self) -> None:
        """Raise UserError for `exit_layers` that are no rising numbers up to the last layer."""
        layers = self.num_hidden_layers
        places = self.exit_layers
        are_numbers = all(type(place) is int and 1 <= place <= layers for place in places)
        if places and not (are_numbers and places == sorted({*places}) and places[-1] == layers):
            raise UserError(
                f"exit_layers = {places}: allowed are rising numbers from 1 to "
                f"num_hidden_layers = {layers}, which is the last of them, since all examples "
                "exit there at the latest"
            )

    @property
    def exits(self) -> list[int]:
        return self.exit_layers or super().exits

    def exit_rules(self) -> Mapping[str, type[ExitRule]]:
        return {name: rules[self.num_labels == 1] for name, rules in ELBERT_RULES.items()}

    def embedding_flops(self, length: int) -> int:
        return 0 if self.encoder_config else super().embedding_flops(length)

    def layer_pass_flops(self, length: int) -> int:
        if self.encoder_config:
            return layer_flops(json.dumps(self.encoder_config), length)
        return super().layer_pass_flops(length)

    def classifier_flops(self) -> int:
        widths = [self.hidden_size, self.fc_size1, self.label_count]
        if self.use_fc2:
            widths.insert(2, self.fc_size2)
        return 2 * sum(inner * outer for inner, outer in pairwise(widths))


class AlbertActConfig(AdaptiveConfig):
    """ALBERT's configuration with the keys of Adaptive Depth.

        config = elbert.AlbertActConfig(num_hidden_layers=12, tau=1e-3)

    Every key of HF's `AlbertConfig` is one of its arguments, and so is every key in
    `modeling.keys.ACT_KEYS`; docs/configuration.md lists these with their defaults.
    `num_hidden_layers` is the largest number of updates of a token. All updates apply the same
    layer, so `num_hidden_groups` is 1.
    """

    model_type = "albert_act"
    one_layer = "an ACT model updates every token by one layer"

    def classifier_flops(self) -> int:
        return 2 * self.hidden_size * (self.hidden_size + self.label_count)

    def halting_flops(self) -> int:
        """FLOPs of one token."""
        return 2 * self.hidden_size

    def adaptive_flops(self, length: int, updates: int) -> int:
        """Count those of a text whose tokens were updated so often in sum.

        A pass costs what its running tokens cost; length · num_hidden_layers is full depth.
        """
        per_update = self.layer_pass_flops(length) // length + self.halting_flops()
        return self.embedding_flops(length) + updates * per_update + self.classifier_flops()


class PonderAlbertConfig(EarlyExitConfig):
    """ALBERT's configuration with the keys of PonderNet and PALBERT.

        config = elbert.PonderAlbertConfig(num_hidden_layers=12, target_halt_probability=0.2)

    Every key of HF's `AlbertConfig` is one of its arguments, and so is every key in
    `modeling.keys.PONDER_KEYS`; docs/configuration.md lists these with their defaults. All
    layers share their weights, so `num_hidden_groups` is 1.
    """

    model_type = "ponder_albert"
    rule_key = "exit_criteria"
    one_layer = "a ponder model applies one layer at every depth"
    own_inputs = ("draws",)

    def finalize(self) -> None:
        self.check_deeper_exit()

    @property
    def extra_tokens(self) -> int:  # pyrefly: ignore[bad-override]  # it follows from a key here
        """1 for the second [CLS], else 0."""
        return int(self.pooler_input == "two_cls")

    def exit_rules(self) -> Mapping[str, type[ExitRule]]:
        return PONDER_RULES

    def classifier_flops(self) -> int:
        width = HEAD_WIDTH if self.pooler_input == "two_cls" else self.hidden_size
        return 2 * width * (self.hidden_size + self.label_count)

    def halting_flops(self) -> int:
        if self.lambda_layer_arch == "mlp":
            return 2 * HEAD_WIDTH * (self.hidden_size + 1)
        width = self.hidden_size * (2 if self.lambda_layer_arch == "linear_cat" else 1)
        depth = self.num_lambda_layers if self.num_lambda_layers > 1 else 0
        return 2 * width * (depth * width + 1)


def config_class_of(model_type: Any) -> type[AdaptiveConfig] | None:
    """Return the configuration of the mode with this model_type; None for foreign ones."""
    if str(model_type) not in CONFIG_MAPPING:
        return None
    config_class = CONFIG_MAPPING[str(model_type)]
    return config_class if issubclass(config_class, AdaptiveConfig) else None


def check_architecture(config: AlbertConfig) -> None:
    """Raise UserError for what no ALBERT can have."""
    for name in ALBERT_KEYS:
        checked(name, getattr(config, name), ALBERT_KEYS)
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    heads = config.num_attention_heads
    vocab_size = config.vocab_size
    padding = config.pad_token_id
    labels = config.id2label or {}
    are_numbered = {*labels} == {*range(len(labels))}
    are_texts = all(isinstance(label, str) for label in labels.values())
    loads_code = "/" in str(config._attn_implementation)  # HF would fetch the kernel of that name
    has_corrections = getattr(config, "correction_rank", 0) > 0
    buckets = getattr(config, "relative_attention_num_buckets", None)  # an MPNet's
    one_layer = getattr(config, "one_layer", "")  # why the mode needs one shared layer, if it does
    requirements = (
        ("id2label", are_numbered and are_texts, "a text for every number from 0 up"),
        ("_attn_implementation", not loads_code, "one of transformers' own"),
        (
            "hidden_size",
            config.hidden_size % heads == 0,
            f"a multiple of num_attention_heads = {heads}",
        ),
        ("num_hidden_groups", groups <= layers, f"1 to num_hidden_layers = {layers}"),
        ("num_hidden_groups", not one_layer or groups == 1, f"1, since {one_layer}{MAKES_ONE}"),
        (
            "correction_rank",
            groups > 1 or not has_corrections,
            "0, with num_hidden_groups = 1",
        ),
        (
            "inner_group_num",
            not one_layer or config.inner_group_num == 1,
            f"1, since {one_layer}",
        ),
        (
            "relative_attention_num_buckets",
            buckets in (None, DISTANCE_BUCKETS),
            f"{DISTANCE_BUCKETS}: transformers' MPNet computes with no other number",
        ),
        (
            "pad_token_id",
            padding is None or 0 <= padding < vocab_size,
            f"0 to vocab_size − 1 = {vocab_size - 1}",
        ),
    )
    for name, holds, allowed in requirements:
        if not holds:
            raise UserError(f"{name} = {getattr(config, name)}: allowed is {allowed}")
