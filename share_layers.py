"""Turn a BERT's layers into one shared ALBERT layer, trained to give the BERT's states.

    python share_layers.py --do_train --model_name_or_path bert --do_lower_case \\
        --train_files text/*.txt --split_sentences --output_dir out/shared \\
        --do_eval --eval_file test.txt

Training needs plain text, and no labels. The layer is applied --num_hidden_layers times (N;
default: the BERT's number of layers, L). Its state after pass k follows the BERT's state after
layer round(k·L/N). The loss of a pass is the share of the BERT's variance that it does not explain;
--do_eval prints this share for every pass, on another text. The result is an HF AlbertModel with
the BERT's tokenizer: run_glue.py fine-tunes it with every --model_type, and run_pretraining.py
--model_name_or_path pre-trains it further. With --rank, every pass corrects the shared matrices a
little; only the mode elbert can start from such a layer.

On several GPUs: `torchrun --nproc_per_node 8 share_layers.py …` with the same flags.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from modeling.errors import UserError
from runs.flags import parse
from runs.processes import run_script
from runs.settings import fetch_models
from training.pretraining.settings import SharingSettings


def main() -> None:
    settings = SharingSettings(*parse([*SharingSettings.__annotations__.values()], __doc__))
    if not (settings.run.do_train or settings.evaluation.do_eval):
        raise UserError("nothing to do: give --do_train or --do_eval")
    if settings.run.do_train and not settings.text.train_files:
        raise UserError("--train_files is missing: the text to train on")
    # torch, and what stands on it: not before the flags are known to be right.
    from training.layer_sharing.run import evaluate_student, train_student
    from training.pretraining.session import text_session

    needs_weights = {"model_name_or_path": True, "initial_student": True}
    student = fetch_models(settings.student, needs_weights)
    settings = settings._replace(student=student)
    with text_session(settings, settings.run.do_train) as accelerator:
        if settings.run.do_train:
            train_student(settings, accelerator)
        if settings.evaluation.do_eval and accelerator.is_main_process:
            evaluate_student(settings, accelerator.device)


if __name__ == "__main__":
    run_script(main)
