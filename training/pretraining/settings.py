"""The settings of run_pretraining.py and share_layers.py. No torch here: --help answers at once."""

from dataclasses import dataclass
from typing import NamedTuple

from elbert_base.errors import UserError
from runs.flags import AT_LEAST_0, AT_LEAST_1, COUNT, COUNT_OR_NONE, FREE, SHARE, Allowed, option
from runs.settings import RunSettings, Schedule

LENGTH = Allowed(low=8)


@dataclass(frozen=True, kw_only=True)
class PretrainingModelSettings:
    """The model to train. --model_type albert is the dense ALBERT here, which always runs all
    layers; in run_glue.py it is ELBERT, whose examples stop early."""

    model_type: str = option(
        "albert_act",
        "albert: every token runs all layers; albert_act: adaptive depth",
        choices=("albert", "albert_act"),
        type=str.lower,
    )
    config_name: str | None = option(None, "config.json or its folder, of the model to train", FREE)
    model_name_or_path: str | None = option(
        None, "weights to start from or, without --do_train, to evaluate: folder or hub name", FREE
    )
    tau: float | None = option(None, "weight of the ponder cost; default: the config's", AT_LEAST_0)
    tokenizer_name: str | None = option(None, "tokenizer folder; default: beside the weights", FREE)
    train_tokenizer: bool = option(False, "train spiece.model on --train_files", FREE)
    vocab_size: int | None = option(
        None, "pieces of --train_tokenizer; default: the config's", Allowed(low=6, resuming=True)
    )


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """The text to train on."""

    train_files: list[str] = option([], "text, one sentence per line, or --split_sentences", FREE)
    split_sentences: bool = option(False, "split each line, a paragraph, into sentences")
    max_seq_length: int = option(128, "maximum tokens per example", LENGTH)
    short_seq_prob: float = option(0.1, "share of examples with a random shorter length", SHARE)
    text_cache: str | None = option(
        None, "folder for the tokenised text; default in training: --output_dir", FREE
    )
    dataloader_num_workers: int = option(1, "processes that prepare batches", COUNT_OR_NONE)


@dataclass(frozen=True, kw_only=True)
class TextSettings(PlainText):
    """The text, and how examples are made of it; the defaults are the published ones."""

    masked_lm_prob: float = option(0.15, "share of tokens to predict", SHARE)
    max_predictions_per_seq: int = option(20, "maximum predictions per example", AT_LEAST_1)
    ngram: int = option(3, "maximum words masked together", AT_LEAST_1)


@dataclass(frozen=True, kw_only=True)
class PretrainingSchedule(Schedule):
    """Steps, batches and rates of --do_train; the defaults are the published schedule: LAMB, and
    in a second phase longer examples."""

    optimizer: str = "lamb"
    max_steps: int = 125_000
    per_gpu_train_batch_size: int = option(64, "examples per batch at --max_seq_length", COUNT)
    gradient_accumulation_steps: int = 64
    learning_rate: float = 1.76e-3
    warmup_steps: int = 3125
    long_seq_length: int = option(512, "maximum tokens per example in the second phase", LENGTH)
    long_fraction: float = option(0.1, "share of steps in the second phase", SHARE)


@dataclass(frozen=True, kw_only=True)
class PretrainingEvaluation:
    """Evaluation of a trained model."""

    do_eval: bool = option(False, "evaluate on --eval_file", FREE)
    eval_file: str | None = option(None, "held-out text file, formatted as --train_files", FREE)
    per_gpu_eval_batch_size: int = option(32, "examples per batch in evaluation", COUNT)

    def check(self) -> None:
        """Raise UserError for an evaluation without a text."""
        if self.do_eval and not self.eval_file:
            raise UserError("--eval_file is missing: the text to evaluate on")

    @property
    def text_file(self) -> str:
        """The text of an evaluation: `check` has seen that there is one."""
        return self.eval_file or ""


class PretrainingSettings(NamedTuple):
    """All settings of run_pretraining.py, in the order of --help."""

    model: PretrainingModelSettings
    text: TextSettings
    run: RunSettings
    training: PretrainingSchedule
    evaluation: PretrainingEvaluation


# share_layers.py.


@dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The BERT to follow, and the shared layer that follows it."""

    model_name_or_path: str = option(..., "the teacher: a BERT's folder or hub name", FREE)
    num_hidden_layers: int | None = option(None, "passes; default: teacher's layers", AT_LEAST_1)
    intermediate_size: int | None = option(None, "width, a multiple of the teacher's", AT_LEAST_1)
    initial_layer: int | None = option(None, "layer to start from; default: their mean", AT_LEAST_1)
    initial_student: str | None = option(
        None, "shared layer to start from, trained before: folder or hub name", FREE
    )
    rank: int = option(0, "rank of each pass's correction of shared matrices; 0: none", AT_LEAST_0)
    last_pass_weight: float = option(
        1.0, "loss weight of the last pass; others: 1", Allowed(low=1e-6)
    )


@dataclass(frozen=True, kw_only=True)
class SharingSchedule(Schedule):
    """Steps, batches and rates of --do_train, with warm-up and linear decay."""

    per_gpu_train_batch_size: int = option(8, "examples per batch, more if they are short", COUNT)
    learning_rate: float = 1e-3
    warmup_steps: int = 200
    save_steps: int = 1000


class SharingSettings(NamedTuple):
    """All settings of share_layers.py, in the order of --help."""

    student: StudentSettings
    text: PlainText
    run: RunSettings
    training: SharingSchedule
    evaluation: PretrainingEvaluation


TextScript = PretrainingSettings | SharingSettings  # settings of a script on plain text
