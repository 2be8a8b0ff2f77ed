"""Floating-point operations of the parts of a model: two for each multiply-add of a matrix product.

Element-wise work (norms, activations, softmax) is left out, as is usual: it is below 1% at the
published sizes.
"""

from transformers import AlbertConfig

from modeling.configuration import HEAD_WIDTH, AlbertActConfig, ElbertConfig, PonderAlbertConfig

Config = ElbertConfig | PonderAlbertConfig


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


def classifier_flops(config: Config) -> int:
    """One answer for one text: pooler and classifier."""
    if isinstance(config, PonderAlbertConfig):
        return 2 * HEAD_WIDTH * (config.hidden_size + config.num_labels)
    pooler = config.hidden_size * config.fc_size1
    if config.use_fc2:
        return 2 * (
            pooler + config.fc_size1 * config.fc_size2 + config.fc_size2 * config.num_labels
        )
    return 2 * (pooler + config.fc_size1 * config.num_labels)


def halting_flops(config: PonderAlbertConfig) -> int:
    """One halting probability for one text."""
    if config.lambda_layer_arch == "mlp":
        return 2 * HEAD_WIDTH * (config.hidden_size + 1)
    width = config.hidden_size * (2 if config.lambda_layer_arch == "linear_cat" else 1)
    depth = config.num_lambda_layers if config.num_lambda_layers > 1 else 0
    return 2 * width * (depth * width + 1)


def exit_flops(config: Config) -> int:
    """One exit check of one text: its answer and, in a ponder model, its halting probability."""
    halting = halting_flops(config) if isinstance(config, PonderAlbertConfig) else 0
    return classifier_flops(config) + halting


def early_exit_flops(config: Config, length: int, exit_layer: int) -> int:
    """A text that exits after `exit_layer` passes, with a check after each."""
    per_layer = layer_pass_flops(config, length) + exit_flops(config)
    return embedding_flops(config, length) + exit_layer * per_layer


def full_depth_flops(config: Config, length: int) -> int:
    """A text through all layers, classified once at the end: what a model without exits does."""
    layers = config.num_hidden_layers * layer_pass_flops(config, length)
    return embedding_flops(config, length) + layers + classifier_flops(config)


def adaptive_flops(config: AlbertActConfig, length: int, updates: int) -> int:
    """A text whose tokens were updated so often in sum, each update with its halting probability.

    A pass costs what its running tokens cost; `updates` = length · num_hidden_layers is full depth.
    """
    per_update = layer_pass_flops(config, length) // length + 2 * config.hidden_size
    heads = 2 * config.hidden_size * (config.hidden_size + config.num_labels)
    return embedding_flops(config, length) + updates * per_update + heads
