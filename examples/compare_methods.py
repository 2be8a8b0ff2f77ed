"""Every method from one encoder, at matched cost: tasks × methods × seeds, trained and compared.

    python examples/compare_methods.py --quick
    python examples/compare_methods.py --model_name_or_path out/shared --data_dir glue_data \\
        --do_lower_case --bf16

ELBERT's trainings serve its rules, patience (PABEE), entropy (DeeBERT) and truncation; PonderNet,
PALBERT and ACT train for themselves. RTE and STS-B start from MNLI's model of the same method and
seed. Flags that are not listed below are run_glue.py's and go to every training: --learning_rate,
--max_seq_length, --bf16, --max_eval_samples …

The same command goes on after an interruption; given several times, on one machine or on several
that share --output_dir, the processes divide the trainings among themselves. It ends with
--output_dir/methods.md: a table over all tasks, and for each task the metrics, the differences to
ELBERT with intervals over seeds and examples, and every layer alone; beside it a figure and all
numbers of each task.
"""

import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from exit_lab.study_settings import read_study
from modeling.errors import UserError
from utils.files import run_script


def main() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("start it several times rather than with torchrun: each takes trainings")
    study = read_study(__doc__)
    # torch, and what stands on it: not before the flags are known to be right.
    from exit_lab.study import check_study, train_all
    from exit_lab.study_report import report_study

    logging.basicConfig(format="%(levelname)s - %(message)s", level="WARNING", stream=sys.stdout)
    if not study.settings.report_only:
        check_study(study)
        train_all(study)
    report_study(study)


if __name__ == "__main__":
    run_script(main)
