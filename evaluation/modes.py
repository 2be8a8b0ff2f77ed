"""The three modes, `--model_type`: what differs between them, in one place.

A mode says how its configuration and weights are read, what its inputs look like, and what a
training run logs. Everything else is shared.
"""

from pathlib import Path
from typing import Any

import torch
from transformers.utils import ModelOutput

from glue.features import Features
from modeling import (
    AlbertActConfig,
    AlbertActForSequenceClassification,
    ElbertConfig,
    ElbertForSequenceClassification,
    PonderAlbertClassifier,
    PonderAlbertConfig,
    UserError,
    load_act,
    load_config,
    load_ponder,
    load_pretrained,
    with_halting_token,
)
from modeling.compilation import EarlyExitModel
from modeling.keys import KeyTable, key_table
from modeling.loading.files import find_file, read_json
from modeling.loading.weights import LoadReport

Config = ElbertConfig | PonderAlbertConfig | AlbertActConfig
Model = EarlyExitModel | AlbertActForSequenceClassification


class Mode:
    """A way to decide who stops, and when."""

    name: str  # of --model_type
    config_class: type[Config]
    model_class: type[Model]
    extra_tokens = 0  # that `prepare` adds to a text
    optional = ()  # tensors that a trained model may lack
    stops_tokens = False  # each token for itself, rather than a whole example

    @property
    def table(self) -> KeyTable:
        """The configuration's keys, and those of them that may change after training."""
        return key_table(self.config_class.model_type)

    def load_config(self, source: str | Path, cache_dir: str | None = None, **keys: Any) -> Config:
        """Configuration of a checkpoint for this mode; raises UserError if it cannot be one."""
        return load_config(source, cache_dir, self.config_class, **keys)

    def load(
        self,
        source: str | Path,
        config: Config | None = None,
        cache_dir: str | None = None,
        other_task: bool = False,
    ) -> tuple[Model, LoadReport]:
        """A model with the weights of a checkpoint; `other_task` leaves out its task's heads."""
        raise NotImplementedError

    def check_length(self, max_seq_length: int, config: Config) -> None:
        shortest, longest = 3 + self.extra_tokens, config.max_position_embeddings
        if not shortest <= max_seq_length <= longest:
            raise UserError(
                f"--max_seq_length {max_seq_length}: allowed is {shortest} to "
                f"max_position_embeddings = {longest}"
            )

    def prepare(self, features: Features, seed: int) -> Features:
        """What the model reads, from texts tokenised to max_seq_length − extra_tokens."""
        return features

    def scalars(self, model: Model, out: ModelOutput) -> dict[str, float]:
        """What to log of a training step, by name."""
        raise NotImplementedError


class Elbert(Mode):
    """A rule over the exits' answers so far stops an example."""

    name, config_class, model_class = "albert", ElbertConfig, ElbertForSequenceClassification
    optional = ("exit_weights",)  # the published code does not save it

    load = staticmethod(load_pretrained)

    def scalars(self, model: Model, out: ModelOutput) -> dict[str, float]:
        """σ(W) of every exit."""
        if model.exit_weights is None:
            return {}
        weights = model.exit_weights.detach().sigmoid().tolist()
        return {f"exit_weight/{i}": weight for i, weight in enumerate(weights, 1)}


class Ponder(Mode):
    """A learned halting probability a layer stops an example."""

    name, config_class, model_class = "ponder_albert", PonderAlbertConfig, PonderAlbertClassifier
    extra_tokens = 1  # the second [CLS]

    load = staticmethod(load_ponder)

    def prepare(self, features: Features, seed: int) -> Features:
        """Insert the second [CLS]; every example gets its own draw for `sample`, from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        return features._replace(
            input_ids=[with_halting_token(ids) for ids in features.input_ids],
            token_type_ids=[with_halting_token(types) for types in features.token_type_ids],
            draws=torch.rand(len(features.labels), generator=generator).tolist(),
        )

    def scalars(self, model: Model, out: ModelOutput) -> dict[str, float]:
        """Expected steps, KL to the prior, and λ of every layer, means over the batch."""
        halting, prior = out["model_halt_dist"], out["target_halt_dist"]
        values = {
            "expected_steps": halting.expected_steps().mean().item(),
            "kl_to_prior": prior.kl_div(halting).item(),
            "weighted_task_loss": out["weighted_ce_loss"].item(),
        }
        means = halting.stop_probabilities.mean(0).tolist()
        return values | {f"lambda/layer_{i}": mean for i, mean in enumerate(means, 1)}


class AdaptiveDepth(Mode):
    """A learned halting probability an update stops a token."""

    name, config_class = "albert_act", AlbertActConfig
    model_class = AlbertActForSequenceClassification
    stops_tokens = True

    load = staticmethod(load_act)

    def scalars(self, model: Model, out: ModelOutput) -> dict[str, float]:
        """Ponder cost, mean over the batch; updates, mean over its tokens."""
        updates, cost = out.updates, out.ponder_cost.mean()
        return {
            "ponder_cost": cost.item(),
            "mean_updates": (updates.sum() / (updates > 0).sum()).item(),
            "task_loss": (out.loss - model.config.tau * cost).item(),
        }


MODES = {mode.name: mode for mode in (Elbert(), Ponder(), AdaptiveDepth())}


def mode_of(config: Config) -> Mode:
    """The mode of a model by its configuration."""
    return next(mode for mode in MODES.values() if mode.config_class is type(config))


def trained_mode(directory: str | Path) -> Mode:
    """The mode that the model in `directory` was trained in; an unknown one is read as ELBERT's."""
    path = find_file(directory, "config.json")
    kind = read_json(path).get("model_type") if path else None
    for mode in MODES.values():
        if mode.config_class.model_type == kind:
            return mode
    return MODES["albert"]
