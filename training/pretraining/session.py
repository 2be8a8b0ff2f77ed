"""How a script on plain text begins and ends."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator

from runs.output_dir import check_output_dir
from runs.start import lock_output_dir, make_accelerator, start_script
from training.pretraining.settings import TextScript
from training.pretraining.text import TEXT, read_sentences


@contextmanager
def text_session(settings: TextScript, writes: bool) -> Iterator[Accelerator]:
    """Begin a script on plain text, and end it without what it tokenised into --output_dir.

    writes: does the script write --output_dir anew? Reads --eval_file at once: what is wrong with
    it is said before the training.
    """
    run, evaluation = settings.run, settings.evaluation
    accelerator = make_accelerator(run.no_cuda, "bf16" if run.bf16 else "no", settings.training)
    start_script(accelerator, run.seed)
    if writes:
        check_output_dir(run, writes)
    if evaluation.do_eval:
        for _ in read_sentences([evaluation.text_file], split=False):
            pass
    with lock_output_dir(run.output_dir, accelerator, writes):
        yield accelerator
        if accelerator.is_main_process:
            shutil.rmtree(Path(run.output_dir, TEXT), ignore_errors=True)
