"""Halting distributions: when a process stops that halts at step n with probability λ_n.

p_n = λ_n Π_{j<n} (1 − λ_j) is the distribution of the step. Training weighs the steps' losses by
p and pulls p to a prior; inference stops where a criterion says. A criterion is defined once:
`halting_step` decides one layer, `scan_halting` calls it over recorded layers.

Sources: PonderNet (Banino et al., 2021); PALBERT (Balagansky and Gavrilov, 2022) for the
deterministic exit; the public PonderALBERT for names and the form of its loss.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from modeling.configuration import HaltingRule, PonderAlbertConfig
from modeling.elbert.exits import exit_scores
from modeling.errors import UserError
from modeling.keys import PONDER_KEYS, checked

State = dict[str, torch.Tensor]


def floored_log(probability: torch.Tensor) -> torch.Tensor:
    """log p, with p = 0 as the smallest normal number: finite, and so is the gradient."""
    return probability.clamp_min(torch.finfo(probability.dtype).tiny).log()


class GeneralizedGeometricDist:
    """Distribution of the step at which a process stops, given each step's stop probability.

    p_n = λ_n Π_{j<n} (1 − λ_j), kept in logarithms, so that λ = 0 and λ = 1 are ordinary values.

    Args:
        stop_probabilities: λ, (batch, steps); or one λ for all, with `max_steps` and `batch_size`.
        device: where to put a distribution given by one λ.
    """

    def __init__(
        self,
        stop_probabilities: torch.Tensor | float,
        max_steps: int | None = None,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(stop_probabilities, torch.Tensor):
            if max_steps is None or batch_size is None:
                raise UserError("one stop probability for all needs max_steps and batch_size")
            if not 0 <= stop_probabilities <= 1:
                raise UserError(f"stop probability {stop_probabilities!r}: allowed is 0 to 1")
            shape = (batch_size, max_steps)
            stop_probabilities = torch.full(shape, float(stop_probabilities), device=device)
        self.stop_probabilities = stop_probabilities
        self.log_stop = floored_log(stop_probabilities)
        self.log_keep = floored_log(1 - stop_probabilities)

    @classmethod
    def from_logits(cls, logits: torch.Tensor) -> "GeneralizedGeometricDist":
        """λ = σ(logits), (batch, steps); exact, with gradient, however close to 0 or 1 λ is."""
        dist = cls(logits.sigmoid())
        dist.log_stop, dist.log_keep = F.logsigmoid(logits), F.logsigmoid(-logits)
        return dist

    @classmethod
    def from_log_pmf(cls, log_pmf: torch.Tensor) -> "GeneralizedGeometricDist":
        """The stop probabilities that give this distribution (batch, steps), which sums to 1."""
        log_rest = log_pmf.flip(1).logcumsumexp(1).flip(1)  # log Σ_{j≥n} p_j
        dist = cls((log_pmf - log_rest).exp())
        dist.log_stop = log_pmf - log_rest
        dist.log_keep = F.pad(log_rest[:, 1:], (0, 1), value=-torch.inf) - log_rest
        return dist

    def log_pmf(self, normalize: bool = True) -> torch.Tensor:
        """Logarithm of `pmf`, (batch, steps)."""
        not_before = F.pad(self.log_keep.cumsum(1)[:, :-1], (1, 0))  # Σ_{j<n} log(1 − λ_j)
        log_pmf = self.log_stop + not_before
        return log_pmf.log_softmax(1) if normalize else log_pmf

    def pmf(self, normalize: bool = True) -> torch.Tensor:
        """p_n, (batch, steps); normalised: given that the process stops within these steps."""
        return self.log_pmf(normalize).exp()

    def kl_div(self, target: "GeneralizedGeometricDist") -> torch.Tensor:
        """Mean over the batch of Σ_n target_n (log target_n − log self_n) = KL(target ‖ self).

        The direction is the published one; `prior.kl_div(model)` is KL(model ‖ prior), the
        regulariser of PonderNet's loss.
        """
        log_p, log_q = self.log_pmf(), target.log_pmf()
        return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)

    def expected_steps(self) -> torch.Tensor:
        """Σ_n n·p_n, (batch,)."""
        pmf = self.pmf()
        return pmf @ torch.arange(1, pmf.shape[1] + 1, device=pmf.device, dtype=pmf.dtype)

    def __repr__(self) -> str:
        batch, steps = self.stop_probabilities.shape
        return f"GeneralizedGeometricDist(batch={batch}, steps={steps})"


def prior(
    config: PonderAlbertConfig, batch: int, steps: int, device: torch.device
) -> GeneralizedGeometricDist:
    """The distribution over the first `steps` layers that the loss pulls to.

    geometric: λ_p at every layer. normal: p_n ∝ exp(−(n − 1/λ_p)²), as PALBERT has it.
    """
    halt = config.target_halt_probability
    if config.prior_type == "normal":
        layers = torch.arange(1.0, steps + 1, device=device)
        log_pmf = -((layers - 1 / halt) ** 2)
        return GeneralizedGeometricDist.from_log_pmf(log_pmf.log_softmax(0).expand(batch, -1))
    halts = torch.full((batch, steps), halt, device=device)
    if config.halt_normalization == "last_layer" and steps == config.num_hidden_layers:
        halts[:, -1] = 1.0
    return GeneralizedGeometricDist(halts)


def losses_of_steps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, or squared error for a single output, per answer."""
    steps, batch, classes = logits.shape
    if classes == 1:
        return (logits[..., 0] - labels.float()) ** 2
    repeated = labels.expand(steps, batch).flatten()
    return F.cross_entropy(logits.flatten(0, 1), repeated, reduction="none").view(steps, batch)


class PonderClassificationLoss(nn.Module):
    """The published loss: p-weighted loss of the layers + kl_penalty_factor · KL(p ‖ prior).

    The weighted term is a mean over layers and batch, as published: N times smaller than
    PonderNet's Σ_n p_n L_n, so that PonderNet's β is N · kl_penalty_factor.
    """

    def __init__(self, kl_penalty_factor: float = 5e-3) -> None:
        super().__init__()
        self.kl_penalty_factor = checked("kl_penalty_factor", kl_penalty_factor, PONDER_KEYS)

    def forward(
        self, result: dict[str, Any], labels: torch.Tensor | Sequence[float]
    ) -> dict[str, torch.Tensor]:
        """Scalars `total_loss`, `weighted_ce_loss` (squared errors for one label) and `kl_loss`.

        result: what the model answered; labels (batch,): class ids, or values for regression.
        """
        logits, dist = result["logits"], result["model_halt_dist"]
        losses = losses_of_steps(logits, torch.as_tensor(labels, device=logits.device))
        weighted = (losses * dist.pmf().T).mean()
        kl_loss = self.kl_penalty_factor * result["target_halt_dist"].kl_div(dist)
        return {"total_loss": weighted + kl_loss, "weighted_ce_loss": weighted, "kl_loss": kl_loss}


def start_halting(
    rule: HaltingRule, batch: int, classes: int, draws: torch.Tensor, device: torch.device
) -> State:
    """What a criterion remembers at depth 0: tensors with the batch as first dimension."""
    state = {
        "alive": torch.ones(batch, device=device),  # Π (1 − λ_j)
        "halt_probability": torch.zeros(batch, device=device),  # λ of the newest layer
    }
    if rule.exit_criteria == "sample":
        state["draw"] = draws
    if rule.exit_criteria == "expectation":
        state["mixed"] = torch.zeros(batch, classes, device=device)  # Σ p_j · answer_j
        state["mass"] = torch.zeros(batch, device=device)  # Σ p_j
    return state


def halting_step(
    rule: HaltingRule,
    logits: torch.Tensor,
    halt_probability: torch.Tensor,
    last: bool | torch.Tensor,
    state: State,
) -> tuple[torch.Tensor, torch.Tensor, State]:
    """What the criterion decides after one layer.

    threshold: exit where the halting CDF, 1 − Π (1 − λ_j), exceeds exit_thres (PALBERT's Q-exit).
    sample: the same with a threshold drawn uniformly for the example; by inversion of the CDF this
    halts with probability λ_n at each layer, as PonderNet does, and needs one draw an example.
    expectation: full depth; the answer is the mean of the layers' answers under p.

    Args:
        logits: (batch, classes) of this layer.
        halt_probability: λ (batch,).
        last: is it the last layer? One for all, or (batch,).

    Returns:
        the answer (batch, classes), who exits (batch,) or (settings, batch), the new state.
    """
    state = {**state, "halt_probability": halt_probability}
    if rule.exit_criteria == "expectation":
        logits, state = mix(logits, state)
    alive = state["alive"] * (1 - halt_probability)
    state["alive"] = alive
    if rule.exit_criteria == "expectation":
        done = torch.zeros_like(alive, dtype=torch.bool)
    else:
        threshold = state["draw"] if rule.exit_criteria == "sample" else rule.exit_thres
        done = 1 - alive > threshold
    return logits, done | last, state


def mix(logits: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
    """Answer so far, weighted by p: log of the mean probabilities; regression: the mean value."""
    tiny = torch.finfo(torch.float).tiny
    weight = (state["alive"] * state["halt_probability"]).clamp_min(tiny)  # p_n
    mixed = state["mixed"] + weight[:, None] * exit_scores(logits)
    mass = state["mass"] + weight
    mean = mixed / mass[:, None]
    answer = floored_log(mean) if logits.shape[-1] > 1 else mean
    return answer, {**state, "mixed": mixed, "mass": mass}


def scan_halting(
    rule: HaltingRule,
    all_logits: torch.Tensor,
    halt_probabilities: torch.Tensor,
    draws: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers and exit layers of recorded examples, as stepping through them would give.

    Args:
        rule: an exit_thres of shape (settings, 1) decides all settings at once.
        all_logits: (layers, batch, classes).
        halt_probabilities: (batch, layers).
        draws: (batch,) uniform numbers, for `sample`; drawn anew by default.

    Returns:
        answers (batch, classes) and exit layers (batch,), 1-based; or (settings, batch, …) each.
    """
    layers, batch, classes = all_logits.shape
    device = all_logits.device
    draws = torch.rand(batch, device=device) if draws is None else draws
    state = start_halting(rule, batch, classes, draws, device)
    answer, exit_layer = None, None
    for layer in range(layers):
        answer, done, state = halting_step(
            rule, all_logits[layer], halt_probabilities[:, layer], layer == layers - 1, state
        )
        if exit_layer is None:
            exit_layer = torch.full(done.shape, layers, device=device)
        exit_layer[done & (exit_layer > layer + 1)] = layer + 1
    if rule.exit_criteria != "expectation":
        answer = all_logits[exit_layer - 1, torch.arange(batch, device=device)]
    return answer, exit_layer
