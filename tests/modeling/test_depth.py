"""The steps of depth that every early-exit model offers, and the loops over them."""

import pytest
import torch

from modeling import PonderAlbertClassifier
from modeling.depth import EarlyExitModel, layer_states, run_depths
from tests.conftest import random_ids, tiny_model
from tests.models import assert_near, tiny_ponder

MODELS = {
    "elbert": lambda: tiny_model(exit_thres=0.9, thres_name="entropy"),
    "elbert, untied": lambda: tiny_model(num_hidden_groups=2, num_exit_layers=4, cnt_thres=2),
    "threshold": lambda: tiny_ponder(exit_criteria="threshold", exit_thres=0.3),
    "sample": lambda: tiny_ponder(lambda_layer_arch="linear_cat"),
}


@pytest.fixture(params=MODELS)
def model(request) -> EarlyExitModel:
    return MODELS[request.param]()


@torch.no_grad()
def steps_of(model: EarlyExitModel, leave: bool) -> list:
    """Of a batch of 16 texts without padding."""
    hidden = model.embed(random_ids(16, 7) % 40)
    draws = torch.linspace(0.05, 0.95, 16)
    return list(run_depths(model, hidden, None, {"draws": draws}, leave))


def test_a_model_that_lacks_a_step_cannot_be_made():
    class Unfinished(EarlyExitModel):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished(tiny_model().config)


def test_the_numbers_of_weights_never_fall(model):
    numbers = [model.weights_of(layer) for layer in range(model.config.num_hidden_layers)]
    assert numbers == sorted(numbers)


def test_full_depth_steps_say_what_all_exits_at_once_say(model):
    steps = steps_of(model, leave=False)
    assert [step.layer for step in steps] == [*range(1, model.config.num_hidden_layers + 1)]
    with torch.no_grad():
        expected = model.all_exits(model.embed(random_ids(16, 7) % 40), None)
    if isinstance(model, PonderAlbertClassifier):
        expected, halts = expected
        found = torch.stack([step.check.state.halting.halt_probability for step in steps], 1)
        assert_near(found, halts.sigmoid())
    answers = torch.stack([step.check.answer for step in steps])
    assert_near(answers, expected)
    assert steps[-1].check.done.all()
    assert all(step.leaving == [] and len(step.rows) == 16 for step in steps)


def test_who_leaves_is_in_no_later_step_and_says_the_same_as_at_full_depth(model):
    full, running = steps_of(model, leave=False), list(range(16))
    for step, expected in zip(steps_of(model, leave=True), full, strict=False):
        assert step.rows.tolist() == running
        rows = step.rows
        assert_near(step.check.answer, expected.check.answer[rows])
        assert step.leaving == step.check.done.nonzero()[:, 0].tolist()
        assert (step.check.state.depth == step.layer).all()
        running = [row for i, row in enumerate(running) if i not in step.leaving]
    assert running == []


def test_layer_states_are_those_that_the_checks_see(model):
    with torch.no_grad():
        *_, last = layer_states(model, model.embed(random_ids(16, 7) % 40), None)
    assert last.shape == (16, 7, model.config.hidden_size)
