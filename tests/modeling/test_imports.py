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


def test_what_needs_no_torch_does_not_load_it():
    modules = "modeling, modeling.errors, modeling.keys, modeling.loading.files"
    code = f"import sys, {modules}, change_config, download_glue_data"
    assert printed(f"{code}; print([x for x in {HEAVY} if x in sys.modules])") == "[]\n"


SCRIPTS = (
    *("run_glue", "run_pretraining", "run_parity", "sweep_exits"),
    "convert_albert_original_tf_checkpoint_to_pytorch",
)


def test_a_script_answers_without_torch():
    """One after the other in one process: none loads what the next is asked about."""
    code = f"""
import runpy, sys
for script in {SCRIPTS}:
    for flag in ("--help", "--no_such_flag"):
        sys.argv = [script + ".py", flag]
        try:
            runpy.run_path(script + ".py", run_name="__main__")
        except SystemExit as ended:
            print("end of", script, flag, ended.code, "torch" in sys.modules)
"""
    ends = [line for line in printed(code).splitlines() if line.startswith("end of")]
    assert ends == [
        f"end of {script} {flag} {status} False"
        for script in SCRIPTS
        for flag, status in (("--help", 0), ("--no_such_flag", 2))
    ]


def test_every_public_name_is_there():
    assert set(modeling.__all__) <= set(dir(modeling))
    for name in modeling.__all__:
        assert getattr(modeling, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'AlbertModel'"):
        _ = modeling.AlbertModel


CONFIGS = {
    "modeling": (
        ("ElbertConfig", "AutoModelForSequenceClassification"),
        ("PonderAlbertConfig", "AutoModelForSequenceClassification"),
        ("AlbertActConfig", "AutoModelForPreTraining"),
        ("AlbertActConfig", "AutoModel"),
    ),
    "modeling.elbert.model": (("ElbertConfig", "AutoModelForSequenceClassification"),),
    "modeling.ponder.model": (("PonderAlbertConfig", "AutoModelForSequenceClassification"),),
    "modeling.act.heads": (("AlbertActConfig", "AutoModelForMultipleChoice"),),
}


def test_one_import_makes_a_mode_known_to_the_auto_classes():
    """Each import in a fork of a process that has loaded transformers and nothing of the project.

    Without forks the first import would make the others' claims true.
    """
    code = f"""
import os, transformers
sizes = dict(vocab_size=9, embedding_size=4, hidden_size=4, num_attention_heads=1,
    intermediate_size=4, num_hidden_layers=1)
auto_names = "AutoModelForSequenceClassification AutoModelForPreTraining AutoModel"
auto_names += " AutoModelForMultipleChoice AutoConfig AlbertModel PreTrainedTokenizerFast"
for name in auto_names.split():
    getattr(transformers, name)  # loads it
for home, pairs in {CONFIGS}.items():
    for name, auto_name in pairs:
        if os.fork() == 0:
            Config = getattr(__import__(home, fromlist=[name]), name)
            config = transformers.AutoConfig.for_model(Config.model_type, **sizes)
            model = getattr(transformers, auto_name).from_config(config)
            print(name, auto_name, type(model).__module__, flush=True)
            os._exit(0)
        os.wait()
"""
    lines = [line.split() for line in printed(code).splitlines()]
    expected = [pair for pairs in CONFIGS.values() for pair in pairs]
    assert [(name, auto_name) for name, auto_name, _ in lines] == expected
    assert all(module.startswith("modeling.") for *_, module in lines)
