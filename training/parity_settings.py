"""run_parity.py's settings. No torch here, so that --help and a wrong flag answer at once."""

from dataclasses import dataclass

from modeling.errors import UserError
from training.settings import AT_LEAST_0, AT_LEAST_1, SEED, FlagRules, setting

PEAK = 8  # highest learning rate of the one-cycle schedule, in units of the first


@dataclass(frozen=True, kw_only=True)
class ParitySettings:
    """The vectors whose ones are counted, the model that counts, and its training."""

    _argument_group_name = "experiment"

    n_elems: int = setting(8, "elements of a vector", AT_LEAST_1)
    extrapolate: bool = setting(False, "train on emptier, test on fuller vectors")
    n_hidden: int = setting(64, "size of the GRU's state", AT_LEAST_1)
    max_steps: int = setting(20, "N, where the last example is made to halt", AT_LEAST_1)
    lambda_p: float = setting(0.2, "prior: 1/λ_p steps are expected", FlagRules(low=1e-6, high=1))
    beta: float = setting(0.01, "weight of the KL to the prior", AT_LEAST_0)
    epochs: int = setting(20, "passes of --n_batches", AT_LEAST_1)
    n_batches: int = setting(500, "batches an epoch", AT_LEAST_1)
    batch_size: int = setting(128, "vectors of a batch", AT_LEAST_1)
    lr: float = setting(3e-4, "learning rate, at first", FlagRules(low=1e-12))
    schedule: str = setting(
        "one_cycle",
        f"one_cycle rises to {PEAK} times --lr, then falls; constant, with --epochs 100, is the "
        "annotated PonderNet's, and takes several times as many batches",
        choices=("one_cycle", "constant"),
    )
    output_dir: str = setting("parity_out", "results.json, training.png and runs/")
    seed: int = setting(0, "of the vectors, the weights and the halting", SEED)

    def check(self) -> None:
        if self.extrapolate and self.n_elems < 2:
            raise UserError("--extrapolate needs vectors of at least 2 elements: raise --n_elems")

    def non_zeros(self) -> tuple[range, range]:
        """Numbers of non-zero elements: in training, and in the harder set (may be empty)."""
        most = max(1, self.n_elems * 3 // 4) if self.extrapolate else self.n_elems
        return range(1, most + 1), range(most + 1, self.n_elems + 1)
