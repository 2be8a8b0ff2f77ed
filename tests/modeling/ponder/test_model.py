"""The ponder model: depth batching, the halting head, losses, and texts."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AlbertConfig

from modeling import PonderAlbertClassifier, PonderClassificationLoss, UserError
from modeling.depth import layer_states
from modeling.depth_batching import DepthBatcher
from tests.models import SMALL, assert_near, one_of, padded_batch, ponder_batch, tiny_ponder


@pytest.mark.parametrize("arch", ["mlp", "linear_cat"])
@pytest.mark.parametrize("criterion", ["sample", "threshold", "expectation"])
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_depth_batching_gives_the_answers_of_one_at_a_time(slots, criterion, arch):
    model = tiny_ponder(exit_criteria=criterion, exit_thres=0.3, lambda_layer_arch=arch)
    batch, rows = ponder_batch([6, 9, 12, 5, 20, 11, 8, 7]), []
    hook = model.albert_layer.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    examples = [one_of(batch, row) for row in range(8)]
    draws = torch.linspace(0.95, 0.05, 8)
    batcher = DepthBatcher(model, slots=slots, window=4)
    batcher.submit(
        (x["input_ids"][0].tolist(), x["token_type_ids"][0].tolist(), draw)
        for x, draw in zip(examples, draws.tolist(), strict=True)
    )
    answers = sorted(batcher.answers())
    hook.remove()
    assert sum(rows) == sum(answer.exit_layer for answer in answers)
    with torch.no_grad():
        for answer, example, draw in zip(answers, examples, draws, strict=True):
            alone = model(**example, draws=draw[None])
            assert answer.exit_layer == alone.exit_layer.item()
            torch.testing.assert_close(answer.logits, alone.answer[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("arch", ["linear", "linear_cat", "linear_diff"])
def test_palberts_head_sees_this_and_the_previous_layer_as_its_name_says(arch):
    """Recomputed layer by layer with plain functions; the state before the first layer is 0."""
    model = tiny_ponder(lambda_layer_arch=arch, num_lambda_layers=3)
    batch = ponder_batch([9, 9])
    linears = [module for module in model.ponder if isinstance(module, torch.nn.Linear)]
    assert len(linears) == 4  # three tanh layers and the output
    hidden = model.embed(batch["input_ids"], batch["token_type_ids"])
    previous, expected = torch.zeros(2, 16), []
    for state in layer_states(model, hidden, None):
        now = state[:, 1]
        features = {"linear": now, "linear_diff": now - previous}.get(
            arch, torch.cat((now, previous), 1)
        )
        for linear in linears[:-1]:
            features = torch.tanh(F.linear(features, linear.weight, linear.bias))
        expected.append(F.linear(features, linears[-1].weight, linears[-1].bias)[:, 0].sigmoid())
        previous = now
    found = model(**batch, output_all_exits=True).halt_probabilities
    torch.testing.assert_close(found, torch.stack(expected, 1), atol=1e-5, rtol=1e-5)


def test_target_halt_probability_outside_0_to_1_is_an_error():
    with pytest.raises(UserError, match=r"target_halt_probability = 1\.5"):
        PonderAlbertClassifier(AlbertConfig(**SMALL), None, 1.5)


def test_regression_weighs_squared_errors():
    out = tiny_ponder(num_labels=1).train()(**ponder_batch([5, 9]))
    labels = torch.tensor([0.5, 3.0])
    loss = PonderClassificationLoss(0.0)(out, labels)["total_loss"]
    errors = (out.logits[..., 0] - labels) ** 2  # (layers, batch)
    torch.testing.assert_close(loss, (errors * out.model_halt_dist.pmf().T).mean())
    assert "'model_halt_dist': GeneralizedGeometricDist(), " in repr(out)  # as its README prints it


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
    found, mask, segments = model.tokenize(texts)
    assert found.tolist() == ids
    assert torch.equal(mask, (found > 0).long())
    assert segments.tolist() == types
    assert torch.equal(model(texts).answer, model(found, mask, segments).answer)


def test_a_pair_may_have_ponder_albert_s_third_cls(tokenizer):
    model = tiny_ponder()
    model.cls_in_second_text = True
    ids, _, segments = model.tokenize((["the cat"], ["sat"]))
    assert ids.tolist() == [[2, 2, 4, 5, 3, 2, 6, 3]]
    assert segments.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1]]
    assert model.tokenize(["the cat"])[0].tolist() == [[2, 2, 4, 5, 3]]
    model.tokenizer = tokenizer  # ALBERT's own marks the beginning of a word behind it
    (ids,), _, _ = model.tokenize((["a dog"], ["the house"]))
    plain = tokenizer("the house").input_ids
    assert ids.tolist()[-len(plain) :] == plain


@pytest.mark.parametrize(
    "texts", [[], ([], []), (["the cat"], ["sat", "ran"]), "the cat", (["the cat"],)]
)
def test_texts_that_are_no_batch_are_an_error(texts):
    with pytest.raises(UserError, match=r"list of texts|1 first texts and 2 second"):
        tiny_ponder()(texts)


@pytest.mark.parametrize("ids", [[2], [2, 4, 5, 3]])
def test_ids_without_the_second_cls_are_an_error(ids):
    with pytest.raises(UserError, match="with_halting_token"):
        tiny_ponder()(torch.tensor([ids]))


def test_one_pooler_serves_both_heads():
    """As in PALBERT: no second [CLS], one linear layer as classifier; by plain functions."""
    model = tiny_ponder(
        exit_criteria="threshold",
        pooler_input="mean",
        lambda_layer_arch="linear_cat",
        num_lambda_layers=1,
    )
    batch = padded_batch([9, 5])
    found = model(**batch, output_all_exits=True)
    weights = model.state_dict()
    for row in range(2):
        text = one_of(batch, row)
        hidden = model.embed(text["input_ids"], text["token_type_ids"])
        previous = torch.zeros(16)
        for layer, state in enumerate(layer_states(model, hidden, None)):
            pooled = torch.tanh(
                weights["pooler.weight"] @ state[0].mean(0) + weights["pooler.bias"]
            )
            logits = weights["classifier.weight"] @ pooled + weights["classifier.bias"]
            halt = weights["ponder.0.weight"] @ torch.cat((pooled, previous))
            halt, previous = (halt + weights["ponder.0.bias"]).sigmoid(), pooled
            assert_near(found.logits[layer, row], logits)
            assert_near(found.halt_probabilities[row, layer], halt[0])
    assert_near(model(**batch).answer, found.answer)
    assert model.tokenize(["the cat"])[0].tolist() == [[2, 4, 5, 3]]
