"""Batched early exit that keeps the batch full.

ALBERT's layers share one set of weights, so one layer pass can serve examples at different depths.
A fixed number of slots hold the running examples. Every step runs one pass over the occupied
slots; who is finished leaves with an answer, and waiting examples enter at depth 0. Where
layers or exits have weights of their own, a step serves the slots that need the same ones next.

Memory is bounded by slots × length. Lengths: waiting examples are admitted in an elevator's
order, up and down the lengths of a window of them, so that neighbours in length share a step.
"""

import time
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from .depth import EarlyExitModel, ExampleState, select_rows
from .errors import UserError
from .rules import ExitRule

END = object()  # of a source


class Answer(NamedTuple):
    """What an example left with."""

    row: int  # position among the submitted examples, from 0
    logits: torch.Tensor  # (num_labels,) float32, on the CPU
    exit_layer: int  # 1-based
    seconds: float  # from entering a slot to the answer


class QueuedExample(NamedTuple):
    """A tokenised example; sorts by length, then by arrival."""

    length: int
    row: int
    input_ids: torch.Tensor  # (length,)
    token_type_ids: torch.Tensor  # (length,)
    inputs: tuple[float, ...]  # the model's `own_inputs`, in their order; () for none


@dataclass
class Slot:
    """The host's view of an occupied slot."""

    row: int
    length: int
    entered: float  # seconds, of time.perf_counter
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
    is lost or answered twice. An example that cannot be read or that the model cannot take raises
    UserError naming its row, once; iterating again goes on without it. `padding` tells how much of
    the work was padding.
    """

    def __init__(
        self, model: EarlyExitModel, slots: int = 32, window: int = 512, pad_token_id: int = 0
    ) -> None:
        if slots < 1 or window < 1:
            raise UserError(f"slots = {slots}, window = {window}: both are at least 1")
        self.model, self.pad_token_id = model, pad_token_id
        self.rule: ExitRule | None = None  # of the examples in the slots
        self.weights = [model.param_index(i) for i in range(model.config.num_hidden_layers)]
        self.num_slots, self.window = slots, window
        self.sources: deque[Iterator] = deque()  # of examples that are not read yet
        self.submitted = 0  # rows read, also those that failed
        self.failures: deque[UserError] = deque()  # that were not raised yet
        self.waiting: list[QueuedExample] = []  # sorted by length; at most `window`
        self.going_up, self.last_length = False, 1 << 30
        self.slots: list[Slot] = []
        self.hidden: torch.Tensor | None = None  # (slots, width, hidden)
        self.state: ExampleState | None = None  # what the slots' examples carry, batch first
        self.finished: list[Answer] = []
        self.reorder_buffer: dict[int, Answer | None] = {}  # held back by `in_order`; None: failed
        self.expected = 0  # the row that `in_order` gives next
        self.real_tokens = self.computed_tokens = 0

    def submit(self, examples: Iterable[tuple]) -> None:
        """Queue examples, each (input_ids, token_type_ids), which are read as slots become free.

        The model's `own_inputs` may stand behind them, in their order.
        """
        self.sources.append(iter(examples))

    @property
    def padding(self) -> float:
        """Share of all computed tokens that were padding, so far."""
        return 1 - self.real_tokens / max(1, self.computed_tokens)

    def answers(self) -> Iterator[Answer]:
        """Answers in order of completion."""
        while True:
            while self.finished:
                yield self.finished.pop(0)
            with torch.inference_mode():
                self.fill_slots()
                if self.failures:
                    raise self.failures.popleft()
                if not self.slots:
                    return
                self.step()

    def in_order(self) -> Iterator[Answer]:
        """Answers in order of submission, each as soon as all before it are there."""
        for newest in chain(self.answers(), [None]):
            if newest:
                self.reorder_buffer[newest.row] = newest
            while self.expected in self.reorder_buffer:
                self.expected += 1
                if answer := self.reorder_buffer.pop(self.expected - 1):
                    yield answer

    def fill_slots(self) -> None:
        """Fill free slots from the window of waiting examples."""
        self.fill_window()
        if self.waiting and not self.slots:
            self.rule = self.model.config.exit_rule()
        chosen = []
        while self.waiting and len(self.slots) + len(chosen) < self.num_slots:
            chosen.append(self.next_waiting())
        if chosen:
            self.insert(chosen)

    def fill_window(self) -> None:
        """Read examples until the window is full, or one fails."""
        while self.sources and len(self.waiting) < self.window and not self.failures:
            row = self.submitted
            try:
                example = next(self.sources[0], END)
                if example is END:
                    self.sources.popleft()
                    continue
                insort(self.waiting, self.queued(row, *example))
            except Exception as error:
                self.fail(row, "cannot be read", error)
            self.submitted += 1

    def queued(self, row: int, ids: Any, types: Any, *own: Any) -> QueuedExample:
        """An example as it was submitted; errors of many kinds for what is no tokenised text."""
        ids, types = torch.as_tensor(ids), torch.as_tensor(types)
        if ids.ndim != 1 or not len(ids) or ids.shape != types.shape:
            raise ValueError(
                f"its token and segment ids have the shapes {tuple(ids.shape)} and "
                f"{tuple(types.shape)}; allowed are two rows of one length, at least 1"
            )
        check_ids("token", ids, self.model.config.vocab_size)
        check_ids("segment", types, self.model.config.type_vocab_size)
        own, spans = tuple(map(float, own)), self.model.own_inputs
        if own and len(own) != len(spans):
            raise ValueError(f"it brings {len(own)} numbers, not one each for {[*spans]}")
        for value, (name, (low, high)) in zip(own, spans.items(), strict=False):
            if not low <= value <= high:
                raise ValueError(f"{name} = {value}: allowed is {low:g} to {high:g}")
        return QueuedExample(len(ids), row, ids, types, own)

    def fail(self, row: int, what: str, error: Exception) -> None:
        """Have `answers` raise, naming the row, and `in_order` wait for it no longer."""
        failure = UserError(f"example {row} {what}: {error}")
        failure.__cause__ = error
        self.failures.append(failure)
        self.reorder_buffer[row] = None

    def next_waiting(self) -> QueuedExample:
        """The waiting example next in length, in the direction of travel; turns at the ends."""
        here = bisect_left(self.waiting, (self.last_length,))
        if here == (len(self.waiting) if self.going_up else 0):
            self.going_up = not self.going_up
        example = self.waiting.pop(here if self.going_up else here - 1)
        self.last_length = example.length
        return example

    def insert(self, chosen: list[QueuedExample]) -> None:
        """Embed examples and put them into free slots at depth 0."""
        try:
            embedded = self.embed(chosen)
            state = self.model.start(self.rule, len(chosen), self.inputs_of(chosen))
        except Exception as error:
            if len(chosen) == 1:
                length, row = chosen[0][:2]
                self.fail(row, f"({length} tokens) cannot be embedded", error)
            else:  # whose fault is it?
                for example in chosen:
                    self.insert([example])
            return
        now, alone = time.perf_counter(), not self.slots
        self.slots += [Slot(x.row, x.length, now) for x in chosen]
        if alone:
            self.hidden, self.state = embedded, state
            return
        width = max(self.hidden.shape[1], embedded.shape[1])
        self.hidden = torch.cat([pad_to(self.hidden, width), pad_to(embedded, width)])
        self.state = tree_map(lambda *parts: torch.cat(parts), self.state, state)

    def inputs_of(self, chosen: list[QueuedExample]) -> dict[str, torch.Tensor]:
        """The model's own inputs, (examples,) each; none where an example brings none."""
        if not all(example.inputs for example in chosen):
            return {}
        columns = torch.tensor([example.inputs for example in chosen], device=self.model.device)
        return dict(zip(self.model.own_inputs, columns.T, strict=True))

    def embed(self, chosen: list[QueuedExample]) -> torch.Tensor:
        """(examples, length of the longest, hidden), the states at depth 0."""
        width = max(example.length for example in chosen)
        ids = torch.full((len(chosen), width), self.pad_token_id)
        types = torch.zeros_like(ids)
        for i, example in enumerate(chosen):
            ids[i, : example.length] = example.input_ids
            types[i, : example.length] = example.token_type_ids
        device = self.model.device
        return self.model.embed(ids.to(device), types.to(device))

    def step(self) -> None:
        """One layer pass, with its exit check, for the slots that most others can share it with."""
        needed = [self.weights[slot.depth] for slot in self.slots]
        # Deepest first among equals: it frees slots sooner.
        weights = max(Counter(needed).items(), key=lambda item: (item[1], item[0]))[0]
        members = [i for i, number in enumerate(needed) if number == weights]
        everyone = len(members) == len(self.slots)
        rows = slice(None) if everyone else torch.tensor(members, device=self.model.device)
        lengths = [self.slots[i].length for i in members]
        width, mask = max(lengths), self.mask_of(lengths)
        hidden = self.hidden[rows, :width]
        state = self.state if everyone else select_rows(self.state, rows)
        hidden = self.model.layer_pass(hidden, mask, weights)
        answer, done, state, _ = self.model.check_exit(self.rule, hidden, mask, weights, state)
        if everyone:
            self.hidden, self.state = hidden, state
        else:
            self.hidden[rows, :width] = hidden
            tree_map(lambda old, new: old.index_copy_(0, rows, new), self.state, state)
        self.real_tokens += sum(lengths)
        self.computed_tokens += width * len(members)
        # The step's only wait for the device: answers and decisions in one transfer.
        host = torch.cat([answer, done[:, None].to(answer.dtype)], 1).cpu()
        self.pop_finished(members, host)

    def mask_of(self, lengths: list[int]) -> torch.Tensor | None:
        """Attention mask (examples, 1, 1, the longest's length) bool; None without padding."""
        if min(lengths) == max(lengths):
            return None
        real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None, None, None]
        return real.to(self.model.device, non_blocking=True)

    def pop_finished(self, members: list[int], host: torch.Tensor) -> None:
        """Collect the answers of who is done and close the gaps they leave."""
        now, gone = time.perf_counter(), set()
        for i, outcome in zip(members, host, strict=True):
            slot = self.slots[i]
            slot.depth += 1
            if outcome[-1]:
                gone.add(i)
                answer = outcome[:-1].clone()
                self.finished.append(Answer(slot.row, answer, slot.depth, now - slot.entered))
        if not gone:
            return
        keep = [i for i in range(len(self.slots)) if i not in gone]
        self.slots = [self.slots[i] for i in keep]
        width = max((slot.length for slot in self.slots), default=0)
        rows = torch.tensor(keep, dtype=torch.long, device=self.model.device)
        self.hidden = self.hidden[rows, :width]
        self.state = select_rows(self.state, rows)


def check_ids(kind: str, ids: torch.Tensor, size: int) -> None:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"its {kind} ids are {ids.dtype}: allowed are whole numbers")
    low, high = ids.aminmax()
    if low < 0 or high >= size:
        raise ValueError(f"its {kind} ids are from {low} to {high}: allowed is 0 to {size - 1}")


def pad_to(hidden: torch.Tensor, width: int) -> torch.Tensor:
    """Pad (batch, length, hidden) to `width` tokens."""
    return F.pad(hidden, (0, 0, 0, width - hidden.shape[1])) if hidden.shape[1] < width else hidden
