"""Training on the parity of vectors, as in the annotated PonderNet."""

import math
from collections.abc import Iterator
from statistics import fmean

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from elbert import ParityPonderGRU, ReconstructionLoss, RegularizationLoss, UserError
from elbert.ponder.pondernet import parity_batch
from runs.console import progress
from training.parity_settings import ParitySettings

LOSSES = ("loss", "loss_rec", "loss_reg")
PEAK = 8  # highest learning rate of the one-cycle schedule, in units of the first


@torch.no_grad()
def evaluate_parity(
    model: ParityPonderGRU, n_elems: int, non_zeros: range, samples: int, device: torch.device
) -> list[dict[str, float]]:
    """Score a model for each number of non-zero elements, on `samples` fresh vectors each.

    accuracy: of the answers at sampled halting steps. steps: how many are expected.
    """
    scores = []
    for count in non_zeros:
        x, y = parity_batch(samples, n_elems, range(count, count + 1), device)
        p, _, _, y_m = model(x)
        right = ((y_m > 0) == y.bool()).float().mean().item()
        steps = p.T @ torch.arange(1.0, len(p) + 1, device=device)  # Σ n·p_n: (samples,)
        scores.append({"non_zeros": count, "accuracy": right, "steps": steps.mean().item()})
    return scores


def mean_score(scores: list[dict[str, float]]) -> dict[str, float]:
    """Average over all numbers of non-zero elements, which are equally frequent."""
    return {name: fmean(score[name] for score in scores) for name in ("accuracy", "steps")}


def train_parity(
    settings: ParitySettings, model: ParityPonderGRU, device: torch.device
) -> Iterator[dict[str, float]]:
    """Minimise L_Rec + β·L_Reg; yield losses, accuracy and steps after every epoch.

    settings: run_parity.py's flags. one_cycle rises from --lr to PEAK · lr in a fifth of the
    batches, then falls to almost 0.
    """
    n_elems, (non_zeros, _) = settings.n_elems, settings.non_zeros()
    loss_rec = ReconstructionLoss(nn.BCEWithLogitsLoss(reduction="none"))
    loss_reg = RegularizationLoss(settings.lambda_p, settings.max_steps).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=True)
    batches, cycle = settings.epochs * settings.n_batches, settings.schedule == "one_cycle"
    options = {"pct_start": 0.2, "div_factor": PEAK, "cycle_momentum": False}
    schedule = OneCycleLR(optimizer, PEAK * settings.lr, batches, **options) if cycle else None
    bar = progress(total=batches, desc="Training", unit="batch")
    for epoch in range(1, settings.epochs + 1):
        sums = torch.zeros(3, device=device)
        for _ in range(settings.n_batches):
            x, y = parity_batch(settings.batch_size, n_elems, non_zeros, device)
            p, y_hat, _, _ = model(x)
            rec, reg = loss_rec(p, y_hat, y), loss_reg(p)
            loss = rec + settings.beta * reg
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # as in the annotated PonderNet
            optimizer.step()
            if schedule:
                schedule.step()
            sums += torch.stack((loss, rec, reg)).detach()
            bar.update()
        losses = (sums / settings.n_batches).tolist()
        if not math.isfinite(losses[0]):
            raise UserError(f"the loss is {losses[0]} in epoch {epoch}: lower --lr {settings.lr}")
        score = mean_score(evaluate_parity(model, n_elems, non_zeros, 512, device))
        now = {"loss": f"{losses[0]:.4f}", "accuracy": f"{score['accuracy']:.4f}"}
        bar.set_postfix(now, refresh=False)
        yield {"epoch": epoch, **dict(zip(LOSSES, losses, strict=True)), **score}
    bar.close()
