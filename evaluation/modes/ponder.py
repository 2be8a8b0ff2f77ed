"""PonderNet and PALBERT, `--model_type ponder_albert`: a learned halting probability a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evaluation.modes.base import RuleSet, Setting, Tensors
from evaluation.modes.examples import ExampleMode
from modeling.keys import KEY_TABLES

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput

    from glue.features import Features
    from modeling.export.loops import DepthLoop


class Ponder(ExampleMode):
    """A learned halting probability a layer stops an example."""

    name, model_type, table = "ponder_albert", "ponder_albert", KEY_TABLES["ponder_albert"]
    extra_tokens = 1  # the second [CLS]

    @property
    def model_class(self) -> type[PreTrainedModel]:
        from modeling.ponder.model import PonderAlbertClassifier

        return PonderAlbertClassifier

    def load(self, *arguments: Any, **keywords: Any) -> tuple:
        from modeling.ponder.model import load_ponder

        return load_ponder(*arguments, **keywords)

    def prepare(self, features: Features, seed: int) -> Features:
        """Insert the second [CLS]; every example gets its own draw for `sample`, from `seed`."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return features.with_second_cls(torch.rand(len(features), generator=generator).numpy())

    def scalars(self, model: PreTrainedModel, out: ModelOutput) -> dict[str, float]:
        """Expected steps, KL to the prior, and λ of every layer, means over the batch."""
        halting, prior = out["model_halt_dist"], out["target_halt_dist"]
        values = {
            "expected_steps": halting.expected_steps().mean().item(),
            "kl_to_prior": prior.kl_div(halting).item(),
            "weighted_task_loss": out["weighted_ce_loss"].item(),
        }
        means = halting.stop_probabilities.mean(0).tolist()
        return values | {f"lambda/layer_{i}": mean for i, mean in enumerate(means, 1)}

    def export_loop(self, model: PreTrainedModel) -> DepthLoop:
        """The draws of `sample` are an input: the caller's chance, not the file's."""
        from modeling.export.loops import DepthLoop

        return DepthLoop(model, draws=model.config.exit_criteria == "sample")

    def record_layer(self, state: Tensors) -> dict[str, torch.Tensor]:
        return {"halt_probabilities": state["halt_probability"]}

    def recorded(self, tensors: dict[str, torch.Tensor], features: Features) -> Tensors:
        """halt_probabilities (examples, layers) and draws (examples,) beside all_logits."""
        import torch

        halts = tensors["halt_probabilities"].T.contiguous()
        draws = torch.as_tensor(features.draws, dtype=torch.float)
        return {**tensors, "halt_probabilities": halts, "draws": draws}

    def rules(self) -> RuleSet:
        return RuleSet(
            name_key="exit_criteria",
            keys=self.table.exit_keys,
            # λ is learned for classes and values alike.
            reads=lambda regression: {"threshold": ("exit_thres",), "sample": ()},
            scan=scan_criterion,
            window=no_window,
            eager_when_low=("exit_thres",),
            recorded_as={"exit_criteria": "threshold"},
            unswept={
                "expectation": "it mixes the answers of all layers, so every example goes to the "
                "last"
            },
        )


def scan_criterion(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Exit layers (settings, examples), or (examples,) for plain numbers."""
    from modeling.ponder.criteria import HaltingRule, scan_halting

    recorded = (tensors[name] for name in ("all_logits", "halt_probabilities", "draws"))
    return scan_halting(HaltingRule(**setting), *recorded)[1]


def no_window(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """A halting probability looks at one layer: no exit has a window, (examples,) of 0."""
    import torch

    return torch.zeros(tensors["all_logits"].shape[1], dtype=torch.long)
