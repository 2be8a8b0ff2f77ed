"""Training on the parity of vectors, as in the annotated PonderNet."""

import math
from collections.abc import Iterator
from statistics import fmean

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from modeling import ParityPonderGRU, ReconstructionLoss, RegularizationLoss, UserError
from modeling.ponder.pondernet import parity_batch
from runs.console import progress
from training.parity_settings import ParitySettings

PEAK = 8  # highest learning rate of the one-cycle schedule, in units of the first
EVALUATED = 512  # vectors of each difficulty that an epoch's model answers


@torch.no_grad()
def evaluate_parity(
    model: ParityPonderGRU, n_elems: int, non_zeros: range, samples: int, device: torch.device
) -> list[dict[str, float]]:
    """Score a model for each number of non-zero elements, on `samples` fresh vectors each.

    Returns for each number, `non_zeros`, the accuracy of the answers at sampled halting steps and
    the expected number of steps.
    """
    scores = []
    for count in non_zeros:
        x, y = parity_batch(samples, n_elems, range(count, count + 1), device)
        p, _, _, y_m = model(x)  # p: (steps, samples); y_m: (samples,), ŷ at a sampled step
        is_right = (y_m > 0) == y.bool()
        numbers = torch.arange(1.0, len(p) + 1, device=device)
        steps = p.T @ numbers  # Σ n·p_n: (samples,)
        scores.append(
            {
                "non_zeros": count,
                "accuracy": is_right.float().mean().item(),
                "steps": steps.mean().item(),
            }
        )
    return scores


def mean_score(scores: list[dict[str, float]]) -> dict[str, float]:
    """Average over all numbers of non-zero elements, which are equally frequent."""
    return {name: fmean(score[name] for score in scores) for name in ("accuracy", "steps")}


def train_parity(
    settings: ParitySettings, model: ParityPonderGRU, device: torch.device
) -> Iterator[dict[str, float]]:
    """Minimise L_Rec + β·L_Reg; yield losses, accuracy and steps after every epoch.

    Raises UserError for a loss that is not finite.
    """
    non_zeros, _ = settings.non_zeros()
    loss_rec = ReconstructionLoss(nn.BCEWithLogitsLoss(reduction="none"))
    loss_reg = RegularizationLoss(settings.lambda_p, settings.max_steps).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=True)
    batches = settings.epochs * settings.n_batches
    schedule = None
    if settings.schedule == "one_cycle":
        schedule = one_cycle(optimizer, settings.lr, batches)
    bar = progress(total=batches, desc="Training", unit="batch")
    for epoch in range(1, settings.epochs + 1):
        sums = torch.zeros(3, device=device)
        for _ in range(settings.n_batches):
            x, y = parity_batch(settings.batch_size, settings.n_elems, non_zeros, device)
            p, y_hat, _, _ = model(x)
            rec = loss_rec(p, y_hat, y)
            reg = loss_reg(p)
            loss = rec + settings.beta * reg
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # as in the annotated PonderNet
            optimizer.step()
            if schedule:
                schedule.step()
            sums += torch.stack((loss, rec, reg)).detach()
            bar.update()
        mean_loss, mean_rec, mean_reg = (sums / settings.n_batches).tolist()
        if not math.isfinite(mean_loss):
            raise UserError(f"the loss is {mean_loss} in epoch {epoch}: lower --lr {settings.lr}")
        score = mean_score(evaluate_parity(model, settings.n_elems, non_zeros, EVALUATED, device))
        bar.set_postfix(
            {"loss": f"{mean_loss:.4f}", "accuracy": f"{score['accuracy']:.4f}"}, refresh=False
        )
        yield {
            "epoch": epoch,
            "loss": mean_loss,
            "loss_rec": mean_rec,
            "loss_reg": mean_reg,
            **score,
        }
    bar.close()


def one_cycle(optimizer: torch.optim.Optimizer, rate: float, batches: int) -> OneCycleLR:
    """Make a schedule that rises from `rate` to PEAK · rate in a fifth of the batches.

    It then falls to almost 0.
    """
    return OneCycleLR(
        optimizer,
        PEAK * rate,
        batches,
        pct_start=0.2,
        div_factor=PEAK,
        cycle_momentum=False,
    )
