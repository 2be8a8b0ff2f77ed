"""What networks that learn to halt have learnt, and ACT's halting of single tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.numpy import load_file

from experiments.comparison.methods import Outcomes
from experiments.comparison.recordings import DEV, SST2_PARTS, config_of, load_rows, unit_flops
from modeling.configuration import AdaptiveConfig, AlbertActConfig
from modeling.ponder.distribution import GeneralizedGeometricDist, prior

EPSILONS = (0.01, 0.2, 0.4, 0.6, 0.8)  # act_epsilon of the recorded settings of ACT
PRIOR_KL = 0.01  # below it, halting is still the prior's

# Why a training failed.
ONE_ANSWER = "no better than one answer for all"
UNMOVED = "depth as at the start"


@dataclass(frozen=True, eq=False)
class TokenHalting:
    """ACT's recorded answers to SST-2, under each of `EPSILONS`: (settings, examples) each."""

    outcomes: Outcomes
    updates: np.ndarray  # mean over a text's tokens
    deviation: np.ndarray  # standard deviation between a text's tokens


def load_token_halting(path: Path) -> TokenHalting:
    """Load the recording of an ACT model."""
    tensors = load_file(path)
    labels, lengths = load_rows("SST-2")
    logits = tensors["all_logits"][:, SST2_PARTS[DEV]]
    tokens = tensors["tokens"][:, SST2_PARTS[DEV]]  # (settings, examples, possible updates)
    updates = np.arange(tokens.shape[-1])
    total = (tokens * updates).sum(-1)
    total_squares = (tokens * updates**2).sum(-1)
    mean = total / lengths
    variance = np.maximum(total_squares / lengths - mean**2, 0)  # rounding may make it negative
    config = cast(AlbertActConfig, config_of(path))
    flops = np.vectorize(config.adaptive_flops)(lengths, total)
    is_right = logits.argmax(-1) == labels
    return TokenHalting(
        outcomes=Outcomes(score=is_right.astype(float), cost=flops / unit_flops("SST-2")),
        updates=mean,
        deviation=np.sqrt(variance),
    )


def expected_depths(halts: np.ndarray) -> np.ndarray:
    """Compute the layer at which each example halts on average: (examples,).

    halts: λ, (layers, examples).
    """
    return GeneralizedGeometricDist(torch.tensor(halts.T)).expected_steps().numpy()


def halts_as_prior(halts: np.ndarray, config: AdaptiveConfig) -> bool:
    """Tell whether KL(p ‖ prior), the mean over the examples, is below `PRIOR_KL`.

    halts: λ, (layers, examples). config: which has the prior.
    """
    layers, examples = halts.shape
    target = prior(config, examples, layers, torch.device("cpu"))
    kl = target.kl_div(GeneralizedGeometricDist(torch.tensor(halts.T)))
    return bool(kl < PRIOR_KL)


def failure(scores: np.ndarray, labels: np.ndarray, unmoved: bool) -> str:
    """Say why a training failed, or "".

    A network learnt nothing where its best setting's score is within two standard errors of always
    answering the majority class, or the mean value.

    Args:
        scores: (settings, examples).
        labels: class ids, or values, (examples,).
        unmoved: whether the depth is still that from which training began.
    """
    best = scores[scores.mean(1).argmax()]
    score_of_one_answer = 0.0  # of the mean value, as a share of the variance explained
    are_classes = (labels == labels.round()).all()
    if are_classes:
        score_of_one_answer = np.bincount(labels.astype(int)).max() / len(labels)
    standard_error = best.std() / np.sqrt(len(best))
    if best.mean() < score_of_one_answer + 2 * standard_error:
        return ONE_ANSWER
    return UNMOVED if unmoved else ""
