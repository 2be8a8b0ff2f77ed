"""The engine: settings, exits, metrics and the frontier, against single scans and by hand."""

import numpy as np
import pytest
import torch

from elbert import ElbertConfig, PonderAlbertConfig
from evaluation.sweep import (
    ORACLE,
    TRUNCATION,
    Recording,
    configured_frontier,
    first_grid,
    flops_of,
    make_grids,
    scan_settings,
    sweep,
    sweepable,
)
from glue.tasks import TASKS
from modeling.rules import scan

LAYERS, EXAMPLES = 4, 30


def recording_of(seed: int = 0, **signals: torch.Tensor) -> Recording:
    """Random answers of two classes, and labels that the last layer mostly has right."""
    generator = torch.Generator().manual_seed(seed)
    all_logits = torch.randn(LAYERS, EXAMPLES, 2, generator=generator).cumsum(0)
    labels = all_logits[-1].argmax(-1).numpy()
    labels[::4] = 1 - labels[::4]
    return Recording({"all_logits": all_logits, **signals}, labels)


def config_of(**keys) -> ElbertConfig:
    return ElbertConfig(**{"num_hidden_layers": LAYERS, "num_labels": 2, "cnt_thres": 2, **keys})


def test_many_settings_are_scanned_as_each_alone():
    config, recording = config_of(margin=0.05), recording_of()
    grids = make_grids(config, ["entropy", "bias_1"], {"exit_thres": "0.1:0.9:0.2"})
    swept = sweep(config, grids, recording, TASKS["rte"])
    assert len(swept.settings) == len(swept.exit_layer) > 20
    for setting, exit_layer in zip(swept.settings, swept.exit_layer, strict=True):
        rule = config.exit_rule(**setting)
        assert exit_layer.tolist() == scan(rule, recording.tensors).tolist()


def test_a_rule_without_a_grid_has_one_setting():
    config, recording = config_of(thres_name="patience"), recording_of()
    (exit_layer,) = scan_settings(config, "patience", [{}], recording.tensors)
    assert exit_layer.tolist() == scan(config.exit_rule(), recording.tensors).tolist()


def test_the_grid_of_training_is_that_of_the_rules_first_key():
    config = config_of(thres_name="bias_1")
    ((rule, grid),) = first_grid(config).items()
    assert (rule, list(grid)) == ("bias_1", ["exit_thres"])
    assert grid["exit_thres"] == config.grid("exit_thres")


def test_the_frontier_is_what_no_threshold_beats():
    config, recording = config_of(thres_name="entropy"), recording_of(1)
    points = []
    for threshold in config.grid("exit_thres"):
        exits = scan(config.exit_rule(exit_thres=threshold), recording.tensors)
        answers = recording.predictions[exits - 1, np.arange(EXAMPLES)]
        accuracy = (answers == recording.labels).mean()
        points.append((exits.double().mean().item() / LAYERS, accuracy))
    best = {
        (cost, metric)
        for cost, metric in points
        if not any(c <= cost and m >= metric and (c, m) != (cost, metric) for c, m in points)
    }
    assert len(best) > 2
    frontier_points = configured_frontier(config, recording, TASKS["rte"])["acc"]
    assert frontier_points == [pytest.approx(point) for point in sorted(best)]


def test_a_rule_that_mixes_answers_is_measured_by_its_mixture():
    """expectation: half of each example halts after layer 1, the other half in the end."""
    config = PonderAlbertConfig(
        num_hidden_layers=2, num_labels=2, exit_criteria="expectation", num_attention_heads=1
    )
    # Class 0 is sure in layer 1, class 1 by little in layer 2: the mixture answers class 0.
    all_logits = torch.tensor([[[5.0, 0.0]], [[0.0, 0.5]]])
    halting = torch.tensor([[0.5, 1.0]])
    tensors = {"all_logits": all_logits, "halt_probabilities": halting}
    for label, accuracy in ((0, 1.0), (1, 0.0)):
        recording = Recording(tensors, np.array([label]))
        points = configured_frontier(config, recording, TASKS["rte"])
        assert points == {"acc": [[1.0, accuracy]]}


def test_flops_are_shares_of_the_mean_full_depth():
    config, lengths = config_of(), np.array([5, 9, 5])
    flops = flops_of(config, lengths)
    full_depth = np.mean([config.full_depth_flops(length) for length in lengths])
    for layer in range(1, LAYERS + 1):
        for example, length in enumerate(lengths):
            expected = config.early_exit_flops(length, layer) / full_depth
            assert flops[layer - 1, example] == pytest.approx(expected)


def test_baselines_by_hand():
    """One example is right at layer 2 first, another never."""
    answers = torch.tensor([[0, 1], [1, 1], [0, 1], [1, 1]])  # (layers, examples)
    logits = torch.nn.functional.one_hot(answers, 2).float()
    recording = Recording({"all_logits": logits}, np.array([1, 0]))
    config = config_of()
    swept = sweep(config, make_grids(config, sweepable(config)[:1], {}), recording, TASKS["rte"])
    assert swept.exits_of(TRUNCATION).tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert swept.exits_of(ORACLE).tolist() == [[1, 1], [2, 1], [2, 1], [2, 1]]
    assert swept.main_metric(swept.truncations).tolist() == [0.0, 0.5, 0.0, 0.5]
    assert swept.cost(swept.oracle).tolist() == [0.25, 0.375, 0.375, 0.375]
