"""run_glue.py's settings for who stops, and for the evaluation; all of them together. No torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from modeling.errors import UserError
from modeling.exit_settings import KeyValues
from modeling.keys import MODE_KEYS, PONDER_KEYS, RECIPES, keys_of, nearest_names, parse_value
from modeling.loading.families import FAMILIES
from training.settings import (
    DataSettings,
    ModelSettings,
    RunSettings,
    SearchSettings,
    TrainingSettings,
)
from utils.flags import COUNT, FREE, option


def documented_name(text: str) -> str:
    """Return the documented name of a --model_type.

    Published scripts name the encoder that ELBERT's exits are put on: `albert`, `bert`, …
    """
    name = text.lower()
    return "elbert" if name in ("albert", *FAMILIES) else name


def ponder_option(name: str) -> str | None:
    """Declare the flag of a ponder model's key."""
    return option(None, f"{PONDER_KEYS[name].meaning} (ponder_albert); same as --set {name}=…")


@dataclass(frozen=True, kw_only=True)
class ModeSettings:
    """The mode and its keys. --model_type albert is ELBERT here, by a published name; in
    run_pretraining.py it is the dense ALBERT, which always runs all of its layers."""

    model_type: str = option(
        ...,
        "who stops: an example by a rule (elbert; published scripts name the encoder, so albert, "
        f"{', '.join(FAMILIES)} are elbert, too) or by a learned halting probability "
        "(ponder_albert), or each token by its own (albert_act)",
        choices=tuple(MODE_KEYS),
        type=documented_name,
    )
    recipe: str = option(
        "published",
        "starting keys of --do_train: the papers' defaults, or those that measure best; "
        "--set overrides them",
        choices=tuple(RECIPES),
    )
    set: list[str] = option(
        [],
        "configuration keys to override, e.g. pooler_input=mean; after training, exit keys only",
        metavar="KEY=VALUE",
    )
    exit_criteria: str | None = ponder_option("exit_criteria")
    exit_thres: str | None = option(None, "threshold of the exit rule; same as --set exit_thres=…")
    target_halt_probability: str | None = ponder_option("target_halt_probability")
    kl_penalty_factor: str | None = ponder_option("kl_penalty_factor")
    lambda_layer_arch: str | None = ponder_option("lambda_layer_arch")
    num_lambda_layers: str | None = ponder_option("num_lambda_layers")
    lambda_lr: str | None = ponder_option("lambda_lr")

    @cached_property
    def keys(self) -> KeyValues:
        """Type the keys of --set and of the flags that are keys; UserError for an unknown one."""
        known = keys_of(self.model_type).keys
        own = RECIPES[self.recipe].get(self.model_type, {})
        found = KeyValues.given(own, f"--recipe {self.recipe}")
        given = [("--set", pair) for pair in self.set]
        own = {name: getattr(self, name, None) for name in PONDER_KEYS}
        given += [(f"--{name}", f"{name}={text}") for name, text in own.items() if text is not None]
        for flag, pair in given:
            key, equals, text = pair.partition("=")
            if not equals or key not in known:
                near = nearest_names(key, list(known))
                raise UserError(f"{flag} {pair}: no key of --model_type {self.model_type}; {near}")
            try:
                found = found.under(KeyValues.given({key: parse_value(key, text, known)}, flag))
            except UserError as error:
                raise UserError(f"{flag}: {error}") from error
        return found

    def check(self) -> None:
        if self.recipe != "published" and self.model_type not in RECIPES[self.recipe]:
            modes = ", ".join(RECIPES[self.recipe])
            raise UserError(f"--recipe {self.recipe} is of --model_type {modes}")
        self.keys  # noqa: B018 (raises)

    def check_trained(self) -> None:
        """Raise UserError for keys that only a training can set."""
        exits = keys_of(self.model_type).exit_keys
        if fixed := ", ".join(self.keys.values.keys() - exits.keys()):
            raise UserError(
                f"{fixed}: decided in training; without --do_train only {', '.join(exits)} can be "
                "set"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Evaluation and prediction with a trained model."""

    do_eval: bool = option(False, "evaluate on the dev set with early exit", FREE)
    do_predict: bool = option(False, "predict the test set; write GLUE submission files", FREE)
    per_gpu_eval_batch_size: int = option(8, "examples per batch", COUNT)
    out_mode: str = option(
        "all",
        "one: overwrite eval_results.txt; all: append a row to it",
        FREE,
        choices=("one", "all"),
    )
    skip_full_depth: bool = option(
        False, "skip the second pass over all layers: no metrics per layer, no exits.png", FREE
    )
    statistics_dir: str | None = option(
        None, "folder for layers_all.csv and layers_exit.csv; overrides my_out_dir", FREE
    )
    onnx: str | None = option(
        None,
        "ONNX file to evaluate, exported from the model in --output_dir",
        FREE,
        metavar="FILE",
    )
    dtype: str = option(
        "fp32",
        "number type of evaluation and prediction; auto: bf16 where the processor has it",
        FREE,
        choices=("fp32", "bf16", "fp16", "auto"),
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
