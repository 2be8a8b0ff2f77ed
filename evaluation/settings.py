"""run_glue.py's settings for who stops, and for the evaluation; and all of its settings together.

Imports no torch, so that --help and a wrong flag answer at once.
"""

from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

from evaluation.modes import REGISTRY, keys_of
from modeling.errors import UserError
from modeling.keys import Key, nearest_names, parse_value
from training.fine_tuning_settings import (
    DataSettings,
    ModelSettings,
    SearchSettings,
    TrainingSettings,
)
from training.settings import PLACE, RESUMING, Allowed, RunSettings, setting


class KeyFlag(NamedTuple):
    """A flag that sets a key of the configuration."""

    name: str  # --set, or that of the key
    key: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class WhoStops:
    """Who stops, and when. --model_type albert is ELBERT here, whose examples stop early; in
    run_pretraining.py it is the dense ALBERT, which always runs all of its layers."""

    _argument_group_name = "mode"

    model_type: str = setting(
        ...,
        "who stops: an example by a rule (albert, which here is ELBERT, not the dense ALBERT) or "
        "by a learned halting probability (ponder_albert), or each token by its own (albert_act)",
        choices=tuple(REGISTRY),
        type=str.lower,
    )
    set: list[str] = setting(
        [],
        "override keys of the configuration, e.g. pooler_input=mean; after training only those "
        "that decide an exit",
        metavar="KEY=VALUE",
    )

    def key_flags(self, trained: bool = False) -> list[KeyFlag]:
        """The configuration's keys of --set and of every flag that is a key, typed.

        trained: may only keys be set that decide an exit?
        """
        flags = {name: getattr(self, name) for name in KEYS_WITH_FLAGS}
        pairs = [("--set", pair) for pair in self.set]
        pairs += [(f"--{key}", f"{key}={text}") for key, text in flags.items() if text is not None]
        return [self.key_flag(*pair, trained) for pair in pairs]

    def key_flag(self, flag: str, pair: str, trained: bool) -> KeyFlag:
        """`KEY=VALUE` of a flag; raises UserError for an unknown key or a value not allowed."""
        known, exit_keys, _ = keys_of(self.model_type)
        key, equals, text = pair.partition("=")
        if not equals or key not in known:
            near = nearest_names(key, list(exit_keys if trained else known))
            raise UserError(f"{flag} {pair}: no key of --model_type {self.model_type}; {near}")
        try:
            return KeyFlag(flag, key, parse_value(key, text, known))
        except UserError as error:
            raise UserError(f"{flag}: {error}") from error


def keys_with_flags() -> dict[str, tuple[str, Key]]:
    """Keys that are flags, too, each with its mode, of modes that need not be imported for that."""
    tables = {mode: keys_of(mode).keys for mode, entry in REGISTRY.items() if entry.keys}
    return {
        name: (mode, key) for mode, keys in tables.items() for name, key in keys.items() if key.flag
    }


KEYS_WITH_FLAGS = keys_with_flags()
ModeSettings = make_dataclass(
    "ModeSettings",
    (
        (name, str | None, setting(None, f"of {mode}: {key.meaning}; as --set {name}=…"))
        for name, (mode, key) in KEYS_WITH_FLAGS.items()
    ),
    bases=(WhoStops,),
    namespace={"__doc__": WhoStops.__doc__},
    frozen=True,
    kw_only=True,
)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is evaluated and predicted with a trained model, and how."""

    _argument_group_name = "evaluation"

    do_eval: bool = setting(False, "evaluate on the dev set with early exit", PLACE)
    do_predict: bool = setting(
        False,
        "answer the test set; GLUE submission files",
        Allowed(resuming=True, searching=True, passed_on=False),
    )
    per_gpu_eval_batch_size: int = setting(
        8, "examples of a batch", Allowed(low=1, resuming=True, searching=True)
    )
    out_mode: str = setting(
        "all",
        "eval_results.txt: one overwrites it, all appends a row",
        RESUMING,
        choices=("one", "all"),
    )
    skip_full_depth: bool = setting(
        False,
        "pay only for what early exit runs: no pass over all layers, so no metric of every layer "
        "and no exits.png; albert_act makes none anyway",
        RESUMING,
    )
    eval_all_checkpoints: bool = setting(False, "also every checkpoint-STEP", RESUMING)
    submission_dir: str | None = setting(
        None,
        "also collect the files of --do_predict here; with those of all tasks, submission.zip",
        Allowed(searching=True, passed_on=False),
    )
    compile: str = setting(
        "auto",
        "compile the layer pass; auto: for evaluation, when the number of examples repays it",
        Allowed(searching=True),
        choices=("auto", "on", "off"),
    )
    onnx: str | None = setting(
        None,
        "evaluate this file, which export_onnx.py made of the model in --output_dir; the exit keys "
        "of the model's configuration are its inputs",
        Allowed(resuming=True, searching=True, passed_on=False),
        metavar="FILE",
    )
    dtype: str = setting(
        "fp32", "of evaluation and prediction", RESUMING, choices=("fp32", "bf16", "fp16")
    )


class GlueSettings(NamedTuple):
    """All settings of run_glue.py, in the order of --help."""

    mode: ModeSettings
    model: ModelSettings
    data: DataSettings
    run: RunSettings
    training: TrainingSettings
    evaluation: EvaluationSettings
    search: SearchSettings


GROUPS = tuple(GlueSettings.__annotations__.values())
