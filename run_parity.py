"""PonderNet's parity experiment: a GRU learns the answer, and when to halt.

In a vector of --n_elems elements, a random number of them are 1 or -1, the rest 0. Is the number of
ones odd? At every step the model answers and gives its probability of halting there.

    python ./run_parity.py --n_elems 8 --output_dir parity_out

With --extrapolate it trains on vectors with at most three quarters of their elements set, and is
tested on fuller ones. Progress goes to TensorBoard, final results to results.json.
"""

from dataclasses import dataclass
from pathlib import Path

from training.provenance import provenance
from utils.files import write_json
from utils.flags import AT_LEAST_0, AT_LEAST_1, SEED, Allowed, as_dict, option, parse
from utils.processes import run_script


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
        """Numbers of non-zero elements: in training, and in the harder set (may be empty)."""
        most = max(1, self.n_elems * 3 // 4) if self.extrapolate else self.n_elems
        return range(1, most + 1), range(most + 1, self.n_elems + 1)


def main() -> None:
    (settings,) = parse([ParitySettings], __doc__)
    # torch, and what stands on it: not before the flags are known to be right.
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from modeling import ParityPonderGRU
    from training.parity import evaluate_parity, mean_score, train_parity

    torch.manual_seed(settings.seed)
    # One step of so small a GRU is too short to be shared out.
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    directory = Path(settings.output_dir)
    path, results = directory / "results.json", {"provenance": provenance(as_dict(settings))}
    known, harder = settings.non_zeros()
    model = ParityPonderGRU(settings.n_elems, settings.n_hidden, settings.max_steps).to(device)
    history = []
    with SummaryWriter(str(directory / "runs")) as writer:
        for epoch in train_parity(settings, model, device):
            history.append(epoch)
            for name, value in epoch.items():
                writer.add_scalar(name, value, epoch["epoch"])
    for name, non_zeros in (("in distribution", known), ("extrapolation", harder)):
        if non_zeros:
            scores = evaluate_parity(model, settings.n_elems, non_zeros, 4096, device)
            mean = mean_score(scores)
            results[name.replace(" ", "_")] = {**mean, "by_non_zeros": scores}
            shown = f"accuracy = {mean['accuracy']:.4f}, steps = {mean['steps']:.2f}"
            print(f"{name} ({non_zeros[0]} to {non_zeros[-1]} non-zero elements): {shown}")
    write_json(path, {**results, "history": history}, listed_in=directory)
    print(path)


if __name__ == "__main__":
    run_script(main)
