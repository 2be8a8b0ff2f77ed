"""The settings of run_parity.py. Loads no torch: --help answers at once."""

from dataclasses import dataclass

from runs.flags import AT_LEAST_0, AT_LEAST_1, SEED, Allowed, option


@dataclass(frozen=True, kw_only=True)
class ParitySettings:
    """The vectors whose ones are counted, the model that counts, and its training."""

    n_elems: int = option(8, "elements per vector", AT_LEAST_1)
    extrapolate: bool = option(False, "train on emptier vectors, test on fuller ones")
    n_hidden: int = option(64, "GRU state size", AT_LEAST_1)
    max_steps: int = option(20, "maximum steps N; every example halts at the last", AT_LEAST_1)
    lambda_p: float = option(0.2, "prior halting probability λ_p", Allowed(low=1e-6, high=1))
    beta: float = option(0.01, "weight of the KL divergence from the prior", AT_LEAST_0)
    epochs: int = option(20, "epochs of --n_batches each", AT_LEAST_1)
    n_batches: int = option(500, "batches per epoch", AT_LEAST_1)
    batch_size: int = option(128, "vectors per batch", AT_LEAST_1)
    lr: float = option(3e-4, "initial learning rate", Allowed(low=1e-12))
    schedule: str = option(
        "one_cycle",
        "one_cycle rises to 8 times --lr, then falls; constant, with --epochs 100, is the "
        "annotated PonderNet's, and takes several times as many batches",
        choices=("one_cycle", "constant"),
    )
    output_dir: str = option("parity_out", "folder for results.json and runs/")
    seed: int = option(0, "random seed", SEED)

    def non_zeros(self) -> tuple[range, range]:
        """Return the numbers of non-zero elements: in training, and in the harder set.

        The harder set may be empty.
        """
        most = max(1, self.n_elems * 3 // 4) if self.extrapolate else self.n_elems
        return range(1, most + 1), range(most + 1, self.n_elems + 1)
