"""Classify Parquet files on a Ray cluster: the label and exit layer of every text.

    python examples/ray_predict.py --model_dir out/demo/RTE --input texts.parquet --output answers

--input: a file or folder with the column sentence1 and, for pairs, sentence2. --output: a folder of
Parquet files with the same columns and those of the answers: label, score and exit_layer. Every
actor keeps its slots full with texts at different depths.

Needs requirements-ray.txt. On a cluster, all machines must see the model's folder and the files.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    import pyarrow as pa
    import ray
except ImportError as missing:
    sys.exit(f"error: {missing}; pip install -r requirements-ray.txt")

from modeling import UserError
from utils.flags import FlagParser
from utils.processes import run_script


class Predictor:
    """An actor: a trained model, called with tables of texts."""

    def __init__(self, model_dir: str, slots: int) -> None:
        from modeling import Classifier

        self.classifier, self.slots = Classifier(model_dir), slots

    def __call__(self, table: pa.Table) -> pa.Table:
        columns = [name for name in ("sentence1", "sentence2") if name in table.column_names]
        texts = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
        answers = self.classifier(texts if columns[1:] else [text for (text,) in texts], self.slots)
        for name, column in pa.Table.from_pylist(answers).to_pydict().items():
            table = table.append_column(name, pa.array(column))
        return table


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of a trained model")
    add("--input", required=True, help="Parquet file, or folder of them")
    add("--output", type=Path, required=True, help="new or empty folder")
    add("--actors", type=int, default=2, help="number of processes, each with the model")
    add("--cpus", type=float, default=0.5, help="CPUs per actor; reading needs one")
    add("--slots", type=int, default=32, help="texts that share a layer pass")
    args = parser.parse_args()
    if args.output.exists() and any(args.output.iterdir()):
        raise UserError(f"--output {args.output} is not empty: choose another folder")
    project = str(Path(__file__).resolve().parent.parent)
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": project}})
    texts = ray.data.read_parquet(args.input)
    if "sentence1" not in texts.schema().names:
        raise UserError(f"--input {args.input} has no column sentence1, but {texts.schema().names}")
    texts.map_batches(
        Predictor,
        fn_constructor_args=(str(args.model_dir.resolve()), args.slots),
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=args.actors),
        num_cpus=args.cpus,
    ).write_parquet(str(args.output.resolve()))


if __name__ == "__main__":
    run_script(main)
