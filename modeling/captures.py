"""Captures: a series of tensor operations, recorded once and replayed as one thing.

What touches CUDA is `CudaRecorder` alone. Tests put another recorder in its place.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from .depth import EarlyExitModel, ExampleState, Inputs, LayerWeights
from .rules import AnyRule, LayerOutput

Replay = Callable[[], None]
Layout = tuple[tuple[str, torch.dtype], ...]  # names and types of the model's own inputs

WARM_UP = 2  # runs before a capture, in which libraries choose their ways to compute
CAPTURING = threading.RLock()  # CUDA allows a process one capture at a time
MOST_ROUNDING = 0.02  # between a pass and its replay, of the largest number
# Texts are padded to the next of these lengths, and from the last one on to a multiple of it.
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Recorder(Protocol):
    """What makes replays of a series of operations on one device."""

    def record(self, body: Replay) -> Replay:
        """Run `body`, which reads and writes buffers alone; return what does the same again."""

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Make a tensor on the CPU, to and from which a replay may copy."""

    def wait(self) -> None:
        """Wait until the device has done what was started."""

    def is_usable(self) -> bool:
        """Tell whether replays may be started here and now."""


class CapturedGraph:
    """A CUDA graph, which is replayed when it is called.

    It has addresses alone, so what `body` has made for itself is kept with it.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, body: Replay) -> None:
        self.graph = graph
        self.body = body

    def __call__(self) -> None:
        self.graph.replay()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep a capture apart from what else PyTorch does with a GPU's memory.

    A graph that Python's collector destroys would end the capture. cuBLAS keeps a workspace for
    each stream: made before, all graphs would share it, and the first to be destroyed would free
    it. Made within, it lies in the graphs' own memory (so does torch._inductor's).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        if was_enabled:
            gc.enable()


class CudaRecorder:
    """Captures CUDA graphs, which share their memory: they run one after another."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.event = torch.cuda.Event()

    def record(self, body: Replay) -> Replay:
        """Capture `body` as a graph; return its replay."""
        with CAPTURING, torch.cuda.device(self.device):
            current = torch.cuda.current_stream()
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UP):
                    body()
            current.wait_stream(self.stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on to allocate memory meanwhile.
            capture = torch.cuda.graph(
                graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
            )
            try:
                # The stream's own context: `capture` stays on the stream where it fails.
                with undisturbed(), torch.cuda.stream(self.stream), capture:
                    body()
            except BaseException:
                self.pool = torch.cuda.graph_pool_handle()  # the failed one may not be used again
                raise
        return CapturedGraph(graph, body)

    def host_buffer(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Make a tensor in memory that the GPU can read and write."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def wait(self) -> None:
        """Wait until the GPU has done what was started."""
        # Replays run on the default stream, also where the caller is on another one by now.
        self.event.record(torch.cuda.default_stream(self.device))
        self.event.synchronize()

    def is_usable(self) -> bool:
        """Tell whether this is the default stream, on which replays cannot overlap."""
        return torch.cuda.current_stream(self.device) == torch.cuda.default_stream(self.device)


def do_nothing() -> None:
    """Stand in for a replay where there is nothing to replay."""


class CaptureError(Exception):
    """A shape could not be captured: the model has to run as it is."""


# Shapes.


def round_up(count: int, sizes: Sequence[int]) -> int:
    """Return the first of the rising sizes that is at least `count`, or a multiple of the last."""
    for size in sizes:
        if size >= count:
            return size
    return -(-count // sizes[-1]) * sizes[-1]


def rounded_length(length: int, longest: int) -> int:
    """Round a number of tokens up to one of LENGTHS, at most to the model's own limit."""
    return min(round_up(length, LENGTHS), longest)


def rounded_batch(count: int) -> int:
    """Round a number of examples up to a power of two."""
    return 1 << (count - 1).bit_length()


# Buffers.


class StaticTree:
    """A tree of tensors, such as a state, with a buffer for each, which graphs read and write.

    Attributes:
        tree: the tree, of the buffers.
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree_map_only(Tensor, lambda x: x.contiguous().clone(), tree)
        leaves, self.spec = tree_flatten(self.tree)
        self.buffers: list[Any] = leaves
        self.storages = {storage_of(leaf) for leaf in leaves} - {None}

    def write(self, tree: Any) -> None:
        """Copy the tensors of a tree of the same shape into the buffers; see `write_rows`."""
        self.write_rows(tree, slice(None))

    def write_rows(self, tree: Any, rows: Tensor | slice) -> None:
        """Copy the tensors of a tree into some rows of the buffers.

        Raises CaptureError for another shape or type than the buffers': a graph has the same ones
        at every layer.
        """
        is_traced = torch.compiler.is_compiling()
        leaves, spec = tree_flatten(tree)
        if not is_traced and spec != self.spec:
            raise CaptureError("the state changes its structure from layer to layer")
        places = []
        values = []
        for buffer, leaf in zip(self.buffers, leaves, strict=True):
            if not isinstance(buffer, Tensor) or leaf is buffer:
                continue
            if leaf.shape[1:] != buffer.shape[1:] or leaf.dtype != buffer.dtype:
                raise CaptureError("the state changes its shape or type from layer to layer")
            # A rule may hand on what a buffer holds, such as the score before the newest one. A
            # compiler cannot tell where a tensor lies; it leaves out a copy that nobody needs.
            is_in_buffer = is_traced or storage_of(leaf) in self.storages
            places.append(buffer)
            values.append(leaf.clone() if is_in_buffer else leaf)
        for buffer, value in zip(places, values, strict=True):
            if isinstance(rows, slice):
                buffer[rows] = value
            else:
                buffer.index_copy_(0, rows, value)

    def gather(self, rows: Tensor, source: "StaticTree") -> None:
        """Copy some rows of another tree's buffers to the first rows of these."""
        for buffer, other in zip(self.buffers, source.buffers, strict=True):
            if isinstance(buffer, Tensor):
                buffer[: len(rows)] = other[rows]

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        return sum(x.nbytes for x in self.buffers if isinstance(x, Tensor))


def storage_of(leaf: Any) -> int | None:
    """Return the address of a tensor's memory; None for anything else, and for empty tensors."""
    address = leaf.untyped_storage().data_ptr() if isinstance(leaf, Tensor) else 0
    return address or None


@contextmanager
def preserved(*tensors: Any) -> Iterator[None]:
    """Keep buffers as they are while a capture's first runs write to them."""
    kept = [(x, x.clone()) for x in tensors if isinstance(x, Tensor)]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)


def record_checked(recorder: Recorder, body: Replay, buffers: Sequence[Any]) -> Replay:
    """Record `body`, and compare what its replay finds with what a plain run finds.

    A driver, a library or an operation that a graph cannot hold would otherwise show in answers.

    Args:
        buffers: all that `body` writes to; they are left as they were.

    Raises CaptureError where the two differ by more than rounding.
    """
    with preserved(*buffers):
        body()
        recorder.wait()
        expected = [x.clone() for x in buffers if isinstance(x, Tensor)]
    with preserved(*buffers):
        replay = recorder.record(body)
    with preserved(*buffers):
        replay()
        recorder.wait()
        found = [x.clone() for x in buffers if isinstance(x, Tensor)]
    for value, plain in zip(found, expected, strict=True):
        finite = plain.masked_fill(~plain.isfinite(), 0) if plain.is_floating_point() else plain * 0
        tolerance = MOST_ROUNDING * float(finite.abs().max())
        if not torch.allclose(value.float(), plain.float(), 0, tolerance, equal_nan=True):
            raise CaptureError("a replay answers otherwise than the model")
    return replay


class PassResult(NamedTuple):
    """What a layer pass and its exit check make."""

    hidden: Tensor
    answer: Tensor
    exit_mask: Tensor
    seen: LayerOutput
    state: ExampleState


class Entry:
    """What is kept of a shape: its buffers, and its graphs.

    Attributes:
        graphs: the `DepthGraphs` that keeps it.
        owner: a weak reference to what uses the buffers now; they are free when it is gone.
    """

    def __init__(self, graphs: Any) -> None:
        self.graphs = graphs
        self.model: EarlyExitModel = graphs.model
        self.rule: AnyRule = graphs.rule
        self.device = graphs.device
        self.recorder = graphs.recorder
        self.fingerprint = graphs.fingerprint
        self.owner: weakref.ref | None = None

    def close(self) -> None:
        """Let go of all graphs, and with them of a GPU's memory, without Python's collector."""
        self.recorder.wait()  # a replay may be reading what goes
        self.drop_replays()

    def drop_replays(self) -> None:
        """Forget all replays; the buffers stay for what is using them."""
        raise NotImplementedError

    @property
    def is_free(self) -> bool:
        return self.owner is None or self.owner() is None

    @property
    def size(self) -> int:
        """Bytes of the buffers."""
        raise NotImplementedError

    def start(self, batch: int, inputs: Inputs) -> ExampleState:
        """Make the state of examples at depth 0, with a depth for each."""
        depth = torch.zeros(batch, dtype=torch.long, device=self.device)
        return self.model.start(self.rule, batch, inputs)._replace(depth=depth)

    def empty_inputs(self, batch: int, layout: Layout) -> dict[str, Tensor]:
        return {name: torch.zeros(batch, dtype=dtype, device=self.device) for name, dtype in layout}

    def pass_of(self, weights: LayerWeights) -> Callable[..., PassResult]:
        """Make the pass and the check of a layer with such weights."""
        model, rule = self.model, self.rule

        def run(hidden: Tensor, mask: Tensor | None, extras: Any, state: ExampleState) -> Any:
            hidden = model.layer_pass(hidden, extras, weights)
            decision = model.check_exit(rule, hidden, mask, weights, state)
            return PassResult(
                hidden, decision.answer, decision.exit_mask, decision.seen, decision.state
            )

        return run

    def captured(self, body: Replay) -> Replay:
        """Return what is captured of `body`, which writes to buffers alone: compiled, if asked for.

        The compiler joins the writes with what makes the values.
        """
        return torch.compile(body, dynamic=False, fullgraph=True) if self.graphs.compile else body
