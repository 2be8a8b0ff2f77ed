"""Batched early exit that keeps the batch full.

ALBERT's layers share one set of weights, so one layer pass can serve examples at different depths.
A fixed number of slots hold the running examples. Every step runs one pass over the occupied
slots; who is finished exits with an answer, and waiting examples enter at depth 0. Where
layers or exits have weights of their own, a step serves the slots that need the same ones next.

Memory is bounded by slots × length. Waiting examples enter in an elevator's order, up and
down the lengths of a window of them, so that neighbours in length share a step.
"""

import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from elbert_base.errors import UserError

from .depth import EarlyExitModel, ExampleState
from .rules import AnyRule


class Answer(NamedTuple):
    """Answer to an example."""

    row: int  # position among the submitted examples, from 0
    logits: Tensor  # (num_labels,) float32, on the CPU
    exit_layer: int  # 1-based
    seconds: float  # from entering a slot to the answer


@dataclass
class QueuedExample:
    """A tokenised example, waiting or in a slot."""

    row: int
    length: int
    input_ids: Tensor  # (length,)
    token_type_ids: Tensor  # (length,)
    inputs: tuple[float, ...]  # the configuration's `own_inputs`, in their order; () for none
    entered: float = 0.0  # into its slot: seconds, of time.perf_counter
    depth: int = 0  # layer passes done


class DepthBatcher:
    """Answers a stream of examples with early exit, `slots` of them at a time.

    The model is in eval mode. Its exit rule is read whenever the slots are empty.

        batcher = DepthBatcher(model, slots=32)
        batcher.submit((ids, types) for ids, types in examples)
        with packed_weights(model):               # on a CPU, to be faster
            for answer in batcher.answers():      # in order of completion
                ...

    `answers` may be closed at any time: iterating again goes on where it stopped, and no example
    is lost or answered twice. One of too many tokens, or none, raises UserError naming its row,
    once; iterating again goes on without it.
    """

    def __init__(
        self, model: EarlyExitModel, slots: int = 32, window: int = 512, pad_token_id: int = 0
    ) -> None:
        self.model, self.pad_token_id = model, pad_token_id
        self.rule: AnyRule | None = None  # of the examples in the slots
        self.weights = [model.layer_weights(i) for i in range(model.config.num_hidden_layers)]
        self.num_slots, self.window = slots, window
        self.source: Iterator[tuple] = iter(())  # of examples that are not read yet
        self.submitted = 0  # rows read, also those that failed
        self.waiting: list[QueuedExample] = []  # sorted by length; at most `window`
        self.going_up, self.last_length = False, 1 << 30
        self.slots: list[QueuedExample] = []
        self.hidden: Tensor | None = None  # (slots, width, hidden)
        self.state: ExampleState | None = None  # what the slots' examples carry, batch first
        self.finished: list[Answer] = []

    def submit(self, examples: Iterable[tuple]) -> None:
        """Queue examples, each (input_ids, token_type_ids), which are read as slots become free.

        The configuration's `own_inputs` may stand behind them, in their order.
        """
        self.source = chain(self.source, examples)

    def answers(self) -> Iterator[Answer]:
        """Answers in order of completion."""
        while True:
            while self.finished:
                yield self.finished.pop(0)
            with torch.inference_mode():
                self.fill_slots()
                if not self.slots:
                    return
                self.step()

    def fill_slots(self) -> None:
        """Read examples until the window is full, and fill free slots from it."""
        for example in islice(self.source, max(0, self.window - len(self.waiting))):
            insort(self.waiting, self.queued(*example), key=attrgetter("length"))
        free = self.num_slots - len(self.slots)
        chosen = [self.next_waiting() for _ in range(min(free, len(self.waiting)))]
        if chosen:
            self.insert(chosen)

    def queued(self, ids: Any, types: Any, *inputs: Any) -> QueuedExample:
        """The next example, as it was submitted."""
        row, longest = self.submitted, self.model.config.max_position_embeddings
        self.submitted += 1
        if not 1 <= len(ids) <= longest:
            raise UserError(f"example {row} has {len(ids)} tokens: allowed are 1 to {longest}")
        ids, types = torch.as_tensor(ids), torch.as_tensor(types)
        return QueuedExample(row, len(ids), ids, types, tuple(map(float, inputs)))

    def next_waiting(self) -> QueuedExample:
        """The waiting example next in length, in the direction of travel; turns at the ends."""
        here = bisect_left(self.waiting, self.last_length, key=attrgetter("length"))
        if here == (len(self.waiting) if self.going_up else 0):
            self.going_up = not self.going_up
        example = self.waiting.pop(here if self.going_up else here - 1)
        self.last_length = example.length
        return example

    def insert(self, chosen: list[QueuedExample]) -> None:
        """Embed examples and put them into free slots at depth 0."""
        device, width = self.model.device, max(example.length for example in chosen)
        ids = torch.full((len(chosen), width), self.pad_token_id)
        types = torch.zeros_like(ids)
        for i, example in enumerate(chosen):
            ids[i, : example.length] = example.input_ids
            types[i, : example.length] = example.token_type_ids
        embedded = self.model.embed(ids.to(device), types.to(device))  # (chosen, width, hidden)
        own = {}
        if all(example.inputs for example in chosen):
            columns = torch.tensor([example.inputs for example in chosen], device=device).T
            own = dict(zip(self.model.config.own_inputs, columns, strict=True))
        if not self.slots:
            self.rule = self.model.config.exit_rule()
        state = self.model.start(self.rule, len(chosen), own)
        if self.slots:
            width = max(width, self.hidden.shape[1])
            both = (F.pad(x, (0, 0, 0, width - x.shape[1])) for x in (self.hidden, embedded))
            embedded = torch.cat(tuple(both))
            state = tree_map(lambda *parts: torch.cat(parts), self.state, state)
        self.hidden, self.state = embedded, state
        for example in chosen:
            example.entered = time.perf_counter()
        self.slots += chosen

    def step(self) -> None:
        """One layer pass, with its exit check, for the slots that most others can share it with."""
        needed = [self.weights[slot.depth] for slot in self.slots]
        # Deepest first among equals: it frees slots sooner.
        weights = max(Counter(needed).items(), key=lambda item: (item[1], item[0]))[0]
        members = [i for i, number in enumerate(needed) if number == weights]
        everyone = len(members) == len(self.slots)
        rows = slice(None) if everyone else torch.tensor(members, device=self.model.device)
        lengths = [self.slots[i].length for i in members]
        width, mask = max(lengths), None  # (members, 1, 1, width) bool, where there is padding
        if min(lengths) < width:
            real = torch.arange(width) < torch.tensor(lengths)[:, None, None, None]
            mask = real.to(self.model.device, non_blocking=True)
        hidden = self.hidden[rows, :width]
        state = self.state if everyone else tree_map(itemgetter(rows), self.state)
        hidden = self.model.layer_pass(hidden, mask, weights)
        answer, done, state, _ = self.model.check_exit(self.rule, hidden, mask, weights, state)
        if everyone:
            self.hidden, self.state = hidden, state
        else:
            self.hidden[rows, :width] = hidden
            tree_map(lambda old, new: old.index_copy_(0, rows, new), self.state, state)
        # The step's only wait for the device: answers and decisions in one transfer.
        host = torch.cat([answer, done[:, None].to(answer.dtype)], 1).cpu()
        now, keep = time.perf_counter(), [True] * len(self.slots)
        for i, outcome in zip(members, host, strict=True):
            slot = self.slots[i]
            slot.depth += 1
            if outcome[-1]:
                keep[i] = False
                answer = outcome[:-1].clone()
                self.finished.append(Answer(slot.row, answer, slot.depth, now - slot.entered))
        if all(keep):
            return
        rows = torch.tensor(keep, device=self.model.device)
        self.slots = [slot for slot, stays in zip(self.slots, keep, strict=True) if stays]
        width = max((slot.length for slot in self.slots), default=0)
        self.hidden = self.hidden[rows, :width]
        self.state = tree_map(itemgetter(rows), self.state)
