"""Parts that speed.py times beside whole runs: matrix products, exit checks, compilation."""

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.contenders import BASE, DEVICE, ForcedExits, our_model
from benchmarks.timing import OwnProcess, seconds
from modeling import ElbertForSequenceClassification
from modeling.compilation import compile_for_inference
from modeling.cpu_packing import PACKABLE, PackedLinear
from modeling.depth import ExampleState


def matmul_rate(dtype: torch.dtype, rows: int) -> float:
    """Measure FLOPs a second of the layer's four matrix products, packed where they can be."""
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    products = []
    for inner, outer in shapes:
        x = torch.randn(rows, inner, device=DEVICE).to(dtype)
        weight = torch.randn(outer, inner, device=DEVICE).to(dtype)
        if DEVICE.type == "cpu" and dtype in PACKABLE:
            bias = torch.zeros(outer, dtype=dtype)
            products.append(partial(PackedLinear(weight, bias), x))
        else:
            products.append(partial(F.linear, x, weight))

    def run() -> None:
        for product in products:
            product()

    with torch.inference_mode():
        times = [seconds(run, DEVICE) for _ in range(30)]
    return sum(2 * rows * i * o for i, o in shapes) / statistics.median(times)


def exit_checks(model: ForcedExits, length: int, rounds: int) -> list[float]:
    """Time an exit check with its decision at hand, a pooler, a layer pass: median seconds."""
    hidden = torch.randn(1, length, BASE["hidden_size"], device=DEVICE)
    # A text that is told its exit carries that, too: these are the steps of those that are not.
    plain, rule = ElbertForSequenceClassification, model.config.exit_rule()
    plain_check = partial(plain.check_exit, model, rule)
    times = {"check": [], "pooler": [], "pass": []}

    def clocked(name: str, function: Callable[..., Any], *args: Any) -> Any:
        outcome = []
        times[name].append(seconds(lambda: outcome.append(function(*args)), DEVICE))
        return outcome[0]

    def check(out: torch.Tensor, state: ExampleState) -> ExampleState:
        decision = plain_check(out, None, 0, state)
        decision.exit_mask.tolist()
        return decision.state

    for _ in range(rounds * 4):
        state = plain.start(model, rule, 1, {})
        for _ in range(BASE["num_hidden_layers"]):
            out = clocked("pass", model.layer_pass, hidden, None, 0)
            state = clocked("check", check, out, state)
            out = clocked("pass", model.layer_pass, hidden, None, 0)
            clocked("pooler", model.albert.pooler, out[:, 0])
    return [statistics.median(values) for values in times.values()]


def exit_check_case(process: OwnProcess, rounds: int) -> None:
    """Print the time of one exit check as a share of a layer pass; batch 1."""
    for length in (32, 64, 128):
        check, pooler, layer_pass = process.ask(exit_checks, length, rounds)
        print(
            f"- Exit check, length {length}: {check * 1e6:.0f} µs, {check / layer_pass:.1%} of a "
            f"layer pass; its pooler {pooler * 1e6:.0f} µs."
        )


def compile_seconds(model: ForcedExits) -> float:
    return seconds(partial(compile_for_inference, model), DEVICE)


def compile_case() -> None:
    """Print the seconds to compile the first time and from the cache, in new processes."""
    taken = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for _ in range(2):
            with OwnProcess(our_model) as process:
                taken.append(process.ask(compile_seconds))
    print(f"- Compilation: {taken[0]:.1f} s the first time, {taken[1]:.1f} s from the cache.")
