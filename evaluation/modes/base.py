"""What a mode is: the one place for all that differs between ways to stop.

A new mode is a subclass of `Mode`, or of `evaluation.modes.examples.ExampleMode` where whole
examples stop, in a file of its own, and its line in REGISTRY. Nothing outside asks which it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from transformers import AlbertConfig, PreTrainedModel
from transformers.utils import ModelOutput

from glue.features import Features
from modeling.errors import UserError
from modeling.exit_settings import Settings
from modeling.keys import Key, KeyTable
from modeling.loading.configs import load_config
from modeling.loading.weights import LoadReport, load_model

if TYPE_CHECKING:
    from evaluation.dev import Goal
    from evaluation.job import Job, Place
    from evaluation.predictions import Predictions
    from modeling.export.loops import ExportLoop

Setting = dict[str, Any]  # keys of an exit_config.json: the rule's name and what it reads
Tensors = Mapping[str, torch.Tensor]  # of a recording


def describe(setting: Setting, name_key: str) -> str:
    """ "bias_1, exit_thres 0.3, cnt_thres 4": for messages and titles."""
    keys = [f"{key} {value:g}" for key, value in setting.items() if key != name_key]
    return ", ".join([setting[name_key], *keys])


class Trace(NamedTuple):
    """What a rule compares at every layer, and with what: an example leaves beyond the limit."""

    values: dict[str, torch.Tensor]  # name -> (layers, examples); the last is compared
    limit: torch.Tensor  # (examples,)
    limit_name: str


def no_window(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Of rules that look at one layer: no exit has a window, (examples,) of 0."""
    return torch.zeros(tensors["all_logits"].shape[1], dtype=torch.long)


@contextmanager
def keys_in_force(config: AlbertConfig, setting: Setting) -> Iterator[None]:
    """`setting` in force; on leaving, the exit keys are again what they were."""
    before = config.exit_keys()
    config.update({**before, **setting})
    try:
        yield
    finally:
        config.update(before)


@dataclass(frozen=True, kw_only=True)
class RuleSet:
    """The exit rules of a mode, as a sweep needs to know them.

    name_key: the key that holds the rule's name.
    keys: the keys that decide an exit.
    reads: is it regression? -> the keys that each rule reads, by the rule's name.
    scan: a setting and a recording -> exit layers (examples,); (settings, examples) for values of
        shape (settings, 1).
    window: the same -> how many layers the window spans that ended each example's pass, 0 where
        none did: (examples,).
    cause: a rule's name -> what ends a pass under it, where no window does.
    trace: a setting and a recording -> the numbers behind the exits; None where the answers
        themselves say it all.
    eager_when_low: keys whose low values exit early; for all others high ones do.
    recorded_as: exit keys under which every layer shows its own answer.
    unswept: is it regression? -> rules without exits, and why.
    """

    name_key: str
    keys: Mapping[str, Key]
    reads: Callable[[bool], Mapping[str, tuple[str, ...]]]
    scan: Callable[[Setting, Tensors], torch.Tensor]
    window: Callable[[Setting, Tensors], torch.Tensor] = no_window
    cause: Callable[[str], str] = str
    trace: Callable[[Setting, Tensors], Trace | None] = lambda setting, tensors: None
    eager_when_low: tuple[str, ...] = ()
    recorded_as: Setting = field(default_factory=dict)
    unswept: Callable[[bool], Mapping[str, str]] = lambda regression: {}

    def swept(self, regression: bool) -> list[str]:
        """The rules that a sweep tries unless it is told which."""
        without_exits = self.unswept(regression)
        return [rule for rule in self.reads(regression) if rule not in without_exits]

    def named(self, keys: Setting, regression: bool) -> Setting:
        """Of all exit keys the rule's name and the keys that it reads."""
        rule = keys[self.name_key]
        reads = self.reads(regression).get(rule, ())
        return {self.name_key: rule, **{name: keys[name] for name in reads}}


class Mode(ABC):
    """A way to decide who stops, and when.

    name: of --model_type.
    model_class: the model; its `config_class` has the configuration's keys.
    extra_tokens: how many `prepare` adds to a text.
    uncompiled: why torch.compile does not serve inference; "" where it does.
    in_slots: are larger batches kept full, a text entering where another left?
    optional: tensors that a trained model may lack.
    loss: what the training loss is and how it is averaged, for a log.
    recorded: what a recording keeps beside the answers: its name, and how to get it, (batch,), from
        a layer's `State`.
    """

    name: ClassVar[str]
    model_class: ClassVar[type[PreTrainedModel]]
    extra_tokens: ClassVar[int] = 0
    uncompiled: ClassVar[str] = ""
    in_slots: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()
    loss: ClassVar[str] = "the model's"
    recorded: ClassVar[Mapping[str, Callable[[Any], torch.Tensor]]] = {}

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return self.model_class.config_class.table

    # What it reads.

    def load(
        self, source: str | Path, config: AlbertConfig | None = None, other_task: bool = False
    ) -> tuple[PreTrainedModel, LoadReport]:
        """Load a model with a checkpoint's weights; `other_task` leaves out its task's heads."""
        return load_model(self.model_class, source, config, other_task)

    def load_config(
        self, source: str | Path, settings: Settings | None = None, **keys: Any
    ) -> AlbertConfig:
        """Read a checkpoint's configuration for this mode; raises UserError if it cannot be one."""
        return load_config(source, self.model_class.config_class, settings, **keys)

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
    def dev_scalars(self, job: Job, goal: Goal) -> tuple[dict[str, float], dict[str, Any], float]:
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
    def evaluate(self, job: Job, place: Place) -> dict[str, Any]:
        """Run, print and write the reports; returns the content of eval_results.json."""

    @abstractmethod
    def record(self, job: Job) -> dict[str, torch.Tensor]:
        """What sweeps and comparisons read of a data set.

        all_logits: (layers, examples, num_labels), and what the rules read beside it. Where there
        is nothing to sweep: one layer, and cost: (examples,), each answer's share of full depth.
        """

    def rules(self) -> RuleSet:
        """What a sweep varies; UserError for a mode with nothing to sweep."""
        raise UserError(
            f"--model_type {self.name}: its depth follows from what was learned in training, so "
            "there is nothing to sweep"
        )
