"""The pre-training objective against the models' own losses, and the table against a hand count."""

import pytest
import torch
import transformers

from elbert import AlbertActConfig, AlbertActForPreTraining
from tests.conftest import TINY, random_ids
from training.log import add_sums
from training.pretraining.masking import TokenClass
from training.pretraining.objective import PreTrainingObjective, mean_loss, means
from training.pretraining.run import mean_updates, published_means

DENSE, ADAPTIVE = transformers.AlbertForPreTraining, AlbertActForPreTraining


def objective_of(kind, **overrides) -> PreTrainingObjective:
    torch.manual_seed(0)
    values = {**TINY, "classifier_dropout_prob": 0.0, **overrides}
    config = (
        AlbertActConfig(tau=0.01, **values) if kind is ADAPTIVE else kind.config_class(**values)
    )
    return PreTrainingObjective(kind(config).eval(), len(TokenClass))


def random_batch(batch: int = 4, length: int = 9, seed: int = 0) -> dict[str, torch.Tensor]:
    """Texts of several lengths with three predictions each; the last has no pair."""
    ids = random_ids(batch, length, seed)
    mask = (torch.arange(length) < length - torch.arange(batch)[:, None]).long()
    labels = torch.full_like(ids, -100)
    labels[:, 1:4] = random_ids(batch, 3, seed + 1)
    classes = torch.full_like(ids, TokenClass.UNMASKED) * mask
    classes[:, 0], classes[:, 4] = TokenClass.CLS, TokenClass.SEP
    classes[:, 1:4] = torch.tensor([2, 3, 4])
    order = torch.arange(batch) % 2
    order[-1] = -100
    return {
        "input_ids": ids * mask,
        "token_type_ids": torch.zeros_like(ids),
        "attention_mask": mask,
        "labels": labels,
        "token_classes": classes,
        "sentence_order_label": order,
    }


def own_loss(objective: PreTrainingObjective, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the model itself answers, which computes logits of every place."""
    batch = {name: value for name, value in batch.items() if name != "token_classes"}
    return objective.model(**batch).loss


@pytest.mark.parametrize("kind", [DENSE, ADAPTIVE])
def test_the_loss_is_the_models_own(kind):
    objective, batch = objective_of(kind), random_batch()
    expected = own_loss(objective, batch)
    loss = objective(**batch).loss
    torch.testing.assert_close(loss, expected)
    parameters = dict(objective.model.named_parameters())
    gradients = [
        torch.autograd.grad(x, parameters.values(), allow_unused=True) for x in (loss, expected)
    ]
    for name, mine, models in zip(parameters, *gradients, strict=True):
        torch.testing.assert_close(mine, models, msg=name)


@pytest.mark.parametrize("kind", [DENSE, ADAPTIVE])
def test_the_parts_of_a_batch_add_up_to_its_loss(kind):
    """However its examples are shared out: the counts are the whole batch's."""
    objective, batch = objective_of(kind), random_batch()
    whole = objective(**batch)
    counts = {name: whole.sums[name] for name in ("predictions", "pairs", "examples")}
    parts = []
    for rows in (slice(0, 3), slice(3, 4)):  # the last has no pair
        parts.append(objective(**{name: value[rows] for name, value in batch.items()}, **counts))
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss)
    total = add_sums(add_sums({}, parts[0].sums), parts[1].sums)
    for name, value in whole.sums.items():
        torch.testing.assert_close(total[name], value, msg=name)


def test_means_of_worked_sums():
    worked = {"examples": 4, "predictions": 8, "pairs": 2, "mlm_loss": 24.0, "sop_loss": 1.0}
    worked |= {"mlm_correct": 2, "sop_correct": 1, "ponder_cost": 100.0}
    sums = {name: torch.tensor(value) for name, value in worked.items()}
    expected = {"loss": 3 + 0.5 + 0.1 * 25, "mlm_loss": 3, "mlm_acc": 0.25}
    expected |= {"sop_loss": 0.5, "sop_acc": 0.5, "ponder_cost": 25}
    assert means(sums, 0.1) == pytest.approx(expected)
    assert mean_loss(sums, {**sums, "predictions": torch.tensor(16)}, 0.0).item() == 2.0


def test_the_table_of_a_batch_counted_by_hand():
    """Two texts, [CLS] a b [SEP] and [CLS] c [SEP] with one place of padding."""
    names = "CLS SEP UNMASKED MASK_MASK MASK_RANDOM MASK_ORIGINAL PADDING".split()
    c, s, u, m, r, o, p = (TokenClass[name] for name in names)
    classes = torch.tensor([[c, u, m, u, r, s], [c, o, m, s, p, p]])
    updates = torch.tensor([[6.0, 1, 5, 2, 3, 1], [4.0, 2, 2, 2, 0, 0]])
    members = torch.stack([classes == number for number in list(TokenClass)[1:]], -1)
    sums = {"tokens": members.sum((0, 1)), "updates": (members * updates[..., None]).sum((0, 1))}
    assert mean_updates(sums) == {
        "All tokens": 2.8,  # 28 updates of 10 tokens
        "All unmasked tokens": 1.5,
        "[MASK/MASK]": 3.5,
        "[MASK/random]": 3.0,
        "[MASK/original]": 2.0,
        "[CLS]": 5.0,
        "[SEP]": 1.5,
    }
    assert published_means(sums) == {
        "All unmasked tokens": 21 / 8,  # all but the two [MASK]
        "[MASK/random]": 10 / 3,  # the two [MASK] and the random one
    }
