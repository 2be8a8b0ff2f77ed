"""The summary of an early-exit run, and what chooses the best model, by hand and by real runs."""

import json

import numpy as np
import pytest
import torch

from evaluation.metric import MetricAtCost
from evaluation.modes.early_exit import exit_summary, selection_value
from evaluation.predict import Predictions, record_layers, run_all
from evaluation.summary import summarise
from tests.conftest import job_of, made_texts, random_ids, run_of, tiny_model


def test_the_summary_by_hand():
    job = job_of(tiny_model(), made_texts(4))
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    predictions = Predictions(
        logits=logits,
        exit_layer=torch.tensor([1, 4, 2, 4]),
        seconds=torch.tensor([0.001, 0.003, 0.002, 0.1]),
    )
    depth = exit_summary(job, predictions, recorded=None)
    summary = summarise(job, predictions, depth, "what was timed")
    assert summary.metrics == {"acc": 0.75}  # labels 0 1 0 1
    assert depth.computation_cost == pytest.approx(11 / 16)
    assert depth.average_layer == pytest.approx(11 / 4)
    assert depth.exits_per_layer == [1, 1, 0, 2]
    assert depth.exit_sample_ratio == pytest.approx(0.5)
    assert summary.median_ms == pytest.approx(2.5)
    assert summary.p95_ms == pytest.approx(np.percentile([1, 3, 2, 100], 95))
    assert 0 < depth.flops_ratio < 1
    assert summary.rule["thres_name"] == "bias_1"
    written = json.loads(json.dumps(summary.as_json(), allow_nan=False))
    assert written["computation_cost"] == depth.computation_cost


def test_a_recording_adds_every_layer_to_the_summary():
    job = job_of(tiny_model(thres_name="entropy", exit_thres=0.9), made_texts(8))
    recorded = record_layers(job)
    predictions = run_all(job, run_of(job))
    depth = exit_summary(job, predictions, recorded)
    assert (depth.layers.same_exit_layer, depth.layers.same_answer) == (1.0, 1.0)
    assert depth.layers.curve == [accuracy(job, torch.full((8,), n), recorded) for n in range(1, 5)]
    assert list(depth.as_json()) == [
        *("computation_cost", "average_layer", "num_layers", "exit_sample_ratio"),
        *("exits_per_layer", "flops_ratio", "same_exit_layer_as_fp32", "same_answer_as_fp32"),
        *("acc_per_layer", "frontier"),
    ]
    assert len(depth.lines(shows_same_exits=False)) == 3
    assert depth.lines(shows_same_exits=True)[3:] == [
        "same exit layer as in float32 = 1.0000",
        "same answer as in float32 = 1.0000",
    ]


@pytest.fixture
def job():
    return job_of(tiny_model(thres_name="entropy"), random_ids(24, 7).tolist(), batch_size=8)


def accuracy(job, exit_layer: torch.Tensor, recorded) -> float:
    rows = torch.arange(len(exit_layer))
    answers = recorded["all_logits"].argmax(-1)[exit_layer - 1, rows]
    return float(np.mean(answers.numpy() == job.features.labels))


def test_a_metric_chooses_by_the_last_layer_and_at_a_cost_by_the_best_of_real_runs(job):
    recorded = record_layers(job, 8)
    within_cost, cost = [], 0.6
    last = accuracy(job, torch.full((24,), 4), recorded)
    assert selection_value(job, MetricAtCost("acc"), recorded) == last
    for threshold in range(51):
        job.model.config.exit_thres = threshold / 50
        exits = run_all(job, run_of(job))["exit_layer"]
        if exits.double().mean() / 4 <= cost:
            within_cost.append(accuracy(job, exits, recorded))
    assert selection_value(job, MetricAtCost("acc", cost), recorded) == max(within_cost)


def test_where_no_threshold_is_that_cheap_everyone_stops_at_the_layer_that_is(job):
    job.model.config.update({"thres_name": "patience", "cnt_thres": 3})  # two layers at least
    recorded = record_layers(job, 8)
    value = selection_value(job, MetricAtCost("acc", 0.3), recorded)
    assert value == accuracy(job, torch.ones(24, dtype=torch.long), recorded)
