"""ELBERT's contract: poolings, losses, files and training."""

import math

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, rel_entr, softmax
from transformers import BertConfig, BertForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPooling

from modeling.configuration import ElbertConfig
from modeling.encoder import pool
from modeling.errors import UserError
from modeling.losses import self_distillation_losses
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


# Exits that learn from a deeper one.


@pytest.mark.parametrize("teacher", ["last", "next"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_self_distillation_is_a_share_of_the_divergence_from_a_deeper_exit(teacher, num_labels):
    """KL by scipy, at temperature 2; dropout is off, so that a second pass has equal answers."""
    keys = {
        "num_labels": num_labels,
        "weight_name": "equal",
        "num_exit_layers": 4,
        "classifier_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    share, temperature = 0.3, 2.0
    model = tiny_model(
        **keys,
        self_distillation=share,
        self_distillation_from=teacher,
        self_distillation_temperature=temperature,
    )
    ids = random_ids(5, 6)
    labels = torch.tensor([0, 2, 1, 1, 0]) if num_labels > 1 else torch.randn(5)
    out = model.train()(ids, labels=labels)
    logits = out.all_logits.detach().double().numpy()
    expected = 0.0
    for layer, answers in enumerate(logits):
        deeper = logits[-1 if teacher == "last" else min(layer + 1, 3)]
        if num_labels == 1:
            hard = np.square(answers[:, 0] - labels.numpy()).mean()
            soft = np.square(answers - deeper).mean()
        else:
            hard = -log_softmax(answers, 1)[np.arange(5), labels.numpy()].mean()
            taught, teaching = (softmax(x / temperature, 1) for x in (answers, deeper))
            soft = temperature**2 * rel_entr(teaching, taught).sum(1).mean()
        expected += hard if layer == 3 else (1 - share) * hard + share * soft
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)


def test_self_distillation_of_several_labels_is_the_mean_over_them():
    """A label's answer is p or 1 − p; by hand for p = 1/4 and 3/4 against 1/2: ln 2 − ln √3."""
    config = ElbertConfig(num_labels=2, problem_type="multi_label_classification")
    three = math.log(3)
    all_logits = torch.tensor([[[-three, three]], [[0.0, 0.0]]], requires_grad=True)
    (loss,) = self_distillation_losses(all_logits, config)
    assert loss.item() == pytest.approx(math.log(2) - math.log(3) / 2, rel=1e-6)
    loss.backward()
    assert all_logits.grad[1].abs().max() == 0  # the deeper exit learns nothing from it
    assert all_logits.grad[0].abs().min() > 0


def test_with_a_share_of_one_only_the_last_exit_reads_labels():
    model = tiny_model(num_labels=3, num_exit_layers=4, weight_name="equal", self_distillation=1.0)
    gradients = []
    for labels in (torch.tensor([0, 1]), torch.tensor([2, 2])):
        torch.manual_seed(0)
        model.zero_grad()
        model.train()(random_ids(2, 6), labels=labels).loss.backward()
        gradients.append([head.classifier.bias.grad.clone() for head in model.exit_heads()])
    for first, second in zip(*gradients, strict=True):
        is_equal = torch.equal(first, second)
        assert is_equal == (first is not gradients[0][-1])


def divergence(teaching: np.ndarray, taught: np.ndarray, temperature: float) -> np.ndarray:
    """T²·KL of two classes or more, by scipy; of values, (…, 1), the squared distance."""
    if teaching.shape[-1] == 1:
        return np.square(teaching - taught)[..., 0]
    teaching, taught = (softmax(x / temperature, -1) for x in (teaching, taught))
    return temperature**2 * rel_entr(teaching, taught).sum(-1)


def loss_to_labels(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Loss of each example at a label smoothing of 0.2, by numpy; logits (examples, outputs)."""
    outputs = logits.shape[-1]
    if outputs == 1:
        return np.square(logits[:, 0] - labels)
    if labels.ndim == 2:
        targets = 0.8 * labels + 0.1
        present, absent = (-np.log(expit(sign * logits)) for sign in (1, -1))
        return (weights * targets * present + (1 - targets) * absent).mean(1)
    targets = 0.8 * np.eye(outputs)[labels] + 0.2 / outputs
    return -(weights * targets * log_softmax(logits, 1)).sum(1)


LABELS_OF_KIND = {
    "classes": torch.tensor([0, 2, 1, 1, 0]),
    "several labels": torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]),
    "values": torch.tensor([0.3, -1.0, 2.0, 0.5, 0.0]),
}


@pytest.mark.parametrize("keep_head", [False, True])
@pytest.mark.parametrize("weight_name", ["equal", "dyn"])
@pytest.mark.parametrize(
    ("kind", "has_teacher"),
    [
        ("classes", False),
        ("classes", True),
        ("values", False),
        ("values", True),
        ("several labels", False),  # where a teacher is refused
    ],
)
def test_self_distillation_leaves_teacher_weights_and_smoothing_as_they_are(
    kind, has_teacher, weight_name, keep_head
):
    """The loss of an exit without it, by numpy, has a share of 0.7; a kept head teaches as well."""
    labels = LABELS_OF_KIND[kind]
    model = tiny_model(
        num_labels=1 if kind == "values" else 3,
        problem_type="multi_label_classification" if kind == "several labels" else None,
        num_exit_layers=0 if keep_head else 4,
        keep_head=keep_head,
        weight_name=weight_name,
        w_init=0.5,
        label_smoothing=0.2,
        teacher_share=0.4,
        teacher_temperature=3.0,
        self_distillation=0.3,
        self_distillation_temperature=2.0,
        classifier_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    weights = np.array([0.5, 2.0, 1.0])
    if kind != "values":
        model.class_weights = torch.tensor(weights).float()
    teacher = torch.randn(5, model.config.num_labels) if has_teacher else None
    inputs = {"labels": labels, "teacher_logits": teacher}
    out = model.train()(random_ids(5, 6), **inputs)
    logits = out.all_logits.detach().double().numpy()
    losses = []
    for answers in logits:
        loss = loss_to_labels(answers, labels.numpy(), weights)
        if teacher is not None:
            loss = 0.6 * loss + 0.4 * divergence(teacher.double().numpy(), answers, 3.0)
        if len(losses) < 3:
            teaching, taught = logits[-1], answers
            if kind == "several labels":
                teaching, taught = (np.stack([0 * x, x], -1) for x in (teaching, taught))
            distance = divergence(teaching, taught, 2.0)
            loss = 0.7 * loss + 0.3 * distance.reshape(5, -1).mean(1)
        losses.append(loss.mean())
    shares = np.full(3, 1.0 if weight_name == "equal" else expit(0.5))
    expected = shares @ losses[:-1] + (4 - shares.sum()) * losses[-1]
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"self_distillation": 1.5}, "self_distillation = 1.5"),
        ({"self_distillation": -0.1}, "self_distillation = -0.1"),
        ({"self_distillation": 0.5, "num_hidden_layers": 1, "cnt_thres": 1}, "single exit"),
        ({"self_distillation": 0.5, "exit_layers": [12]}, "single exit"),
        ({"self_distillation_from": "first"}, "last, next"),
    ],
)
def test_a_share_that_cannot_be_is_refused(keys, words):
    with pytest.raises(UserError, match=words):
        ElbertConfig(**keys)
