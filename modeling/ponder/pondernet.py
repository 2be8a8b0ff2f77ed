"""PonderNet around any step function: how often it is applied is learned with the answer.

The step function makes of an input x and its state h_n the next state, the probability λ_n of
halting at step n, and the answer ŷ_n. Step n is the last with probability
p_n = λ_n Π_{j<n} (1 − λ_j). `ParityPonderGRU` and `ParityDataset` are PonderNet's own experiment.

Sources: PonderNet (Banino et al., 2021); the annotated PonderNet (labml), whose names, shapes and
losses these are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from .distribution import GeneralizedGeometricDist, floored_log


class PonderNet(nn.Module):
    """A module that applies a step function several times, and learns when to halt.

        net = PonderNet(step, max_steps=20)
        p, answers, sampled_p, sampled_answers = net(x)

    Args:
        step: module whose call `step(x, state)` returns the next state, λ (batch,) and the answer
            (batch, …). At the first step `state` is None. A subclass with a method `step` passes
            None.
        max_steps: largest number of steps, N; λ of step N counts as 1.

    Attributes:
        is_halt: whether to stop once every example has halted. The outputs then have as many steps
            as were run.
    """

    step: Callable[..., Any]

    def __init__(self, step: nn.Module | None, max_steps: int) -> None:
        super().__init__()
        if step is not None:
            self.step = step
        self.max_steps = max_steps
        self.is_halt = False

    def forward(self, x: Any) -> tuple[Tensor, ...]:
        """Return p (steps, batch), ŷ (steps, batch, …), and p (batch,) and ŷ of a sampled step."""
        answers, halting, draws = self.run(x)
        p = halting.pmf(normalize=False).T
        steps = sampled_steps(p, draws) - 1
        rows = torch.arange(len(draws), device=draws.device)
        return p, answers, p[steps, rows], answers[steps, rows]

    def run(self, x: Any) -> tuple[Tensor, GeneralizedGeometricDist, Tensor]:
        """Return ŷ (steps, batch, …), when to halt, and the draws (batch,) that decide it."""
        state, halt, answer = self.step(x, None)
        draws = torch.rand_like(halt)
        not_halted = torch.ones_like(halt)
        answers = []
        halts = []  # λ of each step, (batch,)
        for step in range(1, self.max_steps + 1):
            if step > 1:
                state, halt, answer = self.step(x, state)
            halts.append(torch.ones_like(halt) if step == self.max_steps else halt)
            answers.append(answer)
            not_halted = not_halted * (1 - halt)
            if self.is_halt and (1 - not_halted > draws).all():
                break
        return torch.stack(answers), GeneralizedGeometricDist(torch.stack(halts, dim=1)), draws


def sampled_steps(p: Tensor, draws: Tensor) -> Tensor:
    """Return the steps (batch,), 1-based, at which the CDF of p (steps, batch) passes `draws`."""
    # Rounding may leave the CDF a little below 1.
    return ((p.cumsum(0) <= draws).sum(0) + 1).clamp_max(len(p))


def parity_batch(
    batch: int, n_elems: int, non_zeros: range, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Draw vectors x (batch, n_elems) of 1, -1 and 0, and their parity y (batch,), both float32.

    y is 1 for an odd count of ones. The number of non-zero elements is uniform over the range
    `non_zeros`; their positions and signs are random.
    """
    counts = torch.randint(non_zeros.start, non_zeros.stop, (batch, 1), device=device)
    ranks = torch.rand(batch, n_elems, device=device).argsort(1)  # a random permutation
    signs = torch.randint(0, 2, (batch, n_elems), device=device) * 2 - 1
    x = (ranks < counts) * signs
    y = (x == 1).sum(1) % 2
    return x.float(), y.float()


class ParityDataset(Dataset):
    """A data set of random vectors and their parity, drawn anew at every access.

    Between one and all of a vector's elements are 1 or −1, the others 0.

    Args:
        n_samples: number of vectors.
        n_elems: number of elements of a vector.
    """

    def __init__(self, n_samples: int, n_elems: int = 64) -> None:
        self.n_samples = n_samples
        self.n_elems = n_elems

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Draw x (n_elems,) of 1, -1 and 0, float32, and y, int64: 1 for an odd number of ones.

        Raises IndexError for an index outside of the data set, which ends an iteration.
        """
        if not -self.n_samples <= index < self.n_samples:
            raise IndexError(f"vector {index} of {self.n_samples}")
        x, y = parity_batch(1, self.n_elems, range(1, self.n_elems + 1))
        return x[0], y[0].long()


class ParityPonderGRU(PonderNet):
    """PonderNet's parity model: a GRU cell as step function, with a head for ŷ and one for λ.

    The state h_n is the cell applied n times to the same input x (batch, n_elems); ŷ is the logit
    of an odd number of ones.

    Args:
        n_elems: length of the vectors.
        n_hidden: size of the state.
        max_steps: as in `PonderNet`.
    """

    def __init__(self, n_elems: int, n_hidden: int, max_steps: int) -> None:
        super().__init__(None, max_steps)
        self.n_hidden = n_hidden
        self.gru = nn.GRUCell(n_elems, n_hidden)
        self.output_layer = nn.Linear(n_hidden, 1)
        self.lambda_layer = nn.Linear(n_hidden, 1)
        self.lambda_prob = nn.Sigmoid()

    # A method takes the place of the module.
    def step(  # pyrefly: ignore[bad-override-mutable-attribute]
        self, x: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next state (batch, n_hidden), λ (batch,) and ŷ (batch,)."""
        next_state = self.gru(x, state)
        halt = self.lambda_prob(self.lambda_layer(next_state))[:, 0]
        return next_state, halt, self.output_layer(next_state)[:, 0]

    def run(self, x: Tensor) -> tuple[Tensor, GeneralizedGeometricDist, Tensor]:
        """Run as `PonderNet.run`; all steps in one call where none can be left out."""
        if self.is_halt:
            return super().run(x)
        draws = torch.rand(len(x), device=x.device)
        # h_1 … h_N, (steps, batch, n_hidden): the cell over a constant sequence.
        hidden, _ = torch.gru(
            x.expand(self.max_steps, *x.shape),
            x.new_zeros(1, len(x), self.n_hidden),
            [self.gru.weight_ih, self.gru.weight_hh, self.gru.bias_ih, self.gru.bias_hh],
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=False,
        )
        halts = self.lambda_layer(hidden)[..., 0].T  # logits of λ, (batch, steps)
        halts = F.pad(halts[:, :-1], (0, 1), value=torch.inf)  # λ_N = 1
        dist = GeneralizedGeometricDist.from_logits(halts)
        return self.output_layer(hidden)[..., 0], dist, draws


class ReconstructionLoss(nn.Module):
    """The reconstruction loss, L_Rec = Σ_n p_n L(y, ŷ_n), mean over the batch.

    loss_func: L without reduction, (batch, …) and (batch, …) -> (batch,); called for each step.
    """

    def __init__(self, loss_func: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.loss_func = loss_func

    def forward(self, p: Tensor, y_hat: Tensor, y: Tensor) -> Tensor:
        """Compute the scalar from p (steps, batch), y_hat (steps, batch, …) and y (batch, …)."""
        losses = torch.stack([self.loss_func(answer, y) for answer in y_hat])
        return (p * losses).sum(0).mean()


class RegularizationLoss(nn.Module):
    """The regulariser, L_Reg = Σ_n g_n (log g_n − log p_n), mean over the batch.

    The prior is g_n = λ_p (1 − λ_p)^(n−1). As in the annotated PonderNet it stands first in the KL
    divergence, and is cut off at `max_steps` without being normalised.

    Args:
        lambda_p: λ_p, in (0, 1].
        max_steps: the most steps that p may have.
    """

    p_g: Tensor  # the prior, (max_steps,)

    def __init__(self, lambda_p: float, max_steps: int = 1_000) -> None:
        super().__init__()
        prior = GeneralizedGeometricDist(lambda_p, max_steps, 1).pmf(normalize=False)
        self.register_buffer("p_g", prior[0])
        self.kl_div = nn.KLDivLoss(reduction="batchmean")

    def forward(self, p: Tensor) -> Tensor:
        """Compute the scalar from p (steps, batch)."""
        target = self.p_g[: len(p)].expand(p.shape[1], -1)
        return self.kl_div(floored_log(p.T), target)
