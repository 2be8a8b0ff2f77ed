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
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
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
        entries_before: how many examples had entered a slot when it was read.
        entered: when it entered its slot, in seconds of time.perf_counter.
        has_left: whether it waits no more: it has a slot, or was dropped.
    """

    row: int
    length: int
    input_ids: np.ndarray
    token_type_ids: np.ndarray
    own_inputs: tuple[float, ...]
    entries_before: int
    entered: float = 0.0
    has_left: bool = False


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


class OccupiedSlots:
    """The examples that are running, in order of entering, and what is counted of them.

    With a hundred slots on a GPU, a loop over the examples would take longer than a layer.

    Attributes:
        examples: one in each occupied slot.
        lengths: (examples,) int64, in tokens.
        depths: (examples,) int64, layers that ran.
        idle_steps: (examples,) int64, steps since the last layer, or since the example entered.
    """

    def __init__(self, examples: list[QueuedExample]) -> None:
        self.examples = examples
        self.lengths = np.array([example.length for example in examples], np.int64)
        self.depths = np.zeros(len(examples), np.int64)
        self.idle_steps = np.zeros(len(examples), np.int64)

    def __len__(self) -> int:
        return len(self.examples)

    def add(self, examples: list[QueuedExample]) -> None:
        """Append examples that have just entered."""
        others = OccupiedSlots(examples)
        self.examples = self.examples + examples
        self.lengths = np.concatenate([self.lengths, others.lengths])
        self.depths = np.concatenate([self.depths, others.depths])
        self.idle_steps = np.concatenate([self.idle_steps, others.idle_steps])

    def keep(self, stays: np.ndarray) -> None:
        """Leave out examples; stays: (examples,) bool, whether each is kept."""
        self.examples = list(compress(self.examples, stays.tolist()))
        self.lengths = self.lengths[stays]
        self.depths = self.depths[stays]
        self.idle_steps = self.idle_steps[stays]

    def count_step(self, members: np.ndarray) -> None:
        """Count a step in which some examples, (members,) positions, ran their next layer."""
        self.depths[members] += 1
        self.idle_steps += 1
        self.idle_steps[members] = 0


# Waits for what a step finds, (members, num_labels + 1) on the CPU: answers, and 1 where an example
# exits.
Wait = Callable[[], Tensor]


class StartedStep(NamedTuple):
    """A step whose outcomes have not been read."""

    members: np.ndarray  # (members,) positions of the examples that it serves, among the occupied
    wait: Wait


class Exits(NamedTuple):
    """The examples that exit at one step."""

    examples: list[QueuedExample]
    logits: Tensor  # (examples, num_labels) float32, on the CPU
    exit_layers: np.ndarray  # (examples,) 1-based
    time: float  # in seconds of time.perf_counter

    def answers(self) -> list[ExampleAnswer]:
        """Make the answer to each."""
        rows = zip(self.examples, self.logits.unbind(), self.exit_layers.tolist(), strict=True)
        return [
            # A copy: a row of `logits` would keep those of the whole step in memory.
            ExampleAnswer(example.row, logits.clone(), exit_layer, self.time - example.entered)
            for example, logits, exit_layer in rows
        ]


@dataclass
class Running:
    """The examples in the slots, and their states, whose batch dimension is the slots' order.

    Attributes:
        model: runs them.
        occupied: the examples, one in each occupied slot.
        rule: the exit rule.
        hidden: (slots, width, hidden), as wide as the longest of the examples, 0 behind each.
        state: what the examples carry from layer to layer, (slots, …).
    """

    model: EarlyExitModel
    occupied: OccupiedSlots
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
            ids[row, : example.length] = torch.from_numpy(example.input_ids)
            types[row, : example.length] = torch.from_numpy(example.token_type_ids)
        hidden = model.embed(ids.to(model.device), types.to(model.device))
        columns = entering.own_inputs.to(model.device).T
        inputs = dict(zip(entering.input_names, columns, strict=True))
        state = model.start(rule, len(examples), inputs)
        # A number for each example, since neighbours in a step have run different layers.
        depth = torch.zeros(len(examples), dtype=torch.long, device=hidden.device)
        return cls(model, OccupiedSlots(examples), rule, hidden, state._replace(depth=depth))

    def enter(self, entering: Entering) -> None:
        """Embed examples, and put them into free slots at depth 0."""
        # One rule serves all who run at a time: a threshold that is edited in between must not
        # judge an example by two rules.
        others = self.begin(self.model, self.rule, entering)
        # As wide as the longest of both. What stands behind an example's own tokens is never
        # read: `run_layer` masks it by the example's length.
        width = max(self.hidden.shape[1], others.hidden.shape[1])
        self.occupied.add(entering.examples)
        self.hidden = torch.cat([pad_to(width, self.hidden), pad_to(width, others.hidden)])
        self.state = tree_map(lambda *parts: torch.cat(parts), self.state, others.state)

    def start_pass(self, members: np.ndarray, weights: LayerWeights) -> Wait:
        """Run the next layer of some examples, with its exit check; store their new states.

        members: (members,) their positions. weights: of their next layer.
        """
        decision = self.run_layer(members, weights)
        exits = decision.exit_mask[:, None].to(decision.answer.dtype)  # (members, 1)
        # The step's only wait for the device: answers and decisions in one transfer.
        return torch.cat([decision.answer, exits], dim=1).cpu

    def run_layer(self, members: np.ndarray, weights: LayerWeights) -> ExitDecision:
        """Run the next layer of some examples, and store their new states; see `start_pass`."""
        device = self.model.device
        all_take_part = len(members) == len(self.occupied)
        # A slice of all slots is a view; an index copies their states.
        rows = slice(None) if all_take_part else torch.from_numpy(members).to(device)
        lengths = torch.from_numpy(self.occupied.lengths[members])
        width = int(lengths.max())
        mask = None  # (members, 1, 1, width) bool, where there is padding
        if lengths.min() < width:
            is_real = torch.arange(width) < lengths[:, None, None, None]
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

    def keep(self, stays: np.ndarray) -> None:
        """Leave out examples; stays: (examples,) bool, whether each is kept. At least one is."""
        staying = torch.from_numpy(stays).to(self.model.device)
        self.occupied.keep(stays)
        # Narrower again once the longest has exited, so that one long text costs its neighbours
        # no longer than it runs.
        width = int(self.occupied.lengths.max())
        self.hidden = self.hidden[staying, :width]
        self.state = tree_map(itemgetter(staying), self.state)


class GraphedRunning:
    """The examples in the slots of a `graphed_copy`: they stay in their places, and graphs run.

    Attributes:
        occupied: the examples.
        places: (examples,) int64, the slots that they have in `slots`.
        slots: the buffers and graphs of all slots.
    """

    def __init__(self, graphs: DepthGraphs, num_slots: int, entering: Entering) -> None:
        self.graphs = graphs
        self.num_slots = num_slots
        self.layout = tuple((name, torch.float) for name in entering.input_names)
        self.occupied = OccupiedSlots([])
        self.places = np.zeros(0, np.int64)
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
        if entering.longest > self.slots.capacity:
            wider = self.take_slots(entering.longest)
            if wider.rule is not self.slots.rule:
                raise CaptureError("an exit key changed")
            wider.take_over(self.slots)
            self.slots = wider
        is_free = np.ones(self.num_slots, bool)
        is_free[self.places] = False
        places = np.flatnonzero(is_free)[: len(entering.examples)]
        texts = [(example.input_ids, example.token_type_ids) for example in entering.examples]
        self.slots.enter(places, texts, entering.own_inputs, entering.pad_token_id)
        self.occupied.add(entering.examples)
        self.places = np.concatenate([self.places, places])

    def may_replay(self) -> bool:
        """Tell whether the graphs do what the model would do now."""
        return self.slots.may_replay()

    def start_pass(self, members: np.ndarray, weights: LayerWeights) -> Wait:
        """Start the next layer of some examples, as `Running.start_pass`.

        Raises CaptureError where graphs cannot go on.
        """
        longest = int(self.occupied.lengths[members].max())
        return self.slots.start_pass(self.places[members], longest, weights)

    def keep(self, stays: np.ndarray) -> None:
        """Leave out examples; stays: (examples,) bool, whether each is kept."""
        self.occupied.keep(stays)
        self.places = self.places[stays]

    def without_graphs(self) -> Running:
        """Return the same examples, to be run by the model as it is."""
        rows = torch.from_numpy(self.places).to(self.slots.device)
        width = int(self.occupied.lengths.max())
        return Running(
            model=self.slots.model,
            occupied=self.occupied,
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
    small transfer, and runs while the caller uses the answers to the last step. The exit rule is
    read whenever all slots are empty. Weights that change hold for the examples that enter next; on
    graphs, these are chosen before the answers to the last step are handed out.

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
        weights = [model.layer_weights(layer) for layer in range(depth)]
        self.kinds = sorted(set(weights))  # of layers, by their weights
        self.kind_of_depth = np.array([self.kinds.index(kind) for kind in weights])
        self.source: Iterator[tuple] = iter(())  # examples that are not read yet
        self.submitted = 0  # examples read, also those that failed
        self.waiting: list[QueuedExample] = []  # sorted by length, then row; at most `window`
        self.arrivals: deque[QueuedExample] = deque()  # by row; some have entered a slot since
        self.entries = 0  # examples that have entered a slot
        self.going_up = False  # whether the next example to enter is a longer one
        self.last_length = 1 << 30  # of the example that entered last
        self.running: Running | GraphedRunning | None = None  # None while all slots are free
        # Whether a step starts before the answers to the last one are handed out: on graphs.
        self.starts_early = False
        self.may_have_changed = True  # whether somebody else has had a turn since the last step
        self.started: StartedStep | None = None
        self.newest_exits: Exits | None = None  # of which no answers have been made
        self.finished: deque[ExampleAnswer] = deque()

    @property
    def slots(self) -> list[QueuedExample]:
        """The examples that are running."""
        return self.running.occupied.examples if self.running else []

    @property
    def is_idle(self) -> bool:
        """Whether no example waits or runs, and no answer waits to be handed out."""
        has_answers = self.newest_exits is not None or len(self.finished) > 0
        return not (self.slots or self.waiting or has_answers)

    def submit(self, examples: Iterable[tuple]) -> None:
        """Queue tokenised examples, which are read as slots become free.

        Each is a tuple of input_ids and token_type_ids, followed, for a model that needs them, by
        the values of the configuration's `own_inputs`, in their order.
        """
        self.source = chain(self.source, examples)

    def answers(self) -> Iterator[ExampleAnswer]:
        """Yield the answers to the queued examples, in order of completion."""
        self.may_have_changed = True
        while True:
            if self.starts_early:
                # A GPU runs the next step while the caller uses the answers to the last one.
                self.advance()
            self.collect_answers()
            while self.finished:
                self.may_have_changed = True
                yield self.finished.popleft()
            # Nothing has started yet without graphs, or where the caller has submitted more.
            self.advance()
            if self.started is None:
                return
            with torch.inference_mode():
                if self.starts_early:
                    self.read_ahead()
                if self.started is not None:  # the source has dropped nothing
                    self.finish_step()

    def advance(self) -> None:
        """Fill the slots, and start a step of some of them, unless one has started."""
        if self.started is not None:
            return
        with torch.inference_mode():
            if (
                self.may_have_changed
                and isinstance(self.running, GraphedRunning)
                and not self.running.may_replay()
            ):
                self.running = self.running.without_graphs()
            self.may_have_changed = False
            self.fill_slots()
            if self.running is not None:
                self.start_step(self.running)

    def fill_slots(self) -> None:
        """Let waiting examples enter the free slots; read others, unless enough have been read."""
        free = self.num_slots - len(self.slots)
        if not self.starts_early or len(self.waiting) < free:
            self.read_ahead()
        count = min(free, len(self.waiting))
        entering = [self.next_waiting() for _ in range(count)]
        if entering:
            self.insert(entering)

    def read_ahead(self) -> None:
        """Read examples until the window is full."""
        room = max(0, self.window - len(self.waiting))
        for input_ids, token_type_ids, *own_inputs in islice(self.source, room):
            example = self.make_example(input_ids, token_type_ids, own_inputs)
            insort(self.waiting, example, key=attrgetter("length"))
            self.arrivals.append(example)

    def drop(self, rows: Container[int]) -> None:
        """Drop examples that were read, waiting or running: they get no answer, and free slots.

        rows: their numbers among the submitted examples.
        """
        if self.started is not None:
            with torch.inference_mode():
                self.finish_step()
        self.collect_answers()
        for example in self.waiting:
            example.has_left = example.row in rows
        self.waiting = [example for example in self.waiting if not example.has_left]
        self.finished = deque(answer for answer in self.finished if answer.row not in rows)
        if self.running:
            self.free_slots(np.array([example.row not in rows for example in self.slots]))

    def collect_answers(self) -> None:
        """Make the answers to the examples that have exited."""
        if self.newest_exits is not None:
            self.finished.extend(self.newest_exits.answers())
            self.newest_exits = None

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
        vocab_size, type_count = self.model.config.vocab_size, self.model.config.type_vocab_size
        ids = checked_ids(f"example {row}: input_ids", input_ids, vocab_size)
        segments = checked_ids(f"example {row}: token_type_ids", token_type_ids, type_count)
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
        self.starts_early = isinstance(self.running, GraphedRunning)
        now = time.perf_counter()
        for example in examples:
            example.entered = now

    def begin(self, entering: Entering) -> "Running | GraphedRunning":
        """Put examples into slots, all of which are free."""
        graphs = self.model.graphs
        if isinstance(graphs, DepthGraphs):
            with suppress(CaptureError):
                return GraphedRunning(graphs, self.num_slots, entering)
        return Running.begin(self.model, self.model.config.exit_rule(), entering)

    def start_step(self, running: Running | GraphedRunning) -> None:
        """Start one layer pass, with its exit check, for the examples that most others can share.

        An example that was left out for too long is served in their place.
        """
        kind, members = self.next_step(running.occupied)
        weights = self.kinds[kind]
        try:
            wait = running.start_pass(members, weights)
        except CaptureError:
            self.running = cast(GraphedRunning, running).without_graphs()
            wait = self.running.start_pass(members, weights)
        self.started = StartedStep(members, wait)

    def next_step(self, occupied: OccupiedSlots) -> tuple[int, np.ndarray]:
        """Choose the kind of layer of the next step, and whom it serves, (members,) positions."""
        if len(self.kinds) == 1:  # all share it
            return 0, np.arange(len(occupied))
        next_kinds = self.kind_of_depth[occupied.depths]
        most_idle = occupied.idle_steps.argmax()
        if occupied.idle_steps[most_idle] >= len(self.kinds):
            kind = int(next_kinds[most_idle])
        else:
            kind = most_frequent(next_kinds)
        return kind, np.flatnonzero(next_kinds == kind)

    def finish_step(self) -> None:
        """Wait for the step that has started, and free the slots of those that exit."""
        members, wait = cast(StartedStep, self.started)
        outcomes = wait()  # (members, num_labels + 1)
        self.started = None
        now = time.perf_counter()
        occupied = cast("Running | GraphedRunning", self.running).occupied
        occupied.count_step(members)
        has_exited = (outcomes[:, -1] > 0).numpy()
        leaving = members[has_exited]
        if not len(leaving):
            return
        examples = [occupied.examples[position] for position in leaving]
        logits = outcomes[torch.from_numpy(has_exited), :-1]
        self.newest_exits = Exits(examples, logits, occupied.depths[leaving], now)
        stays = np.ones(len(occupied), bool)
        stays[leaving] = False
        self.free_slots(stays)

    def free_slots(self, stays: np.ndarray) -> None:
        """Leave out examples; stays: (examples,) bool, whether each is kept."""
        if not stays.any():
            self.running = None
        elif self.running and not stays.all():
            self.running.keep(stays)


def checked_ids(name: str, values: Any, count: int) -> np.ndarray:
    """Make an array of ids, (length,) int64, of a list, an array or a tensor.

    name: of the ids, for an error. Raises UserError for ids that are not whole numbers from 0 to
    count − 1. On a GPU, such an id would end the process.
    """
    given = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    ids = np.ascontiguousarray(given, np.int64)
    if given.dtype.kind not in "iu" and (ids != given).any():
        raise UserError(f"{name} hold numbers with a fraction: allowed are 0 to {count - 1}")
    # Of a list, Python finds the ends faster than NumPy, and a GPU waits for every text.
    ends = values if isinstance(values, list) else ids.tolist()
    lowest, highest = int(min(ends)), int(max(ends))
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise UserError(f"{name} hold {wrong}: allowed are 0 to {count - 1}")
    return ids


def most_frequent(kinds: np.ndarray) -> int:
    """Return the kind of layer, (examples,) int64, that most examples need next.

    Among equals it is the deepest: deeper examples exit sooner, which frees their slots.
    """
    counts = np.bincount(kinds)
    return int(np.flatnonzero(counts == counts.max())[-1])


def pad_to(width: int, states: Tensor) -> Tensor:
    """Pad states (slots, length, hidden) with zeros to (slots, width, hidden)."""
    return F.pad(states, (0, 0, 0, width - states.shape[1]))
