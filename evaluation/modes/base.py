"""What a mode is: the one place for all that differs between ways to stop.

A new mode is a subclass of `Mode`, or of `evaluation.modes.examples.ExampleMode` where whole
examples exit, with a line in MODES. Nothing outside asks which it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import AlbertConfig, PreTrainedModel
from transformers.utils import ModelOutput

from glue.features import Features
from modeling.errors import UserError
from modeling.exit_settings import Setting
from modeling.keys import KeyTable
from modeling.rules import ExitRule, Tensors
from training.fine_tuning import MetricAtCost

if TYPE_CHECKING:
    from evaluation.job import Job
    from evaluation.predictions import Predictions
    from modeling.export.loops import ExportLoop


class Mode(ABC):
    """A way to decide who stops, and when.

    name: of --model_type.
    model_class: the model; its `config_class` has the configuration's keys.
    extra_tokens: how many `prepare` adds to a text.
    uncompiled: why torch.compile does not serve inference; "" where it does.
    in_slots: are larger batches kept full, a text entering where another left?
    optional: tensors that a trained model may lack.
    loss: what the training loss is and how it is averaged, for a log.
    """

    name: ClassVar[str]
    model_class: ClassVar[type[PreTrainedModel]]
    extra_tokens: ClassVar[int] = 0
    uncompiled: ClassVar[str] = ""
    in_slots: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()
    loss: ClassVar[str] = "the model's"

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return self.model_class.config_class.table

    # What the model reads.

    def check_length(self, max_seq_length: int, config: AlbertConfig) -> None:
        """UserError for a --max_seq_length that is too short for a text or too long."""
        shortest, longest = 3 + self.extra_tokens, config.max_position_embeddings
        if not shortest <= max_seq_length <= longest:
            raise UserError(
                f"--max_seq_length {max_seq_length}: allowed is {shortest} to "
                f"max_position_embeddings = {longest}"
            )

    def prepare(self, features: Features, seed: int) -> Features:
        """What the model reads, from texts tokenised to max_seq_length − extra_tokens."""
        return features

    # What a training logs.

    def loss_parts(self, out: ModelOutput) -> dict[str, torch.Tensor]:
        """The parts whose sum is a batch's loss, by name: scalars; none for a loss of one part."""
        return {}

    @abstractmethod
    def scalars(self, model: PreTrainedModel, out: ModelOutput) -> dict[str, float]:
        """What to log of a training step, by name."""

    @abstractmethod
    def dev_scalars(
        self, job: Job, goal: MetricAtCost
    ) -> tuple[dict[str, float], dict[str, Any], float]:
        """Dev metric at a logging step: what trackers get, the console's line, and `goal`'s value,
        by which the best model is chosen."""

    # How it is exported.

    @abstractmethod
    def export_loop(self, model: PreTrainedModel, layer_logits: bool = False) -> ExportLoop:
        """What export_onnx.py writes of a trained model.

        layer_logits: with every layer's answer; UserError for a mode whose layers have none.
        """

    # How it runs and reports.

    @abstractmethod
    def run(self, job: Job) -> Predictions:
        """Answer every example, each stopping as the configuration says."""

    @abstractmethod
    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        """The mode's own columns of predictions.tsv, by name."""

    @abstractmethod
    def evaluate(self, job: Job, folder: Path, directory: Path, checkpoint: str) -> dict[str, Any]:
        """Run, print and write the reports; returns the content of eval_results.json.

        folder: of the results; directory: of the trained model; checkpoint: its name, or "".
        """

    @abstractmethod
    def record(self, job: Job) -> dict[str, torch.Tensor]:
        """What sweeps and comparisons read of a data set.

        all_logits: (layers, examples, num_labels), and what the rules read beside it. Where there
        is nothing to sweep: one layer, and cost: (examples,), each answer's share of full depth.
        """

    # What a sweep varies: the exit rules.

    @property
    def rule_key(self) -> str:
        """The exit key that names the rule."""
        return self.model_class.config_class.rule_key

    def rules(self, regression: bool) -> Mapping[str, type[ExitRule]]:
        """The exit rules by name; UserError for a mode with nothing to sweep."""
        rules = self.model_class.config_class.exit_rules(regression)
        if not rules:
            raise UserError(
                f"--model_type {self.name}: its depth follows from what was learned in training, "
                "so there is nothing to sweep"
            )
        return rules

    def rule(self, setting: Setting, tensors: Tensors) -> ExitRule:
        """The rule of a setting, for recorded answers."""
        regression = tensors["all_logits"].shape[-1] == 1
        return self.rules(regression)[setting[self.rule_key]](**setting)

    def swept(self, regression: bool) -> list[str]:
        """The rules that a sweep tries unless it is told which."""
        return [name for name, rule in self.rules(regression).items() if not rule.never_exits]

    def named(self, keys: Setting, regression: bool) -> Setting:
        """Of all exit keys the rule's name and the keys that it reads."""
        name = keys[self.rule_key]
        reads = self.rules(regression)[name].reads
        return {self.rule_key: name, **{key: keys[key] for key in reads}}
