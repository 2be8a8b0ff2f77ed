"""Floating-point operations: two for each multiply-add of a matrix product.

Element-wise work (norms, activations, softmax) is left out: below 1% at the published sizes.
"""

from transformers import AlbertConfig

from .configuration import AdaptiveConfig


def layer_pass_flops(config: AlbertConfig, length: int) -> int:
    """One layer pass over a text of `length` tokens."""
    hidden, inner = config.hidden_size, config.intermediate_size
    projections = 4 * hidden * hidden * length  # query, key, value, output
    attention = 2 * hidden * length * length  # scores, and the weighted sum of values
    feed_forward = 2 * hidden * inner * length
    return 2 * (projections + attention + feed_forward) * config.inner_group_num


def embedding_flops(config: AlbertConfig, length: int) -> int:
    """The mapping from embedding to hidden size."""
    return 2 * config.embedding_size * config.hidden_size * length


def early_exit_flops(config: AdaptiveConfig, length: int, exit_layer: int) -> int:
    """A text that exits after `exit_layer` passes, with a check after each."""
    check = config.classifier_flops() + config.halting_flops()
    per_layer = layer_pass_flops(config, length) + check
    return embedding_flops(config, length) + exit_layer * per_layer


def full_depth_flops(config: AdaptiveConfig, length: int) -> int:
    """A text through all layers, classified once at the end: what a model without exits does."""
    layers = config.num_hidden_layers * layer_pass_flops(config, length)
    return embedding_flops(config, length) + layers + config.classifier_flops()


def adaptive_flops(config: AdaptiveConfig, length: int, updates: int) -> int:
    """A text whose tokens were updated so often in sum, each update with its halting probability.

    A pass costs what its running tokens cost; `updates` = length · num_hidden_layers is full depth.
    """
    per_update = layer_pass_flops(config, length) // length + config.halting_flops()
    return embedding_flops(config, length) + updates * per_update + config.classifier_flops()
