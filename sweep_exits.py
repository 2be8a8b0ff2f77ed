"""Try every exit rule and every threshold on a dev set, choose one, and compare models.

    python sweep_exits.py --model_dir $OUT_DIR/RTE

runs all layers on the dev set once, by default that of the training, and tries all settings on the
recorded answers. It writes to $OUT_DIR/RTE/sweep: the recorded answers (all_logits.safetensors),
sweep.csv (a row for each setting), frontier.csv (the Pareto-optimal settings), figures, and
explorer.html. Three baselines stand beside the rules. Truncation: all examples exit at the same
layer. Coin (random exits): each exits at one of two layers by chance. Oracle: each exits at the
first layer whose answer is right. With further flags:

    --rules bias_1 patience --grid exit_thres=0:1:0.02 cnt_thres=1:N   try these settings
    --pick max_cost=0.5           choose the best setting that costs at most 0.5 of the layers
    --pick max_drop=0.01          choose the cheapest setting that loses at most 0.01
    --pick max_p95_ms=20          choose the best that answers 95% of the examples in 20 ms each
    --pick risk=0.02 delta=0.05   choose the cheapest with a guarantee: with probability 0.95, at
                                  most 2% are right at full depth, but wrong at their exit
    --compare                     compare rules at equal costs
    --compare A B                 compare two models, each with its own rule, on the same examples
    --compare 'A-*' 'B-*' 'C-*'   compare methods at equal costs; a pattern's folders are seeds
    --figure FILE                 write the figure as .png, .pdf or .svg
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

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
