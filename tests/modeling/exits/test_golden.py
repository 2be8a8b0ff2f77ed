"""ELBERT against what the published implementation computed: logits, losses, gradients, exits."""

import pytest
import torch

from elbert import ElbertConfig, ElbertForSequenceClassification
from modeling.keys import EXIT_KEYS
from modeling.rules import scan as scan_recorded
from tests.golden_vectors import load_golden
from tests.models import assert_near

NAMES = ["elbert_cls", "elbert_three_way"]
# These random weights amplify float32 rounding, which differs from processor to processor: the
# vectors are up to 1.8e-5 from their formula in float64, HF's own AlbertModel 2.2e-5 from the
# vectors. In float64 the formula alone shows, on any machine.
OF_THE_VECTORS, OF_FLOAT32 = 2e-5, 5e-5


def published_model(name: str, attention: str = "eager", **overrides):
    """`eager` is the published order of operations."""
    text, weights, tensors = load_golden(name)
    settings = {**text["config"], "window_score": "class0", **overrides}
    settings["attn_implementation"] = attention
    model = ElbertForSequenceClassification(ElbertConfig(**settings)).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert set(missing) <= {"exit_weights"}
    return model, text, tensors


def inputs_of(tensors: dict, rows=slice(None)) -> dict:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: tensors[name][rows] for name in names}


def run_settings(run: dict) -> dict:
    return {name: run[name] for name in EXIT_KEYS if name in run}


def scan(all_logits: torch.Tensor, **settings) -> torch.Tensor:
    rule = ElbertConfig(num_labels=all_logits.shape[-1]).exit_rule(**settings)
    return scan_recorded(rule, {"all_logits": all_logits})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_layer_answers_as_published(name, attention):
    model, _, tensors = published_model(name, attention)
    with torch.no_grad():
        found = model(**inputs_of(tensors), output_all_exits=True).all_logits
        exact = model.double()(**inputs_of(tensors), output_all_exits=True).all_logits
    assert_near(exact, tensors["all_logits"], OF_THE_VECTORS)
    assert_near(found, tensors["all_logits"], OF_FLOAT32)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["equal", "dyn_w_init", "dyn"])
def test_joint_loss_and_gradients_are_the_published_ones(name, case):
    weight_name = "equal" if case == "equal" else "dyn"
    model, _, tensors = published_model(name, weight_name=weight_name, classifier_dropout_prob=0.0)
    if case == "dyn":
        with torch.no_grad():
            model.exit_weights.copy_(tensors["W"])
    out = model.train()(**inputs_of(tensors), labels=tensors["labels"])
    assert_near(out.loss, tensors[f"loss_{case}"][0])
    if case != "dyn":
        return
    out.loss.backward()
    assert_near(model.exit_weights.grad, tensors["grad_W"])
    classifier = model.albert.encoder.exit_out_layer.classifier.weight
    assert_near(classifier.grad, tensors["grad_classifier"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_all_published_runs_exit_at_the_same_layers(name, every):
    """Each run twice: a batch stepped layer by layer, and a scan of the recorded answers."""
    model, text, tensors = published_model(name)
    assert len(text["runs"]) == 102
    padded = inputs_of(tensors)
    for k, run in list(enumerate(text["runs"]))[::every]:
        for key, value in run_settings(run).items():
            setattr(model.config, key, value)
        with torch.no_grad():
            out = model(**padded)
        expected = tensors[f"run{k}.exit_idx"] + 1
        assert torch.equal(out.exit_layer, expected), (k, run)
        assert_near(out.logits, tensors[f"run{k}.logits"], OF_FLOAT32)
        cost = out.exit_layer.double().mean() / model.config.num_hidden_layers
        assert cost.item() == pytest.approx(run["compute_ratio"], abs=1e-6)
        rule = model.config.exit_rule()
        found = scan_recorded(rule, {"all_logits": tensors["all_logits"]})
        assert torch.equal(found, expected), (k, run)


@pytest.mark.parametrize("name", NAMES)
def test_all_published_exits_are_those_of_the_default_attention(name):
    """By scans of one pass at full depth, which test_rules.py compares with stepping."""
    model, text, tensors = published_model(name, "sdpa")
    rows = torch.arange(len(tensors["labels"]))
    with torch.no_grad():
        all_logits = model(**inputs_of(tensors), output_all_exits=True).all_logits
    for k, run in enumerate(text["runs"]):
        exits = scan(all_logits, **run_settings(run), window_score="class0")
        assert torch.equal(exits, tensors[f"run{k}.exit_idx"] + 1), (k, run)
        assert_near(all_logits[exits - 1, rows], tensors[f"run{k}.logits"], OF_FLOAT32)


def test_two_class_runs_need_no_class0_setting():
    """With two classes the default `lead` window is the published rule."""
    text, _, tensors = load_golden("elbert_cls")
    for k, run in enumerate(text["runs"]):
        found = scan(tensors["all_logits"], **run_settings(run))
        assert torch.equal(found, tensors[f"run{k}.exit_idx"] + 1)
