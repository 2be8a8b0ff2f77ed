"""The modes in run_glue.py: training, reports, what may change, and what every mode refuses."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

import elbert
import sweep_exits
from elbert import UserError, classify
from evaluation.modes import trained_mode
from glue.splits import read_examples
from glue.tasks import TASKS
from modeling.keys import MODE_KEYS
from tests.commands import report_of, train
from tests.conftest import edit_json

PONDER, ACT = ("--model_type", "ponder_albert"), ("--model_type", "albert_act")
TRAINING = ("--learning_rate", 1e-3, "--logging_steps", 1)
MODE_FLAGS = {
    "ponder_albert": ("--target_halt_probability", 0.3),
    "albert_act": ("--evaluate_during_training", "--set", "tau=1"),
}


@pytest.fixture(scope="session")
def original(tmp_path_factory, albert_dir, rte) -> Callable[[str], Path]:
    """`original(mode)`: an RTE model whose examples or tokens halt after different layers."""

    @cache
    def made(mode: str) -> Path:
        out = tmp_path_factory.mktemp(mode) / "RTE"
        train(albert_dir, rte, out, "--model_type", mode, *MODE_FLAGS[mode], *TRAINING)
        if mode == "ponder_albert":
            model = elbert.PonderAlbertClassifier.from_pretrained(out)
            head, spread = model.ponder[-1], 2.0
        else:
            model = elbert.AlbertActForSequenceClassification.from_pretrained(out)
            head, spread = model.albert.encoder.albert_layer.act.dense, 0.3
        with torch.no_grad():
            head.weight.normal_(std=spread, generator=torch.Generator().manual_seed(0))
            head.bias.fill_(-0.5)
        model.save_pretrained(out)
        return out

    return made


@pytest.fixture
def ponder(original, tmp_path) -> Path:
    return Path(shutil.copytree(original("ponder_albert"), tmp_path / "out/RTE"))


@pytest.fixture
def adaptive(original, tmp_path) -> Path:
    return Path(shutil.copytree(original("albert_act"), tmp_path / "out/RTE"))


@pytest.mark.pictures
def test_a_ponder_models_flags_are_its_keys_and_decide_its_exits(glue, tmp_path):
    keys = {"lambda_layer_arch": "linear_cat", "num_lambda_layers": 2, "lambda_lr": 1e-2}
    keys |= {"exit_criteria": "threshold", "kl_penalty_factor": 0.02}
    flags = [word for key, value in keys.items() for word in (f"--{key}", value)]
    glue(tmp_path, *PONDER, "--do_train", "--do_eval", *flags).done()
    assert keys.items() <= json.loads((tmp_path / "config.json").read_text()).items()
    report = report_of(tmp_path)
    assert {"exit_criteria": "threshold", "exit_thres": 0.5}.items() <= report["rule"].items()
    assert report["rule"].keys() <= MODE_KEYS["ponder_albert"].exit_keys.keys()
    assert report["examples"] == sum(report["exits_per_layer"]) == 10
    assert report["same_exit_layer_as_fp32"] == 1
    assert (tmp_path / "exits.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "stat_out/ponder_albert/rte/layers_all.csv").exists()


@pytest.mark.pictures
def test_an_act_model_reports_updates_against_a_pass_over_single_texts(adaptive, rte, glue):
    outcome = glue(adaptive, *ACT, "--do_eval").done()
    report = report_of(adaptive)
    model = elbert.AlbertActForSequenceClassification.from_pretrained(adaptive).eval()
    tokenizer = elbert.load_tokenizer(adaptive)
    counts = {"[CLS]": [], "[SEP]": [], "others": []}
    for row in read_examples(TASKS["rte"], rte, "dev"):
        encoded = tokenizer(row.text_a, row.text_b, return_tensors="pt", return_token_type_ids=True)
        ids = encoded.pop("input_ids")
        with torch.no_grad():
            updates = model(ids, **encoded).updates[0, 0, 0]
        for token, number in zip(tokenizer.convert_ids_to_tokens(ids[0]), updates, strict=True):
            counts[token if token in counts else "others"].append(number.item())
    all_counts = list(chain.from_iterable(counts.values()))
    mean = sum(all_counts) / len(all_counts)
    assert 1 < mean < 4
    assert report["mean_updates"] == pytest.approx(mean)
    assert report["computation_cost"] == pytest.approx(mean / 4)
    assert f"Computation cost: {mean / 4:.4f}" in outcome.out
    for name, numbers in counts.items():
        assert report["updates_per_token_class"][name] == pytest.approx(np.mean(numbers))
        assert f"mean updates of {name} = {np.mean(numbers):.2f}" in outcome.out
    assert report["tokens_per_updates"] == [all_counts.count(n) for n in (1, 2, 3, 4)]
    assert (adaptive / "eval_results.txt").read_text().startswith(",acc,compute_ratio,act_epsilon")
    page = (adaptive / "tokens.html").read_text()
    assert page.count("</section>") == 10
    assert not re.search(r"<(script|img|link)\b|https?:", page)  # it loads nothing


@pytest.fixture
def model_of(request) -> Callable[[str], Path]:
    """`model_of(mode)`: a trained model of the mode, which a test may change."""
    fixtures = {"elbert": "trained", "ponder_albert": "ponder", "albert_act": "adaptive"}
    return lambda mode: request.getfixturevalue(fixtures[mode])


EXITS = (
    "computation_cost average_layer num_layers exit_sample_ratio exits_per_layer flops_ratio "
    "same_exit_layer_as_fp32 same_answer_as_fp32 acc_per_layer frontier"
).split()
UPDATES = (
    "computation_cost mean_updates maximum_updates updates_per_token_class tokens_per_updates "
    "flops_ratio"
).split()


@pytest.mark.parametrize(
    ("mode", "depth_keys"), [("elbert", EXITS), ("ponder_albert", EXITS), ("albert_act", UPDATES)]
)
def test_a_report_has_the_keys_that_it_always_had(mode, depth_keys, model_of, glue):
    """Programs read eval_results.json; so do people, from top to bottom. A new key comes last."""
    model = model_of(mode)
    glue(model, "--model_type", mode, "--do_eval", "--do_predict").done()
    assert list(report_of(model)) == [
        *("task", "dataset", "examples", "metrics", "classes", "macro_f1", "confusion"),
        *("remarks", "latency_ms", "latency_means", "texts_per_second", "rule", "rule_sources"),
        *("provenance", "dtype", "environment", "batch_size"),
        *depth_keys,
        "reference",
    ]
    written = json.loads((model / "predictions.json").read_text())
    assert list(written) == ["files", "rule", "rule_sources", "provenance"]


@pytest.mark.parametrize("mode", ["elbert", "ponder_albert", "albert_act"])
def test_one_call_classifies_as_run_glue_predicts(mode, glue, rte, model_of):
    """Whatever shares a batch; a model without its heads is refused."""
    model = model_of(mode)
    glue(model, "--model_type", mode, "--do_predict").done()
    pairs = [(row.text_a, row.text_b) for row in read_examples(TASKS["rte"], rte, "test")]
    answers = classify(model, pairs, batch_size=3, max_length=32)
    with (model / "predictions.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [answer["label"] for answer in answers] == [row["prediction"] for row in rows]
    for answer, row in zip(answers, rows, strict=True):
        assert answer["score"] == pytest.approx(float(row["confidence"]), abs=1e-6)
        if mode == "albert_act":
            assert answer["updates"] == pytest.approx(float(row["mean_updates"]), abs=1e-4)
        else:
            assert answer["exit_layer"] == int(row["exit_layer"])
    ranked = classify(model, pairs[0][0], max_length=32, top_k=None)
    assert sum(answer["score"] for answer in ranked.pop("classes")) == pytest.approx(1)
    assert classify(model, [pairs[0][0]], max_length=32) == [ranked]
    assert classify(model, []) == []


def test_a_classifier_answers_one_text_as_many(trained):
    classifier = elbert.Classifier(trained)
    texts = ["a man sleeps", "two dogs run in the snow", "it rains"]
    for alone, answer in zip(map(classifier, texts), classifier(texts), strict=True):
        assert alone.pop("score") == pytest.approx(answer.pop("score"), abs=1e-6)
        assert alone == answer


def test_one_call_classifies_nothing_with_weights_that_no_task_trained(albert_dir):
    with pytest.raises(UserError, match="is not a trained model of this project"):
        classify(albert_dir, ["a man sleeps"])


def test_an_act_model_has_nothing_to_sweep(adaptive, rte, script):
    where = ("--model_dir", adaptive, "--data_dir", rte, "--task_name", "RTE", "--no_cuda")
    outcome = script(sweep_exits.main, *where, "--max_seq_length", 32)
    outcome.refused("--model_type albert_act", "nothing to sweep")


def test_what_was_decided_in_training_stays(ponder, glue):
    outcome = glue(ponder, *PONDER, "--do_eval", "--set", "prior_type=normal")
    outcome.refused("prior_type: decided in training")
    outcome = glue(ponder, "--model_type", "elbert", "--do_eval")
    outcome.refused("--model_type elbert", ponder, "--model_type ponder_albert")
    edit_json(ponder / "config.json", model_type="albert")
    assert trained_mode(ponder).name == "elbert"
