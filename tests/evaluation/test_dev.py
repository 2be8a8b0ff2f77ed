"""What the best model is chosen by."""

import numpy as np
import pytest
import torch

from evaluation.dev import SelectionMetric
from evaluation.early_exit import record_layers, run_early_exit
from evaluation.modes import MODES
from glue.tasks import get_task
from modeling import UserError
from tests.conftest import job_of, random_ids, tiny_model


@pytest.fixture
def job():
    return job_of(tiny_model(thres_name="entropy"), random_ids(24, 7).tolist(), batch_size=8)


def accuracy(job, exit_layer: torch.Tensor, recorded) -> float:
    answers = recorded["all_logits"].argmax(-1)[exit_layer - 1, torch.arange(24)]
    return float(np.mean(answers.numpy() == job.features.labels))


def test_a_metric_alone_is_that_of_the_last_layer(job):
    recorded = record_layers(job, 8)
    value = SelectionMetric("acc").value(job, recorded)
    assert value == accuracy(job, torch.full((24,), 4), recorded)


def test_at_a_cost_it_is_the_best_that_real_runs_reach(job):
    recorded, reached, cost = record_layers(job, 8), [], 0.6
    for threshold in range(51):
        job.model.config.exit_thres = threshold / 50
        exits = run_early_exit(job)["exit_layer"]
        if exits.double().mean() / 4 <= cost:
            reached.append(accuracy(job, exits, recorded))
    assert SelectionMetric("acc", cost).value(job, recorded) == max(reached)


def test_where_no_threshold_is_that_cheap_everyone_stops_at_the_layer_that_is(job):
    job.model.config.thres_name = "patience"  # two layers at least
    job.model.config.cnt_thres = 3
    recorded = record_layers(job, 8)
    value = SelectionMetric("acc", 0.3).value(job, recorded)
    assert value == accuracy(job, torch.ones(24, dtype=torch.long), recorded)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("acu", "albert", "did you mean acc"),
        ("acc@", "albert", "'' is not a number"),
        ("acc@1.5", "albert", "at most 1"),
        ("acc@0.5", "albert_act", "nothing to sweep"),
    ],
)
def test_a_goal_that_cannot_be_reached_is_refused(text, mode, words):
    with pytest.raises(UserError, match=words):
        SelectionMetric.of(text, MODES[mode], get_task("rte"))


def test_names_are_the_tasks_with_or_without_eval(job):
    task = get_task("mrpc")
    assert SelectionMetric.of(None, job.mode, task) == SelectionMetric("acc")
    assert SelectionMetric.of("eval_f1@0.5", job.mode, task) == SelectionMetric("f1", 0.5)
