"""Train what the comparison of twelve layers needs, and record every layer's answers.

    python -m experiments.twelve_layers.trainings --work out/twelve --minutes 8

--work is the folder that `experiments.twelve_layers.prepare` wrote. What is already in
experiments/twelve_layers/recorded is not repeated, so the command can be given as often as you
like; with --minutes, no training begins after that time. A training that was stopped, by SIGTERM or
Ctrl-C, goes on from its last step. --only names runs by a regular expression.
A GPU is used where there is one, unless --device says otherwise. The command may be given several
times at once: each process takes what no other has. With six such processes on an H100, twelve
layers take 80 seconds for an epoch of SST-2, and half a minute more to start and to record.
`python -m experiments.twelve_layers.report` then prints the tables.

The recipes come first, in four steps of two commands each: learning rates and epochs, their decay
from layer to layer, what classifiers read, then what self-distillation has beside them.

    python -m experiments.twelve_layers.trainings --work out/twelve --choosing rates
    python -m experiments.twelve_layers.report --choose rates
    python -m experiments.twelve_layers.trainings --work out/twelve --choosing decay
    python -m experiments.twelve_layers.report --choose decay
    python -m experiments.twelve_layers.trainings --work out/twelve --choosing pooling
    python -m experiments.twelve_layers.report --choose pooling
    python -m experiments.twelve_layers.trainings --work out/twelve --choosing teaching
    python -m experiments.twelve_layers.report --choose teaching
"""

import argparse
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from experiments.twelve_layers.prepare import join_weights, save_depth
from experiments.twelve_layers.rows import ROWS
from experiments.twelve_layers.words import record_words
from glue.tasks import get_task
from modeling.errors import UserError
from modeling.files import read_json
from runs.processes import call, run_script

RECORDED = Path(__file__).parent / "recorded"
TASK_NAMES = {"SICK": "MNLI", "SST-2-8k": "SST-2"}  # GLUE's, where it is another
RECIPES = Path(__file__).parent / "recipes.json"  # what `report --choose` writes
LAYERS = {"mpnet": 12, "minilm": 6, "shared": 6}
CHOOSING_SEEDS = (101, 102)
REPORTING_SEEDS = (11, 12, 13)
SMALL_TASKS = ("SICK", "CoLA", "RTE", "MRPC", "STS-B")
COMMON_FLAGS = (
    "--model_type elbert --recipe recommended --do_train --do_lower_case --bf16 --save_steps 0 "
    "--per_gpu_train_batch_size 32 --warmup_ratio 0.1 --overwrite_output_dir"
).split()
# σ(−30) is 0: the last exit's loss alone counts, as many times as there are layers.
LAST_EXIT_ALONE = ["weight_name=dyn", "w_init=-30", "w_lr=0"]


@dataclass(frozen=True)
class Recipe:
    """What is tuned alike for exits and for ordinary networks; see protocol.md.

    Attributes:
        rate: peak learning rate.
        epochs: passes over the training rows.
        exit_rate: learning rate of poolers and classifiers, as a multiple of `rate`.
        share: of self-distillation; 0 for ordinary networks.
        teacher: which exit teaches in self-distillation.
        weights: of the exits in the loss: "equal", or "dyn", which learns them as published.
        layer_decay: learning rate of each layer, as a multiple of the next deeper one's.
        pooling: what classifiers read: "mean" of the tokens, or "cls", the first one.
    """

    rate: float = 4e-5
    epochs: int = 2
    exit_rate: float = 4
    share: float = 0.5
    teacher: str = "last"
    weights: str = "equal"
    layer_decay: float = 1.0
    pooling: str = "mean"


def recipe_of(encoder: str, has_exits: bool) -> Recipe:
    """Return the recipe that was chosen for an encoder's exits, or for its ordinary networks.

    The shared layer has MiniLM's, with one rate. Before anything is chosen: the defaults.
    """
    chosen = read_json(RECIPES) if RECIPES.exists() else {}
    kind = "exits" if has_exits else "ordinary"
    values = chosen.get("minilm" if encoder == "shared" else encoder, {})
    recipe = Recipe(**values.get(kind, {}))
    return replace(recipe, layer_decay=1.0) if encoder == "shared" else recipe


# The small tasks have few rows.
EPOCHS = {"RTE": 5, "MRPC": 5, "SICK": 3, "STS-B": 3, "CoLA": 3, "SST-2": 1}


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        task: a folder in --work/data.
        depth: layers of an ordinary network, which answers after the last alone; 0: exits after
            each of all layers.
        seed: random seed of the training.
        is_taught: of an ordinary network: whether it learns from that of all layers with its seed.
        encoder: a folder in --work/start.
        is_self_taught: of exits: whether a share of their loss is of self-distillation.
        trial: the recipe of a run that chooses one; None for the chosen recipe.
    """

    task: str
    depth: int
    seed: int
    is_taught: bool = False
    encoder: str = "mpnet"
    is_self_taught: bool = True
    trial: Recipe | None = None

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        recipe = self.trial or recipe_of(self.encoder, has_exits=self.depth == 0)
        return recipe if self.is_self_taught else replace(recipe, share=0.0)

    @property
    def name(self) -> str:
        """Name of the recording, such as SST-2-8k-mpnet-exits-11 or RTE-mpnet-4-taught-12."""
        parts = [self.task, self.encoder, str(self.depth or "exits")]
        if self.is_taught:
            parts.append("taught")
        if not self.is_self_taught:
            parts.append("untaught")
        if recipe := self.trial:
            parts.append(f"rate{recipe.rate:g}x{recipe.exit_rate:g}-epochs{recipe.epochs}")
            if self.depth == 0:
                parts.append(f"share{recipe.share:g}-{recipe.teacher}")
                if recipe.weights != "equal":
                    parts.append(recipe.weights)
            if recipe.layer_decay != 1:
                parts.append(f"decay{recipe.layer_decay:g}")
            if recipe.pooling != "mean":
                parts.append(recipe.pooling)
        return "-".join([*parts, str(self.seed)])

    @property
    def recording(self) -> Path:
        """File of the recorded answers."""
        return RECORDED / f"{self.name}.safetensors"

    @property
    def is_recorded(self) -> bool:
        """Whether its answers are recorded.

        Raises UserError for a recording of a training with other flags, as of an earlier recipe,
        or of other rows.
        """
        if not self.recording.exists():
            return False
        with safe_open(self.recording, framework="pt") as file:
            flags = json.loads(file.metadata()["run"])["flags"]
            rows = file.get_slice("labels").get_shape()[0]
        if rows != ROWS[self.task].count:
            raise UserError(
                f"{self.recording} has {rows} rows, and rows.py has {ROWS[self.task].count} now: "
                "remove it, to train again"
            )
        if flags != self.flags:
            raise UserError(
                f"{self.recording} is of a training with other flags than trainings.py has now: "
                "remove it, to train again"
            )
        return True

    @property
    def layers(self) -> int:
        """Layers of the network."""
        return self.depth or LAYERS[self.encoder]

    @property
    def teacher(self) -> "Run | None":
        """The training of the network that teaches this one."""
        if not self.is_taught:
            return None
        return Run(self.task, LAYERS[self.encoder], self.seed, encoder=self.encoder)

    @property
    def flags(self) -> list[str]:
        """Flags of run_glue.py, without the folders.

        The losses of all layers are added up, so the gradient may be as many times as long.
        """
        recipe = self.recipe
        epochs = EPOCHS.get(self.task, recipe.epochs)
        flags = ["--task_name", TASK_NAMES.get(self.task, self.task), *COMMON_FLAGS]
        flags += ["--learning_rate", f"{recipe.rate:g}", "--num_train_epochs", str(epochs)]
        flags += ["--max_grad_norm", str(self.layers), "--seed", str(self.seed)]
        keys = [f"exit_lr_factor={recipe.exit_rate:g}"]
        if recipe.layer_decay != 1:
            keys.append(f"layer_lr_decay={recipe.layer_decay:g}")
        if recipe.pooling != "mean":  # the recommended one
            keys.append(f"pooler_input={recipe.pooling}")
        if self.depth:
            keys += LAST_EXIT_ALONE
        else:
            keys += [
                f"self_distillation={recipe.share:g}",
                f"self_distillation_from={recipe.teacher}",
            ]
            if recipe.weights != "equal":  # the recommended ones
                keys.append(f"weight_name={recipe.weights}")
        return [*flags, "--set", *keys]


def words_file(task: str) -> Path:
    """Return the file of the recorded answers of a bag of words."""
    return RECORDED / f"{task}-words.safetensors"


def runs() -> Iterator[Run]:
    """Yield all trainings, the most telling first: seed after seed, so that any part is of use.

    First the three hypotheses, of 8,000 rows and of all, then the second family of each, then the
    other tasks, MiniLM and the shared layer.
    """
    for task, seed in product(("SST-2-8k", "SST-2"), REPORTING_SEEDS):
        yield Run(task, 0, seed)
        yield Run(task, 12, seed)
        yield Run(task, 6, seed)
        yield Run(task, 4, seed)
        yield Run(task, 4, seed, is_taught=True)
    for task, seed in product(("SST-2-8k", "SST-2"), REPORTING_SEEDS):
        yield Run(task, 0, seed, is_self_taught=False)
        yield Run(task, 6, seed, is_taught=True)
        yield Run(task, 3, seed)
        yield Run(task, 3, seed, is_taught=True)
        yield Run(task, 9, seed)
    for seed, task in product(REPORTING_SEEDS, SMALL_TASKS):
        yield Run(task, 0, seed)
        for depth in (12, 6, 4, 3, 9):
            yield Run(task, depth, seed)
        for depth in (6, 4, 3):
            yield Run(task, depth, seed, is_taught=True)
    for encoder, seed in product(("minilm", "shared"), REPORTING_SEEDS):
        yield Run("SST-2-8k", 0, seed, encoder=encoder)
        yield Run("SST-2-8k", 0, seed, encoder=encoder, is_self_taught=False)
        for depth in (6, 4, 3, 2):
            yield Run("SST-2-8k", depth, seed, encoder=encoder)


# The recipes that are tried for exits, and for ordinary networks of these depths.
GRID = tuple(Recipe(*values) for values in product((1e-5, 2e-5, 4e-5, 8e-5), (1, 2), (1.0, 4.0)))
CHOOSING_DEPTHS = {"mpnet": (12, 4), "minilm": (6, 3)}
LAYER_DECAYS = (1.0, 0.9, 0.8)
POOLINGS = ("mean", "cls")
SHARES = ((0.0, "last"), *product((0.25, 0.5, 0.75, 1.0), ("last", "next")))


CHOICES = ("rates", "decay", "pooling", "teaching")


def choosing_runs(encoder: str, choice: str) -> Iterator[Run]:
    """Yield the trainings that choose an encoder's recipes; they report nothing.

    choice: "rates": learning rates and epochs, of exits and of ordinary networks; "decay": of the
    learning rate from layer to layer, likewise; "pooling": what classifiers read, likewise;
    "teaching": kinds of self-distillation, and learned weights of the exits. The last three have
    the rest of the recipe that was chosen before them.
    """
    depths = (0, *CHOOSING_DEPTHS[encoder])
    if choice == "rates":
        for recipe, seed, depth in product(GRID, CHOOSING_SEEDS, depths):
            yield Run("SST-2-8k", depth, seed, encoder=encoder, trial=recipe)
        return
    # With the first guess of what is chosen later, so that a second choice leads to the same runs.
    if choice == "decay":
        for decay, seed, depth in product(LAYER_DECAYS, CHOOSING_SEEDS, depths):
            rates = recipe_of(encoder, has_exits=depth == 0)
            recipe = Recipe(rates.rate, rates.epochs, rates.exit_rate, layer_decay=decay)
            yield Run("SST-2-8k", depth, seed, encoder=encoder, trial=recipe)
        return
    if choice == "pooling":
        for pooling, seed, depth in product(POOLINGS, CHOOSING_SEEDS, depths):
            before = recipe_of(encoder, has_exits=depth == 0)
            recipe = Recipe(
                before.rate,
                before.epochs,
                before.exit_rate,
                layer_decay=before.layer_decay,
                pooling=pooling,
            )
            yield Run("SST-2-8k", depth, seed, encoder=encoder, trial=recipe)
        return
    rates = replace(recipe_of(encoder, has_exits=True), weights="equal")
    recipes = [replace(rates, share=share, teacher=teacher) for share, teacher in SHARES]
    # With the share of the first guess, so that a second choice leads to the same runs.
    recipes.append(replace(rates, share=Recipe.share, teacher=Recipe.teacher, weights="dyn"))
    for recipe, seed in product(recipes, CHOOSING_SEEDS):
        yield Run("SST-2-8k", 0, seed, encoder=encoder, trial=recipe)


def train_and_record(run: Run, work: Path) -> None:
    """Train in a process of its own, record in another, and keep the answers in half precision.

    Raises UserError where one of the two fails.
    """
    begin = time.time()
    model_dir = train(run, work)
    log = work / "logs" / f"{run.name}.log"
    table = ["--validation_file", str(work / "data/SICK/dev.tsv")] if run.task == "SICK" else []
    if run.task == "SICK":
        table += ["--text_column_names", "sentence1,sentence2", "--label_column_name", "gold_label"]
    # What is recorded does not depend on the rule: one setting of a rule that every task has.
    flags = ["--model_dir", str(model_dir), "--batch_size", "64", "--tables_only", *table]
    call("sweep_exits.py", [*flags, "--rules", "patience", "--grid", "cnt_thres=1"], log)
    recorded = load_file(model_dir / "sweep/all_logits.safetensors")
    answers = recorded["all_logits"][-1 if run.depth else 0 :]
    notes = {
        "flags": run.flags,
        "seconds": round(time.time() - begin),
        "device": device_name(),
        "torch": torch.__version__,
    }
    RECORDED.mkdir(exist_ok=True)
    tensors = {"all_logits": answers.half().contiguous(), "labels": recorded["labels"]}
    part = run.recording.with_suffix(".part")
    save_file(tensors, part, {"run": json.dumps(notes)})
    part.rename(run.recording)
    # An ordinary network of all layers is a teacher: it stays.
    if run.depth != LAYERS[run.encoder]:
        shutil.rmtree(model_dir)


def device_name() -> str:
    """Return the GPU's name, or the processor's kind with its vector instructions."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def train(run: Run, work: Path) -> Path:
    """Train a run, unless its model is there; return the model's folder.

    Another process that needs the same model, as a teacher, waits.
    """
    model_dir = work / "models" / run.name
    with FileLock(lock_file(work, f"{run.name}.model")):
        if (model_dir / "training.json").exists():
            return model_dir
        flags = [*run.flags, "--data_dir", str(work / "data" / run.task)]
        flags += ["--model_name_or_path", str(starting_encoder(run, work))]
        flags += ["--output_dir", str(model_dir), "--resume_from_checkpoint", "latest"]
        if run.teacher:
            flags += ["--teacher", str(train(run.teacher, work))]
        log = work / "logs" / f"{run.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        call("run_glue.py", flags, log)
    return model_dir


def starting_encoder(run: Run, work: Path) -> Path:
    """Make the folder of the encoder that a run starts from, unless it is there."""
    with FileLock(lock_file(work, "start")):
        start = work / "start" / run.encoder
        join_weights(start)
        if run.layers == LAYERS[run.encoder]:
            return start
        shallow = work / "start" / f"{run.encoder}-{run.layers}"
        save_depth(start, run.layers, shallow)
        return shallow


def lock_file(work: Path, name: str) -> Path:
    """Return the file by which processes agree on who does something."""
    path = work / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of prepare.py")
    parser.add_argument("--only", default="", help="regular expression of the runs' names")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after this")
    parser.add_argument(
        "--choosing", choices=CHOICES, help="the runs that choose a part of the recipe"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: a GPU, if there is one, else the CPU"
    )
    parser.add_argument("--list", action="store_true", help="print what is missing, and end")
    args = parser.parse_args()
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the processes that train, too
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda: PyTorch finds no GPU here; leave it out to train on the CPU"
        )
    begin = time.time()
    if not (args.list or args.choosing):
        for name in ROWS:
            if (args.work / "data" / name).exists():
                task = get_task(TASK_NAMES.get(name, name))
                record_words(task, args.work / "data" / name, words_file(name))
    todo = runs()
    if args.choosing:
        encoders = CHOOSING_DEPTHS
        todo = chain.from_iterable(choosing_runs(name, args.choosing) for name in encoders)
    for run in todo:
        if not re.search(args.only, run.name) or run.is_recorded:
            continue
        if args.list:
            print(run.name)
            continue
        if time.time() - begin > 60 * args.minutes:
            print("the time is over: give the command again to go on")
            return
        try:
            with FileLock(lock_file(args.work, run.name), blocking=False):
                if run.is_recorded:  # by another process, meanwhile
                    continue
                print(time.strftime("%H:%M:%S"), run.name, flush=True)
                train_and_record(run, args.work)
        except Timeout:
            continue  # another process trains it


if __name__ == "__main__":
    run_script(main)
