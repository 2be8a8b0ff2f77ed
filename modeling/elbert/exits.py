"""Exit classifiers: what a layer answers."""

import torch
from torch import nn

from ..albert import ExitLinear, Pooler
from ..configuration import ElbertConfig
from ..rules import exit_scores


def first_state(hidden: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    return hidden[:, 0]


def masked_mean(hidden: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    if real is None:
        return hidden.mean(1)
    return (hidden * real).sum(1) / real.sum(1)


def masked_max(hidden: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    if real is not None:
        hidden = hidden.masked_fill(~real, torch.finfo(hidden.dtype).min)
    return hidden.amax(1)


POOLINGS = {"cls": first_state, "mean": masked_mean, "max": masked_max}


def pool(hidden: torch.Tensor, mask: torch.Tensor | None, pooler_input: str) -> torch.Tensor:
    """What an exit sees of a layer: (batch, length, hidden) -> (batch, hidden).

    `mask` is (batch, 1, 1, length) bool, None without padding. Means and maxima run over real
    tokens only. A name with a hyphen is the sum of its two parts, as published.
    """
    real = None if mask is None else mask[:, 0, 0, :, None]  # (batch, length, 1)
    first, _, second = pooler_input.partition("-")
    pooled = POOLINGS[first](hidden, real)
    return pooled + POOLINGS[second](hidden, real) if second else pooled


class ExitClassifier(nn.Module):
    """An exit: pooler, then one or two linear layers, under the published names."""

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__()
        self.config = config
        self.pooler = None if config.use_out_pooler else Pooler(config, config.fc_size1)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        if config.use_fc2:
            self.classifier1 = ExitLinear(config.fc_size1, config.fc_size2)
            self.classifier2 = ExitLinear(config.fc_size2, config.num_labels)
        else:
            self.classifier = ExitLinear(config.fc_size1, config.num_labels)

    def forward(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, shared_pooler: Pooler
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All tensors of an exit check: (batch, length, hidden) -> its answers and their scores.

        Both are (batch, num_labels) float32. This is what `compilation.py` compiles.
        """
        logits = self.classify(pool(hidden, mask, self.config.pooler_input), shared_pooler)
        return logits, exit_scores(logits)

    def classify(self, pooled: torch.Tensor, shared_pooler: Pooler) -> torch.Tensor:
        """(..., hidden) -> logits (..., num_labels), float32 as the thresholds are."""
        features = (self.pooler or shared_pooler)(pooled)
        if self.training:  # a call that does nothing is 3% of a check
            features = self.dropout(features)
        if hasattr(self, "classifier"):
            return self.classifier(features).float()
        return self.classifier2(self.classifier1(features).tanh()).float()
