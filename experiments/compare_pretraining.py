"""Evaluations of pre-trained models side by side.

    python -m experiments.compare_pretraining out/dense out/act_*

Prints the eval_results.json of the --output_dir of every `run_pretraining.py --do_eval`.
"""

import argparse
from pathlib import Path

from evaluation.text_reports import print_table
from modeling.loading.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path, help="--output_dir of run_pretraining.py")
    models = parser.parse_args().models
    print_table({path.name: read_json(path / "eval_results.json") for path in models})


if __name__ == "__main__":
    main()
