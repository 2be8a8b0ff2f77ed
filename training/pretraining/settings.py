"""The settings of run_pretraining.py and share_layers.py. No torch here: --help answers at once."""

from dataclasses import dataclass
from typing import NamedTuple

from modeling.errors import UserError
from runs.flags import AT_LEAST_0, AT_LEAST_1, COUNT, COUNT_OR_NONE, FREE, SHARE, Allowed, option
from runs.settings import RunSettings, Schedule

LENGTH = Allowed(low=8)


@dataclass(frozen=True, kw_only=True)
class PretrainingModelSettings:
    """The model to train. Here, --model_type albert is an ordinary ALBERT, which always runs all
    layers; in run_glue.py it is ELBERT, whose examples exit early."""

    model_type: str = option(
        "albert_act",
        "kind of model; albert: every token runs all layers; albert_act: adaptive depth",
        choices=("albert", "albert_act"),
        type=str.lower,
    )
    config_name: str | None = option(
        None, "configuration of the model to train: config.json or its folder", FREE
    )
    model_name_or_path: str | None = option(
        None,
        "weights to start from or, without --do_train, to evaluate: folder or hub name",
        FREE,
    )
    tau: float | None = option(
        None, "weight τ of the ponder cost in the loss; default: the configuration's", AT_LEAST_0
    )
    tokenizer_name: str | None = option(None, "tokenizer folder; default: beside the weights", FREE)
    train_tokenizer: bool = option(
        False, "train a SentencePiece tokenizer, spiece.model, on --train_files", FREE
    )
    vocab_size: int | None = option(
        None,
        "vocabulary size for --train_tokenizer; default: the configuration's",
        Allowed(low=6, resuming=True),
    )


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """The text to train on."""

    train_files: list[str] = option(
        [], "text files with one sentence per line, or with --split_sentences one paragraph", FREE
    )
    split_sentences: bool = option(False, "split each line, a paragraph, into sentences")
    max_seq_length: int = option(128, "maximum number of tokens per example", LENGTH)
    short_seq_prob: float = option(0.1, "share of examples with a random shorter length", SHARE)
    text_cache: str | None = option(
        None, "folder for the tokenised text; default for training: --output_dir", FREE
    )
    dataloader_num_workers: int = option(
        1, "number of processes that prepare batches", COUNT_OR_NONE
    )


@dataclass(frozen=True, kw_only=True)
class TextSettings(PlainText):
    """The text, and how examples are made from it; the defaults are the published ones."""

    masked_lm_prob: float = option(0.15, "share of tokens that are masked for prediction", SHARE)
    max_predictions_per_seq: int = option(
        20, "maximum number of predictions per example", AT_LEAST_1
    )
    ngram: int = option(3, "maximum number of words that are masked together", AT_LEAST_1)


@dataclass(frozen=True, kw_only=True)
class PretrainingSchedule(Schedule):
    """Steps, batches and rates of --do_train; the defaults are the published schedule, with LAMB
    and with longer examples in a second phase."""

    optimizer: str = "lamb"
    max_steps: int = 125_000
    per_gpu_train_batch_size: int = option(64, "examples per batch at --max_seq_length", COUNT)
    gradient_accumulation_steps: int = 64
    learning_rate: float = 1.76e-3
    warmup_steps: int = 3125
    long_seq_length: int = option(
        512, "maximum number of tokens per example in the second phase", LENGTH
    )
    long_fraction: float = option(0.1, "share of steps in the second phase", SHARE)


@dataclass(frozen=True, kw_only=True)
class PretrainingEvaluation:
    """Evaluation of a trained model."""

    do_eval: bool = option(False, "evaluate on --eval_file", FREE)
    eval_file: str | None = option(
        None, "text file to evaluate on, formatted as --train_files", FREE
    )
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

    model_name_or_path: str = option(..., "BERT to follow: folder or hub name", FREE)
    num_hidden_layers: int | None = option(
        None, "number of passes; default: the BERT's number of layers", AT_LEAST_1
    )
    intermediate_size: int | None = option(
        None,
        "width of the feed-forward part, a multiple of the BERT's; default: the BERT's",
        AT_LEAST_1,
    )
    initial_layer: int | None = option(
        None,
        "number of the BERT's layer to start from, counted from 1; default: the mean of all layers",
        AT_LEAST_1,
    )
    initial_student: str | None = option(
        None, "trained shared layer to start from: folder or hub name", FREE
    )
    rank: int = option(
        0, "rank of each pass's own correction of the shared matrices; 0: none", AT_LEAST_0
    )
    last_pass_weight: float = option(
        1.0, "weight of the last pass in the loss; the other passes have 1", Allowed(low=1e-6)
    )


@dataclass(frozen=True, kw_only=True)
class SharingSchedule(Schedule):
    """Steps, batches and rates of --do_train, with warm-up and linear decay."""

    per_gpu_train_batch_size: int = option(
        8, "examples of --max_seq_length tokens per batch; a batch has more shorter ones", COUNT
    )
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
