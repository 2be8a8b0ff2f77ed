"""PonderNet around step functions: a user's own, the parity GRU's, and ALBERT's layer pass."""

import pytest
import torch
from torch import nn

import elbert
from elbert import PonderNet, ReconstructionLoss
from tests.models import direct_pmf


class Table(nn.Module):
    """λ by a table (steps, batch); the state counts steps, and so does the answer, twice over."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, x: torch.Tensor, state: int | None) -> tuple:
        state = 0 if state is None else state
        return state + 1, self.table[state], torch.full((len(x), 2), state + 1.0)


def test_a_step_function_of_one_s_own_has_the_steps_distribution_and_answers():
    stops = [[0.5, 0.0], [0.25, 1.0], [0.9, 0.3]]
    net = PonderNet(Table(stops), max_steps=3)
    p, answers, p_m, answer_m = net(torch.zeros(2, 4))
    for row in range(2):
        last_is_sure = [stops[0][row], stops[1][row], 1.0]
        assert p[:, row].tolist() == pytest.approx(direct_pmf(last_is_sure))
    assert answers[:, 0].tolist() == [[1, 1], [2, 2], [3, 3]]
    sampled = answer_m[:, 0].long() - 1
    assert p_m.tolist() == p[sampled, torch.arange(2)].tolist()
    loss = ReconstructionLoss(lambda y_hat, y: (y_hat - y).square().sum(-1))(
        p, answers, torch.zeros(2, 2)
    )
    # Σ p_n · 2n² of the first: 0.5·2 + 0.125·8 + 0.375·18; the second halts at step 2.
    assert loss.item() == pytest.approx((8.75 + 8.0) / 2)
    loss.backward()
    assert (net.step.table.grad[:2, 0] != 0).all()


def test_the_annotated_code_s_attributes_and_losses_a_step_work():
    """As labml calls them: the loss function once for each step, with (batch,) tensors."""
    model = elbert.ParityPonderGRU(8, 16, 5)
    assert isinstance(model.lambda_prob, nn.Sigmoid)
    regularization = elbert.RegularizationLoss(0.2, 5)
    assert isinstance(regularization.kl_div, nn.KLDivLoss)
    assert [*regularization.state_dict()] == ["p_g"]
    x, y, weight = torch.randn(4, 8), torch.tensor([0.0, 1, 1, 0]), torch.rand(4)
    p, y_hat, _, _ = model(x)
    bce = nn.BCEWithLogitsLoss(weight=weight, reduction="none")
    expected = sum((p[n] * bce(y_hat[n], y)).mean() for n in range(5))
    torch.testing.assert_close(ReconstructionLoss(bce)(p, y_hat, y), expected)


def test_the_parity_data_are_the_published_ones():
    torch.manual_seed(0)
    data = elbert.ParityDataset(200, 9)
    assert len(data) == len(list(data)) == 200
    counts = set()
    for x, y in data:
        assert (x.dtype, x.shape, y.dtype, y.shape) == (torch.float32, (9,), torch.int64, ())
        assert {*x.tolist()} <= {-1.0, 0.0, 1.0}
        assert y == x.tolist().count(1.0) % 2
        counts.add(int(x.abs().sum()))
    assert counts == set(range(1, 10))
