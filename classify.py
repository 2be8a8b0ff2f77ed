"""Classify the rows of a table with a trained model, and write the same table with the answers.

    python classify.py --model_dir out/reviews/model --input_file new.csv --output_file scored.csv

All columns stay, and each row gets label, score (the probability of the label) and exit_layer.
Tables are CSV, TSV, JSON lines or Parquet. If a run is killed, give the same command again to
continue. Through a pipe:

    zcat new.jsonl.gz | python classify.py --model_dir out/reviews/model --input_file - \\
      --input_format jsonl --output_file - > scored.jsonl

--ray classifies Parquet files on a cluster (requirements/ray.txt). See docs/big_tables.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from evaluation.table_settings import ColumnSettings, ModelSettings, RaySettings, TableSettings
from modeling.runtime import keep_freed_memory
from runs.flags import parse
from runs.processes import run_script


def main() -> None:
    model, columns, tables, engine = parse(
        [ModelSettings, ColumnSettings, TableSettings, RaySettings], __doc__
    )
    # torch, and what stands on it: not before the flags are known to be right.
    keep_freed_memory()
    if engine.ray:
        from evaluation.ray_tables import score_on_ray

        score_on_ray(model, columns, tables, engine)
    else:
        from evaluation.scored_tables import score_tables

        score_tables(model, columns, tables)


if __name__ == "__main__":
    run_script(main)
