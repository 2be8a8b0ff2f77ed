"""Pre-train ALBERT, or an ALBERT with adaptive depth, on plain text (MLM and SOP).

Make a tokenizer, train, and evaluate on other text:

    python run_pretraining.py --train_tokenizer --train_files text/*.txt \\
        --config_name configs/act_tiny.json --output_dir out/tokenizer

    python run_pretraining.py --model_type albert_act --do_train --train_files text/*.txt \\
        --config_name configs/act_tiny.json --tokenizer_name out/tokenizer --output_dir out/act_tiny

    python run_pretraining.py --model_type albert_act --do_eval --eval_file test.txt \\
        --output_dir out/act_tiny

--model_name_or_path starts from the weights of an ALBERT (share_layers.py makes one from a BERT) or
of an earlier run; heads that it lacks are new. Without --do_train, it names the model to evaluate,
and the results are written to --output_dir.

On several GPUs: `torchrun --nproc_per_node 8 run_pretraining.py …` with the same flags.
`--model_type albert` trains an ordinary ALBERT; run_glue.py fine-tunes both kinds.

The defaults are the published schedule (ALBERT, Lan et al. 2020; Simoulin and Crabbé 2021): LAMB,
4096 examples per step, 112,500 steps at length 128 with a peak learning rate of 1.76e-3, then
12,500 steps at length 512 with 2.75e-4. If your batches are smaller, raise
--gradient_accumulation_steps.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from modeling.errors import UserError
from runs.flags import parse
from runs.processes import run_script
from runs.settings import fetch_models
from training.pretraining.settings import PretrainingSettings


def read_settings() -> PretrainingSettings:
    """The command line; raises UserError for flags that do not go together."""
    settings = PretrainingSettings(*parse([*PretrainingSettings.__annotations__.values()], __doc__))
    model, text, run, _, evaluation = settings
    if not (model.train_tokenizer or run.do_train or evaluation.do_eval):
        raise UserError("nothing to do: give --train_tokenizer, --do_train or --do_eval")
    if (model.train_tokenizer or run.do_train) and not text.train_files:
        raise UserError("--train_files is missing: the text to train on")
    return settings


def main() -> None:
    settings = read_settings()
    # torch, and what stands on it: not before the flags are known to be right.
    from training.pretraining.model import make_tokenizer
    from training.pretraining.run import evaluate, pretrain
    from training.pretraining.session import text_session

    needs_weights = {"model_name_or_path": True, "config_name": False, "tokenizer_name": False}
    settings = settings._replace(model=fetch_models(settings.model, needs_weights))
    model, _, run, _, evaluation = settings
    with text_session(settings, writes=run.do_train or model.train_tokenizer) as accelerator:
        if model.train_tokenizer and accelerator.is_main_process:
            make_tokenizer(settings)
        accelerator.wait_for_everyone()
        if run.do_train:
            pretrain(settings, accelerator)
        if evaluation.do_eval:
            evaluate(settings, accelerator)


if __name__ == "__main__":
    run_script(main)
