"""Ponder models in run_glue.py: training, evaluation, and what may change at evaluation."""

import json

import pytest

from evaluation.modes import MODES
from glue.features import Features, encode
from glue.tasks import Example
from modeling import UserError, load_tokenizer
from tests.commands import edit_key, report_of
from tests.conftest import sentence

PONDER = ("--model_type", "ponder_albert")


@pytest.mark.pictures
def test_a_ponder_model_trains_evaluates_and_predicts(glue, tmp_path):
    out = tmp_path / "out"
    head = ("--lambda_layer_arch", "linear_cat", "--num_lambda_layers", 2, "--lambda_lr", 1e-2)
    chosen = ("--exit_criteria", "threshold", "--kl_penalty_factor", 0.02)
    actions = ("--do_train", "--do_eval", "--do_predict", "--logging_steps", 1)
    outcome = glue(out, *PONDER, *actions, *head, *chosen).done()
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "ponder_albert"
    assert (config["lambda_lr"], config["num_lambda_layers"]) == (1e-2, 2)
    assert config["kl_penalty_factor"] == 0.02
    report = report_of(out)
    assert f"Computation cost: {report['computation_cost']:.4f}" in outcome.out
    assert report["rule"] == {"exit_criteria": "threshold", "exit_thres": 0.5}
    assert report["examples"] == sum(report["exits_per_layer"]) == 10
    assert report["same_exit_layer_as_fp32"] == 1
    assert {"latency_ms", "flops_ratio", "environment"} <= set(report)
    rows = (out / "eval_results.txt").read_text().splitlines()
    assert rows[0] == ",exit_thres,acc,compute_ratio,exit_criteria"
    assert (out / "exits.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "stat_out/ponder_albert/rte/layers_all.csv").exists()
    assert len((out / "RTE.tsv").read_text().splitlines()) == 6


@pytest.mark.parametrize("criterion", ["sample", "threshold", "expectation"])
def test_no_criterion_depends_on_the_batch_size(ponder, glue, criterion):
    reports = []
    for size in (1, 3, 16):
        batch = ("--per_gpu_eval_batch_size", size, "--exit_criteria", criterion)
        glue(ponder, *PONDER, "--do_eval", *batch).done()
        reports.append(report_of(ponder))
    for key in ("metrics", "computation_cost", "exits_per_layer", "flops_ratio"):
        assert reports[0][key] == reports[1][key] == reports[2][key]
    layers = sum(count > 0 for count in reports[0]["exits_per_layer"])
    assert layers == 1 if criterion == "expectation" else layers > 1


def test_exit_keys_may_change_at_evaluation_and_others_not(ponder, glue, script):
    evaluate = (*PONDER, "--do_eval")
    lowest = glue(ponder, *evaluate, "--exit_criteria", "threshold", "--exit_thres", 0)
    assert "Computation cost: 0.2500" in lowest.out
    for key, value in (("exit_criteria", "threshold"), ("exit_thres", "1")):
        edit_key(script, ponder, key, value).done()
    assert "Computation cost: 1.0000" in glue(ponder, *evaluate).out
    refused = glue(ponder, *evaluate, "--set", "prior_type=normal")
    refused.refused("prior_type: decided in training")


def test_the_second_cls_counts_as_a_token(albert_dir):
    tokenizer, ponder = load_tokenizer(albert_dir), MODES["ponder_albert"]
    texts = [Example("0", sentence(1, 90), sentence(2, 90), 0)]
    features = encode(texts, tokenizer, 40 - ponder.extra_tokens)
    prepared = ponder.prepare(features, seed=0)
    assert prepared.lengths.tolist() == [40]
    assert prepared.input_ids(0)[:2].tolist() == [tokenizer.cls_token_id] * 2
    assert prepared.token_type_ids(0)[:2].tolist() == [0, 0]
    config = ponder.load_config(albert_dir)
    ponder.check_length(40, config)
    for length in (3, 41):
        with pytest.raises(UserError, match="allowed is 4 to max_position_embeddings = 40"):
            ponder.check_length(length, config)


def test_an_examples_draw_follows_from_the_seed_and_its_number_alone():
    def draws(count: int, seed: int) -> list[float]:
        texts = Features.from_lists([[2, 3]] * count, [[0, 0]] * count, [0] * count)
        return MODES["ponder_albert"].prepare(texts, seed).inputs["draws"].tolist()

    assert draws(5, 1) == draws(40, 1)[:5]
    assert draws(5, 1) != draws(5, 2)
