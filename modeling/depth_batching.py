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
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, compress, islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from .captures import CaptureError
from .depth import EarlyExitModel, ExampleState, ExitDecision, LayerWeights
from .errors import UserError
from .graph_slots import GraphedSlots
from .graphs import DepthGraphs
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
        has_left: whether it waits no more: it has a slot, or was dropped.
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
    has_left: bool = False
    idle_steps: int = 0


@dataclass
class Entering:
    """Examples that enter slots at depth 0.

    Attributes:
        examples: at least one.
        input_names: of the inputs that all of them bring, or () for none.
        pad_token_id: of the ids behind shorter ones.
    """

    examples: list[QueuedExample]
    input_names: Sequence[str]
    pad_token_id: int

    @property
    def longest(self) -> int:
        """Tokens of the longest."""
        return max(example.length for example in self.examples)

    @property
    def own_inputs(self) -> Tensor:
        """Their own inputs, (examples, names) float32."""
        names = len(self.input_names)
        return torch.tensor([example.own_inputs[:names] for example in self.examples])


@dataclass
class Running:
    """The examples in the slots, and their states, whose batch dimension is the slots' order.

    Attributes:
        model: runs them.
        examples: one in each occupied slot.
        rule: the exit rule.
        hidden: (slots, width, hidden), as wide as the longest of the examples, 0 behind each.
        state: what the examples carry from layer to layer, (slots, …).
    """

    model: EarlyExitModel
    examples: list[QueuedExample]
    rule: AnyRule
    hidden: Tensor
    state: ExampleState

    @classmethod
    def begin(cls, model: EarlyExitModel, rule: AnyRule, entering: Entering) -> Self:
        """Embed examples, and put them into slots at depth 0, where all slots are free."""
        examples = entering.examples
        width = max(example.length for example in examples)
        ids = torch.full((len(examples), width), entering.pad_token_id)
        types = torch.zeros_like(ids)
        for row, example in enumerate(examples):
            ids[row, : example.length] = example.input_ids
            types[row, : example.length] = example.token_type_ids
        hidden = model.embed(ids.to(model.device), types.to(model.device))
        columns = entering.own_inputs.to(model.device).T
        inputs = dict(zip(entering.input_names, columns, strict=True))
        state = model.start(rule, len(examples), inputs)
        # A number for each example, since neighbours in a step have run different layers.
        depth = torch.zeros(len(examples), dtype=torch.long, device=hidden.device)
        return cls(model, examples, rule, hidden, state._replace(depth=depth))

    def enter(self, entering: Entering) -> None:
        """Embed examples, and put them into free slots at depth 0."""
        # One rule serves all who run at a time: a threshold that is edited in between must not
        # judge an example by two rules.
        others = self.begin(self.model, self.rule, entering)
        # As wide as the longest of both. What stands behind an example's own tokens is never
        # read: `run_layer` masks it by the example's length.
        width = max(self.hidden.shape[1], others.hidden.shape[1])
        self.examples = self.examples + others.examples
        self.hidden = torch.cat([pad_to(width, self.hidden), pad_to(width, others.hidden)])
        self.state = tree_map(lambda *parts: torch.cat(parts), self.state, others.state)

    def step(self, members: list[int], weights: LayerWeights) -> Tensor:
        """Run the next layer of some slots, with its exit check; store their new states.

        Args:
            members: the slots.
            weights: of their next layer.

        Returns:
            (members, num_labels + 1) on the CPU: answers, and 1 where an example exits.
        """
        decision = self.run_layer(members, weights)
        # The step's only wait for the device: answers and decisions in one transfer.
        exits = decision.exit_mask[:, None].to(decision.answer.dtype)  # (members, 1)
        return torch.cat([decision.answer, exits], dim=1).cpu()

    def run_layer(self, members: list[int], weights: LayerWeights) -> ExitDecision:
        """Run the next layer of some slots, and store their new states; see `step`."""
        device = self.model.device
        all_take_part = len(members) == len(self.examples)
        # A slice of all slots is a view; an index copies their states.
        rows = slice(None) if all_take_part else torch.tensor(members, device=device)
        lengths = [self.examples[slot].length for slot in members]
        width = max(lengths)
        mask = None  # (members, 1, 1, width) bool, where there is padding
        if min(lengths) < width:
            is_real = torch.arange(width) < torch.tensor(lengths)[:, None, None, None]
            mask = is_real.to(device, non_blocking=True)
        state = self.state if all_take_part else tree_map(itemgetter(rows), self.state)
        before = self.hidden[rows, :width]
        extras = self.model.layer_extras(before, mask)
        hidden = self.model.layer_pass(before, extras, weights)
        decision = self.model.check_exit(self.rule, hidden, mask, weights, state)
        if all_take_part:
            self.hidden = hidden  # (slots, width, hidden)
            self.state = decision.state
        else:
            # Slots that sit this step out keep their states, and what stands behind `width`.
            self.hidden[rows, :width] = hidden
            tree_map(lambda old, new: old.index_copy_(0, rows, new), self.state, decision.state)
        return decision

    def keep(self, stays: list[bool]) -> None:
        """Leave out examples; stays: for each slot, whether it is kept. At least one is."""
        staying = torch.tensor(stays, device=self.model.device)  # (slots,) bool
        self.examples = list(compress(self.examples, stays))
        # Narrower again once the longest has exited, so that one long text costs its neighbours
        # no longer than it runs.
        width = max(example.length for example in self.examples)
        self.hidden = self.hidden[staying, :width]
        self.state = tree_map(itemgetter(staying), self.state)


class GraphedRunning:
    """The examples in the slots of a `graphed_copy`: they stay in their places, and graphs run.

    Attributes:
        examples: one in each occupied slot, in order of entering.
        places: the slots that they have in `slots`.
        slots: the buffers and graphs of all slots.
    """

    def __init__(self, graphs: DepthGraphs, num_slots: int, entering: Entering) -> None:
        self.graphs = graphs
        self.num_slots = num_slots
        self.layout = tuple((name, torch.float) for name in entering.input_names)
        self.examples: list[QueuedExample] = []
        self.places: list[int] = []
        self.slots = self.take_slots(entering.longest)
        self.enter(entering)

    def take_slots(self, length: int) -> GraphedSlots:
        """Take buffers for examples of such a length; raises CaptureError if there are none."""
        slots = self.graphs.take_slots(self.num_slots, length, self.layout, self)
        if slots is None:
            raise CaptureError("no free slots")
        return slots

    def enter(self, entering: Entering) -> None:
        """Put examples into free slots at depth 0.

        Raises CaptureError where graphs cannot go on, or the examples bring other inputs.
        """
        if tuple(name for name, _ in self.layout) != tuple(entering.input_names):
            raise CaptureError("examples with and without inputs of their own")
        if not self.slots.may_replay():
            raise CaptureError("the model or its surroundings changed")
        if entering.longest > self.slots.capacity:
            wider = self.take_slots(entering.longest)
            if wider.rule is not self.slots.rule:
                raise CaptureError("an exit key changed")
            wider.take_over(self.slots)
            self.slots = wider
        free = sorted({*range(self.num_slots)}.difference(self.places))
        places = free[: len(entering.examples)]
        texts = [(example.input_ids, example.token_type_ids) for example in entering.examples]
        self.slots.enter(places, texts, entering.own_inputs, entering.pad_token_id)
        self.examples = self.examples + entering.examples
        self.places = self.places + places

    def step(self, members: list[int], weights: LayerWeights) -> Tensor:
        """Run the next layer of some examples, as `Running.step`.

        Raises CaptureError where graphs cannot go on.
        """
        if not self.slots.may_replay():
            raise CaptureError("the model or its surroundings changed")
        longest = max(self.examples[member].length for member in members)
        return self.slots.step([self.places[member] for member in members], longest, weights)

    def keep(self, stays: list[bool]) -> None:
        """Leave out examples; stays: for each, whether it is kept."""
        self.examples = list(compress(self.examples, stays))
        self.places = list(compress(self.places, stays))

    def without_graphs(self) -> Running:
        """Return the same examples, to be run by the model as it is."""
        rows = torch.tensor(self.places, device=self.slots.device)
        width = max(example.length for example in self.examples)
        return Running(
            model=self.slots.model,
            examples=self.examples,
            rule=self.slots.rule,
            hidden=self.slots.hidden[rows, :width],
            state=tree_map(itemgetter(rows), self.slots.state.tree),
        )


class DepthBatcher:
    """A batch with early exit that is kept full: when an example exits, the next takes its slot.

        batcher = DepthBatcher(model, slots=32)
        batcher.submit((ids, types) for ids, types in examples)
        for answer in batcher.answers():  # in order of completion
            print(answer.row, answer.logits, answer.exit_layer)

    The model must be in eval mode; on a CPU, `elbert.packed_copy(model)` is faster, and on a GPU
    `elbert.graphed_copy(model)`, whose slots stay where they are: a step is one graph, and one
    small transfer. Its exit rule is read whenever all slots are empty.

    `answers` may be closed at any time. Iterating again continues where it stopped, and no example
    is lost or answered twice. An example with too many tokens, or with none, or with ids that have
    no embedding, raises UserError with its row, once; iterating again continues without it.

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
        self.running: Running | GraphedRunning | None = None  # None while all slots are free
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

    def drop(self, rows: Container[int]) -> None:
        """Drop examples that were read, waiting or running: they get no answer, and free slots.

        rows: their numbers among the submitted examples.
        """
        for example in self.waiting:
            example.has_left = example.row in rows
        self.waiting = [example for example in self.waiting if not example.has_left]
        self.finished = [answer for answer in self.finished if answer.row not in rows]
        if self.running:
            stays = [example.row not in rows for example in self.running.examples]
            self.free_slots(stays)

    def make_example(
        self, input_ids: Any, token_type_ids: Any, own_inputs: Iterable[Any]
    ) -> QueuedExample:
        """Number and check an example, as it was submitted.

        Raises UserError for its length, and for ids without an embedding.
        """
        row = self.submitted
        self.submitted += 1
        length = len(input_ids)
        longest = self.model.config.max_position_embeddings
        if not 1 <= length <= longest:
            raise UserError(f"example {row} has {length} tokens: allowed are 1 to {longest}")
        if len(token_type_ids) != length:
            raise UserError(
                f"example {row} has {len(token_type_ids)} token_type_ids for {length} tokens"
            )
        ids = as_ids(input_ids)
        segments = as_ids(token_type_ids)
        check_ids(f"example {row}: input_ids", ids, self.model.config.vocab_size)
        check_ids(f"example {row}: token_type_ids", segments, self.model.config.type_vocab_size)
        return QueuedExample(
            row=row,
            length=length,
            input_ids=ids,
            token_type_ids=segments,
            own_inputs=tuple(float(value) for value in own_inputs),
            entries_before=self.entries,
        )

    def next_waiting(self) -> QueuedExample:
        """Take the waiting example next in length, in the direction of travel; turn at the ends.

        One that has waited for too long goes first.
        """
        while self.arrivals[0].has_left:
            self.arrivals.popleft()
        oldest = self.arrivals[0]
        if self.entries - oldest.entries_before >= self.window:
            # The first of its length is the oldest of that length, so it is `oldest`.
            index = bisect_left(self.waiting, oldest.length, key=attrgetter("length"))
        else:
            index = self.next_in_travel()
        example = self.waiting.pop(index)
        example.has_left = True
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

    def insert(self, examples: list[QueuedExample]) -> None:
        """Embed examples, and put them into free slots at depth 0."""
        all_bring_inputs = all(example.own_inputs for example in examples)
        names = self.model.config.own_inputs if all_bring_inputs else ()
        entering = Entering(examples, names, self.pad_token_id)
        if self.running is None:
            self.running = self.begin(entering)
        else:
            try:
                self.running.enter(entering)
            except CaptureError:
                self.running = cast(GraphedRunning, self.running).without_graphs()
                self.running.enter(entering)
        for example in examples:
            example.entered = time.perf_counter()

    def begin(self, entering: Entering) -> "Running | GraphedRunning":
        """Put examples into slots, all of which are free."""
        graphs = self.model.graphs
        if isinstance(graphs, DepthGraphs):
            with suppress(CaptureError):
                return GraphedRunning(graphs, self.num_slots, entering)
        return Running.begin(self.model, self.model.config.exit_rule(), entering)

    def run_step(self, members: list[int], weights: LayerWeights) -> Tensor:
        """Run a step of some examples; see `Running.step`."""
        running: Any = self.running
        try:
            return running.step(members, weights)
        except CaptureError:
            self.running = running = running.without_graphs()
            return running.step(members, weights)

    def step(self, running: Running | GraphedRunning) -> None:
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
        outcomes = self.run_step(members, weights)  # (members, num_labels + 1)
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
                    # A copy: a row of `outcomes` would keep those of the whole step in memory.
                    logits=outcomes[position, :-1].clone(),
                    exit_layer=example.depth,
                    seconds=now - example.entered,
                )
                self.finished.append(answer)
        self.free_slots(stays)

    def free_slots(self, stays: list[bool]) -> None:
        """Leave out the examples that have exited; stays: for each slot, whether it is kept."""
        if not any(stays):
            self.running = None
        elif self.running and not all(stays):
            self.running.keep(stays)


def as_ids(values: Any) -> Tensor:
    """Make a tensor of ids (length,)."""
    # NumPy reads a list several times as fast as torch, and a GPU waits for every text.
    return torch.as_tensor(np.asarray(values) if isinstance(values, list) else values)


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Raise UserError for ids (length,) that are not from 0 to count − 1.

    On a GPU, such an id would end the process. name: of the ids, for the error.
    """
    lowest, highest = (int(bound) for bound in ids.aminmax())
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise UserError(f"{name} hold {wrong}: allowed are 0 to {count - 1}")


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
