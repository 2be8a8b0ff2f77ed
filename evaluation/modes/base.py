"""What a mode is: the one place for all that differs between ways to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import AlbertConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from glue.features import Features, encode
from glue.tasks import Example
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
    """A way to decide who stops, and when."""

    name: ClassVar[str]  # of --model_type
    model_class: ClassVar[type[PreTrainedModel]]  # its `config_class` has the keys
    uncompiled: ClassVar[str] = ""  # why torch.compile does not serve inference
    depth_batched: ClassVar[bool] = False  # larger batches are kept full by depth batching
    optional: ClassVar[tuple[str, ...]] = ()  # tensors that a trained model may lack
    loss: ClassVar[str] = "the model's"  # and how it is averaged, for a log

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return self.model_class.config_class.table

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
        """What the model reads of texts, each truncated to max_seq_length tokens."""
        return encode(examples, tokenizer, max_seq_length - config.extra_tokens)

    def loss_parts(self, out: ModelOutput) -> dict[str, torch.Tensor]:
        """The parts whose sum is a batch's loss, by name: scalars; none for a loss of one part."""
        return {}

    @abstractmethod
    def scalars(self, model: PreTrainedModel, out: ModelOutput) -> dict[str, float]:
        """What to log of a training step, by name."""

    @abstractmethod
    def dev_scalars(
        self, job: Job, metric: MetricAtCost
    ) -> tuple[dict[str, float], dict[str, Any], float]:
        """Measure at a logging step: what trackers get, the console's line, and the `metric` by
        which the best model is chosen."""

    @abstractmethod
    def export_loop(self, model: PreTrainedModel, layer_logits: bool = False) -> ExportLoop:
        """What export_onnx.py writes of a trained model.

        layer_logits: with every layer's answer; UserError for a mode whose layers have none.
        """

    @abstractmethod
    def other_outputs(self, out: ModelOutput, longest: int) -> dict[str, torch.Tensor]:
        """What else to keep of a batch's output than its logits, (batch, …) on the CPU by name.

        longest: tokens of the longest example of the data set.
        """

    @abstractmethod
    def details(self, predictions: Predictions) -> dict[str, Sequence[Any]]:
        """The mode's own columns of predictions.tsv, by name."""

    @abstractmethod
    def evaluate(self, job: Job, results: Path, trained: Path, checkpoint: str) -> dict[str, Any]:
        """Run, print and write the reports; returns the content of eval_results.json.

        results: their folder; trained: the model's folder; checkpoint: its name, or "".
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
