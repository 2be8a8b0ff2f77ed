"""ELBERT's contract: poolings, losses, files and training."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPooling

from elbert.albert import pool
from elbert.configuration import ElbertConfig
from elbert_base.errors import UserError
from tests.conftest import random_ids, tiny_model


def test_pooling_runs_over_real_tokens_only():
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[-5.0], [-7.0], [-9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()[:, None, None]
    expected = {
        "cls": [1, -5],
        "mean": [2, -7],
        "max": [3, -5],
        "cls-mean": [1 + 2, -5 - 7],
        "cls-max": [1 + 3, -5 - 5],
        "mean-max": [2 + 3, -7 - 5],
    }
    for name, values in expected.items():
        assert pool(hidden, mask, name).flatten().tolist() == values, name
    assert pool(hidden[1:], None, "mean-max").item() == -12


def test_regression_loss_is_the_squared_error():
    model = tiny_model(num_labels=1, weight_name="equal", classifier_dropout_prob=0.0)
    ids, labels = random_ids(3, 6), torch.tensor([0.5, 2.0, 4.0])
    out = model.train()(ids, labels=labels)
    expected = sum(((logits[:, 0] - labels) ** 2).mean().item() for logits in out.all_logits)
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)


LABEL_SHAPES = [
    (1, [[1.0], [2.0], [3.0]]),
    (1, [1.0, 2.0, 3.0]),
    (3, [[0], [1], [2]]),
    (3, [[1.0, 0, 1], [0, 0, 1], [1, 1, 0]]),
]


@pytest.mark.parametrize(("num_labels", "labels"), LABEL_SHAPES)
def test_labels_of_every_shape_have_the_loss_of_transformers(num_labels, labels):
    model = tiny_model(num_labels=num_labels, thres_name="entropy", exit_thres=0.0)
    reference = BertForSequenceClassification(
        BertConfig(num_labels=num_labels, hidden_size=4, num_hidden_layers=0, num_attention_heads=1)
    )
    with torch.no_grad():
        out = model(random_ids(3, 6), labels=torch.tensor(labels))
        # A head that passes the logits on, behind an encoder that is left out.
        reference.bert.forward = lambda *_, **__: BaseModelOutputWithPooling(out.logits, out.logits)
        reference.dropout = reference.classifier = torch.nn.Identity()
        expected = reference(random_ids(3, 6), labels=torch.tensor(labels))
    assert out.loss.item() == pytest.approx(expected.loss.item())
    if num_labels > 1 and isinstance(labels[0][0], float):
        assert model.config.problem_type == reference.config.problem_type


def test_several_scores_an_example_are_refused():
    with pytest.raises(UserError, match="num_labels = 3: a model has one value"):
        ElbertConfig(num_labels=3, problem_type="regression")


def test_evaluation_loss_is_that_of_the_exit_taken():
    model = tiny_model(thres_name="entropy", exit_thres=0.9)
    ids, labels = random_ids(6, 6), torch.tensor([0, 1, 1, 0, 0, 1])
    with torch.no_grad():
        out = model(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(out.logits, labels)
    assert out.loss.item() == pytest.approx(expected.item())


def test_state_dict_names_are_the_published_ones():
    """With own exits; those with a shared one are in the golden vectors."""
    names = set(tiny_model(num_exit_layers=2, use_out_pooler=False, use_fc2=True).state_dict())
    for exit_ in (0, 1):
        for part in ("pooler", "classifier1", "classifier2"):
            assert f"albert.encoder.exit_out_layers.{exit_}.{part}.weight" in names


@pytest.mark.parametrize(
    ("layers", "exits", "expected"),
    [(6, 3, [0, 0, 1, 1, 2, 2]), (6, 6, list(range(6))), (7, 3, [0, 0, 1, 1, 2, 2, 2])],
)
def test_exit_layers_are_shared_in_order_by_equal_runs(layers, exits, expected):
    model = tiny_model(num_hidden_layers=layers, num_exit_layers=exits)
    assert [model.exit_number(layer) for layer in range(layers)] == expected
    assert list(model.exit_heads()) == list(model.albert.encoder.exit_out_layers)
