"""Parts that speed.py times beside whole runs: matrix products, exit checks, compilation."""

import statistics
import tempfile
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.contenders import BASE, DEVICE, HAS_BF16, ForcedExits, our_model
from benchmarks.timing import OwnProcess, seconds, take_turns
from modeling import ElbertForSequenceClassification
from modeling.compilation import compile_for_inference
from modeling.cpu_packing import PACKABLE, PackedLinear

SHAPES = ((768, 2304), (768, 768), (768, 3072), (3072, 768))  # of the layer's matrix products


def matmul_rates() -> dict[str, float]:
    """Measure FLOPs a second of matrix products of 128 rows, by type; print other rows' as well."""
    reached, types = {}, {"fp32": torch.float32}
    if HAS_BF16:
        types["bf16"] = torch.bfloat16
    else:
        print("Without bf16, which this processor only emulates.\n")
    for name, dtype in types.items():
        rates = {rows: matmul_rate(dtype, rows) for rows in (32, 64, 128)}
        reached[name] = rates[128]
        shown = ", ".join(f"{rate / 1e9:.0f} of {rows} rows" for rows, rate in rates.items())
        print(f"Matrix products in {name} reach, in GFLOP/s: {shown}.\n")
    return reached


@torch.inference_mode()
def matmul_rate(dtype: torch.dtype, rows: int) -> float:
    """Measure FLOPs a second of the layer's four matrix products, packed where they can be."""
    products = []
    for inner, outer in SHAPES:
        x = torch.randn(rows, inner, device=DEVICE).to(dtype)
        weight = torch.randn(outer, inner, device=DEVICE).to(dtype)
        packed = DEVICE.type == "cpu" and dtype in PACKABLE
        bias = torch.zeros(outer, dtype=dtype, device=DEVICE)
        linear = PackedLinear(weight, bias) if packed else partial(F.linear, weight=weight)
        products.append(partial(linear, x))
    times = [seconds(lambda: [product() for product in products], DEVICE) for _ in range(30)]
    return sum(2 * rows * i * o for i, o in SHAPES) / statistics.median(times)


@torch.inference_mode()
def exit_checks(model: ForcedExits, length: int, rounds: int) -> list[float]:
    """Time an exit check with its decision at hand, a pooler, a layer pass: median seconds.

    A layer pass goes before each, so that they find the caches as they do in a run.
    """
    hidden = torch.randn(1, length, BASE["hidden_size"], device=DEVICE)
    # An example that is told its exit carries that, too: these are the steps of those that are not.
    plain, rule = ElbertForSequenceClassification, model.config.exit_rule()
    state, layer_pass = plain.start(model, rule, 1, {}), partial(model.layer_pass, hidden, None, 0)
    parts = {
        "before": layer_pass,
        "check": lambda: plain.check_exit(model, rule, hidden, None, 0, state).exit_mask.tolist(),
        "pass": layer_pass,
        "pooler": lambda: model.albert.pooler(hidden[:, 0]),
    }
    timers = {name: partial(seconds, part, DEVICE) for name, part in parts.items()}
    times = take_turns(timers, rounds * 4 * BASE["num_hidden_layers"])
    return [statistics.median(times[name]) for name in ("check", "pooler", "pass")]


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
        for _ in range(2):
            with OwnProcess(our_model, {"TORCHINDUCTOR_CACHE_DIR": cache}) as process:
                taken.append(process.ask(compile_seconds))
    print(f"- Compilation: {taken[0]:.1f} s the first time, {taken[1]:.1f} s from the cache.")
