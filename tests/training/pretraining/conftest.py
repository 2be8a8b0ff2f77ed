"""What the tests of pre-training share: a text, and its data."""

from pathlib import Path

import pytest

from elbert import load_tokenizer
from tests.conftest import sentence
from training.pretraining.data import PretrainingData
from training.pretraining.masking import Vocabulary
from training.pretraining.settings import TextSettings


@pytest.fixture(scope="module")
def vocabulary(spiece) -> Vocabulary:
    return Vocabulary(load_tokenizer(spiece.parent))


@pytest.fixture
def text(tmp_path) -> Path:
    """60 documents of 1 to 5 sentences."""
    path = tmp_path / "text.txt"
    documents = [[sentence(7 * i + j, 4 + j) for j in range(i % 5 + 1)] for i in range(60)]
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    return path


@pytest.fixture
def data_of(tmp_path, spiece):
    def make(path: Path, **more) -> PretrainingData:
        settings = TextSettings(**{"train_files": [path], "max_seq_length": 24, **more})
        tokenizer = load_tokenizer(spiece.parent)
        return PretrainingData(settings, tokenizer, batch_size=4, seed=1, output_dir=tmp_path)

    return make
