"""Seconds of early exit against HF's ALBERT, as ratios measured in one run.

    OMP_NUM_THREADS=2 python benchmarks/speed.py            the whole table
    OMP_NUM_THREADS=2 python benchmarks/speed.py --quick    a part of it, within 60 s

No trained weights are needed: exits are forced, so that a computation cost c is exact, while the
exit checks are computed as ever. All contenders of a case run in turn, round after round; a row
gives the median time, the median of the rounds' ratios and their spread (lowest to highest). Its
share is that of the rate that this machine's matrix products reach on the layer's own shapes.
"""

import argparse
import itertools
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import transformers
from torch.nn import functional as F
from transformers import AlbertConfig, AlbertForSequenceClassification

from modeling import ElbertConfig, ElbertForSequenceClassification
from modeling.compilation import compile_for_inference
from modeling.depth_batching import DepthBatcher
from modeling.flops import early_exit_flops
from training import make_optimizer

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
    return AlbertForSequenceClassification(AlbertConfig(**BASE)).eval()


def our_model(dtype: torch.dtype = torch.float32) -> ForcedExits:
    return ForcedExits(ElbertConfig(**BASE)).eval().to(dtype).force(1.0)


def ids_of(lengths: Sequence[int]) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(5, 30000) for _ in range(length)] for length in lengths]


def padded(texts: list[list[int]], width: int | None = None) -> dict[str, torch.Tensor]:
    width = width or max(map(len, texts))
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, : len(text)] = torch.tensor(text)
        mask[i, : len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask}


@torch.inference_mode()
def run_hf(model, texts: list[list[int]], batch: int, width: int | None) -> None:
    """HF's model over the texts, `batch` at a time, padded to `width` or to the longest."""
    for start in range(0, len(texts), batch):
        model(**padded(texts[start : start + batch], width)).logits.argmax(-1).tolist()


@torch.inference_mode()
def run_ours(model: ForcedExits, texts: list[list[int]], batch: int, cost: float) -> None:
    """Early exit over the texts: one by one, or `batch` slots."""
    model.force(cost)
    if batch == 1:
        for text in texts:
            model(torch.tensor([text])).logits.argmax(-1).tolist()
        return
    batcher = DepthBatcher(model, slots=batch)
    batcher.submit((text, [0] * len(text)) for text in texts)
    for _ in batcher.answers():
        pass


def flops_of(model: ForcedExits, texts: list[list[int]], cost: float) -> int:
    exits = itertools.islice(itertools.cycle(FORCED[cost]), len(texts))
    pairs = zip(texts, exits, strict=True)
    return sum(early_exit_flops(model.config, len(text), layer) for text, layer in pairs)


Contender = tuple[str, Callable[[], None], int]  # name, what to run, useful FLOPs


def compare(case: str, contenders: list[Contender], rounds: int, rate: dict[str, float]) -> None:
    """Run the contenders in turn and print a row for each, as a ratio to the first."""
    times = {name: [] for name, _, _ in contenders}
    for i in range(rounds + 1):
        for name, run, _ in contenders:
            start = time.perf_counter()
            run()
            if i:  # the first round packs weights and warms caches
                times[name].append(time.perf_counter() - start)
    base = times[contenders[0][0]]
    for name, _, flops in contenders:
        ratios = sorted(b / t for b, t in zip(base, times[name], strict=True))
        median = statistics.median(times[name])
        share = flops / median / rate["bf16" if "bf16" in name else "fp32"]
        print(
            f"| {case} | {name} | {median * 1e3:.1f} | {statistics.median(ratios):.2f} "
            f"| {ratios[0]:.2f}–{ratios[-1]:.2f} | {share:.0%} |",
            flush=True,
        )


def matmul_rate(dtype: torch.dtype, rows: int = 128) -> float:
    """FLOPs a second of the layer's four matrix products, weights packed where they can be."""
    shapes = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
    products = []
    for inner, outer in shapes:
        x, weight = torch.randn(rows, inner).to(dtype), torch.randn(outer, inner).to(dtype)
        if torch.backends.mkldnn.is_available():
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
                product()
            times.append(time.perf_counter() - start)
    return sum(2 * rows * i * o for i, o in shapes) / statistics.median(times)


def fixed_length_cases(args: argparse.Namespace, models: dict, rate: dict[str, float]) -> None:
    for batch, length in itertools.product(args.batches, args.lengths):
        # More texts than slots, so that admissions are part of what is timed.
        texts = ids_of([length] * (6 if batch == 1 else batch * 2))
        full = flops_of(models["fp32"], texts, 1.0)
        rows = [("HF eager", partial(run_hf, models["hf"], texts, batch, None), full)]
        if length < 128:
            padded_run = partial(run_hf, models["hf"], texts, batch, 128)
            rows.append(("HF eager, padded to 128", padded_run, full))
        if "hf_compiled" in models:
            rows.append(
                ("HF compiled", partial(run_hf, models["hf_compiled"], texts, batch, None), full)
            )
        variants = [("", "fp32", 1.0), (" compiled", "compiled", 1.0), (" bf16", "bf16", 1.0)]
        variants += [(f" c = {c}", "fp32", c) for c in (0.75, 0.5, 0.25)]
        for suffix, kind, cost in variants:
            if kind in models:
                run = partial(run_ours, models[kind], texts, batch, cost)
                rows.append((f"ours{suffix}", run, flops_of(models["fp32"], texts, cost)))
        compare(f"batch {batch}, length {length}", rows, args.rounds, rate)


def pipeline_cases(args: argparse.Namespace, models: dict, rate: dict[str, float]) -> None:
    """Texts of a task's lengths from ids to answers, each way over the same texts."""
    for task, lengths in LENGTHS.items():
        # Several times the slots, so that they are full most of the time.
        texts = ids_of(lengths[::4] if args.quick else lengths * 2)
        random.Random(1).shuffle(texts)
        full = flops_of(models["fp32"], texts, 1.0)
        hf = models["hf"]
        rows = [("HF eager, batch 1, padded to 128", partial(run_hf, hf, texts, 1, 128), full)]
        if not args.quick:
            rows.append(
                (
                    "HF eager, batch 32, padded to longest",
                    partial(run_hf, hf, texts, 32, None),
                    full,
                )
            )
        for kind, cost in itertools.product(("fp32", "bf16"), (1.0, 0.5, 0.25)):
            for batch in (1, 32):
                run = partial(run_ours, models[kind], texts, batch, cost)
                name = f"ours {kind} c = {cost}, " + ("batch 1" if batch == 1 else "32 slots")
                rows.append((name, run, flops_of(models["fp32"], texts, cost)))
        compare(f"{task} lengths", rows, min(args.rounds, 3), rate)


def exit_check_case(models: dict, rounds: int) -> None:
    """Time of one exit check as a share of a layer pass, batch 1."""
    for length in (32, 64, 128):
        model = models["fp32"]
        hidden = torch.randn(1, length, BASE["hidden_size"])
        passes, checks = [], []
        with torch.inference_mode():
            state, rule = model.start(1), model.exit_rule()
            for _ in range(rounds * 20):
                start = time.perf_counter()
                model.layer_pass(hidden, None, 0)
                middle = time.perf_counter()
                ElbertForSequenceClassification.check_exit(model, rule, hidden, None, 0, state)
                passes.append(middle - start)
                checks.append(time.perf_counter() - middle)
        share = statistics.median(checks) / statistics.median(passes)
        print(
            f"Exit check, length {length}: {statistics.median(checks) * 1e6:.0f} µs, "
            f"{share:.1%} of a layer pass."
        )


def training_case(args: argparse.Namespace) -> None:
    """A step on 32 texts of RTE's lengths: HF fp32 padded to 128, ours bf16 with all exits."""
    lengths = LENGTHS["RTE"][::2]
    texts, labels = ids_of(lengths), torch.tensor([0, 1] * 16)
    hf, ours = hf_model().train(), ElbertForSequenceClassification(ElbertConfig(**BASE)).train()
    hf_optimizer = torch.optim.AdamW(hf.parameters(), lr=3e-5)
    our_optimizer = make_optimizer(ours, 3e-5, 0.0, 1e-8)

    def hf_step() -> None:
        hf(**padded(texts, 128), labels=labels).loss.backward()
        hf_optimizer.step()
        hf_optimizer.zero_grad()

    def our_step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = ours(**padded(texts), labels=labels).loss
        loss.backward()
        our_optimizer.step()
        our_optimizer.zero_grad()

    flops = 3 * sum(early_exit_flops(ours.config, length, 12) for length in lengths)
    rows = [("HF fp32, padded to 128", hf_step, flops), ("ours bf16, 12 exits", our_step, flops)]
    compare("training step, batch 32, RTE lengths", rows, args.rounds, args.rate)


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
    print(f"Compilation: {seconds[0]} s the first time, {seconds[1]} s from the cache.")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of the table, within 60 s")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds of each case")
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1 8 32")
    parser.add_argument("--lengths", type=int, nargs="+", help="default: 32 64 128")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.batches = args.batches or ([1] if args.quick else [1, 8, 32])
    args.lengths = args.lengths or ([32, 128] if args.quick else [32, 64, 128])
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    args.rate = {"fp32": matmul_rate(torch.float32), "bf16": matmul_rate(torch.bfloat16)}
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, transformers {transformers.__version__}; matrix products "
        f"reach {args.rate['fp32'] / 1e9:.0f} GFLOP/s in fp32, "
        f"{args.rate['bf16'] / 1e9:.0f} in bf16.\n"
    )
    models = {"hf": hf_model(), "fp32": our_model(), "bf16": our_model(torch.bfloat16)}
    if not args.quick:
        models["compiled"] = our_model()
        compile_for_inference(models["compiled"])
        models["hf_compiled"] = torch.compile(hf_model(), dynamic=True)
    print("| case | contender | ms | times as fast as the first | spread | share of rate |")
    print("|---|---|---|---|---|---|")
    fixed_length_cases(args, models, args.rate)
    pipeline_cases(args, models, args.rate)
    if not args.quick:
        training_case(args)
    print()
    exit_check_case(models, args.rounds)
    if not args.quick:
        compile_case()


if __name__ == "__main__":
    main()
