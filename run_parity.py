"""PonderNet's parity experiment: a GRU learns to answer, and when to stop thinking.

A vector of --n_elems elements has a random number of them set to 1 or -1, the others are 0; is the
number of ones odd? At every step the model answers and says how probable it is to halt there.

    python ./run_parity.py --n_elems 8 --output_dir parity_out

With --extrapolate it trains on vectors with at most three quarters of their elements set, and is
tried on fuller ones. Progress goes to TensorBoard, the end to results.json and training.png.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from evaluation.figures import BARS, LINE, save_figure
from glue.files import run_script, write_json
from modeling import ParityPonderGRU, ReconstructionLoss, RegularizationLoss, UserError

MAX_GRADIENT_NORM = 1.0  # as in the annotated PonderNet
PEAK = 8  # highest learning rate of the one-cycle schedule, in units of the first


class Score(NamedTuple):
    """How vectors with so many non-zero elements are answered."""

    non_zeros: int
    accuracy: float  # of the answers at sampled halting steps
    steps: float  # expected


class Epoch(NamedTuple):
    """Where training stands at an epoch's end."""

    epoch: int
    loss: float
    loss_rec: float
    loss_reg: float
    accuracy: float
    steps: float


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--n_elems", default=8, type=int, help="elements of a vector")
    add("--n_hidden", default=64, type=int, help="size of the GRU's state")
    add("--max_steps", default=20, type=int, help="N, where the last example is made to halt")
    add("--lambda_p", default=0.2, type=float, help="prior: 1/λ_p steps are expected")
    add("--beta", default=0.01, type=float, help="weight of the KL to the prior")
    add("--epochs", default=20, type=int)
    add("--n_batches", default=500, type=int, help="batches an epoch")
    add("--batch_size", default=128, type=int)
    add(
        "--lr",
        default=3e-4,
        type=float,
        help=f"at first; rises to {PEAK} times that, then falls: with a constant one, training "
        "takes several times as many batches",
    )
    add("--extrapolate", action="store_true", help="train on emptier, test on fuller vectors")
    add("--output_dir", default="parity_out", help="results.json, training.png and runs/")
    add("--seed", default=0, type=int)
    args = parser.parse_args()
    check_args(args)
    return args


def check_args(args: argparse.Namespace) -> None:
    for name in ("n_elems", "n_hidden", "max_steps", "epochs", "n_batches", "batch_size"):
        value = getattr(args, name)
        if value < 1:
            raise UserError(f"--{name} {value}: allowed is a whole number of at least 1")
    if args.extrapolate and args.n_elems < 2:
        raise UserError("--extrapolate needs vectors of at least 2 elements: raise --n_elems")
    if not 0 < args.lambda_p <= 1:
        raise UserError(f"--lambda_p {args.lambda_p}: allowed is a number above 0, at most 1")
    if not 0 <= args.beta < math.inf:
        raise UserError(f"--beta {args.beta}: allowed is a number of at least 0")
    if not 0 < args.lr < math.inf:
        raise UserError(f"--lr {args.lr}: allowed is a number above 0")


def non_zeros_of(n_elems: int, extrapolate: bool) -> tuple[range, range]:
    """Numbers of non-zero elements: in training, and in the harder set (empty without one)."""
    most = max(1, n_elems * 3 // 4) if extrapolate else n_elems
    return range(1, most + 1), range(most + 1, n_elems + 1)


def parity_batch(
    batch: int, n_elems: int, non_zeros: range, device: torch.device | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors x (batch, n_elems) of 1, -1 and 0, and y (batch,): 1.0 for an odd number of ones.

    The number of non-zero elements is uniform over `non_zeros`, their places and signs are random.
    """
    counts = torch.randint(non_zeros.start, non_zeros.stop, (batch, 1), device=device)
    places = torch.rand(batch, n_elems, device=device).argsort(1)  # a random permutation
    signs = torch.randint(0, 2, (batch, n_elems), device=device) * 2 - 1
    x = (places < counts) * signs
    return x.float(), ((x == 1).sum(1) % 2).float()


@torch.no_grad()
def evaluate(
    model: ParityPonderGRU, n_elems: int, non_zeros: range, samples: int, device: torch.device
) -> list[Score]:
    """One score for each number of non-zero elements, from `samples` fresh vectors each."""
    scores = []
    for count in non_zeros:
        x, y = parity_batch(samples, n_elems, range(count, count + 1), device)
        p, _, _, y_m = model(x)
        right = ((y_m > 0) == y.bool()).float().mean().item()
        scores.append(Score(count, right, expected_steps(p)))
    return scores


def expected_steps(p: torch.Tensor) -> float:
    """Mean over the batch of Σ n·p_n, p (steps, batch)."""
    return (p.T @ torch.arange(1.0, len(p) + 1, device=p.device)).mean().item()


def means(scores: list[Score]) -> dict[str, float]:
    """Over all numbers of non-zero elements, which are equally frequent."""
    return {
        name: sum(getattr(score, name) for score in scores) / len(scores)
        for name in ("accuracy", "steps")
    }


def train(
    args: argparse.Namespace, model: ParityPonderGRU, non_zeros: range, device: torch.device
) -> Iterator[Epoch]:
    """Minimise L_Rec + β·L_Reg; yields after every epoch."""
    loss_rec = ReconstructionLoss(nn.BCEWithLogitsLoss(reduction="none"))
    loss_reg = RegularizationLoss(args.lambda_p, args.max_steps).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    total = args.epochs * args.n_batches
    schedule = OneCycleLR(
        optimizer, PEAK * args.lr, total, pct_start=0.2, div_factor=PEAK, cycle_momentum=False
    )
    bar = tqdm(total=total, desc="Training", unit="batch")
    for epoch in range(1, args.epochs + 1):
        sums = torch.zeros(3, device=device)
        for _ in range(args.n_batches):
            x, y = parity_batch(args.batch_size, args.n_elems, non_zeros, device)
            p, y_hat, _, _ = model(x)
            rec, reg = loss_rec(p, y_hat, y), loss_reg(p)
            loss = rec + args.beta * reg
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            schedule.step()
            sums += torch.stack((loss, rec, reg)).detach()
            bar.update()
        losses = (sums / args.n_batches).tolist()
        if not math.isfinite(losses[0]):
            raise UserError(f"the loss is {losses[0]} in epoch {epoch}: lower --lr {args.lr}")
        score = means(evaluate(model, args.n_elems, non_zeros, 512, device))
        bar.set_postfix(loss=f"{losses[0]:.4f}", accuracy=f"{score['accuracy']:.4f}")
        yield Epoch(epoch, *losses, **score)
    bar.close()


def training_figure(history: list[Epoch], title: str) -> Figure:
    """Sampled accuracy and expected steps at every epoch's end."""
    figure, left = plt.subplots(figsize=(6.4, 3.6))
    epochs = [epoch.epoch for epoch in history]
    left.plot(epochs, [epoch.accuracy for epoch in history], color=LINE, label="sampled accuracy")
    left.set_xlabel("epoch")
    left.set_ylabel("accuracy")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right = left.twinx()
    right.plot(epochs, [epoch.steps for epoch in history], color=BARS, label="expected steps")
    right.set_ylabel("steps")
    right.set_ylim(bottom=0)
    left.set_title(title, loc="left", fontsize=10)
    left.set_zorder(right.get_zorder() + 1)  # accuracy in front
    left.patch.set_visible(False)
    figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=2, frameon=False)
    return figure


def report(name: str, scores: list[Score]) -> dict:
    """Prints a set's sampled accuracy and mean steps; returns them for the results."""
    mean = means(scores)
    counts = f"{scores[0].non_zeros} to {scores[-1].non_zeros} non-zero elements"
    print(f"{name} ({counts}): accuracy = {mean['accuracy']:.4f}, steps = {mean['steps']:.2f}")
    return {**mean, "by_non_zeros": [score._asdict() for score in scores]}


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    # One step of so small a GRU is too short to be shared out.
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    directory = Path(args.output_dir)
    settings = vars(args) | {"torch": torch.__version__, "device": device.type}
    write_json(directory / "results.json", {"settings": settings})  # fails now, not at the end
    known, harder = non_zeros_of(args.n_elems, args.extrapolate)
    model = ParityPonderGRU(args.n_elems, args.n_hidden, args.max_steps).to(device)
    history = []
    with SummaryWriter(str(directory / "runs")) as writer:
        for epoch in train(args, model, known, device):
            history.append(epoch)
            for name, value in epoch._asdict().items():
                writer.add_scalar(name, value, epoch.epoch)
    results = {"settings": settings}
    results["in_distribution"] = report(
        "in distribution", evaluate(model, args.n_elems, known, 4096, device)
    )
    if harder:
        scores = evaluate(model, args.n_elems, harder, 4096, device)
        results["extrapolation"] = report("extrapolation", scores)
    results["history"] = [epoch._asdict() for epoch in history]
    write_json(directory / "results.json", results)
    title = f"Parity of {args.n_elems} elements, at most {args.max_steps} steps"
    save_figure(training_figure(history, title), directory / "training.png")
    print(f"{directory / 'results.json'}, {directory / 'training.png'}")


if __name__ == "__main__":
    run_script(main)
