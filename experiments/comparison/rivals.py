"""Published exit rules that `optimal_stopping` is compared with, on the same recorded answers.

Each function computes the outcomes of all settings of one rule; what it fits, it fits to the rows
`choosing`.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from evaluation.exit_metrics import at_exit
from experiments.comparison.methods import Outcomes
from experiments.comparison.recordings import Answers
from experiments.comparison.rules import quantiles
from modeling.rules import exit_scores, normalised_entropy

SHARES = np.linspace(0.02, 0.98, 49)  # of the examples that are left, which exit at each layer
SCHEDULE_PRICES = np.geomspace(0.01, 3, 24)  # of computation, in accuracy
# Chosen on rows 8,001 to 9,000 of SST-2's training set, which report nothing.
SCHEDULE_STEPS = 300
SCHEDULE_DECAY = 1e-3  # of the weights


def outcomes_at(answers: Answers, exit_layer: np.ndarray) -> Outcomes:
    """Look up right or wrong, and cost, at exits (settings, examples), 1-based."""
    return Outcomes(at_exit(answers.scores, exit_layer), at_exit(answers.cost, exit_layer))


def first_exit(exit_masks: np.ndarray) -> np.ndarray:
    """Find each example's first exit, 1-based: (…, examples) of (layers, …, examples) bool.

    At the last layer everyone exits.
    """
    exit_masks = exit_masks.copy()
    exit_masks[-1] = True
    return exit_masks.argmax(0) + 1


def by_shares(answers: Answers, choosing: np.ndarray) -> Outcomes:
    """Exit where the answer's probability is above the layer's threshold (Huang et al., 2018).

    The thresholds of MSDNet let a share q of the examples that are left exit at every layer. q is
    the setting.
    """
    confidence = exit_scores(torch.tensor(answers.logits)).amax(-1).numpy()  # (layers, examples)
    layers = len(confidence)
    exit_layers = [exits_at(confidence, [share] * layers, choosing) for share in SHARES]
    return outcomes_at(answers, np.array(exit_layers))


def exits_at(scores: np.ndarray, shares: Sequence[float], choosing: np.ndarray) -> np.ndarray:
    """Let those exit whose score is above their layer's threshold: exit layers (examples,).

    Args:
        scores: (layers, examples); all exit at the last layer, whatever its scores.
        shares: of the examples that are left, which exit at each layer. Thresholds are those that
            give these shares of the rows `choosing`.
    """
    left = choosing
    exit_masks = []
    for of_layer, share in zip(scores, shares, strict=True):
        threshold = np.quantile(of_layer[left], 1 - share) if len(left) else np.inf
        exit_masks.append(of_layer > threshold)
        left = left[of_layer[left] <= threshold]
    return first_exit(np.array(exit_masks))


def patient_and_confident(answers: Answers, choosing: np.ndarray) -> Outcomes:
    """Exit after so many layers in a row whose entropy is below a threshold (PCEE-BERT, 2022)."""
    entropy = normalised_entropy(exit_scores(torch.tensor(answers.logits))).numpy()
    layers = len(entropy)
    exit_layers = []
    for threshold, patience in itertools.product(
        quantiles(entropy[:, choosing]), range(1, layers + 1)
    ):
        streak = np.zeros(entropy.shape[1], dtype=int)
        exit_masks = []
        for of_layer in entropy:
            streak = np.where(of_layer < threshold, streak + 1, 0)
            exit_masks.append(streak >= patience)
        exit_layers.append(first_exit(np.array(exit_masks)))
    return outcomes_at(answers, np.array(exit_layers))


def learnt_schedule(answers: Answers, choosing: np.ndarray) -> Outcomes:
    """Exit by scores that are learnt for all layers together, at learnt shares (EENet, 2023).

    A score is linear in the largest probability, the entropy, the share of layers so far that gave
    the same class, and the layer's probabilities. Scores are learnt by gradient on held-out rows:
    they minimise the errors plus a price of computation, where an example exits with the
    probability sigmoid(score). As in EENet, a layer's threshold is then the score that lets the
    learnt share of the examples exit. The price is the setting, in place of EENet's budget.
    """
    inputs = schedule_inputs(answers)  # (layers, examples, inputs)
    weights = fit_schedule(answers, inputs, choosing)
    scores = torch.einsum("lei,pli->lpe", inputs, F.pad(weights, (0, 0, 0, 1)))
    reaches, exits = soft_exits(scores[:-1][..., choosing])
    shares = (exits.mean(-1) / reaches.mean(-1).clamp(min=1e-6)).numpy()  # (layers, prices)
    exit_layers = []
    for of_price, shares_of_price in zip(scores.numpy().swapaxes(0, 1), shares.T, strict=True):
        exit_layers.append(exits_at(of_price, shares_of_price.clip(0, 1), choosing))
    return outcomes_at(answers, np.array(exit_layers))


def fit_schedule(answers: Answers, inputs: torch.Tensor, choosing: np.ndarray) -> torch.Tensor:
    """Fit the scores of `learnt_schedule`: weights (prices, layers − 1, inputs).

    inputs: (layers, examples, inputs).
    """
    fitted = inputs[:-1, choosing]
    wrong = torch.tensor(1 - answers.scores[:, choosing], dtype=torch.float)
    cost = torch.tensor(answers.cost[:, choosing], dtype=torch.float)
    prices = torch.tensor(SCHEDULE_PRICES, dtype=torch.float)[:, None]
    layers, _, count = inputs.shape
    weights = torch.zeros(len(prices), layers - 1, count, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.05)
    for _ in range(SCHEDULE_STEPS):
        _, exits = soft_exits(torch.einsum("lei,pli->lpe", fitted, weights))
        loss = (exits * (wrong[:, None] + prices * cost[:, None])).sum(0).mean(-1).sum()
        loss = loss + SCHEDULE_DECAY * weights.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return weights.detach()


def soft_exits(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute how probably an example reaches a layer, and how probably it exits there.

    Args:
        scores: (layers − 1, …), of all layers but the last.

    Returns:
        Two probabilities, (layers, …) each.
    """
    goes_on = torch.cumprod(torch.sigmoid(-scores), 0)
    first = torch.ones_like(goes_on[:1])
    reaches = torch.cat([first, goes_on])
    exits = reaches - torch.cat([goes_on, torch.zeros_like(first)])
    return reaches, exits


def schedule_inputs(answers: Answers) -> torch.Tensor:
    """Compute what the scores of `learnt_schedule` read: (layers, examples, inputs)."""
    probabilities = exit_scores(torch.tensor(answers.logits, dtype=torch.float))
    classes = probabilities.argmax(-1)  # (layers, examples)
    agreement = []
    for layer in range(len(classes)):
        agreement.append((classes[: layer + 1] == classes[layer]).float().mean(0))
    columns = [
        torch.ones_like(agreement[0]).expand_as(classes),
        probabilities.amax(-1),
        normalised_entropy(probabilities),
        torch.stack(agreement),
    ]
    return torch.cat([torch.stack(columns, -1), probabilities], -1)
