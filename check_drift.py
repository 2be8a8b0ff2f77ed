"""Tell whether new texts are like those that a model's exit rule was chosen on; no labels needed.

    python check_drift.py --model_dir out/reviews/model --input_file new.csv
    python check_drift.py --model_dir out/reviews/model --server http://localhost:8000/metrics

Exit layers, scores, lengths and shares of unknown tokens are compared with the model's reference,
which `sweep_exits.py --pick` and `run_glue.py --do_eval` write. The exit status is 0 where no
change is shown, 1 where the texts have changed, 3 where there are too few texts to tell, and 2
after an error.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from evaluation.drift_settings import DriftSettings
from modeling.runtime import keep_freed_memory
from runs.flags import parse
from runs.processes import run_script

CHANGED = 1
TOO_FEW_TEXTS = 3


def main() -> None:
    (settings,) = parse([DriftSettings], __doc__)
    # torch, and what stands on it: not before the flags are known to be right.
    from evaluation.drift_check import check_drift

    keep_freed_memory()
    verdict = check_drift(settings)
    if verdict.alarms:
        sys.exit(CHANGED)
    if verdict.is_undecided:
        sys.exit(TOO_FEW_TEXTS)


if __name__ == "__main__":
    run_script(main)
