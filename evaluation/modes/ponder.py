"""PonderNet and PALBERT, `--model_type ponder_albert`: a learned halting probability per layer."""

from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from evaluation.modes.base import RuleSet, Setting, Tensors, Trace
from evaluation.modes.examples import ExampleMode
from glue.features import Features
from modeling.export.loops import DepthLoop
from modeling.ponder.criteria import HaltingRule, scan_halting
from modeling.ponder.model import PonderAlbertClassifier


class Ponder(ExampleMode):
    """A learned halting probability a layer stops an example."""

    name, model_class = "ponder_albert", PonderAlbertClassifier
    extra_tokens = 1  # the second [CLS]
    loss = (
        "weighted_task_loss, mean over layers and batch of p_n × the layer's task loss, + kl_loss, "
        "kl_penalty_factor × KL(p ‖ prior), mean over the batch"
    )
    recorded: ClassVar = {"halt_probabilities": attrgetter("halting.halt_probability")}

    def prepare(self, features: Features, seed: int) -> Features:
        """Insert the second [CLS]; every example gets its own draw for `sample`, from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        draws = torch.rand(len(features), generator=generator).numpy()
        return replace(features.with_second_cls(), inputs={"draws": draws})

    def loss_parts(self, out: ModelOutput) -> dict[str, torch.Tensor]:
        return {"weighted_task_loss": out["weighted_ce_loss"], "kl_loss": out["kl_loss"]}

    def scalars(self, model: PonderAlbertClassifier, out: ModelOutput) -> dict[str, float]:
        """Expected steps, KL to the prior, and λ of every layer: means over the last batch."""
        halting, prior = out["model_halt_dist"], out["target_halt_dist"]
        values = {
            "expected_steps": halting.expected_steps().mean().item(),
            "kl_to_prior": prior.kl_div(halting).item(),
        }
        means = halting.stop_probabilities.mean(0).tolist()
        return values | {f"lambda/layer_{i}": mean for i, mean in enumerate(means, 1)}

    def export_loop(self, model: PreTrainedModel, layer_logits: bool = False) -> DepthLoop:
        """The draws of `sample` are an input: the caller's chance, not the file's."""
        drawn = model.config.exit_criteria == "sample"
        return DepthLoop(model, tuple(model.own_inputs) if drawn else (), layer_logits)

    def rules(self) -> RuleSet:
        return RuleSet(
            name_key="exit_criteria",
            keys=self.table.exit_keys,
            # λ is learned for classes and values alike.
            reads=lambda regression: {"threshold": ("exit_thres",), "sample": ()},
            scan=scan_criterion,
            cause={"threshold": "halting CDF above exit_thres", "sample": "chance"}.get,
            trace=halting,
            eager_when_low=("exit_thres",),
            recorded_as={"exit_criteria": "threshold"},
            unswept=lambda regression: {
                "expectation": "it mixes the answers of all layers, so every example goes to the "
                "last"
            },
        )


def halting(setting: Setting, tensors: Tensors) -> Trace:
    """λ and the probability of having halted, against exit_thres or each example's draw."""
    chances = tensors["halt_probabilities"].T
    values = {"λ": chances, "halting CDF": 1 - (1 - chances).cumprod(0)}
    if setting["exit_criteria"] == "sample":
        return Trace(values, tensors["draws"], "the example's draw")
    limit = torch.full(chances.shape[1:], float(setting["exit_thres"]))
    return Trace(values, limit, "exit_thres")


def scan_criterion(setting: Setting, tensors: Tensors) -> torch.Tensor:
    """Exit layers (settings, examples), or (examples,) for plain numbers."""
    recorded = (tensors[name] for name in ("all_logits", "halt_probabilities", "draws"))
    return scan_halting(HaltingRule(**setting), *recorded)[1]
