"""ELBERT's contract: poolings, losses, files and training."""

import math
from contextlib import nullcontext

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

from modeling import ElbertForSequenceClassification
from modeling.compilation import compile_for_training
from modeling.elbert.model import joint_loss, pool
from tests.conftest import TINY, random_ids, tiny_model
from tests.models import assert_near


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


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_joint_loss_by_hand():
    losses = torch.tensor([1.0, 2.0, 4.0])
    assert joint_loss(losses).item() == 7
    weights = torch.tensor([0.5, -1.0])
    a, b = sigmoid(0.5), sigmoid(-1.0)
    expected = a * 1 + b * 2 + (3 - a - b) * 4
    assert joint_loss(losses, weights).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("weight_name", ["equal", "dyn"])
def test_training_loss_weighs_the_loss_of_every_exit(weight_name):
    model = tiny_model(weight_name=weight_name, classifier_dropout_prob=0.0).train()
    ids, labels = random_ids(4, 6), [0, 1, 1, 0]
    out = model(ids, labels=torch.tensor(labels))
    losses = []
    for logits in out.all_logits.tolist():
        terms = [
            math.log(sum(math.exp(x) for x in row)) - row[label]
            for row, label in zip(logits, labels, strict=True)
        ]
        losses.append(sum(terms) / 4)
    w = sigmoid(4.0) if weight_name == "dyn" else 1.0  # w_init = 4
    expected = w * sum(losses[:3]) + (4 - 3 * w) * losses[3]
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)
    assert (model.exit_weights is None) == (weight_name == "equal")


def test_regression_loss_is_the_squared_error():
    model = tiny_model(num_labels=1, weight_name="equal", classifier_dropout_prob=0.0)
    ids, labels = random_ids(3, 6), torch.tensor([0.5, 2.0, 4.0])
    out = model.train()(ids, labels=labels)
    expected = sum(((logits[:, 0] - labels) ** 2).mean().item() for logits in out.all_logits)
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)


def test_evaluation_loss_is_that_of_the_exit_taken():
    model = tiny_model(thres_name="entropy", exit_thres=0.9)
    ids, labels = random_ids(6, 6), torch.tensor([0, 1, 1, 0, 0, 1])
    with torch.no_grad():
        out = model(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(out.logits, labels)
    assert out.loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"weight_name": "equal"},
        {"num_hidden_layers": 1},
        {"num_exit_layers": 4, "use_out_pooler": False, "use_fc2": True, "fc_size1": 8},
        {"num_hidden_groups": 2, "inner_group_num": 2, "num_exit_layers": 3, "num_labels": 1},
    ],
)
def test_saving_and_loading_gives_the_same_model(shape, tmp_path):
    model, ids = tiny_model(**shape, exit_thres=0.77, thres_name="bias_3"), random_ids(3, 5)
    if model.exit_weights is not None:
        with torch.no_grad():
            model.exit_weights.normal_()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    for kind in (ElbertForSequenceClassification, AutoModelForSequenceClassification):
        loaded = kind.from_pretrained(tmp_path)
        assert type(loaded) is ElbertForSequenceClassification
        assert loaded.config.exit_keys() == model.config.exit_keys()
        state = loaded.state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, state.pop(name)), name
        assert state == {}
        with torch.no_grad():
            ours, theirs = (m(ids, output_all_exits=True).all_logits for m in (model, loaded))
        assert_near(ours, theirs)


def test_state_dict_names_are_the_published_ones():
    names = set(tiny_model().state_dict())
    assert {n for n in names if "exit" in n} == {
        "albert.encoder.exit_out_layer.classifier.weight",
        "albert.encoder.exit_out_layer.classifier.bias",
        "exit_weights",
    }
    hf = transformers.AlbertModel(transformers.AlbertConfig(**TINY)).state_dict()
    assert {f"albert.{name}" for name in hf} == {n for n in names if "exit" not in n}
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


def training_step(model, context=nullcontext) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients of one step."""
    with context():
        loss = model.train()(random_ids(4, 7), labels=torch.tensor([0, 1, 1, 0])).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_bf16_autocast_trains_float32_weights():
    model, other = (tiny_model(classifier_dropout_prob=0.0) for _ in range(2))
    loss, gradients = training_step(model)
    with_autocast = training_step(other, lambda: torch.autocast("cpu", torch.bfloat16))
    assert with_autocast[0].item() == pytest.approx(loss.item(), rel=0.05)
    for name, gradient in with_autocast[1].items():
        assert gradient.dtype == torch.float32
        if name.endswith("key.bias"):
            continue  # softmax does not see it: its gradient is rounding alone
        similarity = torch.cosine_similarity(gradient.flatten(), gradients[name].flatten(), dim=0)
        assert similarity > 0.98, name


@pytest.mark.slow
def test_compiled_training_has_the_loss_and_gradients_of_eager_mode():
    model, other = (tiny_model(classifier_dropout_prob=0.0) for _ in range(2))
    compile_for_training(other)
    expected, got = training_step(model), training_step(other)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
