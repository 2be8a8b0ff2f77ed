"""The tokenizer of --train_tokenizer."""

import pytest

from elbert import UserError, load_tokenizer
from training.pretraining.tokenizer import train_tokenizer

UNK = 1


def test_a_trained_tokenizer_has_alberts_special_pieces(text, tmp_path):
    folder = tmp_path / "tokenizer"
    train_tokenizer([text], False, 40, True, folder)
    assert [path.name for path in folder.iterdir()] == ["spiece.model"]
    tokenizer = load_tokenizer(folder)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert pieces[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert len(pieces) == 40
    assert UNK not in tokenizer("A dog RUNS", "in the park")["input_ids"]
    with pytest.raises(UserError, match=r"5000 pieces from this text: .*<= \d+"):
        train_tokenizer([text], False, 5000, True, folder)
