"""Regression in the labels' own units: the unit changes the answers by its factor, and no more."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import run_glue
from modeling.files import read_json
from tests.berts import save, tiny_encoder
from tests.conftest import sentence, write

FLAGS = ("--do_train", "--do_eval", "--max_seq_length", 32, "--per_gpu_train_batch_size", 4)
FACTOR, OFFSET = 4096.0, 50000.0  # of the unit


def table(path: Path, factor: float = 1.0, offset: float = 0.0) -> Path:
    """Write 12 sentences, whose scores rise by 0.375 in a unit."""
    rows = [f"{sentence(i)},{offset + factor * i * 0.375}\n" for i in range(12)]
    return write(path, "sentence1,label\n" + "".join(rows))


@pytest.fixture
def train(script, albert_dir):
    """`train(table, out, …)` trains and evaluates a regression; returns its weights."""

    def run(rows: Path, out: Path, *more, kind: str = "elbert", source: Path = albert_dir):
        files = ("--train_file", rows, "--validation_file", rows, "--task_type", "regression")
        start = ("--model_type", kind, "--model_name_or_path", source, "--output_dir", out)
        script(run_glue.main, *FLAGS, *files, *start, "--num_train_epochs", 4, *more).done()
        return load_file(out / "model.safetensors")

    return run


def heads(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the last linear map of a model with one exit classifier."""
    names = [name for name in weights if "classifier" in name and len(weights[name]) == 1]
    return {name.rsplit(".", 1)[1]: weights[name] for name in names}


@pytest.mark.parametrize("kind", ["elbert", "ponder_albert", "albert_act"])
def test_a_training_is_the_same_in_every_unit(kind, train, tmp_path):
    rate = ("--learning_rate", 1e-2)
    plain = train(table(tmp_path / "plain.csv"), tmp_path / "plain", *rate, kind=kind)
    units = table(tmp_path / "units.csv", FACTOR, OFFSET)
    scaled = train(units, tmp_path / "scaled", *rate, kind=kind)
    expected_weight = heads(plain)["weight"] * FACTOR
    expected_bias = heads(plain)["bias"] * FACTOR + OFFSET
    torch.testing.assert_close(heads(scaled)["weight"], expected_weight, rtol=1e-2, atol=1.0)
    torch.testing.assert_close(heads(scaled)["bias"], expected_bias, rtol=0, atol=5.0)
    before, after = (
        read_json(tmp_path / name / "eval_results.json") for name in ("plain", "scaled")
    )
    assert after["r2"] == pytest.approx(before["r2"], abs=1e-2)
    assert after["rmse"] == pytest.approx(before["rmse"] * FACTOR, rel=1e-2)


def test_a_trained_head_goes_on_from_its_own_answers(train, tmp_path):
    rows = table(tmp_path / "units.csv", FACTOR, OFFSET)
    first = train(rows, tmp_path / "first", "--learning_rate", 1e-2)
    still = train(rows, tmp_path / "still", "--learning_rate", 0, source=tmp_path / "first")
    assert torch.equal(heads(first)["weight"], heads(still)["weight"])
    torch.testing.assert_close(heads(first)["bias"], heads(still)["bias"], rtol=1e-6, atol=0)


def test_a_resumed_regression_ends_with_the_same_bits(train, tmp_path):
    rows = table(tmp_path / "units.csv", FACTOR, OFFSET)
    flags = ("--learning_rate", 1e-2, "--save_steps", 5)
    whole = train(rows, tmp_path / "out", *flags)
    checkpoint = ("--resume_from_checkpoint", tmp_path / "out/checkpoint-5")
    resumed = train(rows, tmp_path / "out", *flags, *checkpoint)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_a_kept_head_stays_as_it_is_whatever_its_bias(train, tmp_path):
    """Of a fine-tuned regression: a bias of 0 is no sign of a new head."""
    classifier = tiny_encoder("bert", "ForSequenceClassification", num_labels=1)
    torch.nn.init.zeros_(classifier.classifier.bias)
    source = save(classifier, tmp_path / "hf")
    rows = table(tmp_path / "units.csv", FACTOR, OFFSET)
    recipe = ("--recipe", "add_exits", "--train_exits_only", "--learning_rate", 1e-3)
    weights = train(rows, tmp_path / "out", *recipe, source=source)
    kept = [x for x in weights.values() if torch.equal(x, classifier.classifier.weight)]
    assert len(kept) == 1
    answers = [x for name, x in weights.items() if "classifier.bias" in name]
    assert sorted(float(x) == 0 for x in answers) == [False] * (len(answers) - 1) + [True]
