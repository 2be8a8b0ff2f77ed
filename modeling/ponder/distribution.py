"""Halting: the distribution over the layers at which a process stops.

A process that halts at step n with probability λ_n, if it has not before, stops there with
probability p_n = λ_n Π_{j<n} (1 − λ_j).

Sources: PonderNet (Banino et al., 2021); PALBERT (Balagansky and Gavrilov, 2022) for the normal
prior; the public PonderALBERT for names.
"""

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AlbertConfig


def floored_log(probability: Tensor) -> Tensor:
    """Return log p, with p = 0 taken for the smallest normal number.

    So the logarithm and its gradient are finite.
    """
    return probability.clamp_min(torch.finfo(probability.dtype).tiny).log()


class GeneralizedGeometricDist:
    """Distribution of the step at which a process stops, given each step's stop probability.

    p_n = λ_n Π_{j<n} (1 − λ_j), kept in logarithms, so that λ = 0 and λ = 1 are ordinary values.

    Args:
        stop_probabilities: λ, (batch, steps); or one number for all steps and examples, which needs
            the next two.
        max_steps: the number of steps.
        batch_size: the number of examples.
        device: where to put a distribution given by one number.

    Raises:
        TypeError: one number is given without `max_steps` or `batch_size`.
    """

    def __init__(
        self,
        stop_probabilities: Tensor | float,
        max_steps: int | None = None,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(stop_probabilities, Tensor):
            if max_steps is None or batch_size is None:
                raise TypeError("one stop probability for all steps needs max_steps and batch_size")
            shape = (batch_size, max_steps)
            stop_probabilities = torch.full(shape, float(stop_probabilities), device=device)
        self.stop_probabilities = stop_probabilities
        self.log_stop = floored_log(stop_probabilities)  # log λ, (batch, steps)
        self.log_keep = floored_log(1 - stop_probabilities)  # log (1 − λ), (batch, steps)

    def __repr__(self) -> str:
        return "GeneralizedGeometricDist()"

    @classmethod
    def from_logits(cls, logits: Tensor) -> "GeneralizedGeometricDist":
        """Make the distribution of λ = σ(logits), (batch, steps).

        It is exact, and so is its gradient, however close to 0 or 1 λ is.
        """
        dist = cls(logits.sigmoid())
        dist.log_stop = F.logsigmoid(logits)
        dist.log_keep = F.logsigmoid(-logits)
        return dist

    def log_pmf(self, normalize: bool = True) -> Tensor:
        """Return the logarithm of `pmf`, (batch, steps)."""
        not_before = F.pad(self.log_keep.cumsum(1)[:, :-1], (1, 0))  # Σ_{j<n} log(1 − λ_j)
        log_pmf = self.log_stop + not_before
        return log_pmf.log_softmax(1) if normalize else log_pmf

    def pmf(self, normalize: bool = True) -> Tensor:
        """Return p_n, (batch, steps); normalised, given that the process stops in these steps."""
        return self.log_pmf(normalize).exp()

    def kl_div(self, target: "GeneralizedGeometricDist") -> Tensor:
        """Compute KL(target ‖ self) = Σ_n target_n (log target_n − log self_n).

        The scalar is the mean over the batch. The direction is the published one:
        `prior.kl_div(model)` is KL(model ‖ prior), the regulariser of PonderNet's loss.
        """
        log_self = self.log_pmf()
        log_target = target.log_pmf()
        return F.kl_div(log_self, log_target, reduction="batchmean", log_target=True)

    def expected_steps(self) -> Tensor:
        """Return Σ_n n·p_n, (batch,)."""
        pmf = self.pmf()
        return pmf @ torch.arange(1, pmf.shape[1] + 1, device=pmf.device, dtype=pmf.dtype)


def prior(
    config: AlbertConfig, batch: int, steps: int, device: torch.device
) -> GeneralizedGeometricDist:
    """Return the prior that the loss pulls the model's halting distribution to.

    With λ_p = `target_halt_probability`, a geometric prior has λ_p at every layer, and a normal one
    p_n ∝ exp(−(n − 1/λ_p)²), as in PALBERT.

    Args:
        config: of a ponder model.
        batch: the number of examples.
        steps: the number of layers, counted from the first.
        device: where to put it.
    """
    halt = config.target_halt_probability
    if config.prior_type == "normal":
        return normal_prior(1 / halt, batch, steps, device)
    halts = torch.full((batch, steps), halt, device=device)
    if config.halt_normalization == "last_layer" and steps == config.num_hidden_layers:
        halts[:, -1] = 1.0
    return GeneralizedGeometricDist(halts)


def normal_prior(
    mean: float, batch: int, steps: int, device: torch.device
) -> GeneralizedGeometricDist:
    """Return the distribution p_n ∝ exp(−(n − mean)²); see `prior`."""
    layers = torch.arange(1.0, steps + 1, device=device)
    log_pmf = (-((layers - mean) ** 2)).log_softmax(0).expand(batch, -1)  # (batch, steps)
    log_rest = log_pmf.flip(1).logcumsumexp(1).flip(1)  # log Σ_{j≥n} p_j
    log_stop = log_pmf - log_rest
    dist = GeneralizedGeometricDist(log_stop.exp())
    # Far into the tail λ itself rounds; the logarithms are exact.
    dist.log_stop = log_stop
    dist.log_keep = F.pad(log_rest[:, 1:], (0, 1), value=-torch.inf) - log_rest
    return dist
