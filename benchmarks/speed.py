"""Seconds of early exit against HF's ALBERT, as ratios measured in one run.

    OMP_NUM_THREADS=2 python benchmarks/speed.py            the whole table
    OMP_NUM_THREADS=2 python benchmarks/speed.py --quick    a part of it, within 60 s

No trained weights are needed: exits are forced, so that a computation cost c is exact, while the
exit checks are computed as ever. All contenders of a case run in turn, round after round; a row
gives the median time of a text, the median of the rounds' ratios and their spread (lowest to
highest). Slow contenders get fewer texts, of the same lengths, so that the table ends in time: the
column says how many. The share is that of the rate that this machine's matrix products reach on
the layer's own shapes. With a CUDA device, everything runs there.
"""

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertForSequenceClassification

from benchmarks.timing import Times, in_turn, machine, spread_of
from features import epoch_batches
from modeling import ElbertConfig, ElbertForSequenceClassification
from modeling.backbone import cast_layers
from modeling.compilation import compile_for_inference
from modeling.depth_batching import DepthBatcher
from modeling.flops import early_exit_flops
from training import make_optimizer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "hidden_act": "gelu_new",
}
# Tokens of the dev sets' texts (WordPiece, at most 128) at 64 evenly spaced quantiles.
LENGTHS = {
    "SST-2": [
        *(7, 8, 9, 10, 11, 12, 12, 12, 13, 14, 14, 15, 15, 16, 17, 17, 18, 18, 18, 19, 19, 20),
        *(20, 20, 21, 21, 22, 22, 23, 23, 24, 24, 25, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29, 30),
        *(30, 31, 31, 32, 32, 33, 34, 35, 35, 36, 37, 38, 39, 40, 41, 41, 43, 44, 48, 52),
    ],
    "RTE": [
        *(21, 24, 28, 29, 31, 33, 34, 35, 35, 36, 36, 38, 38, 39, 40, 41, 41, 42, 43, 43, 44, 46),
        *(46, 47, 48, 48, 49, 49, 50, 51, 52, 53, 54, 54, 55, 56, 56, 58, 60, 60, 62, 64, 67, 68),
        *(71, 73, 74, 78, 80, 81, 95, 100, 108, 112, 116, 122, *[128] * 8),
    ],
}
# Exit layers whose mean over 12 layers is the cost, spread as a trained model's are.
FORCED = {
    1.0: [12],
    0.75: [6, 8, 9, 10, 12, 9],
    0.5: [2, 4, 6, 8, 10, 6],
    0.25: [1, 2, 3, 4, 5, 3],
}


class ForcedExits(ElbertForSequenceClassification):
    """An ELBERT whose examples exit where they are told, in the order in which they start."""

    def force(self, cost: float) -> "ForcedExits":
        layers = list(FORCED[cost])
        random.Random(0).shuffle(layers)
        self.targets = itertools.cycle(layers)
        self.pattern = layers
        return self

    def start(self, batch: int) -> dict[str, torch.Tensor]:
        targets = torch.tensor(list(itertools.islice(self.targets, batch)), device=self.device)
        return {**super().start(batch), "target": targets}

    def check_exit(self, rule, hidden, mask, layer, state):
        logits, _, new = super().check_exit(rule, hidden, mask, layer, state)
        return logits, layer + 1 >= state["target"], {**new, "target": state["target"]}


def hf_model() -> AlbertForSequenceClassification:
    return AlbertForSequenceClassification(AlbertConfig(**BASE)).eval().to(DEVICE)


def our_model(dtype: torch.dtype = torch.float32) -> ForcedExits:
    model = ForcedExits(ElbertConfig(**BASE)).eval().to(DEVICE).force(1.0)
    if dtype != torch.float32:
        cast_layers(model, dtype)
    return model


def ids_of(lengths: Sequence[int]) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(5, 30000) for _ in range(length)] for length in lengths]


def texts_of(task: str, count: int) -> list[list[int]]:
    """`count` texts, a multiple of 8, whose lengths spread as the task's, in random order."""
    lengths = LENGTHS[task]
    lengths = lengths * (count // 64) if count >= 64 else lengths[64 // count // 2 :: 64 // count]
    texts = ids_of(lengths)
    random.Random(1).shuffle(texts)
    return texts


def padded(texts: list[list[int]], width: int | None = None) -> dict[str, torch.Tensor]:
    width = width or max(map(len, texts))
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, : len(text)] = torch.tensor(text)
        mask[i, : len(text)] = 1
    return {"input_ids": ids.to(DEVICE), "attention_mask": mask.to(DEVICE)}


@torch.inference_mode()
def run_hf(model, batch: int, width: int | None, texts: list[list[int]]) -> None:
    """HF's model over the texts, `batch` at a time, padded to `width` or to the longest."""
    for start in range(0, len(texts), batch):
        model(**padded(texts[start : start + batch], width)).logits.argmax(-1).tolist()


@torch.inference_mode()
def run_ours(model: ForcedExits, batch: int, cost: float, texts: list[list[int]]) -> None:
    """Early exit over the texts: one by one, or `batch` slots."""
    model.force(cost)
    if batch == 1:
        for text in texts:
            model(torch.tensor([text], device=DEVICE)).logits.argmax(-1).tolist()
        return
    batcher = DepthBatcher(model, slots=batch)
    batcher.submit((text, [0] * len(text)) for text in texts)
    for _ in batcher.answers():
        pass


class Contender(NamedTuple):
    """A row of the table."""

    name: str
    run: Callable[[list[list[int]]], None]
    texts: list[list[int]]
    cost: float = 1.0

    @property
    def flops(self) -> float:
        """Floating-point operations a text needs: without padding, with the exits' own."""
        exits = itertools.cycle(FORCED[self.cost])
        config = ElbertConfig(**BASE)
        pairs = zip(self.texts, exits, strict=False)
        total = sum(early_exit_flops(config, len(text), layer) for text, layer in pairs)
        return total / len(self.texts)


def compare(case: str, contenders: list[Contender], args: argparse.Namespace) -> Times:
    """Run the contenders in turn and print a row for each, as a ratio to the first.

    Returns seconds a text.
    """
    for contender in contenders:
        contender.run(contender.texts[:2])  # packs weights, warms caches
    runs = {contender.name: partial(contender.run, contender.texts) for contender in contenders}
    times = in_turn(runs, args.rounds, DEVICE)
    for name, _, texts, _ in contenders:
        times[name] = [total / len(texts) for total in times[name]]
    base = times[contenders[0].name]
    for contender in contenders:
        seconds = times[contender.name]
        rate = args.rate["bf16" if "bf16" in contender.name else "fp32"]
        median = statistics.median(seconds)
        print(
            f"| {case} | {contender.name} | {len(contender.texts)} | {median * 1e3:.2f} "
            f"| {spread_of(base, seconds)} | {contender.flops / median / rate:.0%} |",
            flush=True,
        )
    return times


def matmul_rate(dtype: torch.dtype, rows: int = 128) -> float:
    """FLOPs a second of the layer's four matrix products, weights packed where they can be."""
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    products = []
    for inner, outer in shapes:
        x = torch.randn(rows, inner, device=DEVICE).to(dtype)
        weight = torch.randn(outer, inner, device=DEVICE).to(dtype)
        if DEVICE.type == "cpu" and torch.backends.mkldnn.is_available():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            rest = (None, "none", [], "")
            products.append(partial(torch.ops.mkldnn._linear_pointwise, x, packed, *rest))
        else:
            products.append(partial(F.linear, x, weight))
    times = []
    with torch.inference_mode():
        for _ in range(30):
            start = time.perf_counter()
            for product in products:
                outcome = product()
            outcome[0, 0].item()  # waits for the device
            times.append(time.perf_counter() - start)
    return sum(2 * rows * i * o for i, o in shapes) / statistics.median(times)


def fixed_length_cases(args: argparse.Namespace, models: dict) -> dict[tuple[int, int], Times]:
    times = {}
    for batch, length in itertools.product(args.batches, args.lengths):
        # With exits, more texts than slots: admissions are part of what is timed.
        some = ids_of([length] * max(3, batch))
        many = ids_of([length] * max(6, 2 * batch))
        rows = [Contender("HF eager", partial(run_hf, models["hf"], batch, None), some)]
        if length < 128:
            run = partial(run_hf, models["hf"], batch, 128)
            rows.append(Contender("HF eager, padded to 128", run, some))
        if "hf_compiled" in models:
            run = partial(run_hf, models["hf_compiled"], batch, None)
            rows.append(Contender("HF compiled", run, some))
        for suffix, kind in (("", "fp32"), (" compiled", "compiled"), (" bf16", "bf16")):
            if kind in models:
                run = partial(run_ours, models[kind], batch, 1.0)
                rows.append(Contender(f"ours{suffix}", run, some))
        for cost in (0.75, 0.5, 0.25):
            run = partial(run_ours, models["fp32"], batch, cost)
            rows.append(Contender(f"ours c = {cost}", run, many, cost))
        times[batch, length] = compare(f"batch {batch}, length {length}", rows, args)
    return times


def pipeline_cases(args: argparse.Namespace, models: dict) -> dict[str, Times]:
    """From ids to answers, texts of a task's lengths in random order.

    The slots' queue is long enough to be full most of the time; HF's way takes as long for every
    text, so a few tell.
    """
    times = {}
    for task in LENGTHS:
        few, queue = texts_of(task, 8), texts_of(task, 64 if args.quick else 192)
        hf = models["hf"]
        rows = [Contender("HF eager, batch 1, padded to 128", partial(run_hf, hf, 1, 128), few)]
        if not args.quick:
            run = partial(run_hf, hf, 32, None)
            rows.append(Contender("HF eager, batch 32, padded to longest", run, queue[:32]))
        costs = (0.5,) if args.quick else (1.0, 0.5, 0.25)
        for kind, cost, batch in itertools.product(("fp32", "bf16"), costs, (1, 32)):
            if batch == 1 and args.quick:
                continue
            name = f"ours {kind} c = {cost}, " + ("batch 1" if batch == 1 else "32 slots")
            texts = texts_of(task, 16) if batch == 1 else queue
            rows.append(Contender(name, partial(run_ours, models[kind], batch, cost), texts, cost))
        times[task] = compare(f"{task} lengths", rows, args)
    return times


def training_case(args: argparse.Namespace) -> None:
    """Steps of 32 texts of RTE's lengths: HF fp32 padded to 128, ours bf16 with all exits.

    Ours takes run_glue.py's batches, whose texts are of about one length: of an epoch over as many
    texts as RTE has, eight whose lengths spread as the epoch's.
    """
    hf = hf_model().train()
    ours = ElbertForSequenceClassification(ElbertConfig(**BASE)).to(DEVICE).train()
    hf_optimizer = torch.optim.AdamW(hf.parameters(), lr=3e-5)
    our_optimizer = make_optimizer(ours, 3e-5, 0.0, 1e-8)

    def step(model, optimizer, width: int | None, bf16: bool, texts: list[list[int]]) -> None:
        labels = torch.arange(len(texts), device=DEVICE) % 2
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=bf16):
            loss = model(**padded(texts, width), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    def steps(texts: list[list[int]]) -> None:
        for start in range(0, len(texts), 32):
            step(ours, our_optimizer, None, True, texts[start : start + 32])

    texts = texts_of("RTE", 38 * 64)
    batches = epoch_batches([len(text) for text in texts], 32, seed=0, epoch=0)
    batches.sort(key=lambda batch: sum(len(texts[row]) for row in batch))
    eighth = len(batches) / 8
    chosen = [row for i in range(8) for row in batches[int((i + 0.5) * eighth)]]
    hf_step = partial(step, hf, hf_optimizer, 128, False)
    rows = [
        Contender("HF fp32, padded to 128", hf_step, texts[:32]),
        Contender("ours bf16, 12 exits", steps, [texts[row] for row in chosen]),
    ]
    compare("training steps, batch 32, RTE lengths (share: × 3)", rows, args)


def times_of(module: torch.nn.Module) -> list[float]:
    """Seconds of every call of `module` from now on, without waits for the device."""
    times = []

    def end(*_) -> None:
        times[-1] += time.perf_counter()

    module.register_forward_pre_hook(lambda *_: times.append(-time.perf_counter()))
    module.register_forward_hook(end)
    return times


def exit_check_case(models: dict, rounds: int) -> None:
    """Time of one exit check, with its decision at hand, as a share of a layer pass; batch 1."""
    model = models["fp32"]
    pooler = times_of(model.albert.pooler)
    for length in (32, 64, 128):
        pooler.clear()
        hidden = torch.randn(1, length, BASE["hidden_size"], device=DEVICE)
        passes, checks = [], []
        with torch.inference_mode():
            rule, state = model.exit_rule(), {}
            for layer in list(range(BASE["num_hidden_layers"])) * rounds * 4:
                state = model.start(1) if layer == 0 else state
                start = time.perf_counter()
                out = model.layer_pass(hidden, None, layer)
                out[0, 0, 0].item()  # waits for the device
                middle = time.perf_counter()
                _, done, state = ElbertForSequenceClassification.check_exit(
                    model, rule, out, None, layer, state
                )
                done.tolist()
                passes.append(middle - start)
                checks.append(time.perf_counter() - middle)
        share = statistics.median(checks) / statistics.median(passes)
        print(
            f"- Exit check, length {length}: {statistics.median(checks) * 1e6:.0f} µs, "
            f"{share:.1%} of a layer pass; its pooler {statistics.median(pooler) * 1e6:.0f} µs."
        )


def cost_ratios(name: str, times: Times, full: str, by_cost: dict[float, str]) -> None:
    """How our own time falls with the computation cost."""
    for cost, contender in by_cost.items():
        ratios = [t / f for t, f in zip(times[contender], times[full], strict=True)]
        ratio = statistics.median(ratios)
        print(
            f"- {name}: time at c = {cost} over full depth {ratio:.3f} = {ratio / cost:.2f} · c; "
            f"throughput {cost / ratio:.2f} / c."
        )


def compile_case() -> None:
    """Seconds to compile the first time and from the cache, each in a new process."""
    program = (
        "import sys, time; sys.path.insert(0, '.'); from benchmarks.speed import *\n"
        "model = our_model(); start = time.perf_counter(); ok = compile_for_inference(model)\n"
        "print(f'{time.perf_counter() - start:.1f}' if ok else 'failed')"
    )
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        seconds = [
            subprocess.run(
                [sys.executable, "-c", program],
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for _ in range(2)
        ]
    print(f"- Compilation: {seconds[0]} s the first time, {seconds[1]} s from the cache.")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of the table, within 60 s")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds of each case")
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1 8 32")
    parser.add_argument("--lengths", type=int, nargs="+", help="default: 32 64 128")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 3)
    args.batches = args.batches or ([1] if args.quick else [1, 8, 32])
    args.lengths = args.lengths or ([32, 128] if args.quick else [32, 64, 128])
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    args.rate = {"fp32": matmul_rate(torch.float32), "bf16": matmul_rate(torch.bfloat16)}
    print(
        f"{machine(DEVICE)}; matrix products reach {args.rate['fp32'] / 1e9:.0f} GFLOP/s in fp32, "
        f"{args.rate['bf16'] / 1e9:.0f} in bf16.\n"
    )
    models = {"hf": hf_model(), "fp32": our_model(), "bf16": our_model(torch.bfloat16)}
    if not args.quick:
        models["compiled"] = our_model()
        compile_for_inference(models["compiled"])
        models["hf_compiled"] = torch.compile(hf_model(), dynamic=True)
    print("| case | contender | texts | ms a text | times as fast as the first | spread | share |")
    print("|---|---|---|---|---|---|---|")
    fixed = fixed_length_cases(args, models)
    pipelines = pipeline_cases(args, models)
    if not args.quick:
        training_case(args)
    print()
    for (batch, length), times in fixed.items():
        by_cost = {cost: f"ours c = {cost}" for cost in (0.75, 0.5, 0.25)}
        cost_ratios(f"batch {batch}, length {length}", times, "ours", by_cost)
    for task, times in pipelines.items():
        for kind in () if args.quick else ("fp32", "bf16"):
            names = {cost: f"ours {kind} c = {cost}, 32 slots" for cost in (1.0, 0.5, 0.25)}
            cost_ratios(f"{task} lengths, {kind}, 32 slots", times, names.pop(1.0), names)
    exit_check_case(models, args.rounds)
    if not args.quick:
        compile_case()


if __name__ == "__main__":
    main()
