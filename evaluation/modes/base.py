"""What a mode is: the one place for all that differs between ways to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import AlbertConfig, PreTrainedModel, PreTrainedTokenizerBase

from glue.features import Features, encode
from glue.tasks import Example
from modeling.configuration import EarlyExitConfig
from modeling.errors import UserError
from modeling.keys import KeyTable
from training.fine_tuning import MetricAtCost

if TYPE_CHECKING:
    from evaluation.job import Job
    from evaluation.predictions import Predictions
    from evaluation.results import Report
    from modeling.export.loops import ExportLoop


class Mode(ABC):
    """A way to decide who stops, and when.

    model_class: of its models, `runs` or a subclass; config_class: of their configurations, which
    has the keys, and the name of --model_type.
    """

    runs: ClassVar[type[PreTrainedModel]]
    depth_batched: ClassVar[bool] = False  # larger batches are kept full by depth batching

    def __init__(self, model_class: type[PreTrainedModel]) -> None:
        config: Any = model_class.config_class
        self.model_class, self.config_class, self.name = model_class, config, config.model_type

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return self.config_class.table

    def check_length(self, max_seq_length: int, config: AlbertConfig) -> None:
        """UserError for a --max_seq_length that is too short for a text or too long."""
        shortest, longest = 3 + config.extra_tokens, config.max_position_embeddings
        if not shortest <= max_seq_length <= longest:
            raise UserError(
                f"--max_seq_length {max_seq_length}: allowed is {shortest} to "
                f"max_position_embeddings = {longest}"
            )

    def features(
        self,
        config: AlbertConfig,
        examples: Iterable[Example],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        seed: int,
    ) -> Features:
        """Encode texts for the model, each truncated to max_seq_length tokens."""
        return encode(examples, tokenizer, max_seq_length, config)

    def loss_parts(self, out: Any) -> dict[str, torch.Tensor]:
        """The parts whose sum is a batch's loss, by name: scalars; none for a loss of one part."""
        return {}

    @abstractmethod
    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Values to log of a training step, by name."""

    @abstractmethod
    def dev_scalars(
        self, job: Job, metric: MetricAtCost
    ) -> tuple[dict[str, float], dict[str, Any], float]:
        """Measure at a logging step: what trackers get, the console's line, and the `metric` by
        which the best model is chosen."""

    @abstractmethod
    def export_loop(self, model: Any, layer_logits: bool = False) -> ExportLoop:
        """Module that export_onnx.py exports for a trained model.

        layer_logits: with every layer's answer; UserError for a mode whose layers have none.
        """

    @abstractmethod
    def other_outputs(self, out: Any, longest: int) -> dict[str, torch.Tensor]:
        """Outputs of a batch to keep beside its logits, (batch, …) on the CPU, by name.

        longest: tokens of the longest example of the data set.
        """

    @abstractmethod
    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        """The mode's own columns of predictions.tsv, by name."""

    @abstractmethod
    def evaluate(self, job: Job, folder: Path, trained: Path) -> Report:
        """Run the job, and say what there is to print and to write.

        folder: of the reports; trained: of the model.
        """

    def check_has_rules(self) -> None:
        """UserError for a mode without exit rules, which has nothing to sweep."""
        if not issubclass(self.config_class, EarlyExitConfig):
            raise UserError(
                f"--model_type {self.name}: its depth follows from what was learned in training, "
                "so there is nothing to sweep"
            )
