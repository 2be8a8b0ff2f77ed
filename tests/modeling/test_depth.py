"""The steps of depth that every early-exit model offers, and the loops over them."""

import pytest
import torch

from modeling import PonderAlbertClassifier
from modeling.depth import EarlyExitModel, iter_layers, layer_states
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
def steps_of(model: EarlyExitModel, allow_exit: bool) -> list:
    """Of a batch of 16 texts without padding."""
    hidden = model.embed(random_ids(16, 7) % 40)
    draws = torch.linspace(0.05, 0.95, 16)
    return list(iter_layers(model, hidden, None, {"draws": draws}, allow_exit))


def test_a_model_that_lacks_a_step_cannot_be_made():
    class Unfinished(EarlyExitModel):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished(tiny_model().config)


def test_full_depth_says_what_all_exits_at_once_say(model):
    steps = steps_of(model, allow_exit=False)
    assert len(steps) == model.config.num_hidden_layers
    with torch.no_grad():
        expected = model.all_exits(random_ids(16, 7) % 40, None, None)
    if isinstance(model, PonderAlbertClassifier):
        expected, halts = expected
        found = torch.stack([decision.seen.halt_probability for _, decision, _ in steps], 1)
        assert_near(found, halts.sigmoid())
    assert_near(torch.stack([decision.answer for _, decision, _ in steps]), expected)
    assert steps[-1][1].exit_mask.all()
    assert all(exiting == [] and len(rows) == 16 for rows, _, exiting in steps)


def test_who_exits_is_in_no_later_step_and_says_the_same_as_at_full_depth(model):
    full, running = steps_of(model, allow_exit=False), list(range(16))
    steps = zip(steps_of(model, allow_exit=True), full, strict=False)
    for layer, ((rows, decision, exiting), (_, expected, _)) in enumerate(steps, start=1):
        assert rows.tolist() == running
        assert_near(decision.answer, expected.answer[rows])
        assert exiting == decision.exit_mask.nonzero()[:, 0].tolist()
        assert (decision.state.depth == layer).all()
        running = [row for i, row in enumerate(running) if i not in exiting]
    assert running == []


def test_layer_states_are_those_that_the_checks_see(model):
    with torch.no_grad():
        *_, last = layer_states(model, model.embed(random_ids(16, 7) % 40), None)
    assert last.shape == (16, 7, model.config.hidden_size)
