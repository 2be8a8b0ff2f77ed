"""Evaluations of pre-trained models side by side, and what their updates buy.

    python -m experiments.compare_pretraining out/dense out/act_*
    python -m experiments.compare_pretraining out/act_* --figure updates.png

Reads the eval_results.json that `run_pretraining.py --do_eval` writes. The figure shows the mean
updates of a token against the accuracy on masked pieces, a point for every adaptive model.
"""

import argparse
from pathlib import Path

from evaluation.figures import plt, save_figure
from evaluation.text_reports import print_table
from modeling.loading.files import read_json

SPAN = 5.0  # points of accuracy that the figure shows at least: a tenth is no difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, help="--output_dir of run_pretraining.py")
    parser.add_argument("--figure", type=Path, metavar="PNG")
    given = parser.parse_args()
    models = {path.name: read_json(path / "eval_results.json") for path in given.models}
    print_table(models)
    if not given.figure:
        return
    adaptive = [model for model in models.values() if model["updates"]]
    points = sorted((m["updates"]["All tokens"], 100 * m["mlm_acc"], m["tau"]) for m in adaptive)
    updates, accuracy, _ = zip(*points, strict=True)
    figure, panel = plt.subplots(figsize=(5.2, 3.6))
    panel.plot(updates, accuracy, color="0.7", zorder=1)
    for x, y, tau in points:
        panel.scatter(x, y, label=f"τ = {tau:g}", zorder=2)
    middle, span = (max(accuracy) + min(accuracy)) / 2, max(accuracy) - min(accuracy)
    half, most = max(SPAN, 1.2 * span) / 2, adaptive[0]["max_updates"]
    panel.set(xlim=(0, most), xlabel=f"mean updates of a token, of at most {most}")
    panel.set(ylim=(middle - half, middle + half), ylabel="accuracy on masked pieces, %")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    save_figure(figure, given.figure)


if __name__ == "__main__":
    main()
