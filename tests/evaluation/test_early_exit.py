"""Runs, their summaries and what chooses the best model, against one text at a time and tables
worked by hand."""

import json

import numpy as np
import pytest
import torch

from answers.metric import MetricAtCost
from answers.predict import Predictions, record_layers, run_all
from answers.report import summarise
from elbert import UserError
from modes.early_exit import exit_summary, selection_value
from tests.conftest import job_of, random_ids, run_of, tiny_model


def made_texts(count: int = 12) -> list[list[int]]:
    return [random_ids(1, 3 + (5 * i) % 11, i)[0].tolist() for i in range(count)]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 32])
def test_answers_are_in_input_order_whatever_the_batch_size(batch_size):
    model, texts = tiny_model(thres_name="entropy", exit_thres=0.9), made_texts()
    job = job_of(model, texts, batch_size=batch_size)
    found = run_all(job, run_of(job))
    recorded = record_layers(job, batch_size=5)["all_logits"]
    for i, ids in enumerate(texts):
        with torch.no_grad():
            out = model(torch.tensor([ids]), output_all_exits=True)
        assert found["exit_layer"][i] == out.exit_layer
        torch.testing.assert_close(found["logits"][i], out.logits[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(recorded[:, i], out.all_logits[:, 0], atol=1e-5, rtol=0)
    assert len(set(found["exit_layer"].tolist())) > 1
    assert (found["seconds"] > 0).all()


@pytest.mark.parametrize("run", [lambda job: run_all(job, run_of(job)), record_layers])
def test_answers_that_are_no_numbers_are_an_error(run):
    """Finite weights whose products are not."""
    model = tiny_model()
    for weight in model.parameters():
        weight.data.fill_(1e38)
    with pytest.raises(UserError, match="are NaN or infinite"):
        run(job_of(model, made_texts()))


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
    assert summary.latency_ms["median"] == pytest.approx(2.5)
    assert summary.latency_ms["p95"] == pytest.approx(np.percentile([1, 3, 2, 100], 95))
    assert 0 < depth.flops_ratio < 1
    assert summary.rule["thres_name"] == "bias_1"
    written = json.loads(json.dumps(summary.as_json(), allow_nan=False))
    assert written["computation_cost"] == depth.computation_cost


@pytest.fixture
def job():
    return job_of(tiny_model(thres_name="entropy"), random_ids(24, 7).tolist(), batch_size=8)


def accuracy(job, exit_layer: torch.Tensor, recorded) -> float:
    answers = recorded["all_logits"].argmax(-1)[exit_layer - 1, torch.arange(24)]
    return float(np.mean(answers.numpy() == job.features.labels))


def test_a_metric_chooses_by_the_last_layer_and_at_a_cost_by_the_best_of_real_runs(job):
    recorded, reached, cost = record_layers(job, 8), [], 0.6
    last = accuracy(job, torch.full((24,), 4), recorded)
    assert selection_value(job, MetricAtCost("acc"), recorded) == last
    for threshold in range(51):
        job.model.config.exit_thres = threshold / 50
        exits = run_all(job, run_of(job))["exit_layer"]
        if exits.double().mean() / 4 <= cost:
            reached.append(accuracy(job, exits, recorded))
    assert selection_value(job, MetricAtCost("acc", cost), recorded) == max(reached)


def test_where_no_threshold_is_that_cheap_everyone_stops_at_the_layer_that_is(job):
    job.model.config.update({"thres_name": "patience", "cnt_thres": 3})  # two layers at least
    recorded = record_layers(job, 8)
    value = selection_value(job, MetricAtCost("acc", 0.3), recorded)
    assert value == accuracy(job, torch.ones(24, dtype=torch.long), recorded)
