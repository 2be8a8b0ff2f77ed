"""What a mode is: the one place for all that differs between ways to stop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from answers.metric import MetricAtCost
from answers.predict import Batches, Predictions
from answers.report import Report
from elbert.albert import AlbertPreTrainedModel
from elbert.configuration import EarlyExitConfig
from elbert.export.loops import ExportLoop
from elbert_base.errors import UserError
from elbert_base.keys import KeyTable
from glue.features import Features
from runs.job import Job


@dataclass(frozen=True)
class DevEvaluation:
    """What an evaluation during training found."""

    scalars: Mapping[str, float]  # for the curves, by name
    line: Mapping[str, Any]  # for the log
    value: float  # the metric by which the best model is chosen


class Mode(ABC):
    """A way to decide who stops, and when.

    model_class: of its models, `runs` or a subclass. config_class: of their configurations, which
    has the keys, and the name of --model_type.
    """

    runs: ClassVar[type[AlbertPreTrainedModel]]

    def __init__(self, model_class: type[AlbertPreTrainedModel]) -> None:
        config_class: Any = model_class.config_class
        self.model_class, self.config_class = model_class, config_class
        self.name: str = config_class.model_type

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return self.config_class.table

    # In training.

    def loss_parts(self, out: Any) -> dict[str, torch.Tensor]:
        """Return the parts whose sum is a batch's loss, scalars by name; none for one part."""
        return {}

    @abstractmethod
    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Return the values of a training step to log, by name."""

    @abstractmethod
    def evaluate_dev(self, job: Job, metric: MetricAtCost) -> DevEvaluation:
        """Measure a model in training on the dev set."""

    # Over a data set.

    @abstractmethod
    def run(self, job: Job, features: Features) -> Batches:
        """Answer examples, each stopping as the configuration says; see `answers.predict`."""

    def latency_means(self, job: Job) -> str:
        """Say what the seconds of `run` are, for a report."""
        if job.batch_size == 1:
            return "one text at a time, from the call to its answer"
        return f"of the call, for up to {job.batch_size} texts at once"

    @abstractmethod
    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        """Return the mode's own columns of predictions.tsv, by name."""

    @abstractmethod
    def evaluate(
        self,
        job: Job,
        folder: Path,
        trained: Path,
        dtype: str,
        full_depth: bool = True,
        statistics_dir: Path | None = None,
    ) -> Report:
        """Run the job, and say what there is to print and to write.

        Args:
            folder: of the reports.
            trained: of the model.
            dtype: number type of the run, as --dtype.
            full_depth: is every layer's answer reported, too?
            statistics_dir: of the per-layer statistics; by default the configuration's.
        """

    # After it.

    @abstractmethod
    def export_loop(self, model: Any, layer_logits: bool = False) -> ExportLoop:
        """Make the module that export_onnx.py exports for a trained model.

        layer_logits: with every layer's answer; UserError for a mode whose layers have none.
        """

    def check_has_rules(self) -> None:
        """Raise UserError for a mode without exit rules, which has nothing to sweep."""
        if not issubclass(self.config_class, EarlyExitConfig):
            raise UserError(
                f"--model_type {self.name}: its depth follows from what was learned in training, "
                "so there is nothing to sweep"
            )
