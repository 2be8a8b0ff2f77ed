"""Tokenizers beside a model, and their lower-casing."""

import pytest

from modeling import UserError, load_tokenizer


@pytest.mark.parametrize(("lower", "same"), [(True, True), (False, False)])
def test_do_lower_case_reaches_the_tokenizer(albert_dir, lower, same):
    tokenizer = load_tokenizer(albert_dir, do_lower_case=lower)
    assert (tokenizer("A Dog").input_ids == tokenizer("a dog").input_ids) == same


def test_a_saved_tokenizer_is_the_same_tokenizer(albert_dir, tmp_path):
    tokenizer = load_tokenizer(albert_dir)
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    for pair in (("A dog sleeps", "in the park"), ("", "")):
        assert again(*pair).input_ids == tokenizer(*pair).input_ids
    ids = tokenizer("a dog", "a cat")
    tokens = tokenizer.convert_ids_to_tokens(ids.input_ids)
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert tokenizer.pad_token_id == 0


def test_no_tokenizer_is_an_error_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match="--tokenizer_name"):
        load_tokenizer(tmp_path)
