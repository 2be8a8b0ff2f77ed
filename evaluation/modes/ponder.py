"""PonderNet and PALBERT, `--model_type ponder_albert`: a learned halting probability per layer."""

from dataclasses import replace

import torch
from transformers.utils import ModelOutput

from evaluation.modes.examples import ExampleMode
from glue.features import Features
from modeling.ponder.model import PonderAlbertClassifier


class Ponder(ExampleMode):
    """A learned halting probability a layer stops an example."""

    name, model_class = "ponder_albert", PonderAlbertClassifier
    extra_tokens = 1  # the second [CLS]
    loss = (
        "weighted_task_loss, mean over layers and batch of p_n × the layer's task loss, + kl_loss, "
        "kl_penalty_factor × KL(p ‖ prior), mean over the batch"
    )

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
