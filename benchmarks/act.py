"""What halting tokens saves: time of the compacted loop over that of the dense loop, in one run.

    OMP_NUM_THREADS=2 python benchmarks/act.py
    python benchmarks/act.py --batch_sizes 1 32 --share 0.5 --device cuda

No trained weights are needed: halting is forced, so that the 128 tokens get 1 to the maximum number
of updates, spread over the text, with a mean of about `--share` of the maximum. Both loops do the
same updates, and their results are compared before they are timed. Prints a Markdown table.
"""

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import Times, ratios, seconds, take_turns
from modeling import AlbertActConfig, AlbertActModel, load_config
from modeling.cpu_packing import packed_weights
from utils.environment import environment
from utils.markdown import markdown_table

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "act_base.json"
LENGTH, REPEATS = 128, 15


def updates_with_mean(tokens: int, maximum: int, share: float) -> torch.Tensor:
    """Draw up updates of each token, (tokens,) int64: 1 to `maximum`, mean `share` · `maximum`.

    The quantiles of a power law, few tokens running long.
    """
    quantiles = (torch.arange(tokens, dtype=torch.double) + 0.5) / tokens
    power = (maximum - 1) / (share * maximum - 1) - 1
    return (1 + (maximum - 1) * quantiles**power).round().long()


class ForcedHalting(nn.Module):
    """A halting head that lets every token have its given number of updates."""

    def __init__(self, updates: torch.Tensor) -> None:
        super().__init__()
        self.updates = updates  # (batch · length,)
        self.step = 0

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """State of all tokens (batch, length, hidden), or of the running ones (running, hidden)."""
        self.step += 1
        updates = self.updates if state.dim() == 3 else self.updates[self.updates >= self.step]
        return (updates <= self.step).to(state.dtype).view(state.shape[:-1])


def loop_times(model: AlbertActModel, batch: int, share: float) -> tuple[Times, float]:
    """Time the dense and the compacted loop in turn; with the mean of updates over the maximum."""
    encoder, maximum = model.encoder, model.config.num_hidden_layers
    generator = torch.Generator().manual_seed(0)
    updates = updates_with_mean(batch * LENGTH, maximum, share)
    forced = updates[torch.randperm(batch * LENGTH, generator=generator)].to(model.device)
    shape = batch, LENGTH, model.config.embedding_size
    embedded = torch.randn(shape, generator=generator).to(model.device)

    def run(compact: bool | None) -> torch.Tensor:
        encoder.compact = compact
        encoder.albert_layer.act = ForcedHalting(forced)
        states, halting = encoder(embedded, None)
        assert torch.equal(halting.updates.flatten().long(), forced)
        return states

    torch.testing.assert_close(run(False), run(None), atol=1e-4, rtol=0)
    loops = {"dense": False, "compacted": None}
    timers = {name: partial(seconds, partial(run, compact)) for name, compact in loops.items()}
    return take_turns(timers, REPEATS), updates.double().mean().item() / maximum


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--share", type=float, default=0.3, help="mean updates over the maximum")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    args = parser.parse_args()
    torch.manual_seed(0)
    model = AlbertActModel(load_config(CONFIG, AlbertActConfig)).eval().to(args.device)
    print(", ".join(environment(args.device).values()))
    print(f"Length {LENGTH}; median (quartiles) of {REPEATS} runs in turn\n")
    rows = []
    for batch in args.batch_sizes:
        with packed_weights(model):
            times, mean = loop_times(model, batch, args.share)
        milliseconds = [quartiles([1e3 * x for x in values]) for values in times.values()]
        slower = quartiles([1 / ratio for ratio in ratios(times, "compacted")])
        rows.append((batch, f"{mean:.3f}", *milliseconds, slower))
    columns = "batch", "mean updates / maximum", "dense, ms", "compacted, ms", "compacted / dense"
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main()
