"""Runs over a data set against one text at a time."""

import pytest
import torch

from elbert import UserError
from evaluation.predict import record_layers, run_all, warm_up_rows
from tests.conftest import job_of, made_texts, run_of, tiny_model
from tests.cpu_recorder import graphs_on_cpu
from tests.models import assert_near


@pytest.mark.parametrize("batch_size", [1, 2, 5, 32])
def test_answers_are_in_input_order_whatever_the_batch_size(batch_size):
    model, texts = tiny_model(thres_name="entropy", exit_thres=0.9), made_texts()
    job = job_of(model, texts, batch_size=batch_size)
    predictions = run_all(job, run_of(job))
    recorded = record_layers(job, batch_size=5)["all_logits"]
    for row, ids in enumerate(texts):
        with torch.no_grad():
            out = model(torch.tensor([ids]), output_all_exits=True)
        assert predictions["exit_layer"][row] == out.exit_layer
        assert_near(predictions["logits"][row], out.logits[0])
        assert_near(recorded[:, row], out.all_logits[:, 0])
    assert len(set(predictions["exit_layer"].tolist())) > 1
    assert (predictions["seconds"] > 0).all()


@pytest.mark.parametrize("run", [lambda job: run_all(job, run_of(job)), record_layers])
def test_answers_that_are_no_numbers_are_an_error(run):
    """Finite weights whose products are not."""
    model = tiny_model()
    for weight in model.parameters():
        weight.data.fill_(1e38)
    with pytest.raises(UserError, match="are NaN or infinite"):
        run(job_of(model, made_texts()))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_on_a_gpu_an_evaluation_replays_graphs(batch_size, monkeypatch):
    """A recorder for the CPU is in CUDA's place."""
    model, texts = tiny_model(thres_name="entropy", exit_thres=0.9), made_texts()
    job = job_of(model, texts, batch_size=batch_size)
    expected, layers = run_all(job, run_of(job)), record_layers(job, batch_size)
    recorder = graphs_on_cpu(monkeypatch)
    predictions = run_all(job, run_of(job))
    replays = recorder.replays
    assert predictions["exit_layer"].tolist() == expected["exit_layer"].tolist()
    assert_near(predictions["logits"], expected["logits"])
    assert_near(record_layers(job, batch_size)["all_logits"], layers["all_logits"])
    assert recorder.replays > replays > len(texts) / batch_size


def test_a_warm_up_has_a_batch_of_every_length_that_is_captured():
    config = tiny_model().config  # 40 positions
    lengths = [3, 40, 17, 5, 30, 16, 33, 9]
    assert warm_up_rows(lengths, 2, config) == [0, 3, 1, 6, 2, 4]
    assert warm_up_rows(lengths, 1, config) == [0, 1, 2]
