"""The settings that scripts share, and those of run_glue.py. Loads no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from elbert_base.errors import UserError
from elbert_base.exit_settings import KeyValues
from elbert_base.families import FAMILIES
from elbert_base.files import local_folder
from elbert_base.keys import MODE_KEYS, PONDER_KEYS, RECIPES, keys_of, nearest_names, parse_value
from runs.flags import AT_LEAST_0, AT_LEAST_1, COUNT, FREE, SEED, SHARE, Allowed, option

Group = TypeVar("Group", bound=Any)  # a dataclass of settings

SCHEDULES = "linear cosine cosine_with_restarts polynomial constant".split()
SCHEDULES += ["constant_with_warmup", "inverse_sqrt"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Output, resuming and devices of a run."""

    do_train: bool = option(False, "train; --resume_from_checkpoint continues a stopped run", FREE)
    output_dir: str = option(..., "folder of the trained model and the results", FREE)
    overwrite_output_dir: bool = option(False, "overwrite the contents of --output_dir", FREE)
    resume_from_checkpoint: str | None = option(
        None,
        "resume from PATH or the latest checkpoint; start anew if there is none",
        FREE,
        nargs="?",
        const="latest",
        metavar="PATH|latest",
    )
    save_total_limit: int | None = option(None, "keep the N newest checkpoints", COUNT)
    seed: int = option(42, "random seed", SEED)
    do_lower_case: bool = option(False, "lower-case the text, for uncased models")
    no_cuda: bool = option(False, "use the CPU only", FREE)
    bf16: bool = option(False, "bfloat16 mixed precision in training")
    max_grad_norm: float = option(1.0, "maximum gradient norm", Allowed(low=0))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps, batches and rates of --do_train."""

    per_gpu_train_batch_size: int = option(8, "examples per batch in each process", COUNT)
    gradient_accumulation_steps: int = option(1, "batches per optimiser step", AT_LEAST_1)
    optimizer: str = option("adamw", "optimiser: AdamW or LAMB", choices=("adamw", "lamb"))
    learning_rate: float = option(5e-5, "peak learning rate", AT_LEAST_0)
    max_steps: int = option(10_000, "optimiser steps", AT_LEAST_1)
    warmup_steps: int = option(0, "warm-up steps", AT_LEAST_0)
    weight_decay: float = option(0.01, "weight decay; not of biases and layer norms", AT_LEAST_0)
    adam_epsilon: float = option(1e-6, "ε of the optimiser", AT_LEAST_0)
    logging_steps: int = option(
        100,
        "steps between log lines; 0: none; TensorBoard gets the loss of every step of short runs",
        FREE,
    )
    save_steps: int = option(5000, "steps between checkpoints; 0: none", FREE)


class ScriptSettings(Protocol):
    """All settings of a script that trains: a tuple of groups, two of them known by name."""

    @property
    def run(self) -> RunSettings: ...
    @property
    def training(self) -> Schedule: ...
    def __iter__(self) -> Iterator[Any]: ...


# run_glue.py's, for what is trained, on what, how, and in which search.


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model that training starts from."""

    model_name_or_path: str = option(..., "folder or hub name of pre-trained weights", FREE)
    config_name: str = option("", "config.json or its folder; default: beside the weights", FREE)
    tokenizer_name: str = option("", "folder of the tokenizer; default: beside the weights", FREE)
    cache_dir: str = option("", "cache folder for models from the hub", FREE)
    from_scratch: bool = option(False, "start from random weights")
    teacher: str = option(
        "", "fine-tuned classifier whose answers the exits learn, too: folder or hub name", FREE
    )


@dataclass(frozen=True, kw_only=True)
class DevSettings:
    """The dev set of one of GLUE's tasks, or of the user's own."""

    task_name: str | None = option(None, "GLUE task, e.g. RTE")
    data_dir: str | None = option(None, "folder with the task's .tsv files", FREE)
    validation_file: str | None = option(None, "dev file, instead of --task_name", FREE)
    text_column_names: str | None = option(None, "text columns; default: sentence1[,sentence2]")
    label_column_name: str | None = option(
        None, "label column; default: label; A,B,C: several labels, a column of 0 and 1 each"
    )
    label_separator: str | None = option(None, "separator of several labels in one label cell")
    max_seq_length: int = option(128, "maximum tokens per text; longer texts are truncated")
    max_eval_samples: int | None = option(None, "use only the first N dev examples", COUNT)

    @property
    def folder(self) -> str:
        """Folder of the task's files."""
        return self.data_dir or "."


@dataclass(frozen=True, kw_only=True)
class DataSettings(DevSettings):
    """The task: one of GLUE's, or the user's own files: CSV, TSV or JSON lines."""

    train_file: str | None = option(None, "training table: sentence1[,sentence2],label", FREE)
    test_file: str | None = option(None, "test table, labels not needed", FREE)
    unlabelled_file: str | None = option(
        None, "further training examples without labels, which --teacher answers", FREE
    )
    max_train_samples: int | None = option(None, "use only the first N examples", AT_LEAST_1)
    overwrite_cache: bool = option(False, "no effect; kept for compatibility", FREE)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Schedule):
    """Settings of --do_train. METRIC@COST is the best METRIC that the configured rule reaches at a
    computation cost of at most COST, e.g. acc@0.5; METRIC alone is that of the last layer."""

    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    max_steps: int = option(-1, "number of optimiser steps; if > 0, overrides --num_train_epochs")
    num_train_epochs: float = option(3.0, "training epochs", AT_LEAST_0)
    lr_scheduler_type: str | None = option(None, "schedule; default: linear", choices=SCHEDULES)
    warmup_ratio: float | None = option(None, "warm-up as a share of all steps", SHARE)
    save_format: str = option(
        "safetensors",
        "pytorch: also write pytorch_model.bin and spiece.model, for ELBERT's published code",
        FREE,
        choices=("safetensors", "pytorch"),
    )
    evaluate_during_training: bool = option(False, "compute dev metrics at each logging step", FREE)
    eval_strategy: str = option(
        "no", "steps: same as --evaluate_during_training", FREE, choices=("no", "steps")
    )
    load_best_model_at_end: bool | None = option(None, "keep the model of the best logging step")
    metric_for_best_model: str | None = option(None, "METRIC[@COST]; default: the main metric")
    early_stopping_patience: int | None = option(
        None, "stop after N logging steps without a better dev metric", AT_LEAST_1
    )
    class_weights: list[str] | None = option(
        None, "weights of the classes in the loss: balanced, or a number a class"
    )
    train_exits_only: bool = option(False, "train the exits alone, as DeeBERT's second stage")
    fp16: bool = option(False, "float16 mixed precision in training (CUDA)")
    fp16_opt_level: str = option("O1", "O0: float32", choices=("O0", "O1", "O2", "O3"))

    @property
    def looks_at_dev(self) -> bool:
        """Tell whether the dev set is evaluated at each logging step."""
        during = self.evaluate_during_training or self.eval_strategy == "steps"
        return bool(during or self.load_best_model_at_end or self.early_stopping_patience)


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Each setting is trained with every seed; its metric is the mean over the seeds."""

    hp_search: bool = option(False, "search; with --do_predict, predict with the best model", FREE)
    hp_sampler: str = option("tpe", "search algorithm", choices=("tpe", "grid", "random"))
    hp_trials: int | None = option(None, "settings to try; default: 12; for grid, all", COUNT)
    hp_learning_rates: list[float] = option(
        [2e-5, 3e-5, 5e-5], "learning rates to try; default: 2e-5 3e-5 5e-5", SHARE
    )
    hp_batch_sizes: list[int] = option([16, 32], "batch sizes to try; default: 16 32", AT_LEAST_1)
    hp_epochs: list[float] = option([2.0, 3.0, 4.0], "epochs to try; default: 2 3 4", AT_LEAST_0)
    hp_seeds: list[int] | None = option(None, "seeds; default: 0 to 4; MNLI, QNLI, QQP: 0", SEED)
    hp_metric: str | None = option(None, "METRIC[@COST] to optimise; default: the main metric")
    hp_storage: str | None = option(None, "Optuna URL; default: SQLite in --output_dir", FREE)
    hp_study: str | None = option(None, "name of the study; default: model type and task", FREE)


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

    @property
    def precision(self) -> str:
        """Mixed precision of the training, by accelerate's name: no, bf16 or fp16."""
        if self.run.bf16:
            return "bf16"
        return "fp16" if self.training.fp16 and self.training.fp16_opt_level != "O0" else "no"


GROUPS = tuple(GlueSettings.__annotations__.values())


def fetch_models(group: Group, **weights: bool) -> Group:
    """Replace the hub names in a group of settings by the folders that their files are fetched to;
    weights: the flags that may have one, and whether its weights are read, too."""
    cache_dir = getattr(group, "cache_dir", None) or None  # "": the hub's own
    for flag, wanted in weights.items():
        name = getattr(group, flag)
        if name and not Path(name).exists():
            folder = str(local_folder(name, f"--{flag}", cache_dir, wanted))
            group = replace(group, **{flag: folder})
    return group
