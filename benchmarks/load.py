"""Early exit under load: texts arrive at random, wait and are answered; throughput and latency.

    OMP_NUM_THREADS=2 python benchmarks/load.py --model_dir out/shared out/untied-3 \\
      --data_dir glue_data/SST-2 --task_name SST-2

Texts are a task's dev set, or the lines of --texts, again and again. They arrive as a Poisson
process, at shares of the rate that the first model reaches at full depth in batches, and exit where
the model's own rule says (or at each of --exit_thres). Of every model:

slots      continuous depth-wise batching: a text enters where another one exited
batches    early exit, but a batch is answered to its end before the next one begins
k layers   no exits: batches of which all texts are answered after layer k: the last, and --depths

Latency is from arrival to answer, waiting included. With a CUDA device, everything runs there.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.contenders import DEVICE
from evaluation.job import load_finished
from evaluation.modes import trained_mode
from glue.tasks import Example, get_task, read_examples
from modeling import UserError, load_tokenizer
from modeling.cpu_packing import packed_weights
from modeling.depth import EarlyExitModel
from modeling.depth_batching import Answer, DepthBatcher
from modeling.runtime import environment, keep_freed_memory
from utils.console import markdown_table
from utils.flags import FlagParser
from utils.processes import run_script

COLUMNS = "load|offered / s|model|contender|accuracy|layers|answered / s|p50, ms|p99, ms".split("|")


class WholeBatches(DepthBatcher):
    """Early exit without refilling: nobody enters until all have left."""

    def fill_slots(self) -> None:
        if not self.slots:
            super().fill_slots()


class FixedDepth(WholeBatches):
    """All layers up to `depth`, and the exit classifier there alone."""

    def __init__(self, model: EarlyExitModel, slots: int, depth: int) -> None:
        super().__init__(model, slots)
        self.depth = depth

    def step(self) -> None:
        lengths = torch.tensor([example.length for example in self.slots])
        real = torch.arange(int(lengths.max())) < lengths[:, None, None, None]
        mask = None if real.all() else real.to(self.model.device)
        for weights in self.weights[: self.depth]:
            self.hidden = self.model.layer_pass(self.hidden, mask, weights)
        seen, _ = self.model.layer_output(self.hidden, mask, weights, self.state)
        for example, logits in zip(self.slots, seen.logits.cpu(), strict=True):
            waited = time.perf_counter() - example.entered
            self.finished.append(Answer(example.row, logits, self.depth, waited))
        self.slots = []


@torch.inference_mode()
def serve(batcher: DepthBatcher, texts: Sequence[tuple], arrivals: np.ndarray) -> tuple:
    """Answer a text for each arrival, in seconds, in their order; again from the first one.

    Returns labels, exit layers, latencies in seconds, (texts,) each, and the seconds of all.
    """
    count = len(arrivals)
    labels, layers, latency = np.zeros(count, int), np.zeros(count, int), np.zeros(count)
    start, sent, left = time.perf_counter(), 0, count
    while left:
        now = time.perf_counter() - start
        arrived = int(np.searchsorted(arrivals, now, side="right"))
        batcher.submit([texts[i % len(texts)] for i in range(sent, arrived)])
        sent = arrived
        batcher.fill_slots()
        if not batcher.slots:
            time.sleep(max(0, arrivals[sent] - now))
            continue
        batcher.step()
        now = time.perf_counter() - start
        for row, logits, exit_layer, _ in batcher.finished:
            labels[row], layers[row] = int(logits.argmax()), exit_layer
            latency[row] = now - arrivals[row]
        left -= len(batcher.finished)
        batcher.finished.clear()
    return labels, layers, latency, now - arrivals[0]


def load(
    directory: Path, args: argparse.Namespace
) -> tuple[EarlyExitModel, list[tuple], np.ndarray]:
    """Return a trained model, its texts as a batcher takes them, and their labels, NaN: unknown."""
    mode = trained_mode(directory)
    model, tokenizer = load_finished(directory, mode).to(DEVICE), load_tokenizer(directory)
    if not isinstance(model, EarlyExitModel):
        raise UserError(f"{directory}: in this model tokens halt, not texts")
    if args.texts:
        lines = args.texts.read_text(encoding="utf-8").splitlines()
        examples = [Example("", line, None, 0) for line in lines if line.strip()]
    elif args.task_name and args.data_dir:
        examples = read_examples(get_task(args.task_name), args.data_dir, "dev")
    else:
        raise UserError("no texts: give --data_dir and --task_name, or --texts")
    longest = min(128, model.config.max_position_embeddings)
    features = mode.features(model.config, examples, tokenizer, longest, seed=42)
    own = [features.inputs[name] for name in model.own_inputs if name in features.inputs]
    ids = features.input_ids, features.token_type_ids
    labels = np.full(len(features), np.nan) if args.texts else features.labels
    return model, list(zip(*ids, *own, strict=True)), labels


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_dir", type=Path, nargs="+", required=True, help="folders of trained models")
    add("--data_dir", type=Path, help="whose dev texts arrive")
    add("--task_name", help="of --data_dir")
    add("--texts", type=Path, help="a text a line, in place of a task; without accuracies")
    add("--exit_thres", type=float, nargs="+", help="default: the model's own")
    add("--depths", type=int, nargs="+", default=[], help="k beside all layers")
    add("--slots", type=int, default=32, help="texts at a time, also of the batches")
    add("--loads", type=float, nargs="+", default=[0.5, 0.8, 1.2], help="shares of that rate")
    add("--examples", type=int, default=2000, help="arrivals of a load")
    args = parser.parse_args()
    keep_freed_memory()
    print(", ".join(environment(DEVICE).values()), "\n")
    print(markdown_table(COLUMNS, ()))
    gaps, capacity = np.random.default_rng(0).exponential(size=args.examples), None
    for directory in args.model_dir:
        model, texts, labels = load(directory, args)
        most = model.config.num_hidden_layers
        contenders = []
        for thres in args.exit_thres or [model.config.exit_thres]:
            contenders.append((f"slots, exit_thres {thres:g}", DepthBatcher, thres))
            contenders.append((f"batches, exit_thres {thres:g}", WholeBatches, thres))
        for depth in [k for k in args.depths if k < most] + [most]:
            contenders.append((f"{depth} layers", partial(FixedDepth, depth=depth), 0.0))
        with packed_weights(model):
            serve(DepthBatcher(model, args.slots), texts, np.zeros(args.slots))  # warms caches
            at_once = np.zeros(min(args.examples, 512))
            *_, seconds = serve(FixedDepth(model, args.slots, most), texts, at_once)
            capacity = capacity or len(at_once) / seconds
            for share, (name, make, thres) in itertools.product(args.loads, contenders):
                model.config.exit_thres = thres
                arrivals = gaps.cumsum() / (share * capacity)
                found, exits, latency, seconds = serve(make(model, args.slots), texts, arrivals)
                truth = np.resize(labels, args.examples)
                accuracy = np.where(np.isnan(truth), np.nan, found == truth).mean()
                middle, slowest = 1e3 * np.quantile(latency, [0.5, 0.99])
                print(
                    f"| {share:g} | {share * capacity:.1f} | {directory.name} | {name} "
                    f"| {accuracy:.1%} | {exits.mean():.2f} "
                    f"| {args.examples / seconds:.1f} | {middle:.0f} | {slowest:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    run_script(main)
