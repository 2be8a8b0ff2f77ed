"""The losses of ponder models, added up by hand."""

import pytest
import torch
from transformers import AlbertConfig

from modeling import PonderAlbertClassifier, PonderClassificationLoss
from tests.models import SMALL, ponder_batch, tiny_ponder


def test_classification_loss_is_the_mean_over_layers_and_batch_weighted_by_p():
    out = tiny_ponder(num_labels=3).train()(**ponder_batch([5, 9, 7, 8]))
    labels = [0, 2, 1, 2]
    losses = PonderClassificationLoss(kl_penalty_factor=0.1)(out, labels)
    pmf, total = out.model_halt_dist.pmf(), 0.0
    for layer in range(6):
        for row in range(4):
            log_p = out.logits[layer, row].log_softmax(0)[labels[row]]
            total += -log_p.item() * pmf[row, layer].item() / 24
    assert losses["weighted_ce_loss"].item() == pytest.approx(total, rel=1e-4)
    kl = out.target_halt_dist.kl_div(out.model_halt_dist).item()
    assert losses["kl_loss"].item() == pytest.approx(0.1 * kl, rel=1e-4)
    assert losses["total_loss"].item() == pytest.approx(total + 0.1 * kl, rel=1e-4)


def test_regression_weighs_squared_errors():
    out = tiny_ponder(num_labels=1).train()(**ponder_batch([5, 9]))
    labels = torch.tensor([0.5, 3.0])
    loss = PonderClassificationLoss(0.0)(out, labels)["total_loss"]
    errors = (out.logits[..., 0] - labels) ** 2  # (layers, batch)
    torch.testing.assert_close(loss, (errors * out.model_halt_dist.pmf().T).mean())


def test_a_new_model_halts_as_its_prior_does():
    torch.manual_seed(0)
    model = PonderAlbertClassifier(AlbertConfig(**SMALL), target_halt_probability=0.1).train()
    out = model(**ponder_batch([6, 9, 12]))
    assert out.target_halt_dist.kl_div(out.model_halt_dist) < 1e-3
