"""What the parity experiment shows of its training and its end."""

from matplotlib.figure import Figure

from evaluation.figures import BARS, BELOW, LINE, two_scales
from training.parity import Epoch, Score, means


def training_figure(history: list[Epoch], title: str) -> Figure:
    """Sampled accuracy and expected steps at every epoch's end."""
    figure, left, right = two_scales("epoch", "accuracy", "steps")
    epochs = [epoch.epoch for epoch in history]
    left.plot(epochs, [epoch.accuracy for epoch in history], color=LINE, label="sampled accuracy")
    right.plot(epochs, [epoch.steps for epoch in history], color=BARS, label="expected steps")
    right.set_ylim(bottom=0)
    left.set_title(title, loc="left", fontsize=10)
    left.set_zorder(right.get_zorder() + 1)  # accuracy in front
    left.patch.set_visible(False)
    figure.legend(ncol=2, **BELOW)
    return figure


def report(name: str, scores: list[Score]) -> dict:
    """Prints a set's sampled accuracy and mean steps; returns them for the results."""
    mean = means(scores)
    counts = f"{scores[0].non_zeros} to {scores[-1].non_zeros} non-zero elements"
    print(f"{name} ({counts}): accuracy = {mean['accuracy']:.4f}, steps = {mean['steps']:.2f}")
    return {**mean, "by_non_zeros": [score._asdict() for score in scores]}
