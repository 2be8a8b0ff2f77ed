"""GPU-hours of a GLUE study, from the model's operations and a rate that the machine reaches.

    python examples/estimate_cost.py --config_name configs/albert_base_v2.json --rate 100e12

A training step is counted as three forward passes at full depth, a sweep as one pass over the dev
set. `--rate` is operations a second in training.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from modeling import UserError, load_config
from modeling.flops import early_exit_flops
from utils.files import run_script

# Examples to train on, examples of the dev set, mean tokens of an example (at most 128).
# Sizes are GLUE's own. Lengths were counted with BERT's uncased vocabulary on the training files,
# but for QQP, MNLI, QNLI and WNLI, where they are assumed.
SIZES = {
    "CoLA": (8_551, 1_043, 11.3),
    "SST-2": (67_349, 872, 13.3),
    "MRPC": (3_668, 408, 53.2),
    "STS-B": (5_749, 1_500, 27.8),
    "QQP": (363_846, 40_430, 30),
    "MNLI": (392_702, 19_647, 39),
    "QNLI": (104_743, 5_463, 50),
    "RTE": (2_490, 277, 66.6),
    "WNLI": (635, 71, 37),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(__file__).parent.parent / "configs/albert_base_v2.json"
    parser.add_argument("--config_name", default=default)
    parser.add_argument("--rate", type=float, required=True, help="operations a second")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    if args.rate <= 0:
        raise UserError(f"--rate {args.rate}: allowed is a number above 0")
    config = load_config(args.config_name)
    print("| task | petaFLOP, training | petaFLOP, sweep | hours, all seeds |\n|---|---|---|---|")
    total = 0.0
    for task, (train, dev, length) in SIZES.items():
        # Of an example's pass, with an exit after every layer; a backward pass is two more.
        forward = early_exit_flops(config, round(length), config.num_hidden_layers)
        training, sweep = 3 * forward * train * args.epochs, forward * dev
        hours = args.seeds * (training + sweep) / args.rate / 3600
        total += hours
        print(f"| {task} | {training / 1e15:.2f} | {sweep / 1e15:.3f} | {hours:.2f} |")
    print(f"| all | | | {total:.1f} |")


if __name__ == "__main__":
    run_script(main)
