"""Evaluations of pre-trained models side by side, and what their updates buy.

    python experiments/compare_pretraining.py out/dense out/act_tau_*
    python experiments/compare_pretraining.py out/act_tau_* --figure updates.png

Reads the eval_results.json that `run_pretraining.py --do_eval` writes. The figure shows the mean
updates of a token against the accuracy on masked pieces, a point for every adaptive model.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from evaluation.figures import plt, save_figure
from evaluation.text_reports import print_table
from modeling import UserError
from modeling.loading.files import read_json
from utils.files import run_script

NEEDED = ("mlm_acc", "tau", "updates", "max_updates")
TOKENS = "All tokens"  # the first row of the table of updates
SPAN = 5.0  # points of accuracy that the figure shows at least: a tenth is no difference


def read_results(directory: Path) -> dict[str, Any]:
    """Results of one model, of `run_pretraining.py --do_eval`."""
    path = directory / "eval_results.json"
    results = read_json(path)
    lacking = [name for name in NEEDED if name not in results]
    if lacking:
        raise UserError(
            f"{path}: no {lacking[0]!r}; write it by run_pretraining.py --do_eval "
            f"--output_dir {directory}"
        )
    return results


def draw_updates(models: dict[str, dict[str, Any]], path: Path) -> None:
    """Mean updates of all tokens against MLM accuracy, each point with its τ."""
    points = [results for results in models.values() if results["updates"]]
    if not points:
        raise UserError("--figure: none of these models is adaptive, so none has updates to draw")
    points.sort(key=lambda results: results["updates"][TOKENS])
    updates = [results["updates"][TOKENS] for results in points]
    accuracy = [100 * results["mlm_acc"] for results in points]
    figure, panel = plt.subplots(figsize=(5.2, 3.6))
    panel.plot(updates, accuracy, color="0.7", zorder=1)
    for x, y, results in zip(updates, accuracy, points, strict=True):
        panel.scatter(x, y, label=f"τ = {results['tau']:g}", zorder=2)
    middle, span = (max(accuracy) + min(accuracy)) / 2, max(accuracy) - min(accuracy)
    half = max(SPAN, 1.2 * span) / 2
    panel.set_ylim(middle - half, middle + half)
    panel.set_xlim(0, points[0]["max_updates"])
    panel.set_xlabel(f"mean updates of a token, of at most {points[0]['max_updates']}")
    panel.set_ylabel("accuracy on masked pieces, %")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="--output_dir of run_pretraining.py")
    parser.add_argument("--figure", type=Path, metavar="PNG")
    args = parser.parse_args()
    models = {path.name: read_results(path) for path in args.models}
    print_table(models)
    if args.figure:
        draw_updates(models, args.figure)


if __name__ == "__main__":
    run_script(main)
