"""What every layer alone answers, model by model, and their mean, as a Markdown table.

    python examples/layer_table.py out/SST-2-42 out/SST-2-43 out/SST-2-44

Reads the eval_results.json that run_glue.py --do_eval wrote to each directory; in percent.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from glue.files import run_script
from modeling.errors import UserError
from modeling.loading.files import read_json

ENDING = "_per_layer"


def metric_by_layer(directory: Path) -> tuple[str, list[float]]:
    """The metric's name and its value at every layer, 0 to 1."""
    path = directory / "eval_results.json"
    for name, values in read_json(path).items():
        if name.endswith(ENDING) and name != f"exits{ENDING}":
            return name.removesuffix(ENDING), values
    raise UserError(f"{path}: no metric of every layer; evaluate with run_glue.py --do_eval")


def curve_table(directories: list[Path]) -> str:
    """A row a directory and, of several, their mean. Raises UserError when they have none."""
    named = {directory.name: metric_by_layer(directory) for directory in directories}
    metrics = {metric for metric, _ in named.values()}
    curves = {name: curve for name, (_, curve) in named.items()}
    if len(metrics) > 1 or len({len(curve) for curve in curves.values()}) > 1:
        raise UserError(
            "models of several tasks or depths have no mean; give directories of one task"
        )
    if len(curves) > 1:
        columns = zip(*curves.values(), strict=True)
        curves["mean"] = [sum(column) / len(column) for column in columns]
    depth = len(next(iter(curves.values())))
    lines = [f"| {metrics.pop()} | " + " | ".join(f"layer {i + 1}" for i in range(depth)) + " |"]
    lines.append("|---" * (depth + 1) + "|")
    for name, curve in curves.items():
        lines.append(f"| {name} | " + " | ".join(f"{100 * x:.1f}" for x in curve) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directories", nargs="+", type=Path, help="of one task's models")
    print(curve_table(parser.parse_args().directories))


if __name__ == "__main__":
    run_script(main)
