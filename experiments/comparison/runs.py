"""The comparison's trainings, most wanted first: names, starting encoders and run_glue.py's flags.

Every run reads the first 8,000 rows of SST-2's training set. Its dev set is the next 1,000 rows,
on which all choices are made, and then GLUE's 872 dev rows, which only report.
"""

from dataclasses import dataclass, field

TRAIN_ROWS, CALIBRATION_ROWS = 8000, 1000
COMMON = [
    *("--do_lower_case", "--overwrite_output_dir", "--per_gpu_train_batch_size", "32"),
    *("--warmup_steps", "50", "--save_steps", "0"),
]


@dataclass(frozen=True)
class Run:
    """One training: where it starts, and what run_glue.py is told beyond `COMMON`.

    start: untied-K, the first K of MiniLM's own layers, or shared-K, K passes of one layer.
    last_only: is only the last layer's answer trained (and recorded)?
    """

    family: str
    start: str
    seed: int
    mode: str = "albert"
    keys: tuple[str, ...] = ("pooler_input=mean",)
    rate: float = 1e-4
    epochs: float = 2
    last_only: bool = False
    flags: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"

    @property
    def depth(self) -> int:
        return int(self.start.rpartition("-")[2])

    def command(self, data: str, start: str, output: str) -> list[str]:
        """run_glue.py's flags for this training."""
        keys, flags = list(self.keys), list(self.flags)
        if self.last_only and self.depth > 1:
            # σ(−30) is 0: the last exit's loss alone counts, N times; so N times the norm is cut.
            keys += ["weight_name=dyn", "w_init=-30", "w_lr=0"]
            flags += ["--max_grad_norm", str(self.depth)]
        return [
            *("--model_type", self.mode, "--task_name", "SST-2", "--data_dir", data, "--do_train"),
            *("--model_name_or_path", start, "--output_dir", output, "--seed", str(self.seed)),
            *("--learning_rate", f"{self.rate:g}", "--num_train_epochs", f"{self.epochs:g}"),
            *(*COMMON, *flags, "--set", *keys),
        ]


def fixed(kind: str, depth: int, seed: int, rate: float = 1e-4) -> Run:
    """Depth `depth` alone: the last exit is the only one."""
    name = f"{kind}-{depth}" + ("" if rate == 1e-4 else f"-rate{rate:g}")
    return Run(name, f"{kind}-{depth}", seed, rate=rate, last_only=True)


def exits(kind: str, seed: int, rate: float = 1e-4) -> Run:
    """An exit after each of six layers, all trained at once.

    Layers of their own have exits of their own, as DeeBERT and PABEE; shared ones share, as ELBERT.
    """
    keys = ("pooler_input=mean", *(["num_exit_layers=6"] if kind == "untied" else []))
    name = f"{kind}-exits" + ("" if rate == 1e-4 else f"-rate{rate:g}")
    return Run(name, f"{kind}-6", seed, keys=keys, rate=rate)


CHOOSING, SEEDS, MORE = 7, (1, 2, 3), (4, 5)


def queue() -> list[Run]:
    """The first blocks make a small table; the last ones its fourth and fifth seed."""
    runs = [exits("shared", SEEDS[0])]
    for seed in SEEDS:
        runs += [fixed("untied", 3, seed), fixed("untied", 2, seed), exits("untied", seed)]
    runs += [fixed("untied", 4, seed) for seed in SEEDS]
    runs += [fixed("shared", 3, seed) for seed in SEEDS] + [exits("shared", SEEDS[1])]
    runs += [fixed("untied", depth, seed) for depth in (1, 6) for seed in SEEDS]
    runs += [fixed("shared", 2, seed) for seed in SEEDS] + [exits("shared", SEEDS[2])]
    runs += [fixed("untied", 5, seed) for seed in SEEDS]
    for rate in (5e-5, 1e-4, 2e-4):
        runs += [fixed("untied", 3, CHOOSING, rate)]
        runs += [exits(kind, CHOOSING, rate) for kind in ("shared", "untied")]
    runs += [fixed("shared", depth, seed) for depth in (4, 6, 1, 5) for seed in SEEDS]
    for seed in MORE:
        runs += [fixed("untied", depth, seed) for depth in (3, 2, 4, 1, 6, 5)]
        runs += [exits(kind, seed) for kind in ("shared", "untied")]
        runs += [fixed("shared", depth, seed) for depth in (3, 2, 4, 6, 1, 5)]
    return runs
