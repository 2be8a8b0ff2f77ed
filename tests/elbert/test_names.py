"""One identity for each public name, whichever package it is imported from, also in old pickles."""

import pickle
import subprocess
import sys

import pytest
import transformers

import elbert
import modeling
from elbert.published import act as published_act
from tests.commands import ROOT

MODEL_NAMES = ("Elbert", "AlbertAct", "PonderAlbert")

# Written by version 1.0: a model of each mode, two texts, and that version's answers to them.
EARLIER_PICKLE = ROOT / "tests/golden/version_1_0.pickle"


def test_modeling_and_elbert_give_the_same_objects():
    for name in modeling.__all__:
        assert getattr(modeling, name) is getattr(elbert, name), name
    assert {*modeling.__all__} < {*elbert.__all__}


@pytest.mark.parametrize("name", sorted(modeling.__all__))
def test_a_pickled_name_is_the_same_object(name):
    assert pickle.loads(pickle.dumps(getattr(elbert, name))) is getattr(modeling, name)


@pytest.mark.parametrize("mode", ["elbert", "ponder_albert", "albert_act"])
def test_auto_classes_make_the_classes_of_both_packages(mode):
    sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 4, "num_attention_heads": 1}
    config = transformers.AutoConfig.for_model(mode, **sizes, intermediate_size=4)
    auto_model = transformers.AutoModelForSequenceClassification
    class_name = type(auto_model.from_config(config)).__name__
    assert type(auto_model.from_config(config)) is getattr(modeling, class_name)
    assert type(config) is getattr(modeling, type(config).__name__)


def test_the_tensorflow_model_says_that_there_is_none():
    for make in (published_act.TFAlbertActModel, published_act.TFAlbertActModel.from_pretrained):
        with pytest.raises(elbert.UserError, match="AlbertActModel, in PyTorch"):
            make("asi/albert-act-base")


@pytest.mark.parametrize("name", [name for name in elbert.__all__ if name.startswith(MODEL_NAMES)])
def test_without_a_network_a_hub_name_is_one_line_for_every_class(name):
    """HF would ask for one file after the other, each several times."""
    named_class = getattr(elbert, name)
    if hasattr(named_class, "from_pretrained"):
        with pytest.raises(elbert.UserError, match="hf download asi/albert-act-base"):
            named_class.from_pretrained("asi/albert-act-base")


def test_pickles_of_version_1_0_load_and_answer_as_that_version_did():
    code = f"""
import pickle, torch
content = pickle.load(open({str(EARLIER_PICKLE)!r}, "rb"))
import elbert, modeling
assert type(content["error"]) is elbert.UserError is modeling.UserError
every_exit = dict(output_all_exits=True)
for mode, options in ("elbert", every_exit), ("ponder", every_exit), ("act", {{}}):
    model, logits = content[mode]
    assert type(model) is getattr(modeling, type(model).__name__)
    with torch.inference_mode():
        answer = model(content["ids"], content["mask"], **options)
    answered = answer.all_logits if options else answer.logits
    torch.testing.assert_close(answered, logits, rtol=0, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_importing_modeling_loads_no_torch():
    code = "import modeling.keys, sys; print('torch' in sys.modules, modeling.UserError.__module__)"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["False", "modeling.errors"]
