"""A trained model of each mode that learns when to stop."""

import shutil
from pathlib import Path

import pytest
import torch

from modeling import AlbertActForSequenceClassification, PonderAlbertClassifier
from tests.commands import train

FEW = ("--learning_rate", 1e-3, "--logging_steps", 1)


@pytest.fixture(scope="session")
def ponder_once(tmp_path_factory, albert_dir, rte) -> Path:
    out = tmp_path_factory.mktemp("ponder") / "RTE"
    kind = ("--model_type", "ponder_albert", "--target_halt_probability", 0.3)
    train(albert_dir, rte, out, *kind, *FEW)
    model = PonderAlbertClassifier.from_pretrained(out)
    with torch.no_grad():
        model.ponder[-1].weight.normal_(std=2.0, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(out)
    return out


@pytest.fixture
def ponder(ponder_once, tmp_path) -> Path:
    """A ponder model of RTE whose λ differ, so that examples halt at several layers."""
    return Path(shutil.copytree(ponder_once, tmp_path / "out/RTE"))


@pytest.fixture(scope="session")
def adaptive_once(tmp_path_factory, albert_dir, rte) -> Path:
    out = tmp_path_factory.mktemp("adaptive") / "RTE"
    kind = ("--model_type", "albert_act", "--evaluate_during_training", "--set", "tau=1")
    train(albert_dir, rte, out, *kind, *FEW)
    model = AlbertActForSequenceClassification.from_pretrained(out)
    act = model.albert.encoder.albert_layer.act.dense
    with torch.no_grad():
        act.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
        act.bias.fill_(-0.5)
    model.save_pretrained(out)
    return out


@pytest.fixture
def adaptive(adaptive_once, tmp_path) -> Path:
    """An ACT model of RTE whose tokens halt after different numbers of updates."""
    return Path(shutil.copytree(adaptive_once, tmp_path / "out/RTE"))
