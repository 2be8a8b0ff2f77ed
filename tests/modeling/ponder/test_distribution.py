"""The halting distribution against the product formula, and the criteria that stop by it."""

import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats

from elbert import GeneralizedGeometricDist, PonderAlbertConfig
from modeling.ponder.distribution import prior
from tests.models import SMALL, direct_pmf, ponder_batch, tiny_ponder

PROBABILITIES = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0, 1e-30, 1e-7, 1 - 6e-8]), st.floats(0, 1, width=32)),
    min_size=1,
    max_size=12,
)


@given(PROBABILITIES)
def test_pmf_is_the_product_formula_for_every_lambda_0_and_1_included(stops):
    dist = GeneralizedGeometricDist(torch.tensor([stops]))
    expected = torch.tensor([direct_pmf(torch.tensor(stops).tolist())])
    torch.testing.assert_close(dist.pmf(normalize=False), expected, atol=1e-6, rtol=1e-5)


@given(PROBABILITIES, st.integers(0, 99))
def test_kl_is_the_direct_sum_never_negative_and_zero_for_equals(stops, seed):
    stops = torch.tensor([stops])
    others = torch.rand(stops.shape, generator=torch.Generator().manual_seed(seed))
    other = GeneralizedGeometricDist(others.clamp(0.05, 0.95))
    dist = GeneralizedGeometricDist(stops)
    assert dist.kl_div(dist).item() == pytest.approx(0, abs=1e-6)
    # kl_div(target) is KL(target ‖ self), summed here in double precision with 0 · log 0 = 0.
    p, q = dist.pmf().double(), other.pmf().double()
    direct = (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum().item()
    assert other.kl_div(dist).item() == pytest.approx(direct, abs=1e-4)
    assert other.kl_div(dist).item() >= -1e-6


@given(PROBABILITIES)
def test_gradients_are_finite_for_every_lambda_0_and_1_included(stops):
    stops = torch.tensor([stops], requires_grad=True)
    dist = GeneralizedGeometricDist(stops)
    target = GeneralizedGeometricDist(0.2, stops.shape[1], 1)
    (target.kl_div(dist) + dist.pmf()[0, 0] + dist.expected_steps().sum()).backward()
    assert stops.grad.isfinite().all()


@pytest.mark.parametrize("layers", [6, 43])
def test_the_normal_prior_is_palberts_density_far_into_its_tail(layers):
    config = PonderAlbertConfig(
        **{**SMALL, "num_hidden_layers": layers}, prior_type="normal", target_halt_probability=0.25
    )
    dist = prior(config, 2, layers, torch.device("cpu"))
    log_density = -((torch.arange(1, layers + 1).double() - 4) ** 2)
    expected = (log_density - log_density.logsumexp(0)).float().expand(2, layers)
    torch.testing.assert_close(dist.log_pmf(), expected, atol=1e-3, rtol=1e-5)


def test_sampled_halting_layers_follow_the_pmf():
    """20,000 draws for one text: chi-square against p_n, the last layer taking what is left."""
    model = tiny_ponder(seed=6, halt_normalization="last_layer")
    example = ponder_batch([8], seed=5)
    full = model(**example, output_all_exits=True)
    expected = torch.tensor(direct_pmf(full.halt_probabilities[0].tolist()))
    assert expected.sum().item() == pytest.approx(1, abs=1e-5)
    assert (expected * 20_000 > 5).all()
    torch.manual_seed(1)
    with torch.no_grad():
        out = model(**{name: tensor.expand(20_000, -1) for name, tensor in example.items()})
    counts = torch.bincount(out.exit_layer, minlength=7)[1:]
    frequencies = expected.double() / expected.double().sum() * 20_000
    assert stats.chisquare(counts.numpy(), frequencies.numpy()).pvalue > 0.01


@pytest.mark.parametrize("exit_thres", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_threshold_exits_at_the_first_layer_whose_cdf_exceeds_it(exit_thres):
    model = tiny_ponder(exit_criteria="threshold", exit_thres=exit_thres)
    batch = ponder_batch([6, 9, 12, 5, 20, 11])
    halts = model(**batch, output_all_exits=True).halt_probabilities.tolist()
    out = model(**batch)
    for row, stops in enumerate(halts):
        cdf = torch.tensor(direct_pmf(stops)).double().cumsum(0)
        above = [layer for layer, mass in enumerate(cdf.tolist(), 1) if mass > exit_thres]
        assert out.exit_layer[row] == (above or [6])[0]
    assert torch.equal(out.exit_layer, model(**batch).exit_layer)


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("halt_normalization", ["renormalise", "last_layer"])
def test_expectation_is_the_mean_of_all_layers_answers_under_p(halt_normalization, num_labels):
    keys = {"halt_normalization": halt_normalization, "num_labels": num_labels}
    model = tiny_ponder(exit_criteria="expectation", **keys)
    out = model(**ponder_batch([6, 9, 12]))
    pmf = out.model_halt_dist.pmf().T[..., None]  # (layers, batch, 1)
    if num_labels == 1:
        expected = (pmf * out.logits).sum(0)
    else:
        expected = (pmf * out.logits.softmax(-1)).sum(0).log()
    torch.testing.assert_close(out.answer, expected, atol=1e-5, rtol=1e-5)
    assert (out.exit_layer == 6).all()
