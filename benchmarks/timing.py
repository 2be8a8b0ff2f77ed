"""What the benchmarks share: runs in turn, their ratios, and the line that says where they ran."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers

Times = dict[str, list[float]]  # of each run by name, seconds in every round


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that `run` takes, what it leaves to the device included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turn(runs: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> Times:
    """Times of all runs, one after the other in every round: what slows a round slows them all."""
    times: Times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, device))
    return times


def spread_of(base: list[float], seconds: list[float]) -> str:
    """ "median | lowest–highest" of how many times as fast as `base`, round by round."""
    ratios = sorted(b / t for b, t in zip(base, seconds, strict=True))
    return f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f}"


def machine(device: torch.device) -> str:
    """Processor, threads and versions."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return (
        f"{name}, {torch.get_num_threads()} threads; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )
