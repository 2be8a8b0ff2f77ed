"""The settings that scripts share, and those of run_glue.py, each group a dataclass of flags.

Help texts are noun phrases, or for a switch what it does. Loads no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from glue.custom import TASK_TYPES
from modeling.errors import UserError
from modeling.exit_settings import KeyValues
from modeling.families import FAMILIES
from modeling.files import local_folder
from modeling.keys import MODE_KEYS, PONDER_KEYS, RECIPES, keys_of, nearest_names, parse_value
from runs.flags import AT_LEAST_0, AT_LEAST_1, COUNT, FREE, SEED, SHARE, option

Group = TypeVar("Group", bound=Any)  # a dataclass of settings

# Learning-rate schedules, by transformers' names.
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Output, resuming and devices of a run."""

    do_train: bool = option(
        False,
        "train a model; with --resume_from_checkpoint, continue a run that was stopped",
        FREE,
        is_common=True,
    )
    output_dir: str = option(
        ..., "folder of the trained model and the results", FREE, is_common=True, alias="model_dir"
    )
    overwrite_output_dir: bool = option(False, "overwrite the contents of --output_dir", FREE)
    resume_from_checkpoint: str | None = option(
        None,
        "checkpoint to resume from: PATH, or the latest; where there is none, training starts anew",
        FREE,
        nargs="?",
        const="latest",
        metavar="PATH|latest",
        is_common=True,
    )
    save_total_limit: int | None = option(
        None, "number of checkpoints to keep, from the newest; default: all", COUNT
    )
    seed: int = option(42, "random seed", SEED, is_common=True)
    do_lower_case: bool = option(
        False, "lower-case the texts, as uncased models expect", is_common=True
    )
    no_cuda: bool = option(False, "use the CPU only", FREE)
    bf16: bool = option(False, "train in bfloat16 mixed precision")
    max_grad_norm: float = option(
        1.0, "maximum gradient norm; larger gradients are clipped", AT_LEAST_0
    )


# Experiment trackers, by transformers' names, which are those of their packages, too.
TRACKERS = ("tensorboard", "wandb", "mlflow", "comet_ml", "trackio", "codecarbon")
EMISSIONS_FILE = "emissions.csv"  # of codecarbon, in --output_dir


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps, batches and rates of --do_train."""

    per_gpu_train_batch_size: int = option(
        8, "examples per batch in each process", COUNT, is_common=True
    )
    gradient_accumulation_steps: int = option(1, "batches per optimiser step", AT_LEAST_1)
    optimizer: str = option("adamw", "optimiser: AdamW or LAMB", choices=("adamw", "lamb"))
    learning_rate: float = option(5e-5, "peak learning rate", AT_LEAST_0, is_common=True)
    max_steps: int = option(10_000, "optimiser steps", AT_LEAST_1)
    warmup_steps: int = option(0, "warm-up steps", AT_LEAST_0)
    weight_decay: float = option(
        0.01, "weight decay, of all but biases and layer norms", AT_LEAST_0
    )
    adam_epsilon: float = option(1e-6, "ε of the optimiser", AT_LEAST_0)
    logging_steps: int = option(
        100,
        "steps between log lines; 0: no log; TensorBoard gets the loss of every step of short runs",
        FREE,
    )
    report_to: list[str] = option(
        ["tensorboard"],
        "experiment trackers, which get flags, curves and final metrics; all: those that are "
        "installed; none: no curves",
        FREE,
        choices=(*TRACKERS, "all", "none"),
    )
    save_steps: int = option(5000, "steps between checkpoints; 0: no checkpoints", FREE)
    gradient_checkpointing: bool = option(
        False,
        "compute activations within layers a second time instead of keeping them: less memory, the "
        "same training",
        FREE,
    )
    torch_compile: bool = option(
        False,
        "compile by torch.compile: the training, and on a GPU the layer pass of an evaluation",
    )
    torch_compile_backend: str = option(
        "inductor", "backend of --torch_compile", choices=("inductor", "aot_eager", "eager")
    )

    @property
    def trackers(self) -> list[str]:
        """The trackers of --report_to, each once; of "all" those that are installed."""
        if "all" in self.report_to:
            return [name for name in TRACKERS if find_spec(name)]
        return list(dict.fromkeys(name for name in self.report_to if name != "none"))

    def check(self) -> None:
        """Raise UserError for a tracker whose package is missing."""
        if len(self.report_to) > 1 and {"all", "none"} & {*self.report_to}:
            raise UserError(f"--report_to {' '.join(self.report_to)}: all and none stand alone")
        for name in self.trackers:
            if find_spec(name) is None:
                raise UserError(f"--report_to {name}: pip install {name}")


class ScriptSettings(Protocol):
    """All settings of a script that trains: a tuple of groups, of which two are read by name."""

    @property
    def run(self) -> RunSettings: ...
    @property
    def training(self) -> Schedule: ...
    def __iter__(self) -> Iterator[Any]: ...


# run_glue.py: what is trained, on which data, how, and in which search.


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model that training starts from."""

    model_name_or_path: str = option(
        ..., "pre-trained weights: folder or hub name", FREE, is_common=True
    )
    config_name: str = option(
        "", "model configuration: config.json or its folder; default: beside the weights", FREE
    )
    tokenizer_name: str = option("", "tokenizer folder; default: beside the weights", FREE)
    cache_dir: str = option("", "cache folder for models from the hub", FREE)
    from_scratch: bool = option(False, "start from random weights")
    teacher: str = option(
        "",
        "teacher for knowledge distillation: folder or hub name of a fine-tuned classifier, whose "
        "answers (soft labels) the exits learn in addition to the labels",
        FREE,
    )


@dataclass(frozen=True, kw_only=True)
class DevSettings:
    """The dev set of one of GLUE's tasks, or of the user's own."""

    task_name: str | None = option(None, "GLUE task, e.g. RTE", is_common=True)
    data_dir: str | None = option(None, "folder with the task's .tsv files", FREE, is_common=True)
    validation_file: str | None = option(
        None, "table of dev rows of your own task, in place of --task_name", FREE, is_common=True
    )
    text_column_names: str | None = option(
        None, "names of the text columns; default: sentence1[,sentence2], or text", is_common=True
    )
    label_column_name: str | None = option(
        None,
        "name of the label column; default: label; A,B,C: several labels, a column of 0 and 1 for "
        "each",
        is_common=True,
    )
    label_separator: str | None = option(
        None, "separator of several labels in a cell of the label column"
    )
    task_type: str | None = option(
        None,
        "meaning of the label column in your own files; default: regression if all labels are "
        "numbers and one is not whole, else classification; multi_label: several labels for each "
        "example",
        choices=TASK_TYPES,
    )
    drop_incomplete_rows: bool = option(
        False, "leave out rows without a text or a label in your own training and validation files"
    )
    metric_name: str | None = option(
        None,
        "metric by which checkpoints, thresholds and settings are chosen: one of scikit-learn's "
        "scorers, such as f1_macro, or your own as module.function; default: that of the task",
    )
    positive_label: str | None = option(
        None,
        "of two classes, the one that --metric_name f1, precision, recall or jaccard is of",
    )
    labels_in_order: bool = option(
        False,
        "match two sets of labels that have no name in common by their order: those of the task "
        "and of a file, a checkpoint or a teacher",
    )
    max_seq_length: int = option(
        128, "maximum number of tokens per example; longer ones are truncated", is_common=True
    )
    max_eval_samples: int | None = option(None, "use only the first N dev examples", COUNT)

    @property
    def folder(self) -> str:
        """Folder of the task's files."""
        return self.data_dir or "."


@dataclass(frozen=True, kw_only=True)
class DataSettings(DevSettings):
    """The task: one of GLUE's, or the user's own files: CSV, TSV or JSON lines."""

    train_file: str | None = option(
        None,
        "table of training rows of your own task, with columns sentence1[,sentence2],label",
        FREE,
        is_common=True,
    )
    test_file: str | None = option(None, "table of test rows; they need no labels", FREE)
    dataset_name: str | None = option(
        None,
        "data set for the `datasets` library, in place of files: hub name or folder; its splits "
        "are train, validation and test, and a file that is given takes the place of its split",
        FREE,
    )
    dataset_config_name: str | None = option(
        None, "configuration of --dataset_name, e.g. sst2 of nyu-mll/glue", FREE
    )
    unlabelled_file: str | None = option(
        None, "table of examples without labels, for which --teacher gives soft labels", FREE
    )
    max_train_samples: int | None = option(
        None, "use only the first N training examples", AT_LEAST_1
    )
    overwrite_cache: bool = option(False, "no effect; kept for compatibility", FREE)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Schedule):
    """Settings of --do_train.

    METRIC@COST, e.g. acc@0.5, is the best METRIC that the configured exit rule reaches at a
    computation cost (mean share of layers that were run) of at most COST. METRIC alone is that of
    the last layer.
    """

    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    max_steps: int = option(-1, "optimiser steps; if > 0, overrides --num_train_epochs")
    num_train_epochs: float = option(3.0, "training epochs", AT_LEAST_0, is_common=True)
    lr_scheduler_type: str | None = option(
        None, "learning-rate schedule; default: linear", choices=SCHEDULES
    )
    warmup_ratio: float | None = option(None, "warm-up steps as a share of all steps", SHARE)
    save_format: str = option(
        "safetensors",
        "format of the weights; pytorch: write pytorch_model.bin and spiece.model as well, for "
        "ELBERT's published code",
        FREE,
        choices=("safetensors", "pytorch"),
    )
    evaluate_during_training: bool = option(False, "compute dev metrics at each logging step", FREE)
    eval_strategy: str = option(
        "no", "steps: the same as --evaluate_during_training", FREE, choices=("no", "steps")
    )
    load_best_model_at_end: bool | None = option(
        None, "keep the model of the logging step with the best dev metric"
    )
    metric_for_best_model: str | None = option(
        None, "dev metric to maximise: METRIC[@COST]; default: the task's main metric"
    )
    early_stopping_patience: int | None = option(
        None,
        "number of logging steps without a better dev metric that stop the training",
        AT_LEAST_1,
    )
    class_weights: list[str] | None = option(
        None, "class weights in the loss: balanced, or one number for each class"
    )
    train_exits_only: bool = option(
        False, "freeze the encoder and train only the exits, as in DeeBERT's second stage"
    )
    fp16: bool = option(False, "train in float16 mixed precision (CUDA)")
    fp16_opt_level: str = option(
        "O1", "optimisation level of --fp16; O0: float32", choices=("O0", "O1", "O2", "O3")
    )

    @property
    def looks_at_dev(self) -> bool:
        """Tell whether the dev set is evaluated at each logging step."""
        logs_metrics = self.evaluate_during_training or self.eval_strategy == "steps"
        return logs_metrics or self.chooses_by_dev

    @property
    def chooses_by_dev(self) -> bool:
        """Tell whether the dev set decides which step's model is kept, or when training ends."""
        return self.load_best_model_at_end or self.early_stopping_patience is not None


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Hyperparameter search. Each setting is trained with every seed; its metric is the mean over
    the seeds."""

    hp_search: bool = option(
        False, "search hyperparameters; with --do_predict, predict with the best model", FREE
    )
    hp_sampler: str = option("tpe", "search algorithm", choices=("tpe", "grid", "random"))
    hp_trials: int | None = option(
        None, "number of settings to try; default: 12, or all of a grid", COUNT
    )
    hp_learning_rates: list[float] = option(
        [2e-5, 3e-5, 5e-5], "learning rates to try; default: 2e-5 3e-5 5e-5", SHARE
    )
    hp_batch_sizes: list[int] = option([16, 32], "batch sizes to try; default: 16 32", AT_LEAST_1)
    hp_epochs: list[float] = option([2.0, 3.0, 4.0], "epochs to try; default: 2 3 4", AT_LEAST_0)
    hp_space: list[str] = option(
        [],
        "further configuration keys and training flags to search: KEY=A,B,C, or a range "
        "KEY=LOW:HIGH, KEY=LOW:HIGH:log, KEY=LOW:HIGH:STEP",
        metavar="KEY=VALUES",
    )
    hp_seeds: list[int] | None = option(
        None, "random seeds for every setting; default: 0 to 4, or 0 for MNLI, QNLI and QQP", SEED
    )
    hp_metric: str | None = option(
        None, "dev metric to maximise: METRIC[@COST]; default: the task's main metric"
    )
    hp_storage: str | None = option(
        None, "Optuna's database URL; default: SQLite in --output_dir", FREE
    )
    hp_study: str | None = option(None, "study name; default: model type and task", FREE)


def documented_name(text: str) -> str:
    """Return the documented name of a --model_type.

    Published scripts name the encoder that ELBERT's exits are put on: `albert`, `bert`, …
    """
    name = text.lower()
    return "elbert" if name in ("albert", *FAMILIES) else name


def ponder_option(name: str) -> str | None:
    """Declare the flag of a ponder model's key; the field is a text, or None."""
    return option(None, f"{PONDER_KEYS[name].meaning} (ponder_albert); same as --set {name}=…")


@dataclass(frozen=True, kw_only=True)
class ModeSettings:
    """The mode and its keys.

    Here, --model_type albert is the published name of elbert. In run_pretraining.py it is an
    ordinary ALBERT, which always runs all of its layers.
    """

    model_type: str = option(
        ...,
        "mode of early exit; elbert: an example exits by an exit rule (published scripts name the "
        f"encoder, so albert, {', '.join(FAMILIES)} also mean elbert); ponder_albert: an example "
        "exits by a learned halting probability; albert_act: each token halts by its own",
        choices=tuple(MODE_KEYS),
        type=documented_name,
        is_common=True,
    )
    recipe: str = option(
        "published",
        "recipe, a set of configuration keys for --do_train; published: those of the papers; "
        "recommended: those that measured best; add_exits: for a fine-tuned classifier that keeps "
        "its head; --set overrides single keys",
        choices=tuple(RECIPES),
        is_common=True,
    )
    set: list[str] = option(
        [],
        "configuration keys to override, e.g. pooler_input=mean; after training, only keys that "
        "decide an exit",
        metavar="KEY=VALUE",
        is_common=True,
    )
    exit_criteria: str | None = ponder_option("exit_criteria")
    exit_thres: str | None = option(None, "threshold of the exit rule; same as --set exit_thres=…")
    target_halt_probability: str | None = ponder_option("target_halt_probability")
    kl_penalty_factor: str | None = ponder_option("kl_penalty_factor")
    lambda_layer_arch: str | None = ponder_option("lambda_layer_arch")
    num_lambda_layers: str | None = ponder_option("num_lambda_layers")
    lambda_lr: str | None = ponder_option("lambda_lr")

    @property
    def keys(self) -> KeyValues:
        """The keys of --recipe, --set and the flags that are keys, each with its source.

        Raises UserError for a key that the mode does not have, or a value out of range.
        """
        recipe_keys = RECIPES[self.recipe].get(self.model_type, {})
        keys = KeyValues.from_source(recipe_keys, f"--recipe {self.recipe}")
        for flag, assignment in self.assignments():
            keys = keys.overridden_by(self.parse_assignment(flag, assignment))
        return keys

    def assignments(self) -> list[tuple[str, str]]:
        """List each KEY=VALUE with the flag it comes from; a later one overrides an earlier."""
        pairs = [("--set", assignment) for assignment in self.set]
        for name in PONDER_KEYS:
            text = getattr(self, name, None)  # not every key has a flag
            if text is not None:
                pairs.append((f"--{name}", f"{name}={text}"))
        return pairs

    def parse_assignment(self, flag: str, assignment: str) -> KeyValues:
        """Parse a flag's KEY=VALUE; raises UserError as `keys` does."""
        mode_keys = keys_of(self.model_type).keys
        name, equals_sign, text = assignment.partition("=")
        if not equals_sign or name not in mode_keys:
            near = nearest_names(name, list(mode_keys))
            raise UserError(
                f"{flag} {assignment}: no key of --model_type {self.model_type}; {near}"
            )
        try:
            value = parse_value(name, text, mode_keys)
        except UserError as error:
            raise UserError(f"{flag}: {error}") from error
        return KeyValues.from_source({name: value}, flag)

    def check(self) -> None:
        """Raise UserError for a recipe or keys that are not the mode's."""
        if self.recipe != "published" and self.model_type not in RECIPES[self.recipe]:
            modes = ", ".join(RECIPES[self.recipe])
            raise UserError(f"--recipe {self.recipe} is of --model_type {modes}")
        for flag, assignment in self.assignments():
            self.parse_assignment(flag, assignment)

    def check_trained(self) -> None:
        """Raise UserError for keys that only a training can set."""
        table = keys_of(self.model_type)
        allowed = list(table.exit_keys)
        if "exit_config_path" in table.keys:
            allowed.append("exit_config_path")
        other_keys = [name for name in self.keys.values if name not in allowed]
        if other_keys:
            raise UserError(
                f"{', '.join(other_keys)}: decided in training; without --do_train only "
                f"{', '.join(allowed)} can be set"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Evaluation and prediction with a trained model."""

    do_eval: bool = option(False, "evaluate on the dev set with early exit", FREE, is_common=True)
    eval_all_checkpoints: bool = option(
        False,
        "with --do_eval: also evaluate all checkpoints in --output_dir, with a row for each in "
        "checkpoints.csv",
        FREE,
    )
    do_predict: bool = option(
        False, "predict the test set, and write GLUE submission files", FREE, is_common=True
    )
    per_gpu_eval_batch_size: int = option(
        8, "examples per batch in evaluation and prediction", COUNT, is_common=True
    )
    out_mode: str = option(
        "all",
        "rows of eval_results.txt; one: only this evaluation; all: earlier ones as well",
        FREE,
        choices=("one", "all"),
    )
    skip_full_depth: bool = option(
        False,
        "skip the run through all layers, so that there are no metrics per layer and no exits.png",
        FREE,
    )
    group_column: str | None = option(
        None,
        "column of the dev file by whose values examples are grouped: metric, cost and exits of "
        "each group",
        FREE,
    )
    statistics_dir: str | None = option(
        None, "folder for layers_all.csv and layers_exit.csv; overrides the key my_out_dir", FREE
    )
    onnx: str | None = option(
        None,
        "ONNX file to evaluate, exported from the model in --output_dir",
        FREE,
        metavar="FILE",
    )
    dtype: str = option(
        "fp32",
        "number type of evaluation and prediction; auto: bf16 where the processor has instructions "
        "for it",
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
        if self.training.fp16 and self.training.fp16_opt_level != "O0":
            return "fp16"
        return "no"


GROUPS = tuple(GlueSettings.__annotations__.values())


def fetch_models(group: Group, needs_weights: Mapping[str, bool]) -> Group:
    """Replace the hub names in a group of settings by the folders that their files are fetched to.

    needs_weights: the flags that may have a hub name, and whether the weights are needed there, or
    only the configuration and the tokenizer. Raises UserError for a model that the hub does not
    give.
    """
    cache_dir = getattr(group, "cache_dir", None) or None  # "": the hub's own
    for flag, with_weights in needs_weights.items():
        source = getattr(group, flag)
        if source and not Path(source).exists():
            is_teacher = flag == "teacher"
            folder = local_folder(source, f"--{flag}", cache_dir, with_weights, is_teacher)
            group = replace(group, **{flag: str(folder)})
    return group
