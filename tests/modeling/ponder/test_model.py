"""The ponder model: the halting head, losses, and texts."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr, softmax
from torch.nn import functional as F
from transformers import AlbertConfig

from elbert import PonderAlbertClassifier, PonderClassificationLoss, UserError
from modeling.depth import layer_states
from tests.models import SMALL, assert_near, ponder_batch, tiny_ponder


@pytest.mark.parametrize("pooler", ["two_cls", "mean"])
@pytest.mark.parametrize("arch", ["linear", "linear_cat", "linear_diff"])
def test_palberts_heads_see_this_and_the_previous_layer_as_their_names_say(arch, pooler):
    """Recomputed layer by layer; the state before the first is 0. `mean`: one pooler for both."""
    model = tiny_ponder(lambda_layer_arch=arch, num_lambda_layers=3, pooler_input=pooler)
    batch = ponder_batch([9, 9])
    linears = [module for module in model.ponder if isinstance(module, torch.nn.Linear)]
    assert len(linears) == 4  # three tanh layers and the output
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    previous = torch.zeros(2, 16)
    logits = []
    halts = []
    for state in layer_states(model, hidden, None):
        answering = state[:, 0]
        now = state[:, 1]
        if pooler == "mean":
            now = F.linear(state.mean(1), model.pooler.weight, model.pooler.bias).tanh()
            answering = now
        features = {"linear": now, "linear_diff": now - previous}.get(
            arch, torch.cat((now, previous), 1)
        )
        for linear in linears[:-1]:
            features = torch.tanh(F.linear(features, linear.weight, linear.bias))
        halts.append(F.linear(features, linears[-1].weight, linears[-1].bias)[:, 0].sigmoid())
        logits.append(model.classifier(answering))
        previous = now
    out = model(**batch, output_all_exits=True)
    assert_near(out.halt_probabilities, torch.stack(halts, 1))
    assert_near(out.logits, torch.stack(logits))


def test_regression_weighs_squared_errors():
    out = tiny_ponder(num_labels=1).train()(**ponder_batch([5, 9]))
    labels = torch.tensor([0.5, 3.0])
    loss = PonderClassificationLoss(0.0)(out, labels)["total_loss"]
    errors = (out.logits[..., 0] - labels) ** 2  # (layers, batch)
    torch.testing.assert_close(loss, (errors * out.model_halt_dist.pmf().T).mean())
    assert "'model_halt_dist': GeneralizedGeometricDist(), " in repr(out)  # as its README prints it


@pytest.mark.parametrize("teacher", ["last", "next"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_layers_learn_a_share_from_a_deeper_one_weighted_by_p(teacher, num_labels):
    """KL by scipy; the last layer has the loss to the labels alone."""
    keys = {
        "self_distillation": 0.3,
        "self_distillation_from": teacher,
        "self_distillation_temperature": 2.0,
    }
    out = tiny_ponder(num_labels=num_labels, kl_penalty_factor=0.0, **keys).train()(
        **ponder_batch([5, 9]), labels=torch.tensor([2, 0] if num_labels > 1 else [0.5, 3.0])
    )
    logits = out.logits.detach().double().numpy()  # (layers, batch, num_labels)
    losses = []
    for layer, answers in enumerate(logits):
        deeper = logits[-1 if teacher == "last" else min(layer + 1, len(logits) - 1)]
        if num_labels == 1:
            hard = np.square(answers[:, 0] - [0.5, 3.0])
            soft = np.square(answers - deeper)[:, 0]
        else:
            hard = -log_softmax(answers, 1)[[0, 1], [2, 0]]
            teaching, taught = softmax(deeper / 2, 1), softmax(answers / 2, 1)
            soft = 4 * rel_entr(teaching, taught).sum(1)
        losses.append(hard if layer == len(logits) - 1 else 0.7 * hard + 0.3 * soft)
    expected = (np.array(losses) * out.model_halt_dist.pmf().T.detach().numpy()).mean()
    assert out.loss.item() == pytest.approx(expected, rel=1e-5)


def test_when_to_halt_is_learned_from_labels_alone():
    """The halting head's gradient is that without self-distillation, also where its share is 1."""
    gradients = []
    for share in (0.0, 1.0):
        model = tiny_ponder(num_labels=3, kl_penalty_factor=0.0, self_distillation=share).train()
        model(**ponder_batch([5, 9]), labels=torch.tensor([2, 0])).loss.backward()
        gradients.append(torch.cat([x.grad.flatten() for x in model.ponder.parameters()]))
    assert gradients[0].abs().max() > 1e-4
    assert_near(gradients[1], gradients[0], 1e-7)


def test_a_single_layer_has_no_deeper_one_to_learn_from():
    with pytest.raises(UserError, match=r"self_distillation = 0\.5: .*single exit"):
        tiny_ponder(num_hidden_layers=1, self_distillation=0.5)


def test_a_new_model_halts_as_its_prior_does():
    torch.manual_seed(0)
    model = PonderAlbertClassifier(AlbertConfig(**SMALL), target_halt_probability=0.1).train()
    out = model(**ponder_batch([6, 9, 12]))
    assert out.target_halt_dist.kl_div(out.model_halt_dist) < 1e-3


PAIRS = [["the cat", "a"], ["sat", "on mat"]]
OF_PAIRS = [[2, 2, 4, 5, 3, 6, 3], [2, 2, 9, 3, 7, 8, 3]]
SECONDS = [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("texts", "ids", "types"),
    [
        (["the cat", "a dog"], [[2, 2, 4, 5, 3], [2, 2, 9, 10, 3]], [[0] * 5] * 2),
        (["the cat", "a"], [[2, 2, 4, 5, 3], [2, 2, 9, 3, 0]], [[0] * 5] * 2),
        (PAIRS, OF_PAIRS, SECONDS),  # one text of two segments
        (tuple(PAIRS), OF_PAIRS, SECONDS),
        (
            ["cat " * 100],
            [[2, 2, *[5] * 21, 3]],
            [[0] * 24],
        ),  # as many tokens as there are positions
    ],
)
def test_texts_are_tokenised_with_a_second_cls(texts, ids, types):
    model = tiny_ponder(exit_criteria="threshold", exit_thres=1.0)
    inputs = model.tokenize(texts)
    assert inputs.input_ids.tolist() == ids
    assert torch.equal(inputs.attention_mask, (inputs.input_ids > 0).long())
    assert inputs.token_type_ids.tolist() == types
    assert torch.equal(model(texts).answer, model(**inputs._asdict()).answer)


def test_a_pair_may_have_ponder_albert_s_third_cls(tokenizer):
    model = tiny_ponder()
    model.cls_in_second_text = True
    pair = model.tokenize((["the cat"], ["sat"]))
    assert pair.input_ids.tolist() == [[2, 2, 4, 5, 3, 2, 6, 3]]
    assert pair.token_type_ids.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1]]
    assert model.tokenize(["the cat"]).input_ids.tolist() == [[2, 2, 4, 5, 3]]
    model.tokenizer = tokenizer  # ALBERT's own marks the beginning of a word behind the [CLS]
    ids = model.tokenize((["a dog"], ["the house"])).input_ids[0].tolist()
    plain = tokenizer("the house").input_ids
    assert ids[-len(plain) :] == plain


@pytest.mark.parametrize("ids", [[2], [2, 4, 5, 3]])
def test_ids_without_the_second_cls_are_an_error(ids):
    with pytest.raises(UserError, match="with_halting_token"):
        tiny_ponder()(torch.tensor([ids]))
