"""Exit rules against a plain rewrite of the documented table, and ties against tables by hand."""

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from elbert import ElbertConfig
from modeling.errors import UserError
from modeling.exits.rules import RULES as TABLE
from modeling.keys import EXIT_KEYS
from modeling.rules import (
    ExitRule,
    LayerOutput,
    Size,
    exit_scores,
    layer_answers,
    scan as scan_recorded,
    scan_answers,
)

RULES = tuple(TABLE)
# At prices of 0, 0.5 and 2: uncertainties below which examples exit at layers 1, 2 and 3.
STOPPING_THRESHOLDS = [[0.0, 0.1, 0.3, 0.05], [0.5, 0.45, 0.3, 0.2], [2.0, 0.95, 0.5, 0.6]]


def rule_of(thres_name: str = "bias_1", **settings) -> SimpleNamespace:
    """The settings of a rule, the defaults of keys that are not given."""
    defaults = {name: key.default for name, key in EXIT_KEYS.items()}
    defaults["learnt_weights"] = [
        [0.3, 0.8, 0.4],
        [-0.2, 1.0, 0.3],
    ]  # all layers after share the last
    defaults["stopping_thresholds"] = STOPPING_THRESHOLDS
    return SimpleNamespace(**{**defaults, "thres_name": thres_name, **settings})


def made(settings: SimpleNamespace, classes: int) -> ExitRule:
    return ElbertConfig(num_labels=classes).exit_rule(**vars(settings))


def scan(settings: SimpleNamespace, all_logits: torch.Tensor) -> torch.Tensor:
    return scan_recorded(made(settings, all_logits.shape[-1]), {"all_logits": all_logits})


def exit_of(table, thres_name, **settings) -> int:
    """Where one example exits whose probabilities by layer are exactly `table`'s."""
    scores = torch.tensor(table)[:, None]
    layers, batch, classes = scores.shape
    rule = made(rule_of(thres_name, **settings), classes)
    rule.scores = lambda logits: logits
    state = rule.start(Size((), batch, classes, layers), {})
    for layer, newest in enumerate(scores, start=1):
        state, fires = rule.decide(LayerOutput(newest), state, layer)
        if fires:
            return layer
    return layers


# Probabilities of class 0 by layer, two classes.
def two(*first) -> list[list[float]]:
    return [[p, 1 - p] for p in first]


def case(thres_name: str, exit_layer: int, table: list[list[float]], **settings) -> tuple:
    """Where `table` exits; entropy never fires unless `exit_thres` is given."""
    return table, {"thres_name": thres_name, "exit_thres": 0.0, **settings}, exit_layer


EVEN = two(0.6, 0.6, 0.6, 0.6)
VALUES = [[1.0], [2.0], [2.25], [2.125], [2.25]]  # of a regression
PRICED = [[0.5, 0.0, 0.25], [1.5, 0.5, 0.75]]
CLOSER = [[1.0], [1.25], [1.375], [1.5], [9.0]]


@pytest.mark.parametrize(
    ("table", "settings", "expected"),
    [
        case("entropy", 3, two(0.5, 0.5, 0.5), exit_thres=1.0),  # strict
        case("entropy", 3, two(1.0, 1.0, 1.0), exit_thres=0.0),  # an entropy of exactly 0
        case("entropy", 1, two(1.0, 1.0, 1.0), exit_thres=1e-6),
        case("logits", 3, two(0.5, 0.25, 0.125), exit_thres=0.25),  # strict
        case("max_prob", 3, two(0.5, 0.75, 0.875), exit_thres=0.25),  # strict
        case("bias_1", 5, two(0.75, 0.75, 0.75, 0.875, 0.875), margin=0.25, cnt_thres=2),  # strict
        case("bias_1", 4, two(0.5, 0.5, 0.6, 0.6, 0.5), cnt_thres=2),  # nobody leads at 0.5
        case("bias_2", 3, EVEN, cnt_thres=3),  # equal is fine
        case("bias_2", 3, two(0.75, 0.8, 0.85, 0.9), margin=0.25, cnt_thres=2),  # strict
        case("bias_3", 2, two(0.25, 0.125, 0.0625, 0.03125), range_tmp=0.125, cnt_thres=2),
        case("patience", 3, two(0.6, 0.6, 0.6), cnt_thres=3),  # 3 agreements need 4 layers
        # Of a regression.
        *(case(f"bias_{n}", 3, VALUES, cnt_thres=2, range_tmp=0.25) for n in (1, 2, 3)),
        case("patience", 3, CLOSER, exit_thres=0.25, cnt_thres=1),
        # Thresholds 0.25 and 0.5 at a price of 1, halfway between two rows; then the last row.
        case("optimal_stopping", 2, two(0.75, 0.75), exit_price=1.0, stopping_thresholds=PRICED),
        case("optimal_stopping", 1, two(0.75, 0.75), exit_price=9.0, stopping_thresholds=PRICED),
        case("optimal_stopping", 4, VALUES, exit_price=0.5, stopping_thresholds=PRICED),
    ],
)
def test_comparisons_are_strict_where_the_page_says_so(table, settings, expected):
    assert exit_of(table, **settings) == expected


# A rewrite of docs/configuration.md's table, one example and one layer at a time.


class TooClose(Exception):
    """A comparison that float32 rounding decides; such an example tells nothing."""


def less(a: float, b: float) -> bool:
    if abs(a - b) < 1e-5:
        raise TooClose
    return a < b


def leader(p: list[float], score: str) -> tuple[int, float]:
    """The leading class (class0: side) and its lead."""
    if score == "class0":
        return (0 if p[0] > 0.5 else 1), abs(2 * p[0] - 1)
    order = sorted(range(len(p)), key=lambda i: -p[i])
    return order[0], p[order[0]] - p[order[1]]


def followed(p: list[float], side: int, score: str) -> float:
    return (p[0] if side == 0 else -p[0]) if score == "class0" else p[side]


def low_entropy(p: list[float], rule: SimpleNamespace) -> bool:
    entropy = -sum(x * math.log(x) for x in p if x > 0) / math.log(len(p))
    return less(entropy, rule.exit_thres)


def window_holds(seen: list[list[float]], rule: SimpleNamespace) -> bool:
    if len(seen) < rule.cnt_thres:
        return False
    window = seen[-rule.cnt_thres :]
    if len(window[0]) == 1:
        values = [p[0] for p in window]
        return not less(rule.range_tmp, max(values) - min(values))
    leads = [leader(p, rule.window_score) for p in window]
    if rule.thres_name == "bias_2":
        course = [followed(p, leads[0][0], rule.window_score) for p in window]
        falls = any(b < a for a, b in pairwise(course))
        return less(2 * rule.margin, leads[0][1]) and not falls
    holds = all(less(2 * rule.margin, lead) and side == leads[0][0] for side, lead in leads)
    if rule.thres_name == "bias_1" or not holds:
        return holds
    course = [followed(p, leads[0][0], rule.window_score) for p in window]
    return not less(rule.range_tmp, max(course) - min(course))


def sure_or_held(seen: list[list[float]], rule: SimpleNamespace) -> bool:
    return (len(seen[-1]) > 1 and low_entropy(seen[-1], rule)) or window_holds(seen, rule)


def patient(seen: list[list[float]], rule: SimpleNamespace) -> bool:
    if len(seen) < rule.cnt_thres + 1:
        return False
    last = seen[-rule.cnt_thres - 1 :]
    pairs = list(pairwise(last))
    if len(last[0]) == 1:
        return all(less(abs(a[0] - b[0]), rule.exit_thres) for a, b in pairs)
    return all(a.index(max(a)) == b.index(max(b)) for a, b in pairs)


def log_odds(probability: float) -> float:
    probability = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(probability / (1 - probability))


def probably_right(seen: list[list[float]], rule: SimpleNamespace) -> bool:
    now, before = [[0.5] * len(seen[0]), *seen][:-3:-1]
    if len(now) == 1:
        read = [now[0], now[0] ** 2, abs(now[0] - before[0])]
    else:
        read = [log_odds(layer[now.index(max(now))]) for layer in (now, before)]
    bias, *weights = rule.learnt_weights[min(len(seen), len(rule.learnt_weights)) - 1]
    if len(weights) != len(read):
        return False  # not fitted
    sure = bias + sum(weight * x for weight, x in zip(weights, read, strict=True))
    return less(1 / (1 + math.exp(min(sure, 700.0))), rule.exit_thres)


def pays_no_more(seen: list[list[float]], rule: SimpleNamespace) -> bool:
    if not rule.stopping_thresholds:
        return False  # not fitted
    prices, *thresholds = zip(*rule.stopping_thresholds, strict=True)
    layer = min(len(seen), len(thresholds))  # all layers behind the last have its threshold
    now, before = seen[-1], seen[-2] if len(seen) > 1 else seen[-1]
    uncertainty = abs(now[0] - before[0]) if len(now) == 1 else 1 - max(now)
    return less(uncertainty, float(np.interp(rule.exit_price, prices, thresholds[layer - 1])))


# By rule: does it fire for these probabilities by layer? Without a window no value fires.
NAIVE = {
    "entropy": lambda seen, rule: low_entropy(seen[-1], rule),
    "logits": lambda seen, rule: less(min(seen[-1]), rule.exit_thres),
    "max_prob": lambda seen, rule: less(1 - rule.exit_thres, max(seen[-1])),
}
WINDOWS = {"patience": patient, **dict.fromkeys(("bias_1", "bias_2", "bias_3"), sure_or_held)}
WINDOWS["learnt"] = probably_right  # of values, too
WINDOWS["optimal_stopping"] = pays_no_more


def fires(seen: list[list[float]], rule: SimpleNamespace) -> bool:
    if rule.thres_name in WINDOWS:
        return WINDOWS[rule.thres_name](seen, rule)
    return len(seen[-1]) > 1 and NAIVE[rule.thres_name](seen, rule)


def naive_exit_layer(layers: list[list[float]], rule: SimpleNamespace) -> int | None:
    """The exit layer, None where rounding decides it."""
    try:
        for n in range(1, len(layers)):
            if fires(layers[:n], rule):
                return n
    except TooClose:
        return None
    return len(layers)


LEARNT_WEIGHTS = [[], [[0.3, 0.8, 0.4], [-0.2, 1.0, 0.3]], [[0.5, 0.4, -0.1, -0.7]] * 8]


@st.composite
def settings_for(draw, layers: int, name: str | None = None) -> SimpleNamespace:
    return rule_of(
        name or draw(st.sampled_from(RULES)),
        exit_thres=draw(st.sampled_from([0.0, 0.05, 0.13, 0.3, 0.6, 0.9, 1.0])),
        cnt_thres=draw(st.integers(1, layers)),
        margin=draw(st.sampled_from([0.0, 0.03, 0.11, 0.27, 0.5])),
        range_tmp=draw(st.sampled_from([0.0, 0.07, 0.21, 0.8, 3.0])),
        window_score=draw(st.sampled_from(["lead", "class0"])),
        learnt_weights=draw(st.sampled_from(LEARNT_WEIGHTS)),
        exit_price=draw(st.sampled_from([0.0, 0.2, 0.5, 1.7, 9.0])),
        stopping_thresholds=draw(st.sampled_from([[], STOPPING_THRESHOLDS])),
    )


def random_answers(seed: int, layers: int, classes: int, steadiness: float) -> torch.Tensor:
    """Logits that drift from layer to layer: (layers, 40, classes)."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(1, 40, classes, generator=generator) * 1.5
    steps = torch.randn(layers, 40, classes, generator=generator) * steadiness
    return start + steps.cumsum(0)


answers = st.builds(
    random_answers,
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([0.05, 0.4, 2.0, 12.0]),
)


@given(data=st.data(), all_logits=answers)
def test_scan_is_the_rule_applied_to_each_example_alone(data, all_logits):
    rule = data.draw(settings_for(len(all_logits)))
    found = scan(rule, all_logits).tolist()
    for row, layer in enumerate(found):
        course = exit_scores(all_logits)[:, row].tolist()
        assert naive_exit_layer(course, rule) in (layer, None), (row, course)


@pytest.mark.parametrize("name", RULES)
def test_a_threshold_in_a_tensor_decides_as_the_number_does(name):
    """Every hundredth, on probabilities that sit on it: a sweep and a run agree to the last bit."""
    steps = torch.arange(1, 100) / 100
    ladder = torch.cat((steps, 1 - steps, torch.nextafter(1 - steps, torch.ones(()))))
    all_logits = torch.stack((ladder.log(), (1 - ladder).log()), -1)[None].repeat(3, 1, 1)
    thresholds = [i / 100 for i in range(101)]
    # Every key that is a share: thresholds, margins.
    largest = {
        name: key.maximum
        for name, key in EXIT_KEYS.items()
        if key.kind is float and key.maximum is not None and key.maximum <= 1
    }
    largest["exit_price"] = 3.0
    column = torch.tensor(thresholds)[:, None]
    columns = {name: column * high for name, high in largest.items()}
    count = torch.full_like(column, 3, dtype=torch.long)
    together = scan(rule_of(name, cnt_thres=count, **columns), all_logits)
    for threshold, exits in zip(thresholds, together, strict=True):
        numbers = {name: threshold * high for name, high in largest.items()}
        rule = rule_of(name, cnt_thres=3, **numbers)
        assert torch.equal(scan(rule, all_logits), exits), threshold


# Recalibrated exits.

CALIBRATIONS = {  # by the number of classes: one row a layer, the last for all layers behind it
    1: [[0.5, 1.5, 0.0], [-0.25, 0.5, 0.75]],
    2: [[0.5, 2.0, 0.0, -0.5, 0.0, 2.0], [0.0, 0.5, 0.1, 0.2, 0.0, 0.7]],
    3: [[0.1, 1, 0.2, 0, -0.3, 0, 1.5, 0, 0, 0.1, 0.3, 0.6]],
}


def recalibrated(course: np.ndarray, rows: list, several: bool) -> np.ndarray:
    """One example's logits by layer, (layers, classes), as docs/threshold.md describes them."""
    answers = []
    for layer, logits in enumerate(course):
        numbers = np.array(rows[min(layer, len(rows) - 1)])
        if len(logits) == 1:
            before = answers[-1] if answers else np.zeros(1)
            answers.append(numbers[0] + numbers[1] * logits + numbers[2] * before)
            continue
        if several:
            inputs = logits
        elif len(logits) == 2:
            inputs = logits - logits.mean()
        else:
            inputs = np.log(np.exp(logits) / np.exp(logits).sum())
        maps = numbers.reshape(len(logits), -1)
        answers.append(maps[:, 0] + maps[:, 1:] @ inputs)
    return np.stack(answers)


@pytest.mark.parametrize("rule", ["entropy", "bias_1", "optimal_stopping", "learnt"])
@pytest.mark.parametrize(("classes", "several"), [(1, False), (2, False), (3, False), (3, True)])
def test_every_rule_reads_and_gives_recalibrated_answers(rule, classes, several):
    """As a model whose exits gave such logits would, without recalibration."""
    all_logits = random_answers(3, 5, classes, steadiness=0.4)
    rows = CALIBRATIONS[classes]
    shape = {"num_labels": classes, "num_hidden_layers": 5}
    if several:
        shape["problem_type"] = "multi_label_classification"
    if classes == 1 and rule == "learnt":
        rule_keys = {"learnt_weights": [[0.2, 1, -1, -2]]}
    else:
        rule_keys = {"learnt_weights": [[0.3, 0.8, 0.4]], "stopping_thresholds": PRICED}
    keys = {"thres_name": rule, "exit_thres": 0.4, "cnt_thres": 2, "exit_price": 1.2, **rule_keys}
    made = ElbertConfig(**shape, exit_calibration=rows, **keys).exit_rule()
    courses = [
        recalibrated(course, rows, several)
        for course in all_logits.double().numpy().transpose(1, 0, 2)
    ]
    expected = torch.from_numpy(np.stack(courses, 1)).float()
    recorded = {"all_logits": all_logits}
    torch.testing.assert_close(layer_answers(made, recorded), expected)
    plain = ElbertConfig(**shape, **keys).exit_rule()
    exits = scan_recorded(made, recorded)
    assert torch.equal(exits, scan_recorded(plain, {"all_logits": expected}))
    answers, _ = scan_answers(made, recorded)
    torch.testing.assert_close(answers, expected[exits - 1, torch.arange(len(exits))])


def test_a_recalibration_of_other_classes_is_refused():
    config = ElbertConfig(num_labels=3, exit_calibration=CALIBRATIONS[2])
    with pytest.raises(UserError, match=r"exit_calibration has rows of.*6.*12 fit 3 outputs"):
        config.exit_rule()
