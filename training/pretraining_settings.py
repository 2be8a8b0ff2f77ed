"""The settings of run_pretraining.py and share_layers.py. No torch here: --help answers at once."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from modeling.errors import UserError
from training.settings import RunSettings
from utils.flags import AT_LEAST_0, AT_LEAST_1, COUNT, COUNT_OR_NONE, FREE, SHARE, Allowed, option

LENGTH = Allowed(low=8)


@dataclass(frozen=True, kw_only=True)
class PretrainingModelSettings:
    """What is trained. --model_type albert is the dense ALBERT here, which always runs all of its
    layers; in run_glue.py it is ELBERT, whose examples stop early."""

    model_type: str = option(
        "albert_act", "albert: dense", choices=("albert", "albert_act"), type=str.lower
    )
    config_name: str | None = option(None, "config.json or its folder: what is trained", FREE)
    model_name_or_path: str | None = option(
        None, "weights to start from or, without --do_train, to evaluate: folder or hub name", FREE
    )
    tau: float | None = option(None, "weight of the ponder cost, if not the config's", AT_LEAST_0)
    tokenizer_name: str | None = option(None, "default: beside the weights", FREE)
    train_tokenizer: bool = option(False, "write spiece.model to --output_dir", FREE)
    vocab_size: int | None = option(
        None, "of --train_tokenizer, if not the config's", Allowed(low=6, resuming=True)
    )


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """The text to train on."""

    train_files: list[str] = option([], "one sentence a line, or --split_sentences", FREE)
    split_sentences: bool = option(False, "lines are paragraphs: cut them into sentences")
    max_seq_length: int = option(128, "pieces of an example", LENGTH)
    short_seq_prob: float = option(0.1, "share of examples of a random shorter length", SHARE)
    text_cache: str | None = option(
        None, "folder that keeps the tokenised text; default: while training, --output_dir", FREE
    )
    dataloader_num_workers: int = option(1, "processes that make batches ahead", COUNT_OR_NONE)


@dataclass(frozen=True, kw_only=True)
class TextSettings(PlainText):
    """The text, and how examples are made of it; the defaults are the published ones."""

    masked_lm_prob: float = option(0.15, "share of pieces to predict", SHARE)
    max_predictions_per_seq: int = option(20, "at most so many", AT_LEAST_1)
    ngram: int = option(3, "words masked together", AT_LEAST_1)


@dataclass(frozen=True, kw_only=True)
class PretrainingSchedule:
    """How --do_train trains. The defaults are the published schedule."""

    optimizer: str = option("lamb", "LAMB as published, or AdamW", choices=("lamb", "adamw"))
    max_steps: int = option(125_000, "optimiser steps of both lengths", AT_LEAST_1)
    long_seq_length: int = option(512, "length of the last steps", LENGTH)
    long_fraction: float = option(0.1, "share of these steps", SHARE)
    per_gpu_train_batch_size: int = option(64, "at --max_seq_length", COUNT)
    gradient_accumulation_steps: int = option(64, "batches of a step", AT_LEAST_1)
    learning_rate: float = option(1.76e-3, "peak", AT_LEAST_0)
    warmup_steps: int = option(3125, "steps to the peak", AT_LEAST_0)
    weight_decay: float = option(0.01, "of all but biases and layer norms", AT_LEAST_0)
    adam_epsilon: float = option(1e-6, "the optimiser's ε", AT_LEAST_0)
    logging_steps: int = option(100, "steps between two lines of the log", COUNT)
    save_steps: int = option(5000, "checkpoint every so many; 0: none", COUNT_OR_NONE)


@dataclass(frozen=True, kw_only=True)
class PretrainingEvaluation:
    """What a trained model is measured on."""

    do_eval: bool = option(False, "measure the model on --eval_file", FREE)
    eval_file: str | None = option(None, "held-out text in the form of --train_files", FREE)
    per_gpu_eval_batch_size: int = option(32, "examples of a batch", COUNT)

    def check(self) -> None:
        if self.do_eval and not self.eval_file:
            raise UserError("--eval_file is missing: the text to evaluate on")


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
    num_hidden_layers: int | None = option(None, "passes N; default: its layers", AT_LEAST_1)
    intermediate_size: int | None = option(None, "a multiple of the teacher's", AT_LEAST_1)
    initial_layer: int | None = option(None, "start from it; default: mean of all", AT_LEAST_1)
    initial_student: str | None = option(
        None, "start from a shared layer that was trained before: folder or hub name", FREE
    )
    rank: int = option(0, "of each pass's own correction of the shared matrices", AT_LEAST_0)
    last_pass_weight: float = option(1.0, "in the loss, in units of the others'", Allowed(low=1e-6))

    def check(self) -> None:
        if self.rank and (self.initial_student or self.intermediate_size):
            raise UserError(
                f"--rank {self.rank}: the student begins as the teacher's layers; leave out "
                "--initial_student and --intermediate_size"
            )


@dataclass(frozen=True, kw_only=True)
class SharingSchedule:
    """How --do_train trains: AdamW, with warm-up and linear decay."""

    optimizer: ClassVar[str] = "adamw"
    max_steps: int = option(10_000, "optimiser steps", AT_LEAST_1)
    per_gpu_train_batch_size: int = option(8, "at --max_seq_length; of shorter ones more", COUNT)
    gradient_accumulation_steps: int = option(1, "batches of a step", AT_LEAST_1)
    learning_rate: float = option(1e-3, "peak", AT_LEAST_0)
    warmup_steps: int = option(200, "steps to the peak", AT_LEAST_0)
    weight_decay: float = option(0.01, "of all but biases and layer norms", AT_LEAST_0)
    adam_epsilon: float = option(1e-6, "the optimiser's ε", AT_LEAST_0)
    logging_steps: int = option(100, "steps between two lines of the log", COUNT)
    save_steps: int = option(1000, "checkpoint every so many; 0: none", COUNT_OR_NONE)


class SharingSettings(NamedTuple):
    """All settings of share_layers.py, in the order of --help."""

    student: StudentSettings
    text: PlainText
    run: RunSettings
    training: SharingSchedule
    evaluation: PretrainingEvaluation
