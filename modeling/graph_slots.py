"""The slots of a `DepthBatcher` on a GPU: texts enter and leave them, and a step is one graph."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from .captures import (
    Entry,
    Layout,
    PassResult,
    Replay,
    StaticTree,
    do_nothing,
    preserved,
    record_checked,
    rounded_batch,
    rounded_length,
)
from .depth import LayerWeights

Tokens = tuple[np.ndarray, np.ndarray]  # ids and segments of a text, (length,) int64 each
MOST_PASSES = 256  # graphs kept of a layer pass; the one that was not used for longest goes first


class GraphedSlots(Entry):
    """The slots of a `DepthBatcher`: they stay where they are, and examples enter and leave them.

    One slot more is nobody's: what a graph has too many rows for goes there.

    Attributes:
        slots: their number.
        capacity: in tokens.
        layout: of the examples' own inputs.
        hidden: (slots + 1, capacity, hidden); what stands behind an example's tokens is masked.
        lengths: (slots + 1,) int64, in tokens.
        state: what the examples carry from layer to layer, (slots + 1, …).
    """

    def __init__(self, graphs: Any, slots: int, capacity: int, layout: Layout) -> None:
        super().__init__(graphs)
        self.slots = slots
        self.capacity = capacity
        self.layout = layout
        rows = slots + 1
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        embedded = self.model.embed(token, token)
        self.hidden = embedded.new_zeros(rows, capacity, embedded.shape[-1])
        self.lengths = torch.ones(rows, dtype=torch.long, device=self.device)
        self.state = StaticTree(self.start(rows, self.empty_inputs(rows, layout)))
        depth = self.model.config.num_hidden_layers
        self.is_shared = len({self.model.layer_weights(layer) for layer in range(depth)}) == 1
        self.entrances: dict[tuple[int, int], SlotEntrance] = {}
        self.passes: dict[tuple[LayerWeights, int, int], SlotPass] = {}

    @property
    def size(self) -> int:
        return self.hidden.nbytes + self.state.size

    def drop_replays(self) -> None:
        for part in (*self.entrances.values(), *self.passes.values()):
            part.replay = do_nothing
        self.entrances.clear()
        self.passes.clear()

    @property
    def buffers(self) -> tuple[Any, ...]:
        return self.hidden, self.lengths, *self.state.buffers

    def may_replay(self) -> bool:
        """Tell whether weights and surroundings are those of the capture."""
        known = self.fingerprint
        return known is not None and known.has_same_weights() and self.graphs.may_replay(known)

    def enter(self, places: np.ndarray, texts: Sequence[Tokens], inputs: Any, pad: int) -> None:
        """Put texts into slots, (texts,) int64, at depth 0.

        inputs: their own inputs, (texts, names) float32. pad: the id of padding. Raises
        CaptureError, after a line, where that fails.
        """
        count = min(rounded_batch(len(places)), self.slots)
        width = rounded_length(max(len(ids) for ids, _ in texts), self.capacity)
        key = count, width
        if key not in self.entrances:
            with self.capturing(is_pass=False):
                self.entrances[key] = SlotEntrance(self, count, width)
        self.entrances[key].run(places, texts, inputs, pad)

    def start_pass(
        self, places: np.ndarray, longest: int, weights: LayerWeights
    ) -> Callable[[], Tensor]:
        """Start the next layer of some slots, with its check.

        longest: of their examples, in tokens. Returns what waits for the answers, and 1 where an
        example exits: (places, num_labels + 1) on the CPU. Raises CaptureError, after a line, where
        a capture fails.
        """
        count = min(rounded_batch(len(places)), self.slots)
        if self.graphs.compile:  # for as few shapes as can be
            count = self.slots
        key = weights, count, rounded_length(longest, self.capacity)
        if key not in self.passes:
            if len(self.passes) >= MOST_PASSES:  # the one that was not used for longest goes
                self.passes.pop(next(iter(self.passes))).replay = do_nothing
            with self.capturing():
                self.passes[key] = SlotPass(self, *key)
        self.passes[key] = self.passes.pop(key)
        return self.passes[key].start_pass(places)

    @contextmanager
    def capturing(self, is_pass: bool = True) -> Iterator[None]:
        """Capture something without a trace in the buffers, which examples are using."""
        key = "slots", self.slots, self.capacity, self.layout
        with self.graphs.capturing(key, is_pass), preserved(*self.buffers):
            yield

    def take_over(self, other: "GraphedSlots") -> None:
        """Copy the examples of other slots, of less capacity, into these."""
        self.hidden[:, : other.capacity] = other.hidden
        self.lengths.copy_(other.lengths)
        for buffer, value in zip(self.state.buffers, other.state.buffers, strict=True):
            if isinstance(buffer, Tensor):
                buffer.copy_(value)


class SlotEntrance:
    """The graph by which some texts enter slots: embedded, and put in their places.

    Attributes:
        words: (texts, 2·width + 2) int64 on the CPU: ids, segments, slot and length of each.
        values: (texts, names) float32 on the CPU: their own inputs.
    """

    def __init__(self, slots: GraphedSlots, count: int, width: int) -> None:
        self.slots = slots
        self.width = width
        recorder = slots.recorder
        self.words = recorder.host_buffer(count, 2 * width + 2, dtype=torch.long)
        self.values = recorder.host_buffer(count, len(slots.layout), dtype=torch.float)
        self.words[:, -2] = slots.slots
        self.words[:, -1] = 1
        self.words_there = self.words.to(slots.device, copy=True)
        self.values_there = self.values.to(slots.device, copy=True)
        self.replay: Replay = recorder.record(self.body)

    def body(self) -> None:
        slots = self.slots
        width = self.width
        self.words_there.copy_(self.words, non_blocking=True)
        self.values_there.copy_(self.values, non_blocking=True)
        ids, segments, places, lengths = self.words_there.split([width, width, 1, 1], dim=1)
        columns = self.values_there.unbind(1)
        inputs = {name: x for (name, _), x in zip(slots.layout, columns, strict=True)}
        embedded = slots.model.embed(ids.contiguous(), segments.contiguous())
        rows = places[:, 0].contiguous()
        # To the end of the slots: of an example before nothing is left.
        padded = F.pad(embedded, (0, 0, 0, slots.capacity - width))
        slots.hidden.index_copy_(0, rows, padded)
        slots.lengths.index_copy_(0, rows, lengths[:, 0])
        slots.state.write_rows(slots.start(len(rows), inputs), rows)

    def run(self, places: np.ndarray, texts: Sequence[Tokens], inputs: Any, pad: int) -> None:
        """Let texts enter; the arguments are `GraphedSlots.enter`'s."""
        width = self.width
        self.slots.recorder.wait()  # the last replay may not have read the buffers yet
        words = self.words.numpy()  # the same memory, written several times as fast as by torch
        words[:, :width] = pad
        words[:, width : 2 * width] = 0
        words[:, -2] = self.slots.slots
        words[:, -1] = 1
        words[: len(places), -2] = places
        for row, (ids, segments) in enumerate(texts):
            length = len(ids)
            words[row, :length] = ids
            words[row, width : width + length] = segments
            words[row, -1] = length
        if self.slots.layout:
            self.values[: len(places)] = inputs
        self.replay()


class SlotPass:
    """The graph of a layer pass and its check for some slots.

    Where all slots share it, and most are taken, all of them run, free ones as well: nothing is
    gathered.
    """

    def __init__(self, slots: GraphedSlots, weights: LayerWeights, count: int, width: int) -> None:
        self.slots = slots
        self.width = width
        self.pass_of_weights = slots.pass_of(weights)
        self.runs_all = slots.is_shared and count == slots.slots
        recorder = slots.recorder
        self.rows = recorder.host_buffer(count, dtype=torch.long)
        self.rows.copy_(torch.arange(count))  # the replay is checked on slots with examples
        self.rows_there = self.rows.to(slots.device, copy=True)
        self.columns = torch.arange(width, device=slots.device)
        labels = slots.model.config.label_count
        self.outcomes = recorder.host_buffer(count, labels + 1, dtype=torch.float)
        self.run_pass()  # as it is: a rule puts its tensors on the device
        # Answers, and 1 where an example exits, as `outcomes`, which a replay copies.
        self.found = self.outcomes.to(slots.device, copy=True)
        self.captured: Replay = slots.captured(self.pass_and_writes)
        buffers = (*slots.buffers, self.outcomes)
        self.replay: Replay = record_checked(recorder, self.body, buffers)

    def run_pass(self) -> PassResult:
        """Run the pass on the slots of `rows_there`, or on all."""
        slots = self.slots
        rows = slice(slots.slots) if self.runs_all else self.rows_there
        hidden = slots.hidden[rows, : self.width]
        mask = (self.columns < slots.lengths[rows][:, None])[:, None, None]
        state = tree_map_only(Tensor, lambda x: x[rows], slots.state.tree)
        return self.pass_of_weights(hidden, mask, slots.model.layer_extras(hidden, mask), state)

    def body(self) -> None:
        if not self.runs_all:
            self.rows_there.copy_(self.rows, non_blocking=True)
        self.captured()
        self.outcomes.copy_(self.found, non_blocking=True)

    def pass_and_writes(self) -> None:
        """Run the pass, and write its results into the slots."""
        slots = self.slots
        result = self.run_pass()
        exits = result.exit_mask[:, None].to(result.answer.dtype)
        self.found.copy_(torch.cat([result.answer, exits], dim=1))
        if self.runs_all:
            slots.state.write_rows(result.state, slice(slots.slots))
            slots.hidden[: slots.slots, : self.width] = result.hidden
        else:
            slots.state.write_rows(result.state, self.rows_there)
            slots.hidden[:, : self.width].index_copy_(0, self.rows_there, result.hidden)

    def start_pass(self, places: np.ndarray) -> Callable[[], Tensor]:
        """Start the pass for the examples in some slots; see `GraphedSlots.start_pass`."""
        if not self.runs_all:
            rows = self.rows.numpy()
            rows[:] = self.slots.slots
            rows[: len(places)] = places
        self.replay()
        return partial(self.wait, places)

    def wait(self, places: np.ndarray) -> Tensor:
        """Wait for the outcomes of the pass in some slots, (places, num_labels + 1)."""
        self.slots.recorder.wait()
        outcomes = self.outcomes.numpy()  # the same memory, read several times as fast
        # Copies: the next replay writes to it.
        return torch.from_numpy(
            outcomes[places] if self.runs_all else outcomes[: len(places)].copy()
        )
