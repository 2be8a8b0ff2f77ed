"""A result is not written where what it was computed from has changed meanwhile."""

import json

import pytest

from elbert import UserError
from modeling.files import file_hash
from runs.used_files import UsedFiles


@pytest.fixture
def model(tmp_path):
    """A folder with a model whose exit keys are in rules/exit_config.json."""
    (tmp_path / "model/rules").mkdir(parents=True)
    (tmp_path / "model/model.safetensors").write_bytes(b"weights")
    (tmp_path / "model/config.json").write_text(json.dumps({"exit_config_path": "rules"}))
    (tmp_path / "data/part").mkdir(parents=True)
    (tmp_path / "data/part/0.arrow").write_bytes(b"rows")
    return tmp_path / "model"


def test_nothing_changed_is_no_error(model):
    used = UsedFiles(model, model.parent / "data")
    (model / "eval_results.json").write_text("{}")  # not what a result is computed from
    used.check()
    assert used.model_hashes["weights"] == file_hash(model / "model.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model.bin",
        "config.json",
        "exit_config.json",
        "tokenizer.json",
        "rules/exit_config.json",
        "../data/part/0.arrow",
        "../data/part/1.arrow",
    ],
)
def test_a_file_that_is_changed_made_or_removed_is_named(name, model):
    used = UsedFiles(model, model.parent / "data")
    path = model / name
    existed = path.exists()
    path.write_text("{}")
    with pytest.raises(UserError, match=f"{path.name} was changed while this command used it"):
        used.check()
    path.unlink()
    if existed and name != "config.json":  # without it, no key names the third file
        with pytest.raises(UserError, match=f"{path.name} was changed"):
            used.check()
    if not existed:
        used.check()
