"""Fitting the exit rule `optimal_stopping`, and the recalibration that it reads.

When is one more layer worth its price? Backward induction answers this from labelled examples, from
the last layer to the first (Longstaff and Schwartz, 2001): at each layer a regression on the
uncertainty predicts what going on gains, in right answers, less what it costs. An example exits
where nothing is gained. The gain falls as the uncertainty falls, so each layer gets one threshold.
The price of computation is the only number to choose.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from evaluation.sweep import Recording
from exit_lab.learnt import share_right
from exit_lab.settings import OPTIMAL_STOPPING
from modeling.configuration import EarlyExitConfig, ElbertConfig
from modeling.exits.rules import RULES, OptimalStopping
from modeling.keys import PRICES
from modeling.rules import Size, calibration_inputs, exit_scores, layer_answers

MOST_CLASSES = 20  # of a recalibration, whose numbers grow with the square of the classes
# How strongly a recalibration is held to what it would be without labels: log p of the label that
# a slope's distance 1 from there costs, twice.
PENALTY = 1.0
RIDGE = 20.0  # examples' worth of evidence that going on gains the same whatever the uncertainty


def fit_stopping(
    config: EarlyExitConfig, recording: Recording, rows: np.ndarray
) -> EarlyExitConfig:
    """Return a copy of the configuration with the rule and its recalibration fitted to some rows.

    rows: numbers of the examples; one to two hundred suffice.
    """
    fitted = copy.deepcopy(config)
    fitted.exit_calibration = fit_calibration(config, recording, rows)
    fitted.stopping_thresholds = fit_thresholds(fitted, recording, rows)
    return fitted


# The recalibration.


def fit_calibration(
    config: EarlyExitConfig, recording: Recording, rows: np.ndarray
) -> list[list[float]]:
    """Fit the rows of `exit_calibration`, a row for each layer; see `Recalibrated` for them.

    The row of a kept head changes nothing: with all layers, the model answers as it did without
    exits. No rows where there are more than MOST_CLASSES classes.
    """
    classes = config.label_count
    if classes > MOST_CLASSES:
        return []
    all_logits = recording.tensors["all_logits"][:, rows].double()  # (layers, examples, classes)
    labels = torch.as_tensor(recording.labels[rows])
    calibration = {}
    answers_before = torch.zeros_like(all_logits[0])
    for layer in config.exits:
        logits = all_logits[layer - 1]
        if layer == kept_head_layer(config):
            maps = unchanged(classes, has_value=classes == 1 and not config.is_multi_label)
        elif config.is_multi_label:
            maps = fit_labels(logits, labels.double())
        elif classes > 1:
            maps = fit_classes(logits, labels.long())
        else:
            maps = fit_values(logits, answers_before, labels.double())
            answers_before = maps[:, :1] + torch.cat([logits, answers_before], -1) @ maps[:, 1:].T
        calibration[layer] = [round(number, 6) for number in maps.flatten().tolist()]
    return [calibration[layer] for layer in config.newest_exits()]


def kept_head_layer(config: EarlyExitConfig) -> int | None:
    """Return the layer whose exit is the head of a fine-tuned classifier; None without one."""
    is_kept = isinstance(config, ElbertConfig) and config.keep_head
    return config.num_hidden_layers if is_kept else None


def unchanged(classes: int, has_value: bool) -> Tensor:
    """Make the maps that change no answer: (classes, 1 + classes), of a value (1, 3)."""
    return F.pad(torch.eye(classes, dtype=torch.double), (1, int(has_value)))


def fit_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """Fit each class's bias and slopes: (classes, 1 + classes).

    logits: (examples, classes); labels: (examples,) class ids.
    """
    inputs = calibration_inputs(logits)
    start = unchanged(logits.shape[1], has_value=False)

    def loss(maps: Tensor) -> Tensor:
        answers = maps[:, 0] + inputs @ maps[:, 1:].T
        return F.cross_entropy(answers, labels, reduction="sum")

    return fit_maps(loss, start)


def fit_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """Fit each label's bias and slope: (labels, 1 + labels), with slopes of other labels 0.

    logits: (examples, labels); labels: the same shape, of 0 and 1.
    """
    count = logits.shape[1]
    start = torch.tensor([0.0, 1.0], dtype=torch.double).expand(count, 2)

    def loss(maps: Tensor) -> Tensor:
        answers = maps[:, 0] + maps[:, 1] * logits
        return F.binary_cross_entropy_with_logits(answers, labels, reduction="sum")

    biases, slopes = fit_maps(loss, start).unbind(-1)
    return torch.cat([biases[:, None], torch.diag(slopes)], -1)


def fit_values(values: Tensor, answers_before: Tensor, labels: Tensor) -> Tensor:
    """Fit how values are mixed with the answers before: (1, 3), a bias and two slopes.

    The fit is the same in all units of the labels.

    values, answers_before: (examples, 1); labels: (examples,) scores.
    """
    start = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.double)
    centre, deviation = labels.mean(), label_variance(labels.numpy()) ** 0.5
    inputs = (torch.cat([values, answers_before], -1) - centre) / deviation
    if not answers_before.any():  # of the first layer
        inputs[:, 1] = 0
    targets = (labels - centre) / deviation

    def loss(maps: Tensor) -> Tensor:
        answers = maps[0, 0] + inputs @ maps[0, 1:]
        return F.mse_loss(answers, targets, reduction="sum") / 2

    maps = fit_maps(loss, start)
    slopes = maps[:, 1:]
    bias = deviation * maps[:, :1] + centre * (1 - slopes.sum(-1, keepdim=True))
    return torch.cat([bias, slopes], -1)


def fit_maps(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Minimise a loss of maps, held to `start` by a penalty on their slopes.

    start: (classes, 1 + slopes), the bias first, which is all but free.
    """
    strength = torch.full_like(start, PENALTY)
    strength[:, 0] = 1e-3

    def loss_and_gradient(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        maps = torch.from_numpy(numbers).view(start.shape).requires_grad_()
        with torch.enable_grad():
            total = loss(maps) + (strength * (maps - start).square()).sum() / 2
            (gradient,) = torch.autograd.grad(total, maps)
        return float(total.detach()), gradient.flatten().numpy()

    best = minimize(loss_and_gradient, start.flatten().numpy(), jac=True, method="L-BFGS-B")
    return torch.from_numpy(best.x).view(start.shape)


# The thresholds.


def fit_thresholds(
    config: EarlyExitConfig, recording: Recording, rows: np.ndarray
) -> list[list[float]]:
    """Fit the rows of `stopping_thresholds`: a price, then thresholds of all layers but the last.

    config: its `exit_calibration` is read.
    """
    tensors = {"all_logits": recording.tensors["all_logits"][:, rows]}
    any_rule = config.exit_rule(**{config.rule_key: "entropy"})
    exit_rows = [layer - 1 for layer in config.exits]
    answers = layer_answers(any_rule, tensors)[exit_rows]  # (exits, examples, classes)
    labels = recording.labels[rows]
    is_value = config.label_count == 1
    if config.is_multi_label:  # each label is an example of two classes, as in the rule
        answers = F.pad(answers.flatten(1)[..., None], (1, 0))
        labels = labels.ravel()
    scores = exit_scores(answers)
    rewards = rewards_of(scores.double().numpy(), labels)
    uncertainties = uncertainties_of(scores, is_value)
    costs = costs_of(recording, rows)[exit_rows]
    table = []
    for price in PRICES:
        if price == 0:  # all layers run, whatever the fit says: a setting that loses nothing
            thresholds = np.zeros(len(costs) - 1)
        else:
            thresholds = stopping_thresholds(rewards, uncertainties, price * costs, is_value)
        row = np.zeros(config.num_hidden_layers - 1)  # 0 where there is no exit
        row[exit_rows[:-1]] = thresholds
        table.append([price, *(round(float(threshold), 6) for threshold in row)])
    return table


def rewards_of(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return what each layer's answers are worth, (layers, examples).

    Of classes 1 where right, else 0; of values less their squared error, in label variances.

    scores: (layers, examples, classes); labels: (examples,).
    """
    if scores.shape[-1] == 1:
        return -np.square(scores[..., 0] - labels) / label_variance(labels)
    return share_right(scores.argmax(-1), labels, is_value=False)


def label_variance(labels: np.ndarray) -> float:
    """Return the variance of scores, or 1 where all are equal."""
    return float(np.var(labels)) or 1.0


def uncertainties_of(scores: Tensor, is_value: bool) -> np.ndarray:
    """Return the uncertainties that the rule sees at each layer: (layers, examples).

    scores: (layers, examples, classes).
    """
    rule_class: type[OptimalStopping] = RULES[OPTIMAL_STOPPING][is_value]
    rule = rule_class(exit_price=0.0, stopping_thresholds=[])
    layers, examples, classes = scores.shape
    scores_before = rule.start(Size((), examples, classes, layers), {})
    uncertainties = []
    for layer_scores in scores:
        uncertainties.append(rule.uncertainty(layer_scores, scores_before))
        scores_before = layer_scores
    return torch.stack(uncertainties).numpy()


def costs_of(recording: Recording, rows: np.ndarray) -> np.ndarray:
    """Return the mean cost of an exit at each layer, as a share of full depth: (layers,).

    FLOPs where they are recorded, else layers.
    """
    if recording.flops is not None:
        return recording.flops[:, rows].mean(1)
    layers = len(recording.tensors["all_logits"])
    return np.arange(1, layers + 1) / layers


def stopping_thresholds(
    rewards: np.ndarray, uncertainties: np.ndarray, costs: np.ndarray, is_value: bool
) -> np.ndarray:
    """Find the uncertainty below which stopping pays, at each layer but the last: (layers − 1,).

    rewards, uncertainties: (layers, examples); costs: (layers,), in units of reward.
    """
    # At the last layer everyone stops, so the worth of going on is known there. Each layer before
    # it is decided in the light of those behind: `worth` is what an example gains in the end if
    # it goes on from here and the later thresholds decide for it, (examples,).
    layers = len(rewards)
    thresholds = np.empty(layers - 1)
    worth = rewards[-1] - costs[-1]
    # All uncertainties are below `largest`.
    largest = 1 + 2 * float(uncertainties.max()) if is_value else 1.0
    for layer in reversed(range(layers - 1)):
        worth_here = rewards[layer] - costs[layer]  # of stopping here, (examples,)
        # The gain is regressed on the uncertainty, not taken as it is: an example's own gain is
        # known only with its label, the uncertainty also without.
        threshold = break_even(uncertainties[layer], worth - worth_here)
        thresholds[layer] = np.clip(threshold, 0.0, largest)
        # Who stops here has its reward from here; for the others nothing changes.
        worth = np.where(uncertainties[layer] < thresholds[layer], worth_here, worth)
    return thresholds


def break_even(uncertainties: np.ndarray, gain: np.ndarray) -> float:
    """Return the uncertainty at which the gain of going on is expected to be 0.

    By least squares on the standardised uncertainty, with a slope that is at least 0. Without a
    slope it is ∞ where nothing is gained, else −∞.

    uncertainties, gain: (examples,).
    """
    centre, spread, mean_gain = uncertainties.mean(), uncertainties.std(), gain.mean()
    if spread > 1e-6:
        standardised = (uncertainties - centre) / spread
        slope = standardised @ (gain - mean_gain) / (standardised @ standardised + RIDGE)
        # RIDGE pulls the slope to 0. A slope below 0 would let the uncertain exit and the sure go
        # on, which only chance can have made of few examples.
        if slope > 0:
            return float(centre - mean_gain * spread / slope)
    return -np.inf if mean_gain > 0 else np.inf
