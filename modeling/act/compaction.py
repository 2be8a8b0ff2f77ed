"""Layer passes over the running tokens alone, without gradients.

A halted token's state is constant and all passes share their weights, so its keys and values are
constant too: they are kept, and everything else is left out for it.
"""

import torch

from modeling.act.halting import Halting, interpolate
from modeling.act.layer import AlbertActLayer
from modeling.albert import KEY_VALUE, QUERY


def grid_slots(running: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where the running tokens of (batch, length) go in a (batch, width) grid, and its width.

    An example's tokens stand side by side at the left of its row of the grid. Returns their flat
    positions in the grid (running,), and the largest number of tokens that an example has.
    """
    place = running.cumsum(1)  # counted from 1
    width = int(place[:, -1].max())
    row_start = torch.arange(len(running), device=running.device)[:, None] * width
    return (row_start + place - 1)[running], width


class RunningTokens:
    """The states of a batch's tokens, of which passes update those that `halting` says run.

    states: (batch · length, hidden), of all tokens; the caller's `hidden` is left as it is.
    key_value: (batch · length, 2·hidden), their keys and values.
    """

    def __init__(
        self,
        layer: AlbertActLayer,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        halting: Halting,
    ) -> None:
        self.layer, self.mask, self.halting = layer, mask, halting
        self.pieces = layer.pieces()
        self.states = hidden.flatten(0, 1).clone()
        self.key_value = self.pieces.project(self.states, KEY_VALUE)
        self.changed: torch.Tensor | None = None  # rows of which key_value is out of date

    def update(self, rows: torch.Tensor) -> None:
        """One pass over the running tokens, which are at `rows`, and its account in `halting`."""
        state = self.states[rows]  # (running, hidden)
        new = self.layer_pass(state)
        probability = self.halting.spent.new_zeros(len(self.states))
        probability[rows] = self.layer.act(new)
        weight = self.halting.advance(probability.view_as(self.halting.spent))
        self.states[rows] = interpolate(new, state, weight.flatten()[rows])
        self.changed = rows

    def layer_pass(self, state: torch.Tensor) -> torch.Tensor:
        """What the layer makes of the running tokens' states, (running, hidden).

        Every query meets the keys of its own example; the linear layers see running tokens only.
        """
        attention, running = self.layer.attention, self.halting.running
        slots, width = grid_slots(running)
        query = self.pieces.project(state, QUERY)
        grid = query.new_zeros(len(running) * width, query.shape[-1])
        grid[slots] = query
        (query,) = attention.split_heads(grid.view(len(running), width, -1))
        key, value = attention.split_heads(self.keys_and_values().view(*running.shape, -1))
        context = attention.attend(query, key, value, self.mask)  # (batch, heads, width, head_size)
        return self.pieces.finish(state, context.transpose(1, 2).reshape(grid.shape)[slots])

    def keys_and_values(self) -> torch.Tensor:
        """`key_value`, after those that the last pass changed are brought up to date."""
        if self.changed is not None:
            self.key_value[self.changed] = self.pieces.project(self.states[self.changed], KEY_VALUE)
            self.changed = None
        return self.key_value
