"""Texts for a ponder model: the second [CLS], pairs, and what is refused."""

import pytest
import torch

from modeling import UserError
from tests.models import tiny_ponder


def test_texts_are_tokenised_with_a_second_cls():
    model = tiny_ponder(exit_criteria="threshold", exit_thres=1.0)
    ids, mask, segments = model.tokenize(["the cat", "a dog ran on the mat"])
    assert ids.tolist() == [[2, 2, 4, 5, 3, 0, 0, 0, 0], [2, 2, 9, 10, 11, 7, 4, 8, 3]]
    assert mask.sum(1).tolist() == [5, 9]
    assert segments.sum() == 0
    torch.testing.assert_close(
        model(["the cat", "a dog ran on the mat"]).answer, model(ids, mask, segments).answer
    )


def test_a_pair_of_lists_is_one_text_with_two_segments():
    for pair in (tuple, list):
        ids, mask, segments = tiny_ponder().tokenize(pair([["the cat", "a"], ["sat", "on mat"]]))
        assert ids.tolist() == [[2, 2, 4, 5, 3, 6, 3], [2, 2, 9, 3, 7, 8, 3]]
        assert segments.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]]
        assert mask.all()


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


def test_a_long_text_is_cut_to_the_positions_that_the_model_has():
    ids, _, _ = tiny_ponder().tokenize(["cat " * 100])
    assert ids.shape == (1, 24)
    assert ids[0, [0, 1, -1]].tolist() == [2, 2, 3]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ([], []),
        (["the cat"], ["sat", "ran"]),
        "the cat",
        (["the cat"],),
    ],
)
def test_texts_that_are_no_batch_are_an_error(texts):
    with pytest.raises(UserError, match=r"list of texts|1 first texts and 2 second"):
        tiny_ponder()(texts)


@pytest.mark.parametrize("ids", [[2], [2, 4, 5, 3]])
def test_ids_without_the_second_cls_are_an_error(ids):
    with pytest.raises(UserError, match="with_halting_token"):
        tiny_ponder()(torch.tensor([ids]))
