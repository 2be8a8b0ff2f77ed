"""What would give answers that mean nothing is refused, by its name."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluation.results import predict
from glue.custom import custom_task
from glue.tasks import Example
from modeling import UserError, load_pretrained
from tests.conftest import job_of, tiny_model, write

NAME = "albert.encoder.embedding_hidden_mapping_in.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.index_fill(0, torch.tensor([0]), torch.nan), "NaN or infinite"),
        (lambda weights: weights.index_fill(0, torch.tensor([0]), -torch.inf), "NaN or infinite"),
        (lambda weights: torch.full_like(weights, 1e300, dtype=torch.double), "NaN or infinite"),
        (lambda weights: weights.to(torch.int8), "torch.int8"),
        (lambda weights: weights.to(torch.complex64), "torch.complex64"),
        (lambda weights: weights.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
    ],
)
def test_weights_that_are_no_finite_numbers_are_refused(change, words, trained):
    path = trained / "model.safetensors"
    tensors = load_file(path)
    tensors[NAME] = change(tensors[NAME])
    save_file(tensors, path)
    with pytest.raises(UserError, match=f"{NAME} .*{words}"):
        load_pretrained(trained)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_in_other_types_of_fractions_are_read(kind, trained):
    path = trained / "model.safetensors"
    save_file({name: tensor.to(kind) for name, tensor in load_file(path).items()}, path)
    model, _ = load_pretrained(trained)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def labelled(path: Path, *labels: str) -> Path:
    rows = "".join(f'some text,"{label}"\n' for label in labels)
    return write(path, f"sentence1,label\n{rows}")


@pytest.mark.parametrize("character", ["\t", "\n", "\r", "\x00", "\x85", "\u2028"])
def test_a_label_that_would_break_a_table_is_refused(character, tmp_path):
    path = labelled(tmp_path / "train.csv", "good", f"b{character}d")
    with pytest.raises(UserError, match=r"train\.csv, line 3: .*label|not valid CSV"):
        custom_task(path)
    with pytest.raises(UserError, match="label"):
        custom_task(labelled(path, "a", "b"), labels=["a", f"b{character}d"])


@pytest.mark.parametrize("pair", [("1", "1.0"), ("2", "2e0"), ("0", "-0"), ("1", "01")])
def test_two_spellings_of_a_number_are_no_two_classes(pair, tmp_path):
    with pytest.raises(UserError, match="are the same number"):
        custom_task(labelled(tmp_path / "train.csv", "one", *pair))


def test_numbers_may_stand_beside_texts(tmp_path):
    task = custom_task(labelled(tmp_path / "train.csv", "10", "9", "one"))
    assert task.labels == ("10", "9", "one")


def test_cached_tokens_of_another_number_of_texts_are_refused(tmp_path):
    job = job_of(tiny_model(), [[5, 6, 7]])
    with pytest.raises(UserError, match=r"2 examples, .* of 1: .*--overwrite_cache"):
        predict(job, [Example("0", "a", None, None)] * 2, tmp_path, "predictions.tsv", None)
    assert list(tmp_path.iterdir()) == []
