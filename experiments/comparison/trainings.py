"""The trainings whose answers are recorded: the name, start and flags of each, and their order."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from experiments.comparison.recordings import CONFIRMING_SEEDS, PHRASE_ROWS, RECORDED

# Flags of run_glue.py. What learns to halt is trained as published, but for the budget, which is
# the same for all, and the prices that are compared.
COMMON_FLAGS = (
    "--do_train --do_lower_case --per_gpu_train_batch_size 32 --warmup_steps 50 --save_steps 0 "
    "--overwrite_output_dir"
).split()
BEST_CHECKPOINT_FLAGS = (
    f"--load_best_model_at_end --metric_for_best_model acc@0.5 --max_eval_samples {PHRASE_ROWS}"
).split()
ELBERT_FLAGS = ["--model_type", "elbert", "--set", "pooler_input=mean"]
ACT_FLAGS = (
    "--model_type albert_act --set pooler_input=mean act_update=graves halting_bias=-1.6"
).split()
PONDER_FLAGS = (
    BEST_CHECKPOINT_FLAGS
    + (
        "--model_type ponder_albert --set pooler_input=mean exit_criteria=threshold "
        "halt_normalization=last_layer"
    ).split()
)
# Keys of --set that follow these flags.
EQUAL_WEIGHTS = ["weight_name=equal", "use_out_pooler=false"]
FAST_EXITS = ["exit_lr_factor=4"]
RECIPE_KEYS = {  # see `Run.recipe`
    "equal": EQUAL_WEIGHTS,
    "equal-x4": EQUAL_WEIGHTS + FAST_EXITS,
    "taught-x4": EQUAL_WEIGHTS + FAST_EXITS,
    "equalshared": ["weight_name=equal"],
    "dynown": ["use_out_pooler=false"],
    "fromprior": ["kl_direction=from_prior"],
}
# σ(−30) is 0: the last exit's loss alone counts, as many times as there are layers.
LAST_EXIT_ALONE = ["weight_name=dyn", "w_init=-30", "w_lr=0"]
HALTING_HEADS = {
    "pondernet": ["lambda_layer_arch=linear", "num_lambda_layers=1"],
    "palbert": ["lambda_layer_arch=linear_cat", "num_lambda_layers=3"],
}


class Data(NamedTuple):
    """What a folder of data is trained on as."""

    task_name: str  # GLUE's task with its columns
    epochs: int


DATA = {  # by the folder's name
    "SST-2": Data("SST-2", epochs=2),
    "all": Data("SST-2", epochs=1),  # nearly all rows of SST-2
    "SICK": Data("MNLI", epochs=2),
    "CoLA": Data("CoLA", epochs=2),
    "MRPC": Data("MRPC", epochs=3),
}

KINDS_WITH_CORRECTIONS = ("rank8", "rank32")
DEPTHS = range(1, 7)
DEFAULT_PRIOR = 0.3  # λ_p of all PonderNets but those of the grid
SHALLOW_PRIOR = 0.55  # expects 1.8 passes, which cost half of MiniLM
RATE_SEED = 7  # of the trainings that compare learning rates


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        kind: of the encoder that training starts from. "untied" has MiniLM's own layers, "shared"
            passes of one layer, "rank8" and "rank32" passes of one layer with corrections. "still"
            is "shared" without dropout. The other kinds learn to halt, on six shared passes: "act"
            in Graves' form; "pondernet" and "palbert", which have no dropout.
        seed: random seed of the training.
        depth: train to so many layers, with an answer after the last alone. None: train all layers,
            with an exit after each. MiniLM's own layers then have an exit each, as in DeeBERT and
            PABEE; shared layers share theirs, as in ELBERT.
        rate: peak learning rate.
        price: of what learns to halt: ACT's τ, of an update; PonderNet's β, of leaving the prior.
        data: a folder, see `DATA`.
        recipe: "equal": all exits' losses weigh the same, and each has a pooler of its own.
            "equal-x4": the same, and exits learn at four times the encoder's rate. "equalshared":
            equal weights alone, with one pooler for all exits. "dynown": poolers of their own
            alone, with the published loss. "taught-x4": as "equal-x4", distilled: MiniLM at full
            depth, with the same seed, is a teacher, of rows without labels as well. "taught":
            distilled, of a network trained to one depth. "fromprior": of what learns to halt, with
            KL(prior ‖ p) in the loss, as in PALBERT's code. "best": as for PonderNet, the
            checkpoint that is best on the rows that choose. "": none of these.
        prior: PonderNet's λ_p.
    """

    kind: str
    seed: int
    depth: int | None = None
    rate: float = 1e-4
    price: float | None = None
    data: str = "SST-2"
    recipe: str = ""
    prior: float = DEFAULT_PRIOR

    @property
    def name(self) -> str:
        """Name of the recording, such as SST-2-untied-exits-equal-11."""
        task = "SST-2-all" if self.data == "all" else self.data
        parts = [task, self.kind, self.form]
        if self.recipe:
            parts.append(self.recipe)
        if self.compares_rates:
            parts.append(f"rate{self.rate:g}")
        parts.append(str(self.seed))
        if self.data == "SICK":
            parts.append("dev" if self.compares_rates else "test")
        return "-".join(parts)

    @property
    def form(self) -> str:
        """The part of the name that says how the network answers: 3, exits, tau0.002, beta0.5."""
        if self.depth is not None:
            return str(self.depth)
        if self.price is None:
            return "exits"
        if self.kind == "act":
            return f"tau{self.price:g}"
        if self.prior == DEFAULT_PRIOR:
            return f"beta{self.price:g}"
        return f"beta{self.price:g}-prior{self.prior:g}"

    @property
    def recording(self) -> Path:
        """File of the recorded answers."""
        return RECORDED / f"{self.name}.safetensors"

    @property
    def start(self) -> str:
        """Name of the encoder that training starts from, such as untied-6."""
        kind = self.kind
        if kind == "act":
            kind = "shared"
        elif kind in HALTING_HEADS:
            kind = "still"
        return f"{kind}-{self.depth or 6}"

    @property
    def compares_rates(self) -> bool:
        """Whether it compares learning rates; such a run reports nothing else."""
        return self.seed == RATE_SEED

    @property
    def teacher(self) -> "Run | None":
        """The training of MiniLM at full depth, with the same seed, that teaches this one."""
        if not self.recipe.startswith("taught"):
            return None
        return Run("untied", self.seed, 6, data=self.data)

    @property
    def flags(self) -> list[str]:
        """Flags of run_glue.py, without the folders."""
        data = DATA[self.data]
        flags = ["--task_name", data.task_name, "--num_train_epochs", str(data.epochs)]
        flags += [*COMMON_FLAGS, *self.mode_flags]
        flags += ["--learning_rate", f"{self.rate:g}", "--seed", str(self.seed)]
        if self.recipe == "best":
            flags += BEST_CHECKPOINT_FLAGS
        # The first trainings were in float32.
        confirms = self.seed in CONFIRMING_SEEDS
        if self.recipe or self.prior != DEFAULT_PRIOR or confirms:
            flags.append("--bf16")
        if self.teacher:
            flags += ["--num_train_epochs", "1"]
        return flags

    @property
    def mode_flags(self) -> list[str]:
        """The mode, its keys, and the flags that go with them."""
        recipe_keys = RECIPE_KEYS.get(self.recipe, [])
        if self.kind == "act":
            return [*ACT_FLAGS, f"tau={self.price:g}"]
        if self.kind in HALTING_HEADS:
            # The key goes with a mean over the six layers' losses, the paper's β with their sum.
            penalty = (self.price or 0) / 6
            return [
                *PONDER_FLAGS,
                *HALTING_HEADS[self.kind],
                f"kl_penalty_factor={penalty:.4g}",
                f"target_halt_probability={self.prior:g}",
                *recipe_keys,
            ]
        if self.depth == 1:
            return ELBERT_FLAGS
        if self.depth is not None:
            # The loss counts as many times as there are layers; so the longest gradient may, that
            # of one loss has norm 1.
            return [*ELBERT_FLAGS, *LAST_EXIT_ALONE, "--max_grad_norm", str(self.depth)]
        flags = [*ELBERT_FLAGS]
        if self.kind == "untied":
            flags.append("num_exit_layers=6")
        return flags + recipe_keys


def queue() -> Iterator[Run]:
    """Yield all trainings."""
    for seed in range(1, 6):
        yield Run("shared", seed)
    yield from halting_runs()
    yield from narrow_layers()
    yield from rate_runs()
    yield from confirming_runs()


def halting_runs() -> Iterator[Run]:
    """Yield networks that learn to halt, and the ELBERT beside PonderNet's."""
    for seed in (1, 2, 3):
        for kind in HALTING_HEADS:
            yield Run(kind, seed, price=0.5)
        for tau in (5e-4, 2e-3):
            yield Run("act", seed, price=tau)
        yield Run("still", seed, recipe="best")
        for beta, prior in product((0.03, 0.01, 0.1), (0.1, 0.2)):
            yield Run("pondernet", seed, price=beta, prior=prior)
        yield Run("pondernet", seed, price=0.1, prior=SHALLOW_PRIOR)
        yield Run("palbert", seed, price=0.5, recipe="fromprior")
    yield Run("act", 1, price=0.0)


def narrow_layers() -> Iterator[Run]:
    """Yield the networks without exits of docs/sharing.md."""
    for depth, kind in product((3, 6), ("untied", "shared")):
        for seed in range(1, 6):
            yield Run(kind, seed, depth)
    for depth, kind in product((3, 6), KINDS_WITH_CORRECTIONS):
        for seed in (1, 2, 3):
            yield Run(kind, seed, depth)
    for depth in (4, 3):
        yield Run("untied", 1, depth, data="all")


def rate_runs() -> Iterator[Run]:
    """Yield the trainings that compare learning rates."""
    for rate in (5e-5, 1e-4, 2e-4):
        yield Run("untied", RATE_SEED, 3, rate)
        for kind in ("shared", "untied"):
            yield Run(kind, RATE_SEED, rate=rate)
        for depth in (None, 4):
            yield Run("untied", RATE_SEED, depth, rate, data="SICK")


def confirming_runs() -> Iterator[Run]:
    """Yield the trainings of `confirmation.py`."""
    for seed in CONFIRMING_SEEDS:
        for data in ("SST-2", "SICK", "CoLA", "MRPC"):
            yield Run("untied", seed, data=data, recipe="equal-x4")
            for depth in DEPTHS:
                yield Run("untied", seed, depth, data=data)
        yield Run("untied", seed, recipe="taught-x4")
        for depth in DEPTHS:
            yield Run("untied", seed, depth, recipe="taught")
        for recipe in ("", "equal", "equalshared", "dynown"):
            yield Run("untied", seed, recipe=recipe)
