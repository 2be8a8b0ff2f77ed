"""What the models of all three modes promise alike."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from modeling import AlbertActForSequenceClassification, UserError
from tests.conftest import random_ids, tiny_model
from tests.models import ponder_batch, tiny_act, tiny_ponder

Inputs = dict[str, torch.Tensor]


class ModeCase(NamedTuple):
    """A mode's small model, two examples of unlike length, and its key that decides the depth."""

    model: Callable[..., torch.nn.Module]
    inputs: Callable[[], Inputs]
    key: str
    shallow: float  # the key's value with which examples or tokens stop at once
    deep: float


def elbert_batch() -> Inputs:
    ids = random_ids(2, 9)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def float_act(**keys) -> AlbertActForSequenceClassification:
    return tiny_act(14, AlbertActForSequenceClassification, **keys).float()


CASES = {
    "elbert": ModeCase(
        lambda: tiny_model(thres_name="entropy", classifier_dropout_prob=0.0),
        elbert_batch,
        "exit_thres",
        1.0,
        0.0,
    ),
    "ponder": ModeCase(
        lambda: tiny_ponder(exit_criteria="threshold"),
        lambda: ponder_batch([9, 5]),
        "exit_thres",
        0.0,
        1.0,
    ),
    "act": ModeCase(float_act, lambda: ponder_batch([9, 5]), "act_epsilon", 0.999, 0.001),
}


@pytest.fixture(params=CASES)
def case(request) -> ModeCase:
    return CASES[request.param]


def layers_run(out: object) -> int:
    """The deepest layer that an example, or a token, has had."""
    return int((out.exit_layer if hasattr(out, "exit_layer") else out.updates).max())


def test_the_configuration_is_read_and_checked_at_every_call(case):
    model, inputs = case.model(), case.inputs()
    with torch.no_grad():
        setattr(model.config, case.key, case.deep)
        deep = layers_run(model(**inputs))
        setattr(model.config, case.key, case.shallow)
        assert layers_run(model(**inputs)) < deep
        setattr(model.config, case.key, 7.0)
        with pytest.raises(UserError, match=f"{case.key} = 7"):
            model(**inputs)


def gradients(model: torch.nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    model.train()(**inputs, labels=torch.tensor([0, 1])).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_gradient_checkpointing_changes_no_gradient(case):
    plain, checkpointing = case.model(), case.model()
    checkpointing.activation_checkpointing_enable()
    expected = gradients(plain, case.inputs())
    assert all(gradient is not None for gradient in expected.values())
    torch.testing.assert_close(gradients(checkpointing, case.inputs()), expected)


def test_training_lowers_the_loss(case):
    model, inputs = case.model().train(), case.inputs()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(30):
        loss = model(**inputs, labels=torch.tensor([0, 1])).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


def test_half_precision_weights_give_finite_answers(case):
    model = case.model().to(torch.bfloat16)
    with torch.no_grad():
        out = model(**case.inputs())
    answer = out.answer if hasattr(out, "answer") else out.logits
    assert answer.isfinite().all()
