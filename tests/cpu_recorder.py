"""A recorder for the CPU in CUDA's place: it replays tensor operations, as a CUDA graph does.

What is replayed is the list of operations that the recorded call ran, on the same memory. No Python
runs again, so that a number that a graph would have baked in is baked in here, too.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from modeling import graph_slots, graphs


class Operations(TorchDispatchMode):
    """Notes the operations that run, and runs them again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Run the operations; what one of them made is made anew, all else is where it was."""
        made: dict[int, torch.Tensor] = {}

        def newest(x):
            return made.get(id(x), x) if isinstance(x, torch.Tensor) else x

        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                again = func(*tree_map(newest, args), **tree_map(newest, kwargs))
                for before, now in zip(leaves(result), leaves(again), strict=True):
                    made[id(before)] = now


def leaves(result) -> list[torch.Tensor]:
    results = result if isinstance(result, (tuple, list)) else [result]
    return [x for x in results if isinstance(x, torch.Tensor)]


class CpuRecorder:
    """Records on a CPU.

    Attributes:
        records: how often something was recorded.
        replays: how often something was replayed.
        failures: what the next recordings raise.
    """

    def __init__(self) -> None:
        self.records = 0
        self.replays = 0
        self.failures: list[Exception] = []

    def record(self, body):
        if self.failures:
            raise self.failures.pop(0)
        self.records += 1
        body()  # warms up, as on a GPU
        with Operations() as operations:
            body()

        def replay() -> None:
            self.replays += 1
            operations.replay()

        return replay

    def host_buffer(self, *shape, dtype):
        return torch.zeros(shape, dtype=dtype)

    def wait(self) -> None:
        """A CPU is done at once."""

    def is_usable(self) -> bool:
        return True


def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> CpuRecorder:
    """Let graphed copies record on the CPU, and let everything use them that would on a GPU."""
    recorder = CpuRecorder()
    monkeypatch.setattr(graphs, "recorder_of", lambda device: recorder)
    monkeypatch.setattr(graphs, "packed_copy", graphs.graphed_copy)
    return recorder


class OnDeviceAlone(TorchDispatchMode):
    """Fails for what a CUDA graph cannot hold: here, the device is "meta".

    An operation that waits for a number, one on the CPU, and a copy from or to the CPU, but that of
    a host buffer.
    """

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "is_nonzero", "equal.d")

    def __init__(self, host_buffers: list[torch.Tensor]) -> None:
        super().__init__()
        self.host_memory = {x.untyped_storage().data_ptr() for x in host_buffers}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        assert not name.startswith(self.WAITS), name
        is_mask_index = name.startswith("index") and any(x.dtype == torch.bool for x in given[1:])
        assert not is_mask_index or name.startswith("index_copy"), name
        result = func(*args, **(kwargs or {}))
        for x in (*given, *leaves(result)):
            is_number = x.dim() == 0 and x.device.type == "cpu"  # written into the operation
            on_host = x.untyped_storage().data_ptr() in self.host_memory
            is_host_copy = name.startswith("copy_") and on_host
            assert x.device.type == "meta" or is_number or is_host_copy, name
        return result


class HostCopies(TorchDispatchMode):
    """Lets the device "meta", which has no numbers, be copied to the CPU: as if nothing was."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            assert (args[0].shape, args[0].dtype) == (args[1].shape, args[1].dtype)
            return args[0]
        return func(*args, **(kwargs or {}))


class MetaRecorder:
    """Runs what is recorded on the device "meta", and checks that a CUDA graph could hold it."""

    def __init__(self) -> None:
        self.records = 0
        self.host_buffers: list[torch.Tensor] = []

    def record(self, body):
        body()
        with OnDeviceAlone(self.host_buffers):
            body()
        self.records += 1
        return body

    def host_buffer(self, *shape, dtype):
        self.host_buffers.append(torch.zeros(shape, dtype=dtype))
        return self.host_buffers[-1]

    def wait(self) -> None:
        """There is nothing to wait for."""

    def is_usable(self) -> bool:
        return True


def record_all(model, layout, monkeypatch: pytest.MonkeyPatch) -> int:
    """Record every body of a model's graphs by a `MetaRecorder`; return how many there are.

    layout: of the model's own inputs.
    """
    recorder = MetaRecorder()
    monkeypatch.setattr(graphs, "recorder_of", lambda device: recorder)
    monkeypatch.setattr(graphs.DepthGraphs, "may_replay", lambda *_: True)  # no autocast there
    for module in (graphs, graph_slots):
        monkeypatch.setattr(
            module, "record_checked", lambda recorder, body, _: recorder.record(body)
        )
    graphed = graphs.graphed_copy(model.to("meta"))
    owner = graphs.Owner()
    with torch.no_grad(), HostCopies():
        assert graphed.graphs.is_current()
        batch = graphed.graphs.take_batch(3, 9, owner)
        for is_masked in (True, False):
            batch.run_of(is_masked, layout)
        slots = graphed.graphs.take_slots(3, 24, layout, owner)
        graph_slots.SlotEntrance(slots, 2, 16)
        for weights in {model.layer_weights(n) for n in range(model.config.num_hidden_layers)}:
            for count in (1, 3):
                graph_slots.SlotPass(slots, weights, count, 16)
    return recorder.records
