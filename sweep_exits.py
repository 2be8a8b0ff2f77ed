"""The exit lab: one full-depth pass over the dev set, then every rule and every threshold.

Sweep:

    python sweep_exits.py --model_dir $OUT_DIR/RTE

reads the dev set of the model's training, unless flags name another one, and writes to
$OUT_DIR/RTE/sweep: the recorded pass (all_logits.safetensors), sweep.csv (one row per setting),
frontier.csv (Pareto-optimal settings), figures, and explorer.html. Baselines stand beside the
rules: with truncation all examples exit at one layer, with the coin each at one of two layers by
chance, with the oracle each at its first right layer. Then

    --rules bias_1 patience --grid exit_thres=0:1:0.02 cnt_thres=1:N   what is swept
    --pick max_cost=0.5               the best setting that costs no more than this
    --pick max_drop=0.01              the cheapest within 0.01 of full depth
    --pick max_p95_ms=20              the best that answers 95% of the examples within 20 ms each
    --pick risk=0.02 delta=0.05       the cheapest; at most 2% right at full depth only (95% sure)
    --compare                         rules at equal costs
    --compare A B                     two models, each under its own rule, on the same examples
    --compare 'A-*' 'B-*' 'C-*'       methods at equal costs; the folders of a pattern are seeds
    --figure FILE                     the figure as .png, .pdf or .svg
"""

import sys

from exit_lab.settings import SweepRequest
from runs.processes import run_script
from runs.trained_flags import parse_with_trained_model


def main() -> None:
    groups = tuple(SweepRequest.__annotations__.values())
    flag = "--model_dir" if any(x.startswith("--model_dir") for x in sys.argv) else "--compare"
    request = SweepRequest(*parse_with_trained_model(groups, __doc__, [flag]))
    request.check()
    from exit_lab.lab import run  # torch: seconds, once the flags are right

    run(request)


if __name__ == "__main__":
    run_script(main)
