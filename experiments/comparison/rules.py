"""The exit rules that are compared: the settings of each, and the exits under them.

The thresholds of a rule are quantiles, on the rows that choose, of what the rule compares with
them. So every rule is tried as finely as the others, wherever its numbers lie.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import torch

from evaluation.sweep import ORACLE, RANDOM_MIXTURE, Recording, scan_settings
from exit_lab.learnt import fit_learnt
from experiments.comparison.recordings import Answers
from modeling.configuration import EarlyExitConfig, ElbertConfig, PonderAlbertConfig
from modeling.exit_settings import Setting
from modeling.exits.rules import Learnt
from modeling.rules import Size, exit_scores, normalised_entropy

QUANTILES = 21  # thresholds for each layer
PRICES = np.append(np.geomspace(1e-3, 1e3, 400), 0)  # of computation, in score, for the oracle


class RuleSettings(NamedTuple):
    """The settings of one rule that are compared."""

    config: EarlyExitConfig  # whose exit keys hold where a setting has none
    rule: str  # its name in the configuration
    settings: list[Setting]


def all_settings(**values: Iterable[float]) -> list[Setting]:
    """Combine the values of each exit key; the last key varies fastest."""
    combinations = product(*values.values())
    return [dict(zip(values, combination, strict=True)) for combination in combinations]


def quantiles(values: np.ndarray) -> list[float]:
    """List thresholds that part the examples of each layer evenly, one below all and one above.

    values: (layers, examples).
    """
    levels = np.quantile(values, np.linspace(0, 1, QUANTILES), axis=1)
    return np.unique(np.r_[-1, levels.ravel(), levels.max() + 1]).tolist()


def patience_windows(answers: Answers) -> range:
    """List the windows of the rule `patience` that can be full by the last layer."""
    return range(1, len(answers.logits))


def elbert_config(answers: Answers) -> ElbertConfig:
    """Make a configuration of as many layers and classes as the answers have."""
    layers, _, classes = answers.logits.shape
    return ElbertConfig(
        num_hidden_layers=layers,
        num_hidden_groups=layers,
        id2label=dict.fromkeys(range(classes), "class"),
    )


# The settings of each rule. `choosing`: numbers of the rows that choose.


def entropy_settings(answers: Answers, choosing: np.ndarray) -> RuleSettings:
    """List settings of the rule `entropy`."""
    settings = all_settings(exit_thres=entropy_quantiles(answers, choosing))
    return RuleSettings(elbert_config(answers), "entropy", settings)


def window_settings(answers: Answers, choosing: np.ndarray) -> RuleSettings:
    """List settings of the rule `bias_1`: a confidence window, or a low entropy."""
    settings = all_settings(
        # In a window of n + 1 layers the class is repeated n times, which is a patience of n.
        cnt_thres=[window + 1 for window in patience_windows(answers)],
        exit_thres=entropy_quantiles(answers, choosing),
    )
    return RuleSettings(elbert_config(answers), "bias_1", settings)


def entropy_quantiles(answers: Answers, choosing: np.ndarray) -> list[float]:
    """List thresholds on the entropy."""
    probabilities = exit_scores(torch.tensor(answers.logits[:, choosing]))
    return quantiles(normalised_entropy(probabilities).numpy())


def patience_settings(answers: Answers, choosing: np.ndarray) -> RuleSettings:
    """List settings of the rule `patience`; with values, also by how much they may move."""
    config = elbert_config(answers)
    if answers.has_classes:
        return RuleSettings(config, "patience", all_settings(cnt_thres=patience_windows(answers)))
    moves = np.abs(np.diff(answers.logits[:, choosing, 0], axis=0))
    settings = all_settings(cnt_thres=patience_windows(answers), exit_thres=quantiles(moves))
    return RuleSettings(config, "patience", settings)


def learnt_settings(answers: Answers, choosing: np.ndarray) -> RuleSettings:
    """List settings of the rule `learnt`, which is fitted to the phrases as in `sweep_exits.py`."""
    phrases = answers.phrases
    if phrases is None:
        raise ValueError("the recording has no rows to fit the rule learnt to")
    recording = Recording({"all_logits": torch.tensor(phrases.logits)}, phrases.labels)
    all_rows = np.arange(len(phrases.labels))
    config = fit_learnt(elbert_config(answers), recording, all_rows)
    uncertainties = uncertainties_of(config, torch.tensor(answers.logits))
    return RuleSettings(
        config, "learnt", all_settings(exit_thres=quantiles(uncertainties[:, choosing]))
    )


def uncertainties_of(config: EarlyExitConfig, all_logits: torch.Tensor) -> np.ndarray:
    """Compute how probable the rule `learnt` finds an error, at all layers but the last.

    all_logits: (layers, examples, classes). Returns (layers − 1, examples).
    """
    # Where an example has one label, the configuration makes the rule itself, and no wrapper.
    rule = cast(Learnt, config.exit_rule(thres_name="learnt", exit_thres=0.0))
    layers, examples, classes = all_logits.shape
    scores_before = rule.start(Size((), examples, classes, layers), {})
    uncertainties = []
    for depth, logits in enumerate(all_logits[:-1], start=1):
        scores = rule.scores(logits)
        uncertainties.append(rule.uncertainty(scores, scores_before, depth).numpy())
        scores_before = scores
    return np.stack(uncertainties)


def halting_settings(answers: Answers, choosing: np.ndarray) -> RuleSettings:
    """List settings of the halting criterion `threshold`: on the probability of having halted."""
    if answers.halts is None:
        raise ValueError("the recording has no halting probabilities")
    halted = 1 - np.cumprod(1 - answers.halts, axis=0)  # (layers, examples)
    settings = all_settings(exit_thres=quantiles(halted[:-1, choosing]))
    return RuleSettings(PonderAlbertConfig(), "threshold", settings)


SETTINGS: dict[str, Callable[[Answers, np.ndarray], RuleSettings]] = {
    "entropy": entropy_settings,
    "windows": window_settings,
    "learnt": learnt_settings,
    "patience": patience_settings,
    "halting": halting_settings,
}


def rules_of(answers: Answers) -> list[str]:
    """List the rules that a network can have: `RANDOM_MIXTURE` first, then names of `SETTINGS`."""
    names = [RANDOM_MIXTURE]
    if answers.has_classes:  # predicted values have no entropy
        names += ["entropy", "windows"]
    if answers.phrases is not None:
        names.append("learnt")
    names.append("patience")
    if answers.halts is not None:
        names.append("halting")
    return names


# Exits.


def exits_of(answers: Answers, choosing: np.ndarray, rule: str) -> np.ndarray:
    """Find the exit layers under every setting of a rule: (settings, examples), 1-based.

    Args:
        choosing: numbers of the rows that choose.
        rule: a name of `SETTINGS`, or a baseline. `RANDOM_MIXTURE` has a setting for each layer, at
            which all examples exit: of these, a frontier mixes two. `ORACLE` has a setting for each
            of `PRICES`: an example exits where its score, less what its computation costs, is
            best.
    """
    layers, examples, _ = answers.logits.shape
    if rule == RANDOM_MIXTURE:
        return np.repeat(np.arange(1, layers + 1)[:, None], examples, axis=1)
    if rule == ORACLE:
        scores = answers.scores
        return np.stack([(scores - price * answers.cost).argmax(0) + 1 for price in PRICES])
    config, name, settings = SETTINGS[rule](answers, choosing)
    recorded = {"all_logits": torch.tensor(answers.logits)}
    if answers.halts is not None:
        recorded["halt_probabilities"] = torch.tensor(answers.halts.T)
    return scan_settings(config, name, settings, recorded)
