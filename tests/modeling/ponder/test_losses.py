"""The losses of ponder models, added up by hand."""

import torch
from transformers import AlbertConfig

from modeling import PonderAlbertClassifier, PonderClassificationLoss
from tests.models import SMALL, ponder_batch, tiny_ponder


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
