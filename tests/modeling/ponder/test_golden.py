"""The ponder model and the parity model against what the published implementations computed."""

import pytest
import torch
from scipy.special import rel_entr
from torch import nn

import elbert
from elbert import PonderAlbertClassifier
from tests.golden_vectors import load_golden

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def published_model() -> tuple[PonderAlbertClassifier, dict, dict]:
    text, weights, tensors = load_golden("ponder_single")
    config = elbert.PonderAlbertConfig(**text["config"])
    model = PonderAlbertClassifier(
        config, target_halt_probability=text["target_halt_probability"]
    ).train()
    assert "embeddings.position_ids" in weights  # a constant, kept by older versions
    model.load_state_dict(weights)
    return model, text, tensors


def answer(model: PonderAlbertClassifier, tensors: dict):
    return model(*(tensors[name] for name in INPUTS))


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.view_as(actual), atol=1e-5, rtol=0)


def test_every_layer_answers_and_halts_as_published():
    model, _, tensors = published_model()
    with torch.no_grad():
        out = answer(model, tensors)
        full = model.eval()(*(tensors[name] for name in INPUTS), output_all_exits=True)
    for name in ("logits", "halt_probabilities"):
        assert_near(out[name], tensors[name])
        assert_near(full[name], tensors[name])
    assert_near(out["model_halt_dist"].pmf(), tensors["model_pmf"])
    assert_near(out["target_halt_dist"].pmf(), tensors["target_pmf"])
    assert out["passes"] == model.config.num_hidden_layers


def test_losses_and_the_gradient_of_the_halting_head_are_the_published_ones():
    model, text, tensors = published_model()
    model.config.kl_penalty_factor = text["kl_penalty_factor"]
    out = model(*(tensors[name] for name in INPUTS), labels=tensors["labels"])
    losses = elbert.PonderClassificationLoss(text["kl_penalty_factor"])(out, tensors["labels"])
    losses["total_loss"].backward()
    for name in ("total_loss", "weighted_ce_loss", "kl_loss"):
        assert_near(losses[name], tensors[name])
    assert_near(out.loss, tensors["total_loss"])
    assert_near(out.kl_loss, tensors["kl_loss"])
    gradient = model.ponder[0].weight.grad
    torch.testing.assert_close(gradient, tensors["grad_ponder_0"], atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("kl_direction", ["to_prior", "from_prior"])
def test_the_kl_divergence_has_the_direction_that_the_key_names(kl_direction):
    model, text, tensors = published_model()
    model.config.kl_penalty_factor = text["kl_penalty_factor"]
    model.config.kl_direction = kl_direction
    out = model(*(tensors[name] for name in INPUTS), labels=tensors["labels"])
    p, prior = tensors["model_pmf"].numpy(), tensors["target_pmf"].numpy()
    first, second = (p, prior) if kl_direction == "to_prior" else (prior, p)
    divergence = rel_entr(first, second).sum(-1).mean()
    assert out.kl_loss.item() == pytest.approx(text["kl_penalty_factor"] * divergence, abs=1e-6)
    assert out.loss.item() == pytest.approx((out.weighted_ce_loss + out.kl_loss).item())


@pytest.mark.parametrize("stops_early", [False, True])
def test_parity_gru_steps_and_losses_are_the_published_ones(stops_early):
    _, weights, tensors = load_golden("parity_gru")
    model = elbert.ParityPonderGRU(n_elems=8, n_hidden=16, max_steps=10)
    model.load_state_dict(weights)
    model.is_halt = stops_early
    p, y_hat, p_m, y_m = model(tensors["x"])
    ran = len(p)
    assert ran == 10 or stops_early
    # The last step that ran takes what is left only when it is the last there is.
    comparable = ran if ran == 10 else ran - 1
    assert_near(p[:comparable], tensors["p"][:comparable])
    assert_near(y_hat, tensors["y_hat"][:ran])
    at = (y_hat == y_m).nonzero()
    assert set(at[:, 1].tolist()) == set(range(32))  # every sampled answer is one of its steps'
    assert p_m.shape == (32,)
    if ran == 10:
        rec = elbert.ReconstructionLoss(nn.BCEWithLogitsLoss(reduction="none"))
        assert_near(rec(p, y_hat, tensors["y"].float()), tensors["loss_rec"])
        assert_near(elbert.RegularizationLoss(lambda_p=0.2, max_steps=10)(p), tensors["loss_reg"])
