"""The halting distribution against the product formula, scipy, and a direct sum."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modeling import GeneralizedGeometricDist, PonderAlbertConfig
from modeling.ponder.distribution import prior
from tests.models import SMALL, direct_pmf

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
