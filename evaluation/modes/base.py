"""What a mode is: the one place for all that differs between ways to stop."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import Tensor

from evaluation.metric import MetricAtCost
from evaluation.predict import Batches, Predictions
from evaluation.report import Report
from glue.features import Features
from modeling.configuration import AdaptiveConfig, EarlyExitConfig
from modeling.encoder import AlbertPreTrainedModel
from modeling.errors import UserError
from modeling.export.loops import ExportLoop
from modeling.keys import KeyTable
from runs.job import Job


@dataclass(frozen=True)
class DevEvaluation:
    """What an evaluation during training found."""

    scalars: Mapping[str, float]  # for the curves, by name
    line: Mapping[str, Any]  # for the log
    value: float  # the metric by which the best model is chosen


class Mode(ABC):
    """A way to decide who stops, and when.

    Models and their outputs are `Any` here: each mode has its own classes of them.

    Attributes:
        runs: the class of the models that a kind of mode can run, or their base.
        model_class: of this mode's models, `runs` or a subclass.
        config_class: of their configurations, which has the keys.
        name: the value of --model_type.
    """

    runs: ClassVar[type[AlbertPreTrainedModel]]

    def __init__(self, model_class: type[AlbertPreTrainedModel]) -> None:
        self.model_class = model_class
        # HF declares the configuration's class of every model as one of any kind.
        self.config_class = cast(type[AdaptiveConfig], model_class.config_class)
        self.name: str = self.config_class.model_type

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return self.config_class.table

    def check_has_rules(self) -> None:
        """Raise UserError for a mode without exit rules, which has nothing to sweep."""
        if not issubclass(self.config_class, EarlyExitConfig):
            raise UserError(
                f"--model_type {self.name}: its depth follows from what was learned in training, "
                "so there is nothing to sweep"
            )

    # In training.

    def loss_parts(self, out: Any) -> dict[str, Tensor]:
        """Return the parts whose sum is a batch's loss, scalars by name; {} for one part.

        out: the model's output for the batch.
        """
        return {}

    @abstractmethod
    def scalars(self, model: Any, out: Any) -> dict[str, float]:
        """Return the values of a training step to log, by name.

        out: the model's output for the step's last batch.
        """

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
        groups: Sequence[str] | None = None,
    ) -> Report:
        """Run the job, and return what there is to print and to write.

        Only the main process gets lines and files.

        Args:
            folder: of the reports.
            trained: of the model.
            dtype: number type of the run, as --dtype.
            full_depth: also record and report every layer's answer?
            statistics_dir: of the per-layer statistics; by default the configuration's.
            groups: of each example, by name, to be reported one by one; needs `full_depth`.
        """

    # After it.

    @abstractmethod
    def export_loop(self, model: Any, layer_logits: bool = False) -> ExportLoop:
        """Make the module that export_onnx.py exports for a trained model.

        layer_logits: with every layer's answer; UserError for a mode whose layers have none.
        """
