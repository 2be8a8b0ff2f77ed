"""What the parity experiment shows of its training and its end."""

from matplotlib.figure import Figure

from evaluation.figures import COLOURS, LINE, SOFT, set_titles, stacked
from training.parity import Epoch, Score, mean_score


def training_figure(history: list[Epoch], most_steps: int, title: str) -> Figure:
    """Sampled accuracy and expected steps at every epoch's end, on scales that all runs share."""
    figure, top, bottom = stacked("epoch", "accuracy", "steps")
    epochs = [epoch.epoch for epoch in history]
    top.plot(epochs, [epoch.accuracy for epoch in history], "o-", color=LINE, markersize=4)
    top.axhline(0.5, color=SOFT, linestyle=":", linewidth=1.2)
    top.annotate(
        "chance",
        (epochs[-1], 0.5),
        (0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8.5,
        color=SOFT,
    )
    top.set_ylim(0, 1.03)
    bottom.plot(epochs, [epoch.steps for epoch in history], "o-", color=COLOURS[0], markersize=4)
    bottom.set_ylim(0, most_steps)
    set_titles(top, title, "accuracy at sampled halting steps; expected steps until halting")
    return figure


def report_parity(name: str, scores: list[Score]) -> dict:
    """Prints a set's sampled accuracy and mean steps; returns them for the results."""
    mean = mean_score(scores)
    counts = f"{scores[0].non_zeros} to {scores[-1].non_zeros} non-zero elements"
    print(f"{name} ({counts}): accuracy = {mean['accuracy']:.4f}, steps = {mean['steps']:.2f}")
    return {**mean, "by_non_zeros": [score._asdict() for score in scores]}
