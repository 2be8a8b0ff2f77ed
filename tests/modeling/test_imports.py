"""What an import loads, and what it makes known to transformers."""

import subprocess
import sys
from pathlib import Path

import pytest

import modeling

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "scipy", "sklearn")


def printed(code: str) -> str:
    """What `code` prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "module",
    [
        *("modeling", "modeling.errors", "modeling.keys", "modeling.loading.files"),
        *("change_config", "download_glue_data"),
    ],
)
def test_what_needs_no_torch_does_not_load_it(module):
    code = f"import sys, {module}; print([x for x in {HEAVY} if x in sys.modules])"
    assert printed(code) == "[]\n"


@pytest.mark.parametrize(
    "script",
    [
        *("run_glue", "run_pretraining", "run_parity", "sweep_exits", "export_onnx"),
        "convert_albert_original_tf_checkpoint_to_pytorch",
    ],
)
@pytest.mark.parametrize("flag", ["--help", "--no_such_flag"])
def test_a_script_answers_without_torch(script, flag):
    code = f"""
import runpy, sys
sys.argv = ["{script}.py", "{flag}"]
try:
    runpy.run_path("{script}.py", run_name="__main__")
except SystemExit as ended:
    print(ended.code, "torch" in sys.modules)
"""
    assert printed(code).splitlines()[-1] == f"{0 if flag == '--help' else 2} False"


def test_every_public_name_is_there():
    assert set(modeling.__all__) <= set(dir(modeling))
    for name in modeling.__all__:
        assert getattr(modeling, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'AlbertModel'"):
        _ = modeling.AlbertModel


@pytest.mark.parametrize(
    ("home", "name", "auto_class"),
    [
        ("modeling", "ElbertConfig", "AutoModelForSequenceClassification"),
        ("modeling.elbert.model", "ElbertConfig", "AutoModelForSequenceClassification"),
        ("modeling", "PonderAlbertConfig", "AutoModelForSequenceClassification"),
        ("modeling.ponder.model", "PonderAlbertConfig", "AutoModelForSequenceClassification"),
        ("modeling", "AlbertActConfig", "AutoModelForPreTraining"),
        ("modeling", "AlbertActConfig", "AutoModel"),
        ("modeling.act.heads", "AlbertActConfig", "AutoModelForMultipleChoice"),
    ],
)
def test_one_import_makes_a_mode_known_to_the_auto_classes(home, name, auto_class):
    code = f"""
from {home} import {name} as Config
from transformers import AutoConfig, {auto_class}
config = AutoConfig.for_model(Config.model_type, vocab_size=9, embedding_size=4, hidden_size=4,
    num_attention_heads=1, intermediate_size=4, num_hidden_layers=1)
print(type({auto_class}.from_config(config)).__module__)
"""
    assert printed(code).startswith("modeling.")
