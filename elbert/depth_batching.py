"""Continuous depth-wise batching (Bae et al., 2024): early exit with a batch that is kept full.

ALBERT's layers share one set of weights, so one layer pass can serve examples at different depths.
A fixed number of slots hold the running examples. Every step runs one pass over the occupied slots;
examples that exit leave their slots, and waiting ones enter these at depth 0. Where layers or exits
have weights of their own, a step serves the slots whose next layer has the same weights.

Memory is bounded by slots × length. Waiting examples enter as an elevator stops: up and down the
lengths of a window of them, so that neighbours in length share a step.

No example waits for ever, however many others come. One that has seen a window's worth of others
enter since it was read is the next to enter, the oldest first. A running one that was left out of
as many steps as there are different weights is served by the next step, the most neglected first.
"""

import time
from bisect import bisect_left, insort
from collections import Counter, deque
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

from .depth import EarlyExitModel, ExampleState, ExitDecision, LayerWeights
from .rules import AnyRule


class ExampleAnswer(NamedTuple):
    """The answer to an example of a `DepthBatcher`."""

    row: int  # number among the submitted examples, from 0
    logits: Tensor  # (num_labels,) float32, on the CPU
    exit_layer: int  # 1-based
    seconds: float  # from entering a slot to the answer


@dataclass
class QueuedExample:
    """A tokenised example, waiting or in a slot.

    Attributes:
        row: its number among the submitted examples, from 0.
        length: in tokens.
        input_ids: (length,) int64.
        token_type_ids: (length,) int64.
        own_inputs: values of the configuration's `own_inputs`, in their order, or () for none.
        entered: when it entered its slot, in seconds of time.perf_counter.
        depth: layers that ran.
        entries_before: how many examples had entered a slot when it was read.
        has_entered: whether it has left the waiting ones for a slot.
        idle_steps: steps since its last layer, or since it entered.
    """

    row: int
    length: int
    input_ids: Tensor
    token_type_ids: Tensor
    own_inputs: tuple[float, ...]
    entered: float = 0.0
    depth: int = 0
    entries_before: int = 0
    has_entered: bool = False
    idle_steps: int = 0


@dataclass
class Running:
    """The examples in the slots, and their states, whose batch dimension is the slots' order.

    Attributes:
        examples: one in each occupied slot.
        rule: the exit rule.
        hidden: (slots, width, hidden), as wide as the longest of the examples, 0 behind each.
        state: what the examples carry from layer to layer, (slots, …).
    """

    examples: list[QueuedExample]
    rule: AnyRule
    hidden: Tensor
    state: ExampleState


class DepthBatcher:
    """A batch with early exit that is kept full: when an example exits, the next takes its slot.

        batcher = DepthBatcher(model, slots=32)
        batcher.submit((ids, types) for ids, types in examples)
        for answer in batcher.answers():  # in order of completion
            print(answer.row, answer.logits, answer.exit_layer)

    The model must be in eval mode; on a CPU, `elbert.packed_copy(model)` is faster. Its exit rule
    is read whenever all slots are empty.

    `answers` may be closed at any time. Iterating again continues where it stopped, and no example
    is lost or answered twice. An example with too many tokens, or with none, raises UserError with
    its row, once; iterating again continues without this example.

    No example waits for ever: before example `row`, at most row + 2·window + slots·steps others
    are answered. `steps` is the number of layers; where layers or exits have weights of their own,
    it is twice that, times the number of different weights.

    Args:
        model: an early-exit model of any mode.
        slots: largest number of examples that run at a time.
        window: largest number of examples that wait, sorted by length; others are not read yet.
        pad_token_id: token id behind shorter examples. It has no effect on an answer.
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
        self.most_idle_steps = len(set(self.weights))
        self.source: Iterator[tuple] = iter(())  # examples that are not read yet
        self.submitted = 0  # examples read, also those that failed
        self.waiting: list[QueuedExample] = []  # sorted by length, then row; at most `window`
        self.arrivals: deque[QueuedExample] = deque()  # by row; some have entered a slot since
        self.entries = 0  # examples that have entered a slot
        self.going_up = False  # whether the next example to enter is a longer one
        self.last_length = 1 << 30  # of the example that entered last
        self.running: Running | None = None  # None while all slots are free
        self.finished: list[ExampleAnswer] = []

    @property
    def slots(self) -> list[QueuedExample]:
        """The examples that are running."""
        return self.running.examples if self.running else []

    def submit(self, examples: Iterable[tuple]) -> None:
        """Queue tokenised examples, which are read as slots become free.

        Each is a tuple of input_ids and token_type_ids, followed, for a model that needs them, by
        the values of the configuration's `own_inputs`, in their order.
        """
        self.source = chain(self.source, examples)

    def answers(self) -> Iterator[ExampleAnswer]:
        """Yield the answers to the queued examples, in order of completion."""
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
        room = max(0, self.window - len(self.waiting))
        for input_ids, token_type_ids, *own_inputs in islice(self.source, room):
            example = self.make_example(input_ids, token_type_ids, own_inputs)
            insort(self.waiting, example, key=attrgetter("length"))
            self.arrivals.append(example)
        free = self.num_slots - len(self.slots)
        count = min(free, len(self.waiting))
        entering = [self.next_waiting() for _ in range(count)]
        if entering:
            self.insert(entering)

    def make_example(
        self, input_ids: Any, token_type_ids: Any, own_inputs: Iterable[Any]
    ) -> QueuedExample:
        """Number and check an example, as it was submitted; raises UserError for its length."""
        row = self.submitted
        self.submitted += 1
        length = len(input_ids)
        longest = self.model.config.max_position_embeddings
        if not 1 <= length <= longest:
            raise UserError(f"example {row} has {length} tokens: allowed are 1 to {longest}")
        return QueuedExample(
            row=row,
            length=length,
            input_ids=torch.as_tensor(input_ids),
            token_type_ids=torch.as_tensor(token_type_ids),
            own_inputs=tuple(float(value) for value in own_inputs),
            entries_before=self.entries,
        )

    def next_waiting(self) -> QueuedExample:
        """Take the waiting example next in length, in the direction of travel; turn at the ends.

        One that has waited for too long goes first.
        """
        while self.arrivals[0].has_entered:
            self.arrivals.popleft()
        oldest = self.arrivals[0]
        if self.entries - oldest.entries_before >= self.window:
            # The first of its length is the oldest of that length, so it is `oldest`.
            index = bisect_left(self.waiting, oldest.length, key=attrgetter("length"))
        else:
            index = self.next_in_travel()
        example = self.waiting.pop(index)
        example.has_entered = True
        self.entries += 1
        self.last_length = example.length
        return example

    def next_in_travel(self) -> int:
        """Find the waiting example that is next in length; turn at the ends."""
        position = bisect_left(self.waiting, self.last_length, key=attrgetter("length"))
        end = len(self.waiting) if self.going_up else 0
        if position == end:
            self.going_up = not self.going_up
        return position if self.going_up else position - 1

    def insert(self, entering: list[QueuedExample]) -> None:
        """Embed examples, and put them into free slots at depth 0."""
        embedded = self.embed(entering)  # (entering, width, hidden)
        running = self.running
        rule = running.rule if running else self.model.config.exit_rule()
        state = self.model.start(rule, len(entering), self.stack_own_inputs(entering))
        depth = torch.zeros(len(entering), dtype=torch.long, device=embedded.device)
        state = state._replace(depth=depth)
        if running is None:
            self.running = Running(entering, rule, embedded, state)
        else:
            width = max(running.hidden.shape[1], embedded.shape[1])
            running.examples = running.examples + entering
            running.hidden = torch.cat([pad_to(width, running.hidden), pad_to(width, embedded)])
            running.state = tree_map(lambda *parts: torch.cat(parts), running.state, state)
        for example in entering:
            example.entered = time.perf_counter()

    def embed(self, examples: list[QueuedExample]) -> Tensor:
        """Embed examples, padded to the longest: (examples, width, hidden)."""
        width = max(example.length for example in examples)
        ids = torch.full((len(examples), width), self.pad_token_id)
        types = torch.zeros_like(ids)
        for row, example in enumerate(examples):
            ids[row, : example.length] = example.input_ids
            types[row, : example.length] = example.token_type_ids
        return self.model.embed(ids.to(self.model.device), types.to(self.model.device))

    def stack_own_inputs(self, examples: list[QueuedExample]) -> dict[str, Tensor]:
        """Stack the examples' own inputs, (examples,) each; {} unless all examples bring them."""
        if not all(example.own_inputs for example in examples):
            return {}
        rows = [example.own_inputs for example in examples]
        columns = torch.tensor(rows, device=self.model.device).T
        return dict(zip(self.model.config.own_inputs, columns, strict=True))

    def step(self, running: Running) -> None:
        """Run one layer pass, with its exit check, for the slots that most others can share.

        A slot that was left out for too long is served in their place.
        """
        next_weights = [self.weights[example.depth] for example in running.examples]
        most_idle = max(running.examples, key=attrgetter("idle_steps"))
        if most_idle.idle_steps >= self.most_idle_steps:
            weights = self.weights[most_idle.depth]
        else:
            weights = most_frequent(next_weights)
        for example in running.examples:
            example.idle_steps += 1
        members = [slot for slot, needed in enumerate(next_weights) if needed == weights]
        decision = self.run_layer(running, members, weights)
        # The step's only wait for the device: answers and decisions in one transfer.
        exits = decision.exit_mask[:, None].to(decision.answer.dtype)
        outcomes = torch.cat([decision.answer, exits], dim=1).cpu()
        exits_here = outcomes[:, -1].tolist()
        now = time.perf_counter()
        stays = [True] * len(running.examples)
        for position, slot in enumerate(members):
            example = running.examples[slot]
            example.depth += 1
            example.idle_steps = 0
            if exits_here[position]:
                stays[slot] = False
                answer = ExampleAnswer(
                    row=example.row,
                    logits=outcomes[position, :-1].clone(),
                    exit_layer=example.depth,
                    seconds=now - example.entered,
                )
                self.finished.append(answer)
        self.free_slots(running, stays)

    def run_layer(
        self, running: Running, members: list[int], weights: LayerWeights
    ) -> ExitDecision:
        """Run the next layer of some slots, and store their new states.

        Args:
            running: changed in place.
            members: the slots.
            weights: of their next layer.
        """
        device = self.model.device
        all_take_part = len(members) == len(running.examples)
        # A slice of all slots is a view; an index copies their states.
        rows = slice(None) if all_take_part else torch.tensor(members, device=device)
        lengths = [running.examples[slot].length for slot in members]
        width = max(lengths)
        mask = None  # (members, 1, 1, width) bool, where there is padding
        if min(lengths) < width:
            is_real = torch.arange(width) < torch.tensor(lengths)[:, None, None, None]
            mask = is_real.to(device, non_blocking=True)
        state = running.state if all_take_part else tree_map(itemgetter(rows), running.state)
        hidden = self.model.layer_pass(running.hidden[rows, :width], mask, weights)
        decision = self.model.check_exit(running.rule, hidden, mask, weights, state)
        if all_take_part:
            running.hidden = hidden
            running.state = decision.state
        else:
            running.hidden[rows, :width] = hidden
            tree_map(lambda old, new: old.index_copy_(0, rows, new), running.state, decision.state)
        return decision

    def free_slots(self, running: Running, stays: list[bool]) -> None:
        """Leave out the examples that have exited; stays: for each slot, whether it is kept."""
        if not any(stays):
            self.running = None
        elif not all(stays):
            staying = torch.tensor(stays, device=self.model.device)
            running.examples = list(compress(running.examples, stays))
            width = max(example.length for example in running.examples)
            running.hidden = running.hidden[staying, :width]
            running.state = tree_map(itemgetter(staying), running.state)


def most_frequent(next_weights: list[LayerWeights]) -> LayerWeights:
    """Return the weights that most slots need next; among equals the deepest.

    Deeper examples exit sooner, which frees their slots.
    """
    counts = Counter(next_weights)
    weights, _ = max(counts.items(), key=lambda item: (item[1], item[0]))
    return weights


def pad_to(width: int, states: Tensor) -> Tensor:
    """Pad states (slots, length, hidden) with zeros to (slots, width, hidden)."""
    return F.pad(states, (0, 0, 0, width - states.shape[1]))
