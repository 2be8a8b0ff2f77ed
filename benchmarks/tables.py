"""Rows a second of a table: classify.py, with the model and with its ONNX file, beside
run_glue.py --do_predict and HF's pipeline on the same encoder.

    OMP_NUM_THREADS=2 python benchmarks/tables.py --model_dir out/reviews/model \\
      --encoder sentence-transformers/all-MiniLM-L6-v2 --table new.csv --text_column_name text

Each contender answers the table in a process of its own, in turn, and so do `SHORT` rows of it. A
rate is that of the further rows in the further seconds: what starts a process is left out. HF's
model has as many layers, one answer and a random head, and gets 32 texts at a time.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.contenders import processor_flags
from glue.tables import as_csv, read_records
from modeling.runtime import environment
from runs.console import markdown_table
from runs.files import write_text
from runs.flags import FlagParser
from runs.processes import ROOT, run_script

SHORT = 64  # rows

PIPELINE = """
import csv, sys
from transformers import pipeline
encoder, table, output = sys.argv[1:]
texts = [row["text"] for row in csv.DictReader(open(table, newline=""))]
classify = pipeline("text-classification", encoder, device="cpu")
answers = classify(texts, batch_size=32, truncation=True, max_length=128)
with open(output, "w", newline="") as file:
    csv.writer(file).writerows((answer["label"], answer["score"]) for answer in answers)
"""


def commands(model_dir: Path, encoder: str, onnx: str) -> Mapping[str, Sequence[str]]:
    """Return the command of each contender, in which {table} and {output} are replaced."""
    model = str(model_dir)
    columns = ["--text_column_names", "text"]
    classify = ["classify.py", "--model_dir", model, "--input_file", "{table}"]
    classify += ["--output_file", "{output}", "--overwrite", *columns]
    predict = ["run_glue.py", "--do_predict", "--output_dir", model, "--test_file", "{table}"]
    predict += ["--per_gpu_eval_batch_size", "32", *columns]
    contenders = {
        "HF's pipeline": ["-c", PIPELINE, encoder, "{table}", "{output}"],
        "run_glue.py --do_predict": predict,
        "classify.py": classify,
    }
    if onnx:
        contenders[f"classify.py --onnx {onnx}"] = [*classify, "--onnx", onnx]
    return contenders


def seconds_of(command: Sequence[str], table: Path, output: Path) -> float:
    """Time a command from its start to its end."""
    places = {"{table}": str(table), "{output}": str(output)}
    words = [places.get(word, word) for word in command]
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--model_dir", type=Path, required=True, help="folder of a trained model")
    add("--encoder", required=True, help="folder or hub name of its encoder, for HF's pipeline")
    add("--table", type=Path, required=True, help="table of texts")
    add("--text_column_name", default="text", help="its column with the texts")
    add("--onnx", default="classifier-int8.onnx", help="file in the folder; '' for none")
    add("--rows", type=int, default=6000, help="rows of the table that are answered")
    add("--rounds", type=int, default=10)
    args = parser.parse_args()
    _, records = read_records(args.table)
    texts = [record[args.text_column_name] for _, record in records][: args.rows]
    model_dir = args.model_dir.resolve()
    encoder = Path(args.encoder)
    encoder_name = str(encoder.resolve()) if encoder.exists() else args.encoder
    contenders = commands(model_dir, encoder_name, args.onnx)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    with TemporaryDirectory() as scratch:
        long_table, short_table = Path(scratch, "long.csv"), Path(scratch, "short.csv")
        rows = [{"text": text} for text in texts]
        write_text(long_table, as_csv(rows))
        write_text(short_table, as_csv(rows[:SHORT]))
        output = Path(scratch, "answers.csv")
        for _ in range(args.rounds):
            for name, command in contenders.items():
                short_seconds = seconds_of(command, short_table, output)
                seconds = seconds_of(command, long_table, output) - short_seconds
                rates[name].append((len(texts) - SHORT) / seconds)
    print(", ".join(environment(torch.device("cpu")).values()))
    print(f"flags: {processor_flags()}\n")
    first = statistics.median(next(iter(rates.values())))
    cells = []
    for name, of_contender in rates.items():
        middle = statistics.median(of_contender)
        slowest, fastest = min(of_contender), max(of_contender)
        cells.append([name, f"{middle:.0f} ({slowest:.0f}–{fastest:.0f})", f"{middle / first:.2f}"])
    columns = ["", "rows a second: median (range)", "times the first"]
    print(markdown_table(columns, cells))


if __name__ == "__main__":
    run_script(main)
