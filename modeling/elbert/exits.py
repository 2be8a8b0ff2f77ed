"""Exit classifiers and exit rules: what a layer answers, and when the answer is good enough.

A rule is defined once. `decide` looks at the exits' answers so far, most recent first; inference
calls it after every layer, `scan` calls it over a recorded (layers, batch, classes) tensor, and
both can do so for many settings at once. A layer not reached yet is NaN, and a comparison with
NaN is false: no window holds before it is full.

Sources: ELBERT (Xie et al., 2021) for bias_1/2/3; DeeBERT (Xin et al., 2020) for entropy; PABEE
(Zhou et al., 2020) for patience.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from modeling.albert import ExitLinear, Pooler
from modeling.configuration import ElbertConfig, ExitRule


def first_state(hidden: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    return hidden[:, 0]


def masked_mean(hidden: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    if real is None:
        return hidden.mean(1)
    return (hidden * real).sum(1) / real.sum(1)


def masked_max(hidden: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
    if real is not None:
        hidden = hidden.masked_fill(~real, torch.finfo(hidden.dtype).min)
    return hidden.amax(1)


POOLINGS = {"cls": first_state, "mean": masked_mean, "max": masked_max}


def pool(hidden: torch.Tensor, mask: torch.Tensor | None, pooler_input: str) -> torch.Tensor:
    """What an exit sees of a layer: (batch, length, hidden) -> (batch, hidden).

    `mask` is (batch, 1, 1, length) bool, None without padding. Means and maxima run over real
    tokens only. A name with a hyphen is the sum of its two parts, as published.
    """
    real = None if mask is None else mask[:, 0, 0, :, None]  # (batch, length, 1)
    first, _, second = pooler_input.partition("-")
    pooled = POOLINGS[first](hidden, real)
    return pooled + POOLINGS[second](hidden, real) if second else pooled


class ExitClassifier(nn.Module):
    """An exit: pooler, then one or two linear layers, under the published names."""

    def __init__(self, config: ElbertConfig) -> None:
        super().__init__()
        self.config = config
        self.pooler = None if config.use_out_pooler else Pooler(config, config.fc_size1)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        if config.use_fc2:
            self.classifier1 = ExitLinear(config.fc_size1, config.fc_size2)
            self.classifier2 = ExitLinear(config.fc_size2, config.num_labels)
        else:
            self.classifier = ExitLinear(config.fc_size1, config.num_labels)

    def forward(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, shared_pooler: Pooler
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All tensors of an exit check: (batch, length, hidden) -> its answers and their scores.

        Both are (batch, num_labels) float32. This is what `compilation.py` compiles.
        """
        logits = self.classify(pool(hidden, mask, self.config.pooler_input), shared_pooler)
        return logits, exit_scores(logits)

    def classify(self, pooled: torch.Tensor, shared_pooler: Pooler) -> torch.Tensor:
        """(..., hidden) -> logits (..., num_labels), float32 as the thresholds are."""
        features = (self.pooler or shared_pooler)(pooled)
        if self.training:  # a call that does nothing is 3% of a check
            features = self.dropout(features)
        if hasattr(self, "classifier"):
            return self.classifier(features).float()
        return self.classifier2(self.classifier1(features).tanh()).float()


def exit_scores(logits: torch.Tensor) -> torch.Tensor:
    """What a rule reads: class probabilities, or the predicted value itself for regression."""
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits


def normalised_entropy(probabilities: torch.Tensor) -> torch.Tensor:
    """Entropy of (..., classes) over log K, in [0, 1]."""
    classes = probabilities.shape[-1]
    return torch.special.entr(probabilities).sum(-1) / math.log(max(classes, 2))


def empty_history(
    num_layers: int, batch: int, classes: int, device: torch.device | None = None
) -> torch.Tensor:
    """(num_layers, batch, classes) of NaN: no layer has answered yet."""
    return torch.full((num_layers, batch, classes), math.nan, device=device)


def remember(history: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """`history` with the newest answers (batch, classes) in front."""
    return torch.cat((scores[None], history[:-1]))


def leaders(recent: torch.Tensor, window_score: str) -> tuple[torch.Tensor, ...]:
    """Which class leads, by how much, and the scores whose course a window follows.

    recent (layers, batch, classes) -> top (layers, batch) int, lead (layers, batch), and
    (layers, batch, classes or 2). With two classes p_top1 − p_top2 > 2·margin is the published
    p > 0.5 + margin. `class0` looks at class 0 against 0.5 however many classes there are, as the
    published code does: its two sides stand in for classes.
    """
    if window_score == "class0":
        first = recent[..., 0]
        return (first < 0.5).long(), (2 * first - 1).abs(), torch.stack((first, -first), -1)
    values, indices = recent.topk(2)
    return indices[..., 0], values[..., 0] - values[..., 1], recent


def over_window(summary: torch.Tensor, count: int | torch.Tensor) -> torch.Tensor:
    """Entry of `summary` (windows, batch) for windows of `count` layers: (batch,) or
    (settings, batch) for a `count` of shape (settings, 1)."""
    return summary[count - 1] if isinstance(count, int) else summary[count.flatten() - 1]


def spread(values: torch.Tensor) -> torch.Tensor:
    """Maximum minus minimum of the k most recent values, for k = 1..layers: (layers, batch)."""
    return values.cummax(0).values - values.cummin(0).values


def same_leader(rule: ExitRule, recent: torch.Tensor) -> torch.Tensor:
    """bias_1: over the window the same class leads, each time by more than 2·margin."""
    top, lead, _ = leaders(recent, rule.window_score)
    smallest = lead.masked_fill(top != top[0], -1.0).cummin(0).values
    return over_window(smallest, rule.cnt_thres) > 2 * rule.margin


def rising_leader(rule: ExitRule, recent: torch.Tensor) -> torch.Tensor:
    """bias_2: the window's first layer leads, and its class's probability never falls in it."""
    top, lead, followed = leaders(recent, rule.window_score)
    steps = (followed[:-1] >= followed[1:]).int().cummin(0).values  # (layers − 1, batch, classes)
    rising = torch.cat((torch.ones_like(followed[:1], dtype=torch.int), steps))
    opener_rising = rising.gather(-1, top[..., None])[..., 0].bool()
    opener_leads = over_window(lead, rule.cnt_thres) > 2 * rule.margin
    return opener_leads & over_window(opener_rising, rule.cnt_thres)


def steady_leader(rule: ExitRule, recent: torch.Tensor) -> torch.Tensor:
    """bias_3: bias_1's window holds and that class's probability moves by at most range_tmp."""
    top, _, followed = leaders(recent, rule.window_score)
    newest = top[0][None, :, None].expand(len(recent), -1, 1)
    moved = spread(followed.gather(-1, newest)[..., 0])
    return same_leader(rule, recent) & (over_window(moved, rule.cnt_thres) <= rule.range_tmp)


def steady_value(rule: ExitRule, recent: torch.Tensor) -> torch.Tensor:
    """The window rules for regression: the last cnt_thres values lie within range_tmp."""
    return over_window(spread(recent[..., 0]), rule.cnt_thres) <= rule.range_tmp


def patient(rule: ExitRule, recent: torch.Tensor) -> torch.Tensor:
    """patience: cnt_thres layers in a row have each agreed with the layer before them."""
    if recent.shape[-1] == 1:
        change = (recent[:-1, :, 0] - recent[1:, :, 0]).abs().cummax(0).values
        change = torch.cat((change, torch.full_like(recent[:1, :, 0], math.nan)))
        return over_window(change, rule.cnt_thres) < rule.exit_thres
    top = recent.argmax(-1)
    agrees = (top[:-1] == top[1:]) & ~recent[1:, :, 0].isnan()
    agrees = torch.cat((agrees, torch.zeros_like(top[:1], dtype=torch.bool)))
    return over_window(agrees.int().cummin(0).values, rule.cnt_thres) > 0


def sure(rule: ExitRule, newest: torch.Tensor) -> torch.Tensor:
    """The rules on one layer's probabilities alone; a regression value has none: never sure."""
    if newest.shape[-1] == 1:
        newest = newest * math.nan
    if rule.thres_name == "logits":
        return newest.amin(-1) < rule.exit_thres
    if rule.thres_name == "max_prob":
        # As a distance to 1: 1 − exit_thres rounds differently for a number and for a tensor.
        return 1 - newest.amax(-1) < rule.exit_thres
    return normalised_entropy(newest) < rule.exit_thres


WINDOWS = {
    "bias_1": same_leader,
    "bias_2": rising_leader,
    "bias_3": steady_leader,
    "patience": patient,
}


def window_of(rule: ExitRule, classes: int) -> Callable | None:
    """What the rule asks of several layers together, None if it looks at the newest alone."""
    if classes == 1 and rule.thres_name.startswith("bias"):
        return steady_value
    return WINDOWS.get(rule.thres_name)


def decide(rule: ExitRule, history: torch.Tensor) -> torch.Tensor:
    """Does each example exit after its newest layer?

    Args:
        rule: settings; a number of shape (settings, 1) decides all settings at once.
        history: (layers, batch, classes) scores, most recent first. Layers not reached are NaN,
            or left out if nobody has reached them.

    Returns:
        bool, (batch,), or (settings, batch).
    """
    by_window = window_of(rule, history.shape[-1])
    fires = None if rule.thres_name == "patience" else sure(rule, history[0])
    if by_window is None:
        return fires
    if isinstance(rule.cnt_thres, int):
        if len(history) < rule.cnt_thres:  # nobody's window is full
            return history.new_zeros(history.shape[1], dtype=torch.bool) if fires is None else fires
        history = history[: rule.cnt_thres + 1]  # patience compares with one layer more
    holds = by_window(rule, history)
    return holds if fires is None else fires | holds


def scan(rule: ExitRule, all_logits: torch.Tensor) -> torch.Tensor:
    """Exit layer (1-based, int64) of every example from its recorded answers.

    all_logits (layers, batch, classes) -> (batch,), or (settings, batch). An example for which
    the rule never fires exits at the last layer.
    """
    layers, batch, classes = all_logits.shape
    history = empty_history(layers, batch, classes, all_logits.device)
    exit_layer = None
    for layer, scores in enumerate(exit_scores(all_logits), start=1):
        history = remember(history, scores)
        fires = decide(rule, history)
        if exit_layer is None:
            exit_layer = torch.full(fires.shape, layers, device=fires.device)
        exit_layer[fires & (exit_layer > layer)] = layer
    return exit_layer
