"""Batched early exit that keeps the batch full.

ALBERT's layers share one set of weights, so one layer pass can serve examples at different depths.
A fixed number of slots hold the running examples. Every step runs one pass over the occupied
slots; finished examples exit with an answer, and waiting ones enter at depth 0. Where
layers or exits have weights of their own, a step serves the slots that need the same ones next.

Memory is bounded by slots × length. Waiting examples enter in an elevator's order, up and
down the lengths of a window of them, so that neighbours in length share a step.
"""

import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, islice
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
    """The answer to an example."""

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


@dataclass
class Running:
    """The examples in the slots, and their states; the batch dimension is their order."""

    examples: list[QueuedExample]
    rule: AnyRule
    hidden: Tensor  # (slots, width, hidden)
    state: ExampleState


class DepthBatcher:
    """Answers a stream of examples with early exit, `slots` of them at a time.

    The model is in eval mode. Its exit rule is read whenever the slots are empty.

        batcher = DepthBatcher(model, slots=32)
        batcher.submit((ids, types) for ids, types in examples)
        for answer in batcher.answers():  # in order of completion
            ...

    On a CPU, `elbert.packed_copy(model)` in place of the model is faster.

    `answers` may be closed at any time: iterating again goes on where it stopped, and no example
    is lost or answered twice. One of too many tokens, or none, raises UserError naming its row,
    once; iterating again goes on without it.
    """

    def __init__(
        self, model: EarlyExitModel, slots: int = 32, window: int = 512, pad_token_id: int = 0
    ) -> None:
        self.model = model
        self.pad_token_id = pad_token_id
        self.num_slots = slots
        self.window = window
        depth = model.config.num_hidden_layers
        self.weights = [model.layer_weights(layer) for layer in range(depth)]
        self.source: Iterator[tuple] = iter(())  # of examples that are not read yet
        self.submitted = 0  # rows read, also those that failed
        self.waiting: list[QueuedExample] = []  # sorted by length; at most `window`
        self.going_up = False
        self.last_length = 1 << 30
        self.running: Running | None = None  # None while all slots are free
        self.finished: list[Answer] = []

    @property
    def slots(self) -> list[QueuedExample]:
        """The examples that are running."""
        return self.running.examples if self.running else []

    def submit(self, examples: Iterable[tuple]) -> None:
        """Queue examples, each (input_ids, token_type_ids), which are read as slots become free.

        The configuration's `own_inputs` may stand behind them, in their order.
        """
        self.source = chain(self.source, examples)

    def answers(self) -> Iterator[Answer]:
        """Yield the answers in order of completion."""
        while True:
            while self.finished:
                yield self.finished.pop(0)
            with torch.inference_mode():
                self.fill_slots()
                if self.running is None:
                    return
                self.step(self.running)

    def fill_slots(self) -> None:
        """Read examples until the window is full, and fill free slots from it."""
        for example in islice(self.source, max(0, self.window - len(self.waiting))):
            insort(self.waiting, self.queued(*example), key=attrgetter("length"))
        free = self.num_slots - len(self.slots)
        entering = [self.next_waiting() for _ in range(min(free, len(self.waiting)))]
        if entering:
            self.insert(entering)

    def queued(self, ids: Any, types: Any, *inputs: Any) -> QueuedExample:
        """Take the next example, as it was submitted."""
        row = self.submitted
        longest = self.model.config.max_position_embeddings
        self.submitted += 1
        if not 1 <= len(ids) <= longest:
            raise UserError(f"example {row} has {len(ids)} tokens: allowed are 1 to {longest}")
        return QueuedExample(
            row=row,
            length=len(ids),
            input_ids=torch.as_tensor(ids),
            token_type_ids=torch.as_tensor(types),
            inputs=tuple(map(float, inputs)),
        )

    def next_waiting(self) -> QueuedExample:
        """Take the waiting example next in length, in the direction of travel; turn at the ends."""
        position = bisect_left(self.waiting, self.last_length, key=attrgetter("length"))
        end = len(self.waiting) if self.going_up else 0
        if position == end:
            self.going_up = not self.going_up
        example = self.waiting.pop(position if self.going_up else position - 1)
        self.last_length = example.length
        return example

    def insert(self, entering: list[QueuedExample]) -> None:
        """Embed examples and put them into free slots at depth 0."""
        device = self.model.device
        width = max(example.length for example in entering)
        ids = torch.full((len(entering), width), self.pad_token_id)
        types = torch.zeros_like(ids)
        for row, example in enumerate(entering):
            ids[row, : example.length] = example.input_ids
            types[row, : example.length] = example.token_type_ids
        embedded = self.model.embed(ids.to(device), types.to(device))  # (entering, width, hidden)
        own_inputs = {}
        if all(example.inputs for example in entering):
            columns = torch.tensor([example.inputs for example in entering], device=device).T
            own_inputs = dict(zip(self.model.config.own_inputs, columns, strict=True))
        running = self.running
        rule = running.rule if running else self.model.config.exit_rule()
        state = self.model.start(rule, len(entering), own_inputs)
        if running is None:
            self.running = Running(entering, rule, embedded, state)
        else:
            width = max(width, running.hidden.shape[1])
            padded = [pad_to(width, states) for states in (running.hidden, embedded)]
            running.examples = running.examples + entering
            running.hidden = torch.cat(padded)
            running.state = tree_map(lambda *parts: torch.cat(parts), running.state, state)
        for example in entering:
            example.entered = time.perf_counter()

    def step(self, running: Running) -> None:
        """Run one layer pass, with its exit check, for the slots that most others can share."""
        device = self.model.device
        needed = [self.weights[example.depth] for example in running.examples]
        # Deepest first among equals: it frees slots sooner.
        weights = max(Counter(needed).items(), key=lambda item: (item[1], item[0]))[0]
        members = [slot for slot, wanted in enumerate(needed) if wanted == weights]
        all_take_part = len(members) == len(needed)
        rows = slice(None) if all_take_part else torch.tensor(members, device=device)
        lengths = [running.examples[slot].length for slot in members]
        width = max(lengths)
        mask = None  # (members, 1, 1, width) bool, where there is padding
        if min(lengths) < width:
            real = torch.arange(width) < torch.tensor(lengths)[:, None, None, None]
            mask = real.to(device, non_blocking=True)
        state = running.state if all_take_part else tree_map(itemgetter(rows), running.state)
        hidden = self.model.layer_pass(running.hidden[rows, :width], mask, weights)
        decision = self.model.check_exit(running.rule, hidden, mask, weights, state)
        if all_take_part:
            running.hidden = hidden
            running.state = decision.state
        else:
            running.hidden[rows, :width] = hidden
            tree_map(lambda old, new: old.index_copy_(0, rows, new), running.state, decision.state)
        # The step's only wait for the device: answers and decisions in one transfer.
        exits = decision.exit_mask[:, None].to(decision.answer.dtype)
        outcomes = torch.cat([decision.answer, exits], dim=1).cpu()
        now = time.perf_counter()
        keep = [True] * len(needed)
        for slot, outcome in zip(members, outcomes, strict=True):
            example = running.examples[slot]
            example.depth += 1
            if outcome[-1]:
                keep[slot] = False
                logits = outcome[:-1].clone()
                seconds = now - example.entered
                self.finished.append(Answer(example.row, logits, example.depth, seconds))
        if not any(keep):
            self.running = None
        elif not all(keep):
            kept = torch.tensor(keep, device=device)
            running.examples = list(compress(running.examples, keep))
            width = max(example.length for example in running.examples)
            running.hidden = running.hidden[kept, :width]
            running.state = tree_map(itemgetter(kept), running.state)


def pad_to(width: int, states: Tensor) -> Tensor:
    """Pad states (slots, length, hidden) with zeros to (slots, width, hidden)."""
    return F.pad(states, (0, 0, 0, width - states.shape[1]))
