"""Floating-point operations of a model, from its configuration.

Two for each multiply-add of a matrix product. Element-wise work is left out: below 1% at the
published sizes. `length` counts the tokens of a text.
"""

from transformers import AlbertConfig


class CountingConfig(AlbertConfig):
    """ALBERT's configuration, which counts what a pass costs; a mode adds what its exits do."""

    def classifier_flops(self) -> int:
        """Count those of one answer for one example: pooler and classifier."""
        raise NotImplementedError

    def halting_flops(self) -> int:
        """Count those of one halting probability; 0 in a mode without any."""
        return 0

    def embedding_flops(self, length: int) -> int:
        """Count those of the mapping from embedding to hidden size."""
        return 2 * self.embedding_size * self.hidden_size * length

    def layer_pass_flops(self, length: int) -> int:
        """Count those of one layer pass."""
        hidden, inner = self.hidden_size, self.intermediate_size
        projections = 4 * hidden * hidden * length  # query, key, value, output
        attention = 2 * hidden * length * length  # scores, and the weighted sum of values
        feed_forward = 2 * hidden * inner * length
        return 2 * (projections + attention + feed_forward) * self.inner_group_num

    def early_exit_flops(self, length: int, exit_layer: int) -> int:
        """Count those of a text that exits after `exit_layer` passes, with a check after each."""
        check = self.classifier_flops() + self.halting_flops()
        return self.embedding_flops(length) + exit_layer * (self.layer_pass_flops(length) + check)

    def full_depth_flops(self, length: int) -> int:
        """Count those of a text through all layers, classified once: of a model without exits."""
        layers = self.num_hidden_layers * self.layer_pass_flops(length)
        return self.embedding_flops(length) + layers + self.classifier_flops()
