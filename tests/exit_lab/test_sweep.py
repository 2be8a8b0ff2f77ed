"""The lab's parts against scikit-learn, scipy, the golden vectors, brute force and known risks."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, rankdata

import exit_lab.choice as exit_choice
from evaluation.modes import MODES
from exit_lab.choice import (
    Guarantee,
    Parts,
    best_under_cost,
    binomial_p_value,
    bootstrap_weights,
    certified,
    cheapest_within,
    choice_table,
    control_risk,
    deepest_first,
    hoeffding_bentkus_p_value,
    losses,
    split,
)
from exit_lab.compare import compare, comparison_table
from exit_lab.grids import RuleGrid, make_grids, parse_values
from exit_lab.metrics import metrics_at, ranks
from exit_lab.pictures import telling_examples
from exit_lab.recording import Recording
from exit_lab.sweep import scan_setting, sweep
from exit_lab.tables import frontier, frontier_table, nearest_setting, table
from glue.tasks import TASKS, compute_metrics
from modeling import ExitRule, UserError
from modeling.elbert.rules import scan
from tests.golden_vectors import load_golden

ELBERT = MODES["albert"].rules()
SMALL = {
    "exit_thres": "0:1:0.25",
    "cnt_thres": "1:N",
    "margin": "0,0.1",
    "range_tmp": "0.05,0.3",
}


def made_recording(classes: int, examples: int = 40, layers: int = 5, seed: int = 0) -> Recording:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(layers, examples, classes, generator=generator)
    logits = steps.cumsum(0)
    labels = logits[-1].argmax(-1) if classes > 1 else 0.5 * logits[-1, :, 0] + steps[0, :, 0]
    if classes > 1:
        other = torch.randint(classes, labels.shape, generator=generator)
        labels = torch.where(torch.rand(examples, generator=generator) < 0.7, labels, other)
    return Recording({"all_logits": logits}, labels.numpy())


def swept(classes: int, task: str, rules=None, grid=SMALL, **made):
    recording = made_recording(classes, **made)
    layers, regression = len(recording.tensors["all_logits"]), TASKS[task].is_regression
    rules = rules or list(ELBERT.reads(regression))
    grids = make_grids(ELBERT, rules, grid, layers, regression)
    return sweep(ELBERT, grids, recording, TASKS[task]), recording


# Metrics.


def random_answers(task: str, layers: int, examples: int, seed: int):
    rng = np.random.default_rng(seed)
    if TASKS[task].is_regression:
        labels = rng.integers(0, 11, examples) / 2
        predictions = (labels + rng.normal(0, 2, (layers, examples))).round(1)  # with ties
    else:
        labels = rng.integers(0, TASKS[task].num_labels, examples)
        predictions = rng.integers(0, TASKS[task].num_labels, (layers, examples))
    exits = rng.integers(1, layers + 1, (7, examples)).astype(np.uint8)
    return predictions, labels, exits


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "mnli", "sts-b"])
@given(seed=st.integers(0, 10**6), examples=st.integers(2, 40))
def test_metrics_of_many_settings_are_those_of_one(task, seed, examples):
    predictions, labels, exits = random_answers(task, 4, examples, seed)
    found = metrics_at(TASKS[task], predictions, labels, exits)
    for i, layers in enumerate(exits):
        answers = predictions[layers.astype(int) - 1, np.arange(examples)]
        expected = compute_metrics(TASKS[task], answers, labels)
        assert {name: v[i] for name, v in found.items()} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("task", ["rte", "mrpc", "cola", "sts-b"])
def test_a_weight_counts_an_example_so_often(task):
    """Metrics of a bootstrap draw are those of the examples drawn, written out."""
    predictions, labels, exits = random_answers(task, 3, 30, 1)
    weights = bootstrap_weights(30, 5, seed=2)
    found = metrics_at(TASKS[task], predictions, labels, exits, weights)
    for draw, counts in enumerate(weights):
        rows = np.repeat(np.arange(30), counts)
        expected = metrics_at(TASKS[task], predictions[:, rows], labels[rows], exits[:, rows])
        for name, values in expected.items():
            assert found[name][:, draw] == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("constant", ["prediction", "label"])
def test_a_correlation_with_a_constant_is_zero(constant):
    values, same = np.linspace(0, 5, 9), np.full(9, 0.1 + 0.2)
    predictions, labels = (same, values) if constant == "prediction" else (values, same)
    found = metrics_at(TASKS["sts-b"], predictions[None], labels, np.ones((1, 9), np.uint8))
    assert [v[0] for v in found.values()] == [0, 0, 0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 10**6))
def test_weighted_ranks_are_the_ranks_of_the_repeated_values(values, seed):
    values = np.array(values, dtype=float)
    weights = np.random.default_rng(seed).integers(1, 4, (1, len(values)))
    first = np.r_[0, weights[0].cumsum()[:-1]]  # where each value's copies start
    expected = rankdata(np.repeat(values, weights[0]))[first]
    assert ranks(values, weights)[0] == pytest.approx(expected)


# Grids.


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("exit_thres", "0:1:0.25", (0, 0.25, 0.5, 0.75, 1)),
        ("exit_thres", "0.9:0.1:-0.4", (0.9, 0.5, 0.1)),
        ("exit_thres", "0.1,0.5:0.7:0.1", (0.1, 0.5, 0.6, 0.7)),
        ("cnt_thres", "1:N", (1, 2, 3, 4, 5, 6)),
        ("cnt_thres", "2:6:2", (2, 4, 6)),
        ("margin", "0.05", (0.05,)),
    ],
)
def test_grid_texts(key, text, expected):
    assert parse_values(key, text, 6, ELBERT.keys) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("exit_tres", "0:1", "did you mean exit_thres"),
        ("thres_name", "entropy", "grid thres_name=entropy"),
        ("exit_thres", "0.5:0.1", "empty range"),
        ("exit_thres", "0:1:-0.1", "empty range"),
        ("exit_thres", "0:1:0", "expected a number"),
        ("exit_thres", "a", "expected a number"),
        ("exit_thres", "", "expected a number"),
        ("exit_thres", "0:1:1e-9", "too large a range"),
        ("exit_thres", "0:inf", "expected a number"),
        ("exit_thres", "nan", "allowed is a number from 0 to 1"),
        ("exit_thres", "0.5,1.5", "exit_thres = 1.5: allowed is a number from 0 to 1"),
        ("cnt_thres", "0:3", "allowed is a whole number of at least 1"),
        ("cnt_thres", "1.5", "whole number"),
        ("cnt_thres", "1:7", "allowed is 1 to num_hidden_layers = 6"),
    ],
)
def test_bad_grids_say_what_is_allowed(key, text, message):
    with pytest.raises(UserError, match=message):
        parse_values(key, text, 6, ELBERT.keys)


def test_an_unknown_rule_names_its_neighbours():
    with pytest.raises(UserError, match="rule bias_4: did you mean bias_"):
        make_grids(ELBERT, ["bias_4"], {}, 6, False)


# Sweeps.


@pytest.mark.parametrize(("classes", "task"), [(2, "rte"), (3, "mnli"), (1, "sts-b")])
def test_a_sweep_scans_each_setting_as_if_alone(classes, task):
    found, recording = swept(classes, task)
    assert len(found.settings) == sum(len(grid) for grid in found.grids) == len(found.exit_layer)
    for setting, exits in zip(found.settings, found.exit_layer, strict=True):
        alone = scan(ExitRule(**setting), recording.tensors["all_logits"])
        assert np.array_equal(exits, alone.numpy()), setting


@pytest.mark.parametrize("name", ["elbert_cls", "elbert_three_way"])
def test_a_sweep_holds_all_published_runs(name):
    text, _, tensors = load_golden(name)
    classes = tensors["all_logits"].shape[-1]
    recording = Recording({"all_logits": tensors["all_logits"]}, tensors["labels"].numpy())
    runs = [run for run in text["runs"] if run["thres_name"] != "patience"]
    keys = ELBERT.reads(False)
    values = {
        key: tuple(sorted({run[key] for run in runs}))
        for key in ("exit_thres", "cnt_thres", "margin", "range_tmp")
    }
    rules = sorted({run["thres_name"] for run in runs})
    grids = [
        RuleGrid(rule, {key: values[key] for key in keys[rule]}, {"window_score": "class0"})
        for rule in rules
    ]
    found = sweep(ELBERT, grids, recording, TASKS["mnli" if classes == 3 else "rte"])
    for k, run in enumerate(text["runs"]):
        rule = run["thres_name"]
        if rule not in rules:
            continue
        number = found.settings.index({"thres_name": rule, **{key: run[key] for key in keys[rule]}})
        expected = (tensors[f"run{k}.exit_idx"] + 1).numpy()
        assert np.array_equal(found.exit_layer[number], expected), run
        cost = found.cost(found.exit_layer[number][None])[0]
        assert cost == pytest.approx(run["compute_ratio"], abs=1e-6)


def test_chunks_of_settings_do_not_show(monkeypatch):
    whole, _ = swept(2, "rte")
    monkeypatch.setattr("exit_lab.metrics.CHUNK", 100)
    pieces, _ = swept(2, "rte")
    assert np.array_equal(whole.exit_layer, pieces.exit_layer)
    assert table(whole) == table(pieces)


def test_a_sweep_too_large_for_memory_is_refused(monkeypatch):
    monkeypatch.setattr("exit_lab.sweep.LARGEST_SWEEP", 1000)
    with pytest.raises(UserError, match="make --grid coarser"):
        swept(2, "rte")


def test_a_table_row_is_what_the_setting_does():
    found, _ = swept(3, "mnli")
    rows = table(found)
    assert len(rows) == len(found.settings)
    for row, setting, exits in zip(rows, found.settings, found.exit_layer, strict=True):
        assert row["rule"] == setting["thres_name"]
        assert all(row[key] == setting.get(key, "") for key in SMALL)
        answers = found.predictions[exits.astype(int) - 1, np.arange(40)]
        assert row["acc"] == pytest.approx((answers == found.labels).mean())
        assert row["compute_ratio"] == pytest.approx(exits.mean() / 5)
        assert row["exit_sample_ratio"] == pytest.approx((exits < 5).mean())
        assert [row[f"exits_{n}"] for n in range(1, 6)] == np.bincount(exits, minlength=6)[
            1:
        ].tolist()


points = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=25)


@given(points)
def test_the_frontier_is_what_no_other_setting_beats(pairs):
    cost, metric = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    kept = frontier(cost, metric)

    def beaten(i: int) -> bool:
        as_good = (cost <= cost[i]) & (metric >= metric[i])
        return bool((as_good & ((cost < cost[i]) | (metric > metric[i]))).any())

    best = {pairs[i] for i in range(len(pairs)) if not beaten(i)}
    assert [pairs[i] for i in kept] == sorted(best)


def test_the_frontier_table_counts_equal_settings():
    rows = [
        {"compute_ratio": c, "acc": m} for c, m in [(0.5, 0.8), (0.4, 0.7), (0.5, 0.8), (1, 0.8)]
    ]
    assert frontier_table(rows, "acc") == [
        {"compute_ratio": 0.4, "acc": 0.7, "settings": 1},
        {"compute_ratio": 0.5, "acc": 0.8, "settings": 2},
    ]


def test_the_nearest_setting_is_the_setting_itself_or_agrees_most():
    found, recording = swept(2, "rte", rules=["entropy", "patience"])
    number = 3
    assert nearest_setting(found, found.settings[number], None) == number
    between = {"thres_name": "entropy", "exit_thres": 0.26}
    exits = scan_setting(ELBERT, between, recording)
    assert found.settings[nearest_setting(found, between, exits)]["thres_name"] == "entropy"
    foreign = {"thres_name": "max_prob", "exit_thres": 0.0}  # nobody exits early
    deepest = nearest_setting(found, foreign, scan_setting(ELBERT, foreign, recording))
    assert (found.exit_layer[deepest] == 5).all()


# One example whose class-0 probability is 0.5, 0.7, 0.7, 0.7, 0.99 by layer.
def test_the_window_that_ended_a_pass_is_told():
    logits = torch.tensor([0.5, 0.7, 0.7, 0.7, 0.99]).logit()
    logits = torch.stack((logits, torch.zeros(5)), -1)[:, None]
    tensors = {"all_logits": logits}

    def window(rule: str, **keys) -> int:
        return int(ELBERT.window({"thres_name": rule, **keys}, tensors)[0])

    assert window("bias_1", exit_thres=0.1, cnt_thres=3, margin=0.0) == 3
    assert window("bias_1", exit_thres=0.1, cnt_thres=5, margin=0.0) == 0  # layer 5, by entropy
    assert window("bias_1", exit_thres=0.0, cnt_thres=4, margin=0.0) == 4  # at the last layer
    assert window("bias_1", exit_thres=0.0, cnt_thres=5, margin=0.0) == 0  # never held
    assert window("patience", cnt_thres=2) == 3  # two agreements are three layers
    assert window("entropy", exit_thres=0.5) == 0


def test_telling_examples_show_what_they_say():
    labels = np.array([1, 1, 1, 1, 1, 1])
    early = np.array([1, 1, 1, 0, 1, 0])
    full = np.array([1, 1, 1, 1, 0, 0])
    predictions = np.stack((early, early, early, full))
    exits = np.array([1, 2, 4, 1, 3, 3])
    found = {why: row for row, why in telling_examples(predictions, labels, exits, False)}
    assert found == {
        "exits early": 0,
        "exits midway": 1,
        "goes deepest": 2,
        "lost by exiting early": 3,
        "won by exiting early": 4,
        "wrong at both": 5,
    }


# Choosing.


@given(points, st.integers(0, 7))
def test_choices_are_the_best_that_is_allowed(pairs, limit):
    cost, metric = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    chosen = best_under_cost(cost, metric, limit)
    allowed = [(-m, c) for c, m in pairs if c <= limit]
    assert allowed or chosen is None
    assert not allowed or (-metric[chosen], cost[chosen]) == min(allowed)
    chosen = cheapest_within(cost, metric, limit)
    allowed = [(c, -m) for c, m in pairs if m >= limit]
    assert allowed or chosen is None
    assert not allowed or (cost[chosen], -metric[chosen]) == min(allowed)


def test_a_split_is_seeded_and_leaves_nobody_out():
    parts = split(101, 0.4, seed=3)
    assert len(parts.calibration) == 40
    assert sorted(np.concatenate(parts)) == list(range(101))
    assert all(map(np.array_equal, parts, split(101, 0.4, seed=3)))
    assert not np.array_equal(parts.calibration, split(101, 0.4, seed=4).calibration)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1, 0.001, math.nan])
def test_a_split_needs_both_parts(fraction):
    with pytest.raises(UserError, match="calibration_fraction"):
        split(101, fraction, seed=3)


# Risk control.


@pytest.mark.parametrize(
    ("events", "examples", "alpha"), [(0, 149, 0.02), (3, 300, 0.02), (40, 400, 0.1)]
)
def test_the_binomial_p_value_is_scipys_exact_test(events, examples, alpha):
    expected = binomtest(events, examples, alpha, alternative="less").pvalue
    assert binomial_p_value(np.array(events / examples), examples, alpha) == pytest.approx(expected)


def test_the_hoeffding_bentkus_p_value_by_hand():
    """n = 100, α = 0.1. No loss at all: (1 − α)ⁿ. R̂ = 0.05: exp(−n·h(0.05, 0.1)) = 0.188."""
    losses_by_hand = np.array([0.0, 0.05, 0.1, 0.5])
    found = hoeffding_bentkus_p_value(losses_by_hand, 100, 0.1)
    assert found[0] == pytest.approx(0.9**100)
    h = 0.05 * math.log(0.05 / 0.1) + 0.95 * math.log(0.95 / 0.9)
    bentkus = math.e * binomtest(5, 100, 0.1, alternative="less").pvalue
    assert found[1] == pytest.approx(min(math.exp(-100 * h), bentkus))
    assert found[2] == found[3] == 1


def test_losses_are_what_early_exit_gets_wrong():
    predictions = np.array([[0, 1, 0, 1], [0, 0, 1, 1]])
    exits = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [1, 2, 1, 2]])
    found = losses(TASKS["rte"], predictions, np.array([0, 0, 0, 1]), exits)
    assert found.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    # Errors 2, 0, 6 and 0.1 against 1, 0, 0 and 0.6 at full depth.
    values = np.array([[1.0, 2.0, 9.0, 2.5], [2.0, 2.0, 3.0, 2.0]])
    labels = np.array([3.0, 2.0, 3.0, 2.6])
    found = losses(TASKS["sts-b"], values, labels, np.ones((1, 4)), width=5.0)
    assert found.tolist() == [[pytest.approx(0.2), 0, 1, 0]]


def test_the_path_goes_from_the_deepest_corner_to_the_most_eager():
    grids = make_grids(ELBERT, ["bias_3"], SMALL, 5, False)
    found, _ = swept(2, "rte", rules=["bias_3"], examples=300)
    path = deepest_first(grids[0], ELBERT)
    corners = [found.settings[path[0]], found.settings[path[-1]]]
    deepest = {"exit_thres": 0.0, "cnt_thres": 5, "margin": 0.1, "range_tmp": 0.05}
    eager = {"exit_thres": 1.0, "cnt_thres": 1, "margin": 0.0, "range_tmp": 0.3}
    assert corners == [{"thres_name": "bias_3", **keys} for keys in (deepest, eager)]
    assert len(set(path)) == len(path)
    assert (np.diff(found.cost(found.exit_layer[path])) <= 0).all()


@pytest.mark.parametrize("rule", ["entropy", "patience", "bias_1", "bias_3"])
def test_the_path_of_every_rule_lets_examples_exit_ever_earlier(rule):
    """Two classes: along the walk no example exits later than before."""
    found, _ = swept(2, "rte", rules=[rule], examples=200)
    along = found.exit_layer[deepest_first(found.grids[0], ELBERT)].astype(int)
    assert (along[0] >= along[-1]).all()
    assert (np.diff(along, axis=0) <= 0).all()


def test_testing_stops_at_the_first_setting_not_shown_safe():
    """A later setting that looks safe must not be reached: that is what spends δ only once."""
    safe, unsafe = np.zeros(200), np.r_[np.ones(20), np.zeros(180)]
    path = np.stack((safe, safe, unsafe, safe))
    assert certified(path, 0.05, 0.05, binary=True) == 2
    assert certified(path[:2], 0.05, 0.05, binary=True) == 2
    assert certified(path[2:], 0.05, 0.05, binary=True) == 0


SIMULATIONS, DELTA = 1000, 0.05


def draws_with_risk(rng: np.random.Generator, examples: int, risks: np.ndarray) -> np.ndarray:
    """0/1 losses (path, examples) of settings with known risks: nested, as along a real path."""
    return (rng.random(examples) < risks[:, None]).astype(float)


def test_violations_stay_within_delta_when_losses_are_coins():
    """The risk passes α between two settings; choosing the later one is the violation.

    n = 490 makes the bound nearly tight: the exact test errs in 4.2% of draws, and a p-value too
    small by a single event would in 6.8%.
    """
    alpha, examples = 0.05, 490
    risks = np.array([0.0, 0.01, 0.03, alpha * 1.0001, 0.2])
    rng = np.random.default_rng(7)
    counts = [
        certified(draws_with_risk(rng, examples, risks), alpha, DELTA, binary=True)
        for _ in range(SIMULATIONS)
    ]
    violations = sum(count > 3 for count in counts)
    assert 0.03 < violations / SIMULATIONS <= DELTA
    assert np.mean([count >= 2 for count in counts]) > 0.95  # and it is of use


def test_violations_stay_within_delta_when_losses_are_numbers():
    """Hoeffding–Bentkus on losses in [0, 1] with a mean just above α: coins are its worst case."""
    alpha, examples = 0.05, 490
    rng = np.random.default_rng(8)
    means = np.array([0.01, alpha * 1.0001])
    violations = 0
    for _ in range(SIMULATIONS):
        coins = draws_with_risk(rng, examples, means)
        violations += certified(coins, alpha, DELTA, binary=False) == 2
    assert 0 < violations / SIMULATIONS <= DELTA
    beta = [
        certified(rng.beta(1, 1 / m - 1, (1, examples)), alpha, DELTA, binary=False)
        for m in [alpha * 1.0001] * SIMULATIONS
    ]
    assert np.mean(beta) <= DELTA


def known_risk_recording(rng: np.random.Generator, examples: int) -> Recording:
    """Layer 1 has entropy U, uniform, and is wrong with probability U; layer 2 is always right.

    The risk of `entropy` with exit_thres t is P(U < t and wrong) = t² / 2.
    """
    uniform = rng.random(examples)
    # p with entropy U, by bisection of the falling branch.
    low, high = np.full(examples, 0.5), np.full(examples, 1.0)
    for _ in range(40):
        p = (low + high) / 2
        entropy = -(p * np.log2(p) + (1 - p) * np.log2(np.maximum(1 - p, 1e-300)))
        low, high = np.where(entropy > uniform, p, low), np.where(entropy > uniform, high, p)
    right = rng.random(examples) > uniform
    certainty = np.log(p / np.maximum(1 - p, 1e-30))
    logits = np.zeros((2, examples, 2))
    logits[0, :, 1] = np.where(right, certainty, -certainty)
    logits[1, :, 1] = 9.0
    return Recording({"all_logits": torch.tensor(logits).float()}, np.ones(examples, dtype=int))


def test_violations_stay_within_delta_from_logits_to_choice():
    """An exit_thres above √(2α) breaks the promise: in 4.2% of draws; one event off, in 8.7%."""
    alpha = 0.02
    safest = math.sqrt(2 * alpha)  # 0.2
    texts = {"exit_thres": "0,0.05,0.1,0.15,0.2005,0.25,0.3,0.5"}
    grids = make_grids(ELBERT, ["entropy"], texts, 2, False)
    rng = np.random.default_rng(11)
    violations = useful = 0
    for _ in range(SIMULATIONS):
        found = sweep(ELBERT, grids, known_risk_recording(rng, 535), TASKS["rte"])
        choice = control_risk(found, ELBERT, ["entropy"], np.arange(535), Guarantee(alpha, DELTA))
        chosen = found.settings[choice.setting]["exit_thres"]
        violations += chosen > safest
        useful += chosen >= 0.1
    assert 0.03 < violations / SIMULATIONS <= DELTA
    assert useful > 0.9 * SIMULATIONS


def test_several_rules_share_delta(monkeypatch):
    found, _ = swept(2, "rte", rules=["entropy", "max_prob"], examples=400)
    shares = []

    def spy(path_losses, alpha, delta, binary):
        shares.append(delta)
        return certified(path_losses, alpha, delta, binary)

    monkeypatch.setattr(exit_choice, "certified", spy)
    control_risk(found, ELBERT, ["entropy", "max_prob"], np.arange(400), Guarantee(0.1, 0.05))
    assert shares == [0.025, 0.025]


def test_the_cheapest_certified_setting_is_chosen():
    found, _ = swept(2, "rte", examples=400)
    rows = np.arange(400)
    choice = control_risk(found, ELBERT, ["bias_1"], rows, Guarantee(0.1, 0.1))
    own = found.of_rule("bias_1")
    path = [own.start + i for i in deepest_first(found.grids[3], ELBERT)]
    assert found.grids[3].rule == "bias_1"
    risk = losses(found.task, found.predictions, found.labels, found.exit_layer[path]).mean(1)
    p_values = [binomtest(round(r * 400), 400, 0.1, alternative="less").pvalue for r in risk]
    stop = next((i for i, p in enumerate(p_values) if p > 0.1), len(path))
    assert 0 < stop < len(path)
    cost = found.cost(found.exit_layer)
    assert cost[choice.setting] == min(cost[path[:stop]])


def test_a_guarantee_from_too_few_examples_is_refused():
    found, _ = swept(2, "rte", examples=60)
    with pytest.raises(UserError, match=r"29 calibration examples is refused: fewer than 30"):
        control_risk(found, ELBERT, ["entropy"], np.arange(29), Guarantee(0.02, 0.05))
    choice = control_risk(found, ELBERT, ["entropy"], np.arange(30), Guarantee(0.02, 0.05))
    assert choice.setting is None
    assert "even a setting without a single loss needs 149 examples" in choice.note


def test_regression_needs_the_range_of_its_scores():
    found, _ = swept(1, "sts-b", examples=300)
    with pytest.raises(UserError, match="range=HIGH-LOW"):
        control_risk(found, ELBERT, ["bias_1"], np.arange(300), Guarantee(0.02, 0.05))
    wanted = Guarantee(0.05, 0.05, width=5.0)
    choice = control_risk(found, ELBERT, ["bias_1"], np.arange(300), wanted)
    assert choice.setting is not None


# Comparing.


def test_a_comparison_chooses_on_one_part_and_reports_on_the_other():
    found, _ = swept(2, "rte", examples=200)
    parts = split(200, 0.5, seed=1)
    cells = compare([found], parts, (0.5, 0.8), draws=200)
    assert list(cells) == [*ELBERT.reads(False), "fixed truncation", "full depth"]
    for rule in ELBERT.reads(False):
        own = found.of_rule(rule)
        exits = found.exit_layer[own]
        cost, metric = (f(exits, parts.calibration) for f in (found.cost, found.main_metric))
        for limit, cell in zip((0.5, 0.8), cells[rule], strict=True):
            best = best_under_cost(cost, metric, limit)
            if best is None:
                assert cell is None
                continue
            report = exits[best][None]
            assert cell.metric == pytest.approx(found.main_metric(report, parts.report)[0])
            assert cell.cost == pytest.approx(found.cost(report, parts.report)[0])
            assert cell.low <= cell.metric <= cell.high
    right = found.predictions[:, parts.report] == found.labels[parts.report]
    assert cells["full depth"][0].metric == pytest.approx(right[-1].mean())
    assert cells["fixed truncation"][0].cost in (0.2, 0.4)


def test_several_models_are_averaged():
    several = [swept(2, "rte", rules=["entropy"], examples=100, seed=0)[0] for _ in range(2)]
    worse = dataclasses.replace(several[1], predictions=1 - several[1].predictions)
    parts = split(100, 0.5, seed=1)
    one, other, both = (
        compare(sweeps, parts, (0.8,), draws=300)["full depth"][0]
        for sweeps in ([several[0]], [worse], [several[0], worse])
    )
    assert both.metric == pytest.approx((one.metric + other.metric) / 2)
    assert both.low == pytest.approx(0.5)  # right here is wrong there, in every draw
    assert both.high == pytest.approx(0.5)


def test_models_of_different_data_are_not_compared():
    sweeps = [swept(2, "rte", rules=["entropy"], seed=seed)[0] for seed in (0, 1)]
    with pytest.raises(UserError, match="different examples"):
        compare(sweeps, split(40, 0.5, 1), (0.5,))


def test_the_comparison_is_a_markdown_table():
    found, _ = swept(1, "sts-b", examples=100)
    cells = compare([found], Parts(np.arange(50), np.arange(50, 100)), (0.3, 0.8), draws=50)
    lines = comparison_table(cells, (0.3, 0.8)).splitlines()
    assert lines[0] == "| rule | cost ≤ 0.3 | cost ≤ 0.8 |"
    assert {line.count("|") for line in lines} == {4}
    assert lines[2] == "| entropy | – | – |"  # never fires on a value


def test_a_bootstrap_interval_covers_the_truth():
    """95% intervals of an accuracy of 0.8 from 200 examples, over 300 data sets."""
    rng = np.random.default_rng(5)
    weights = bootstrap_weights(200, 300, seed=1)
    covered = 0
    for _ in range(300):
        right = rng.random(200) < 0.8
        low, high = exit_choice.interval(right @ weights.T / 200)
        covered += low <= 0.8 <= high
    assert 0.91 <= covered / 300 <= 0.98


def test_the_choice_table_shows_both_parts():
    found, _ = swept(2, "mrpc", examples=100)
    parts = split(100, 0.5, seed=0)
    lines = choice_table(found, 0, parts, seed=0).splitlines()
    assert lines[0].startswith("| | calibration (50) | report (50) |")
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names[:3] == ["acc", "acc, drop from full depth", "f1"]
    assert names[-1] == "computation cost"
