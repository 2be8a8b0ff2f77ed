"""Pictures of the trade-off between answers and cost."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BARS, LINE = "#b8c7dc", "#b3412e"


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part.png")
    figure.savefig(temporary, dpi=150, bbox_inches="tight")
    temporary.replace(path)
    plt.close(figure)


def exits_figure(
    exits_per_layer: Sequence[int],
    metric_per_layer: Sequence[float],
    metric: str,
    cost: float,
    title: str,
) -> Figure:
    """Exits per layer as bars, the metric of every layer's answers as a line."""
    layers = range(1, len(exits_per_layer) + 1)
    figure, left = plt.subplots(figsize=(6.4, 3.6))
    left.bar(layers, exits_per_layer, color=BARS, label="examples that exit here")
    left.set_xlabel("layer")
    left.set_ylabel("examples")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right = left.twinx()
    right.plot(layers, metric_per_layer, color=LINE, marker="o", label=f"{metric} of the layer")
    right.set_ylabel(metric)
    right.set_ylim(min(0.4, *metric_per_layer) - 0.02, 1.02)
    left.set_title(f"{title}: computation cost {cost:.2f}", loc="left", fontsize=10)
    handles = [artist.get_legend_handles_labels() for artist in (left, right)]
    figure.legend(
        [h for pair in handles for h in pair[0]],
        [text for pair in handles for text in pair[1]],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncol=2,
        frameon=False,
    )
    for side in (left, right):
        side.spines["top"].set_visible(False)
    return figure
