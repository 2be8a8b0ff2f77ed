"""share_layers.py's settings. No torch here, so that --help and a wrong flag answer at once."""

from dataclasses import dataclass
from typing import NamedTuple

from modeling.errors import UserError
from training.pretraining_settings import PlainText, PretrainingEvaluation, StepSettings
from training.settings import (
    AT_LEAST_0,
    AT_LEAST_1,
    COUNT,
    COUNT_OR_NONE,
    FREE,
    RESUMING,
    RunSettings,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The BERT to follow, and the shared layer that follows it."""

    _argument_group_name = "model"

    model_name_or_path: str = setting(..., "the teacher: a BERT's folder or hub name", FREE)
    num_hidden_layers: int | None = setting(
        None, "passes N, if not the teacher's layers", AT_LEAST_1
    )
    embedding_size: int | None = setting(
        None, "factorise the embeddings; default: keep them", AT_LEAST_1
    )
    intermediate_size: int | None = setting(
        None, "a multiple of the teacher's, for a wider layer", AT_LEAST_1
    )
    initial_layer: int | None = setting(
        None, "start from this layer; default: mean of all", AT_LEAST_1
    )
    initial_student: str | None = setting(
        None, "start from a shared layer that was trained before: folder or hub name", FREE
    )
    last_pass_weight: float = setting(1.0, "in the loss, in units of the others'", AT_LEAST_0)

    def check(self) -> None:
        if self.initial_student and self.initial_layer:
            raise UserError(
                f"--initial_student {self.initial_student} and --initial_layer "
                f"{self.initial_layer} are two starts: give one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class SharingSchedule(StepSettings):
    """How --do_train trains: AdamW, with warm-up and linear decay."""

    max_steps: int = setting(10_000, "optimiser steps", AT_LEAST_1)
    per_gpu_train_batch_size: int = setting(
        8, "examples of --max_seq_length; of shorter ones a batch takes more", COUNT
    )
    gradient_accumulation_steps: int = setting(1, "batches of a step", AT_LEAST_1)
    learning_rate: float = setting(1e-3, "peak", AT_LEAST_0)
    warmup_steps: int = setting(200, "steps to the peak", AT_LEAST_0)
    save_steps: int = setting(1000, "checkpoint every so many; 0: none", COUNT_OR_NONE)


@dataclass(frozen=True, kw_only=True)
class SharingEvaluation(PretrainingEvaluation):
    """What a trained student is measured on."""

    do_eval: bool = setting(False, "every pass's share of variance on --eval_file", RESUMING)
    per_gpu_eval_batch_size: int = setting(32, "examples of a batch", COUNT)


class SharingSettings(NamedTuple):
    """All settings of share_layers.py, in the order of --help."""

    student: StudentSettings
    text: PlainText
    run: RunSettings
    schedule: SharingSchedule
    evaluation: SharingEvaluation


GROUPS = tuple(SharingSettings.__annotations__.values())
