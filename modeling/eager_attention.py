"""Attention in the published order of operations, for `attn_implementation="eager"`.

The default's formulas, step by step as in the published code, and slower.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def eager_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """softmax(QKᵀ/√d)V, all (batch, heads, length, d)."""
    return F.dropout(attention_weights(query, key, mask), dropout) @ value


def attention_weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """softmax(QKᵀ/√d), (batch, heads, queries, length): what a query reads of each token."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1)


def project_by_head(context: torch.Tensor, dense: nn.Linear) -> torch.Tensor:
    """(batch, heads, length, head_size) -> (batch, length, hidden), summed head by head."""
    heads, head_size = context.shape[1], context.shape[3]
    weight = dense.weight.t().view(heads, head_size, -1)
    return torch.einsum("bnfd,ndh->bfh", context, weight) + dense.bias
