"""The heads of PonderALBERT: one answers, one says how probable it is to halt here."""

import torch
from torch import Tensor, nn

from ..albert import ExitLinear
from ..configuration import HEAD_WIDTH, PonderAlbertConfig


def mlp(hidden: int, outputs: int) -> list[nn.Module]:
    """The layers of PonderALBERT's heads: (…, hidden) -> (…, outputs)."""
    return [ExitLinear(hidden, HEAD_WIDTH), nn.GELU(), ExitLinear(HEAD_WIDTH, outputs)]


class HaltingHead(nn.Sequential):
    """Gives the logit of λ, from the halting token's states after this layer and the previous one.

    mlp is PonderALBERT's. linear, linear_cat and linear_diff are PALBERT's: `num_lambda_layers`
    tanh layers (none for 1) and an output layer, on this state; on both; on their difference.
    """

    def __init__(self, config: PonderAlbertConfig) -> None:
        reads = config.lambda_layer_arch
        width = config.hidden_size * (2 if reads == "linear_cat" else 1)
        depth = config.num_lambda_layers if reads != "mlp" and config.num_lambda_layers > 1 else 0
        layers = [layer for _ in range(depth) for layer in (ExitLinear(width, width), nn.Tanh())]
        super().__init__(*(mlp(width, 1) if reads == "mlp" else [*layers, ExitLinear(width, 1)]))
        self.reads = reads

    def forward(self, now: Tensor, previous: Tensor) -> Tensor:
        """Logits (…) of states (…, hidden); `previous` is 0 at the first layer."""
        if self.reads == "linear_cat":
            now = torch.cat((now, previous), dim=-1)
        elif self.reads == "linear_diff":
            now = now - previous
        return super().forward(now)[..., 0].float()
