"""What would give answers that mean nothing is refused, by its name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from evaluation.figures import save_figure
from evaluation.results import predict
from exit_lab.figures import heatmap_figure
from glue.custom import custom_task
from glue.tasks import Example
from modeling import UserError, load_pretrained
from tests.conftest import job_of, tiny_model, write

NAME = "albert.encoder.embedding_hidden_mapping_in.weight"


def with_nan(weights: torch.Tensor) -> torch.Tensor:
    weights[0, 0] = torch.nan
    return weights


def with_infinity(weights: torch.Tensor) -> torch.Tensor:
    weights[-1, -1] = -torch.inf
    return weights


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_nan, "NaN or infinite"),
        (with_infinity, "NaN or infinite"),
        (lambda weights: torch.full_like(weights, 1e300, dtype=torch.double), "NaN or infinite"),
        (lambda weights: weights.to(torch.int8), "torch.int8"),
        (lambda weights: weights.long(), "torch.int64"),
        (lambda weights: weights.bool(), "torch.bool"),
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


def test_an_evaluation_of_broken_weights_prints_no_results(trained, glue):
    path = trained / "model.safetensors"
    save_file({name: tensor * torch.nan for name, tensor in load_file(path).items()}, path)
    ended = glue(trained, "--do_eval")
    ended.refused("NaN or infinite")
    assert "acc" not in ended.out


def test_float16_on_a_cpu_is_refused(glue, tmp_path):
    glue(tmp_path / "out", "--do_train", "--fp16").refused("--fp16 needs a GPU", "--bf16")
    assert not (tmp_path / "out").exists()


# Labels.


def labelled(path: Path, *labels: str) -> Path:
    rows = "".join(f'some text,"{label}"\n' for label in labels)
    return write(path, f"sentence1,label\n{rows}")


@pytest.mark.parametrize("character", ["\t", "\n", "\r", "\x00", "\x85", "\u2028"])
def test_a_label_that_would_break_a_table_is_refused(character, tmp_path):
    path = labelled(tmp_path / "train.csv", "good", f"b{character}d")
    with pytest.raises(UserError, match=r"train\.csv, line 3: .*label|not valid CSV"):
        custom_task(path)


def test_a_trained_models_label_that_would_break_a_table_is_refused(tmp_path):
    with pytest.raises(UserError, match="label"):
        custom_task(labelled(tmp_path / "train.csv", "a", "b"), labels=["a", "b\tc"])


@pytest.mark.parametrize("third", ["7", "one"])
@pytest.mark.parametrize("pair", [("1", "1.0"), ("2", "2e0"), ("0", "-0"), ("1", "01")])
def test_two_spellings_of_a_number_are_no_two_classes(pair, third, tmp_path):
    with pytest.raises(UserError, match="are the same number"):
        custom_task(labelled(tmp_path / "train.csv", third, *pair))


def test_numbers_may_stand_beside_texts(tmp_path):
    assert custom_task(labelled(tmp_path / "train.csv", "10", "9", "one")).labels == (
        *("10", "9", "one"),
    )


@pytest.mark.parametrize("label", ["$", "$x$", r"$\frac{1}{", "a_$b^", "$$", r"\$"])
def test_a_label_with_a_dollar_draws(label, tmp_path):
    figure = heatmap_figure(np.full((3, 2), 0.5), np.array([1, 3]), False, label, "bias_1")
    save_figure(figure, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        image.load()


def test_cached_tokens_of_another_number_of_texts_are_refused(tmp_path):
    job = job_of(tiny_model(), [[5, 6, 7]])
    with pytest.raises(UserError, match=r"2 examples, .* of 1: .*--overwrite_cache"):
        predict(job, [Example("0", "a", None, None)] * 2, tmp_path, "predictions.tsv", None)
    assert list(tmp_path.iterdir()) == []
