"""Inference on a GPU by captured graphs: a layer pass and its exit check, started as one thing.

A GPU computes a small operation faster than the processor starts it, and a layer pass with its exit
check is some fifty small operations. A CUDA graph is a series of operations that was recorded once
and is started as a whole. It reads and writes the same memory at every replay, so everything that
goes in or comes out has a buffer of its own here.

`graphed_copy` makes a model that has a `DepthGraphs`. This keeps what was captured, for a few
shapes: `GraphedBatch` runs a batch, `graph_slots.GraphedSlots` the slots of a `DepthBatcher`. All
passes with the same weights and the same exit are one graph, in which the depth is a tensor. Layers
or exits with weights of their own have a graph each. `captures.py` has what records and replays.
"""

import copy
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from .captures import (
    CaptureError,
    CudaRecorder,
    Entry,
    Layout,
    Recorder,
    Replay,
    StaticTree,
    do_nothing,
    preserved,
    record_checked,
    round_up,
    rounded_batch,
    rounded_length,
)
from .cpu_packing import copy_modules, packed_copy
from .depth import NO_EXIT, EarlyExitModel, ExitDecision, Inputs, LayerStep, LayerWeights
from .graph_slots import GraphedSlots
from .hf_layers.backbone import HfBackbone
from .rules import LayerOutput

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=nn.Module)
CAPACITIES = (128, 256, 512)  # of slots, in tokens
MOST_SHAPES = 64  # kept; the one that was not used for longest goes first
MOST_BYTES = 1 << 30  # of the kept shapes' buffers
MOST_TOKENS = 1 << 16  # of a batch; a larger one keeps a GPU busy without graphs


def graphed_copy(model: ModelT, compile: bool = False) -> ModelT:
    """Copy a model for faster inference on a GPU, whose layer passes are replayed as CUDA graphs.

        fast = elbert.graphed_copy(model.cuda().eval())
        with torch.inference_mode():
            out = fast(**inputs)

    It is for one text or a few at a time, and for a `DepthBatcher`: an early exit then saves the
    time of the layers behind. Answers and exit layers are those of `model`; without `compile`, they
    are equal in every bit to those of `model` for a batch that is padded to the same shape.

    A shape is captured when it is first needed, in some hundredths of a second. Lengths and batch
    sizes are rounded up to a few, so that a few shapes serve all batches. At most 64 shapes are
    kept, with at most 1 GiB of buffers.

    The copy shares the parameters and the configuration of `model`. Weights that are changed in
    place, weights that are replaced, and keys that are changed hold from the next call on: graphs
    read the weights where they are, and are captured again where one has moved, or where a key has
    changed or a switch of torch that chooses between kernels, such as the precision of products.

    The copy runs as `model` does: on another device than CUDA; in train(), where gradients are
    computed, and within torch.autocast; with PEFT's adapters, or hooks; with transformers' own
    layers (`hf_layers`), whose states and masks are their own; for a model whose tokens halt
    (Adaptive Depth), since the number of running tokens decides there what is computed; on another
    stream than the default one; for a batch of more than 65,536 tokens; and, after one line in the
    log, for a shape whose capture failed, for example for lack of memory.

    Args:
        model: an early-exit model in eval mode, on its device.
        compile: whether torch.compile makes the captured pass: it takes seconds for every shape,
            and answers differ in the last digits.
    """
    twin = copy_modules(model, {}, lambda part: None)
    if isinstance(twin, EarlyExitModel):
        twin.graphs = DepthGraphs(twin, compile)
    return twin


def inference_copy(model: ModelT, compile: bool = False) -> ModelT:
    """Copy a model for inference where it is: packed on a CPU, with graphs on a GPU.

    compile: as `graphed_copy`'s; a CPU takes no notice of it.
    """
    device = next(model.parameters()).device
    return graphed_copy(model, compile) if device.type == "cuda" else packed_copy(model)


def recorder_of(device: torch.device) -> Recorder | None:
    """Return what captures graphs on a device; None where there is nothing to capture with."""
    return CudaRecorder(device) if device.type == "cuda" else None


class GraphedBatch(Entry):
    """A batch of one shape: its ids and states, and the runs from these.

    Runs differ in whether texts are padded, and in what the model's own inputs are.
    """

    def __init__(self, graphs: "DepthGraphs", batch: int, length: int) -> None:
        super().__init__(graphs)
        self.batch = batch
        self.length = length
        self.ids = torch.zeros(batch, length, dtype=torch.long, device=self.device)
        self.types = torch.zeros_like(self.ids)
        self.hidden = self.model.embed(self.ids, self.types).contiguous().clone()
        self.embedded: weakref.ref[Tensor] | None = None  # the view that `embed` has returned
        self.rows = torch.arange(batch, device=self.device)
        self.runs: dict[tuple[bool, Layout], GraphedRun] = {}
        self.embeddings: dict[bool, Replay] = {}  # by whether segments are given

    @property
    def size(self) -> int:
        return self.hidden.nbytes + sum(run.size for run in self.runs.values())

    def drop_replays(self) -> None:
        for run in self.runs.values():
            run.replays.clear()
            run.replay_start = run.replay_extras = do_nothing
        self.runs.clear()
        self.embeddings.clear()

    def capture_embedding(self, has_segments: bool) -> None:
        """Capture the embedding of ids, with segments that are given or found in the ids."""
        segments = self.types if has_segments else None
        self.embeddings[has_segments] = self.recorder.record(
            lambda: self.hidden.copy_(self.model.embed(self.ids, segments))
        )

    def embed(self, ids: Tensor, types: Tensor | None) -> Tensor:
        """Embed ids and segments (batch, length): the states, a view of the buffer.

        What stands behind them is padding of id 0, which is masked.
        """
        batch, length = ids.shape
        self.ids[:batch, :length] = ids
        if types is not None:
            self.types[:batch, :length] = types
        self.embeddings[types is not None]()
        return self.hidden[:batch, :length]

    def run_of(self, is_masked: bool, layout: Layout) -> "GraphedRun":
        """Return the run of such a batch; capture it if it is new."""
        key = is_masked, layout
        if key not in self.runs:
            with preserved(self.hidden):
                self.runs[key] = GraphedRun(self, is_masked, layout)
        return self.runs[key]


class GraphedRun:
    """The graphs of a batch: its start, what all layers read, and a pass for all weights.

    Attributes:
        mask: (batch, 1, 1, length) bool, or None for texts without padding.
    """

    def __init__(self, entry: GraphedBatch, is_masked: bool, layout: Layout) -> None:
        model, recorder = entry.model, entry.recorder
        self.entry = entry
        self.key = is_masked, layout
        self.unpadded_length: int | None = None  # what the mask says, where no mask was given
        self.mask: Tensor | None = None
        if is_masked:
            shape = entry.batch, 1, 1, entry.length
            self.mask = torch.ones(shape, dtype=torch.bool, device=entry.device)
        self.inputs = entry.empty_inputs(entry.batch, layout)
        self.state = StaticTree(entry.start(entry.batch, self.inputs))
        self.replay_start: Replay = recorder.record(
            lambda: self.state.write(entry.start(entry.batch, self.inputs))
        )
        extras = model.layer_extras(entry.hidden, self.mask)
        self.replay_extras: Replay = do_nothing
        if has_other_tensors(extras, self.mask):
            self.extras = StaticTree(extras)
            self.replay_extras = recorder.record(
                lambda: self.extras.write(model.layer_extras(entry.hidden, self.mask))
            )
            extras = self.extras.tree
        depth = model.config.num_hidden_layers
        self.weights = [model.layer_weights(layer) for layer in range(depth)]
        # Run as it is: a rule puts its tensors on the device, and the shapes of its answers show.
        run_last = entry.pass_of(self.weights[-1])  # which always has an exit
        result = run_last(entry.hidden, self.mask, extras, self.state.tree)
        self.outputs = StaticTree((result.answer, result.exit_mask, result.seen))
        self.decisions: dict[int, ExitDecision] = {}  # by the number of examples
        self.host_exits = recorder.host_buffer(entry.batch, dtype=torch.bool)
        buffers = (entry.hidden, *self.state.buffers, *self.outputs.buffers, self.host_exits)
        self.replays = {
            weights: record_checked(recorder, self.body(weights, extras), buffers)
            for weights in dict.fromkeys(self.weights)
        }

    @property
    def size(self) -> int:
        return self.state.size + self.outputs.size

    def body(self, weights: LayerWeights, extras: Any) -> Replay:
        """Make what a graph of a layer records: a pass, and its results into the buffers."""
        hidden = self.entry.hidden
        run = self.entry.pass_of(weights)
        has_exit = weights.exit != NO_EXIT
        (_, exit_mask, _) = self.outputs.tree

        def pass_and_writes() -> None:
            result = run(hidden, self.mask, extras, self.state.tree)
            if has_exit:
                self.outputs.write((result.answer, result.exit_mask, result.seen))
            self.state.write(result.state)
            hidden.copy_(result.hidden)

        captured = self.entry.captured(pass_and_writes)

        def body() -> None:
            captured()
            if has_exit:
                self.host_exits.copy_(exit_mask, non_blocking=True)

        return body

    def begin(self, mask: Tensor | None, inputs: Inputs, batch: int, length: int) -> None:
        """Put examples at depth 0; their states are in the entry's buffer."""
        self.set_mask(mask, batch, length)
        for name, values in inputs.items():
            self.inputs[name][:batch] = values
        self.replay_start()

    def set_mask(self, mask: Tensor | None, batch: int, length: int) -> None:
        """Mask what is padding.

        mask: (batch, 1, 1, length) bool, of the first rows; None: all of their tokens are real.
        """
        if self.mask is not None and mask is not None:
            self.mask.fill_(False)
            self.mask[..., 0] = True  # of the rows behind: no row is all padding
            self.mask[:batch, ..., :length] = mask
            self.unpadded_length = None
        elif self.mask is not None and length != self.unpadded_length:
            self.mask.fill_(False)
            self.mask[..., :length] = True
            self.unpadded_length = length
        self.replay_extras()

    def decision(self, batch: int) -> ExitDecision:
        """Return the buffers of what the newest layer found, for the first examples."""
        if batch not in self.decisions:  # views, which take as long to make as a layer to start
            trees = self.outputs.tree, self.state.tree
            (answer, exit_mask, seen), state = tree_map_only(Tensor, lambda x: x[:batch], trees)
            self.decisions[batch] = ExitDecision(
                answer=answer, exit_mask=exit_mask, state=state, seen=seen
            )
        return self.decisions[batch]

    def no_decision(self, batch: int) -> ExitDecision:
        """Return what is found after a layer without an exit; see `EarlyExitModel.check_exit`."""
        decision = self.decision(batch)
        no_answer = torch.zeros_like(decision.answer)
        return decision._replace(
            answer=no_answer,
            exit_mask=torch.zeros_like(decision.exit_mask),
            seen=LayerOutput(no_answer),
        )

    def exits(self, batch: int) -> list[bool]:
        """Wait for the newest layer; tell who of the first examples exits."""
        self.entry.recorder.wait()
        return self.host_exits[:batch].tolist()

    def keep(self, staying: list[int], into: "GraphedRun") -> None:
        """Put the examples that stay into the first rows of a run, which may be this one."""
        rows = torch.tensor(staying, device=self.entry.device)
        mask = None if self.mask is None else self.mask[rows]
        into.entry.hidden[: len(rows)] = self.entry.hidden[rows]
        into.state.gather(rows, self.state)
        into.set_mask(mask, len(rows), self.entry.length)


def has_other_tensors(tree: Any, mask: Tensor | None) -> bool:
    """Tell whether a tree has tensors beside the mask."""
    leaves, _ = tree_flatten(tree)
    return any(isinstance(leaf, Tensor) and leaf is not mask for leaf in leaves)


# What a graph has copied or points to.


def kernel_switches() -> tuple[Any, ...]:
    """Return torch's settings by which it chooses the kernels that a graph records."""
    attention = torch.backends.cuda
    return (
        torch.get_float32_matmul_precision(),
        attention.flash_sdp_enabled(),
        attention.mem_efficient_sdp_enabled(),
        attention.cudnn_sdp_enabled(),
        attention.math_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


class Fingerprint:
    """What graphs depend on beside their buffers: a model's parts, weights and configuration.

    A weight that is edited in place is read at the next replay. One that has moved is noticed: its
    old memory is kept here, so that nothing else can have its address.
    """

    def __init__(self, model: EarlyExitModel) -> None:
        self.parts = list(model.modules())
        self.children = [(part._modules, dict(part._modules)) for part in self.parts]
        self.tensors = [
            (tensors, name, tensor)
            for part in self.parts
            for tensors in (part._parameters, part._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self.memory = [tensor.detach() for _, _, tensor in self.tensors]
        self.addresses = [tensor.data_ptr() for _, _, tensor in self.tensors]
        self.config = model.config
        self.values = copy.deepcopy(vars(model.config))
        self.switches = kernel_switches()
        # Which of PEFT's adapters count is said by attributes that nothing here would notice, and
        # what transformers' own layers read is made anew for every batch.
        self.is_capturable = not any(
            isinstance(part, HfBackbone)
            or hasattr(part, "base_layer")
            or hasattr(part, "modules_to_save")
            for part in self.parts
        )

    def has_same_weights(self) -> bool:
        """Tell whether all parts and weights are where they were."""
        # Every call waits for this, so it is as few steps as can be.
        same_parts = all(children == before for children, before in self.children)
        same_tensors = all(tensors.get(name) is tensor for tensors, name, tensor in self.tensors)
        addresses = [tensor.data_ptr() for _, _, tensor in self.tensors]
        return same_parts and same_tensors and addresses == self.addresses

    def has_same_keys(self) -> bool:
        """Tell whether the configuration is as it was, and what torch chooses its kernels by."""
        return vars(self.config) == self.values and kernel_switches() == self.switches

    def can_replay(self) -> bool:
        """Tell whether a replay does what the parts do when they are called."""
        return self.is_capturable and not any(
            part.training or part._forward_hooks or part._forward_pre_hooks for part in self.parts
        )


class Owner:
    """What uses buffers while it lives."""


class DepthGraphs:
    """What a `graphed_copy` has captured, for a few shapes.

    It may be used by several threads: buffers that one of them uses are not given to another, which
    then runs the model as it is.

    Attributes:
        entries: what is kept, by shape; the newest used is the last one.
        refused: shapes whose capture failed.
    """

    def __init__(self, model: EarlyExitModel, compile: bool) -> None:
        self.model = model
        self.compile = compile
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "compile": self.compile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def reset(self) -> None:
        """Begin with nothing."""
        self.lock = threading.RLock()
        self.device: Any = None
        self.recorder: Any = None
        self.fingerprint: Fingerprint | None = None
        self.entries: OrderedDict[tuple, Entry] = OrderedDict()
        self.refused: set[tuple] = set()
        self.has_told = False

    def is_current(self) -> bool:
        """Tell whether graphs may run here and now; forget what has become stale."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return False
        with self.lock:
            device = self.model.device
            if device != self.device:
                self.device = device
                self.recorder = recorder_of(device)
                self.fingerprint = None
            if self.recorder is None:
                return False
            known = self.fingerprint
            if known is None or not known.has_same_weights() or not known.has_same_keys():
                self.begin_anew()
                known = self.fingerprint
            return known is not None and self.may_replay(known)

    def may_replay(self, known: Fingerprint) -> bool:
        """Tell whether replays do here and now what the model would do."""
        is_autocast = torch.is_autocast_enabled(self.device.type)
        return known.can_replay() and not is_autocast and self.recorder.is_usable()

    def begin_anew(self) -> None:
        """Take the model as it is now; what was captured before is forgotten."""
        # One of its own, whose tensors stay where a graph reads them. Raises UserError for a key
        # that is out of range.
        self.rule = self.model.config.exit_rule()
        self.forget()
        self.refused.clear()
        self.fingerprint = Fingerprint(self.model)

    # What is kept.

    def take(self, key: tuple, owner: object, make: Callable[[], Entry]) -> Entry | None:
        """Return the entry of a shape for its new owner; None where it is used or refused."""
        with self.lock:
            entry = self.entries.get(key)
            if key in self.refused or (entry is not None and not entry.is_free):
                return None
            if entry is None:
                try:
                    with self.capturing(key, is_pass=False):
                        entry = make()
                except CaptureError:
                    return None
                self.entries[key] = entry
            entry.owner = weakref.ref(owner)
            self.entries.move_to_end(key)
            self.evict()
            return entry

    @contextmanager
    def capturing(self, key: tuple, is_pass: bool = True) -> Iterator[None]:
        """Capture something of a shape; say so once, of layer passes.

        Raises CaptureError, after a line, where that fails; the shape is then refused.
        """
        start = time.perf_counter()
        try:
            with self.lock, torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
                if self.compile:
                    stack.enter_context(many_compilations())
                yield
        except Exception as error:  # the compiler's errors have no base of their own
            self.refused.add(key)
            if entry := self.entries.pop(key, None):
                entry.close()
            # Where an operation cannot be captured, CUDA ends the capture with an error that hides
            # the operation's own.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            if "out of memory" in f"{error} {cause}".lower():
                self.forget()
                torch.cuda.empty_cache()
            # A compiler's assertion has no words of its own.
            reason = (str(cause).splitlines() or [""])[0] or type(cause).__name__
            logger.warning("%s: not captured as CUDA graphs, run as it is: %s", said(key), reason)
            logger.debug("all of the error:", exc_info=error)
            raise CaptureError(reason) from error
        if not is_pass:
            return
        seconds = time.perf_counter() - start
        level = logging.DEBUG if self.has_told else logging.INFO
        self.has_told = True
        way = "compiled, and captured" if self.compile else "captured"
        logger.log(
            level, "layer passes of %s are %s as CUDA graphs in %.2f s", said(key), way, seconds
        )

    def evict(self) -> None:
        """Forget shapes that are not in use, the least recently used first, down to the limits."""
        for key in list(self.entries)[:-1]:
            size = sum(entry.size for entry in self.entries.values())
            if len(self.entries) <= MOST_SHAPES and size <= MOST_BYTES:
                return
            if self.entries[key].is_free:
                self.entries.pop(key).close()

    def forget(self) -> None:
        """Forget all shapes; those in use live until nothing uses them."""
        with self.lock:
            for entry in self.entries.values():
                if entry.is_free:
                    entry.close()
            self.entries.clear()

    def take_slots(
        self, slots: int, length: int, layout: Layout, owner: object
    ) -> GraphedSlots | None:
        """Return buffers of slots for texts up to such a length; None if the model has to run."""
        longest = self.model.config.max_position_embeddings
        capacity = min(round_up(length, CAPACITIES), longest)
        if (slots + 1) * capacity > MOST_TOKENS or not self.is_current():
            return None
        key = "slots", slots, capacity, layout
        entry: Any = self.take(key, owner, lambda: GraphedSlots(self, slots, capacity, layout))
        return entry

    def take_batch(self, batch: int, length: int, owner: object) -> GraphedBatch | None:
        """Return the buffers of the next larger shape, for a batch of such a size; None if none."""
        longest = self.model.config.max_position_embeddings
        rows, width = rounded_batch(batch), rounded_length(length, longest)
        if not 1 <= length <= longest or rows * width > MOST_TOKENS:
            return None
        key = "batch", rows, width
        entry: Any = self.take(key, owner, lambda: GraphedBatch(self, rows, width))
        return entry

    # What `depth.py` asks for.

    def embed(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor | None:
        """Embed ids and segments (batch, length); None where the model has to.

        The states, (batch, length, hidden), hold while the caller has them, and until `iter_layers`
        has run.
        """
        if input_ids is None or position_ids is not None or inputs_embeds is not None:
            return None
        if not input_ids.numel() or not self.is_current():
            return None
        owner = Owner()
        batch, length = input_ids.shape
        has_segments = token_type_ids is not None
        entry = self.take_batch(batch, length, owner)
        if entry is None:
            return None
        if has_segments not in entry.embeddings:
            try:
                with self.capturing(("batch", entry.batch, entry.length), is_pass=False):
                    entry.capture_embedding(has_segments)
            except CaptureError:
                return None
        hidden = entry.embed(input_ids, token_type_ids)
        entry.owner = entry.embedded = weakref.ref(hidden)
        return hidden

    def iter_layers(
        self, hidden: Tensor, mask: Tensor | None, inputs: Inputs, allow_exit: bool
    ) -> Iterator[LayerStep] | None:
        """Run as `depth.iter_layers`; None where the model has to run as it is."""
        batch, length = hidden.shape[:2]
        owner = Owner()
        entry = self.entry_of(hidden)  # `embed` has just looked whether it is current
        if entry is None:
            if not batch or not self.is_current():
                return None
            entry = self.take_batch(batch, length, owner)
            if entry is None:
                return None
            entry.hidden.zero_()
            entry.hidden[:batch, :length] = hidden
        entry.owner = weakref.ref(owner)
        entry.embedded = None
        is_masked = mask is not None or length != entry.length
        layout = tuple((name, values.dtype) for name, values in sorted(inputs.items()))
        try:
            run = self.run_of(entry, is_masked, layout)
        except CaptureError:
            # The states were the entry's, and nothing has run: they are still there.
            return None
        run.begin(mask, inputs, batch, length)
        return self.steps(run, batch, owner, allow_exit)

    def entry_of(self, hidden: Tensor) -> GraphedBatch | None:
        """Return the entry whose `embed` has made these states."""
        for entry in list(self.entries.values()):
            if isinstance(entry, GraphedBatch) and entry.embedded and entry.embedded() is hidden:
                return entry
        return None

    def run_of(self, entry: GraphedBatch, is_masked: bool, layout: Layout) -> GraphedRun:
        """Return a run of an entry; raises CaptureError, after a line, where that fails."""
        if (is_masked, layout) in entry.runs:
            return entry.runs[is_masked, layout]
        with self.capturing(("batch", entry.batch, entry.length)):
            return entry.run_of(is_masked, layout)

    def steps(
        self, run: GraphedRun, batch: int, owner: Owner, allow_exit: bool
    ) -> Iterator[LayerStep]:
        """Run layer by layer; see `depth.iter_layers`.

        owner: of the buffers that the run uses.
        """
        rows = run.entry.rows[:batch]
        decision = run.decision(batch)
        for weights in run.weights:
            run.replays[weights]()
            if weights.exit == NO_EXIT:
                yield LayerStep(rows, run.no_decision(len(rows)), exiting=[])
                continue
            if not allow_exit:
                yield LayerStep(rows, decision, exiting=[])
                continue
            exits_here = run.exits(len(rows))
            exiting = [position for position, exits in enumerate(exits_here) if exits]
            yield LayerStep(rows, decision, exiting)
            if len(exiting) == len(exits_here):
                return
            if exiting:
                staying = [position for position, exits in enumerate(exits_here) if not exits]
                smaller = self.smaller(run, len(staying), owner)
                run.keep(staying, smaller)
                run = smaller
                rows = rows[torch.tensor(staying, device=self.device)]
                decision = run.decision(len(rows))

    def smaller(self, run: GraphedRun, batch: int, owner: Owner) -> GraphedRun:
        """Return the run for fewer examples: this one, where no smaller shape is to be had."""
        is_masked, layout = run.key
        length = run.entry.length
        # A compiler would take seconds in the middle of an answer.
        is_new = ("batch", rounded_batch(batch), length) not in self.entries
        is_same = rounded_batch(batch) == run.entry.batch
        if is_same or (self.compile and is_new):
            return run
        entry = self.take_batch(batch, length, owner)
        try:
            return run if entry is None else self.run_of(entry, is_masked, layout)
        except CaptureError:
            return run


def said(key: tuple) -> str:
    """Name a shape."""
    kind, count, length = key[:3]
    return f"{count} {'slots' if kind == 'slots' else 'texts'} of {length} tokens"


@contextmanager
def many_compilations() -> Iterator[None]:
    """Let torch.compile make one function for every shape; by default it gives up after eight."""
    with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        yield
