"""What halting tokens saves: time of the compacted loop over that of the dense loop, in one run.

    OMP_NUM_THREADS=2 python benchmarks/act.py
    python benchmarks/act.py --batch_sizes 1 32 --share 0.5 --device cuda

No trained weights are needed: halting is forced, so that tokens get 1 to the maximum number of
updates, spread over the text, with a mean of exactly `--share` of the maximum. Both loops do the
same updates, and their results are compared before they are timed. Prints a Markdown table.
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import in_turn, machine
from modeling import AlbertActConfig, AlbertActModel
from modeling.cpu_packing import packed_weights

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "act_base.json"


def updates_with_mean(tokens: int, maximum: int, share: float) -> torch.Tensor:
    """Updates of each token, (tokens,) int64: 1 to `maximum` with mean `share` · `maximum`.

    The quantiles of a power law, few tokens running long: maximum · q^k. Tokens of the upper half
    are moved by single updates so that the mean is met.
    """
    quantiles = (torch.arange(tokens, dtype=torch.double) + 0.5) / tokens
    updates = (maximum * quantiles ** (1 / share - 1)).round().clamp(1, maximum).long()
    updates[-1] = maximum
    missing = round(share * maximum * tokens) - updates.sum()
    moved = tokens // 2 + torch.arange(abs(missing)) % (tokens // 2 - 1)
    return updates.index_add(0, moved, missing.sign().expand(len(moved))).clamp(1, maximum)


class ForcedHalting(nn.Module):
    """A halting head that lets every token have its given number of updates."""

    def __init__(self, updates: torch.Tensor) -> None:
        super().__init__()
        self.updates = updates  # (batch · length,)
        self.step = 0

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """State of all tokens (batch, length, hidden), or of the running ones (running, hidden)."""
        self.step += 1
        updates = self.updates
        if state.dim() == 2:
            updates = updates[updates >= self.step]
        return (updates <= self.step).to(state.dtype).view(state.shape[:-1])


def spread(values: list[float]) -> str:
    """Median and the quartiles around it."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def loop_seconds(
    model: AlbertActModel, batch: int, length: int, share: float, repeats: int
) -> tuple[list[float], list[float], float]:
    """Seconds of the dense and the compacted loop, alternating, and the mean of updates."""
    encoder, device = model.encoder, model.device
    maximum = model.config.num_hidden_layers
    generator = torch.Generator().manual_seed(0)
    updates = updates_with_mean(batch * length, maximum, share)
    updates = updates[torch.randperm(batch * length, generator=generator)].view(batch, length)
    embedded = torch.randn(batch, length, model.config.embedding_size, generator=generator)
    embedded, forced = embedded.to(device), updates.flatten().to(device)

    def run(compact: bool | None) -> torch.Tensor:
        encoder.compact = compact
        encoder.albert_layer.act = ForcedHalting(forced)
        states, halting = encoder(embedded, None)
        assert torch.equal(halting.updates.flatten().long(), forced)
        return states

    torch.testing.assert_close(run(False), run(None), atol=1e-4, rtol=0)
    runs = {"dense": partial(run, False), "compacted": partial(run, None)}
    times = in_turn(runs, repeats, device)
    return times["dense"], times["compacted"], updates.double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG)
    add("--length", type=int, default=128)
    add("--batch_sizes", type=int, nargs="+", default=[1, 8])
    add("--share", type=float, default=0.3, help="mean updates over the maximum")
    add("--repeats", type=int, default=15)
    add("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    config = AlbertActConfig(**json.loads(arguments.config.read_text()))
    model = AlbertActModel(config).eval().to(device)
    print(machine(device))
    print(
        f"hidden {config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.intermediate_size}, at most {config.num_hidden_layers} updates, "
        f"length {arguments.length}; median (quartiles) of {arguments.repeats} alternating runs\n"
    )
    print("| batch | mean updates / maximum | dense, ms | compacted, ms | compacted / dense |")
    print("|---|---|---|---|---|")
    for batch in arguments.batch_sizes:
        with packed_weights(model):
            dense, compacted, mean = loop_seconds(
                model, batch, arguments.length, arguments.share, arguments.repeats
            )
        ratios = [b / a for a, b in zip(dense, compacted, strict=True)]
        print(
            f"| {batch} | {mean / config.num_hidden_layers:.3f} "
            f"| {spread([1e3 * x for x in dense])} | {spread([1e3 * x for x in compacted])} "
            f"| {spread(ratios)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
