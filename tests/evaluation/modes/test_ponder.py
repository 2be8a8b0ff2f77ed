"""Ponder models in run_glue.py: training, evaluation, and what may change at evaluation."""

import json

import pytest
import torch

from evaluation.modes import MODES
from glue.features import Features, encode
from glue.tasks import Example
from modeling import UserError, load_tokenizer
from tests.commands import edit_key, report_of, scalars
from tests.conftest import edit_json, sentence

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


def test_training_logs_expected_steps_kl_and_lambda_of_every_layer(ponder):
    logged = scalars(ponder)
    lambdas = {f"lambda/layer_{i}" for i in (1, 2, 3, 4)}
    assert {"loss", "expected_steps", "kl_to_prior", "weighted_task_loss", *lambdas} <= set(logged)
    assert all(len(logged[name]) == 3 for name in lambdas)  # a step each
    assert all(1 <= steps <= 4 for steps in logged["expected_steps"])
    assert all(0 <= x <= 1 for name in lambdas for x in logged[name])
    # loss = weighted task loss + kl_penalty_factor · KL
    for loss, task_loss, kl in zip(
        logged["loss"], logged["weighted_task_loss"], logged["kl_to_prior"], strict=True
    ):
        assert loss == pytest.approx(task_loss + 5e-3 * kl, abs=1e-6)


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


def test_sampled_exits_are_a_function_of_the_seed(ponder, glue):
    details = []
    for seed in (1, 1, 2, 3, 4):
        glue(ponder, *PONDER, "--do_predict", "--seed", seed).done()
        details.append((ponder / "predictions.tsv").read_text())
    assert details[0] == details[1]
    assert len(set(details)) > 1


def test_exit_keys_may_change_at_evaluation_and_others_not(ponder, glue, script):
    evaluate = (*PONDER, "--do_eval")
    lowest = glue(ponder, *evaluate, "--exit_criteria", "threshold", "--exit_thres", 0)
    assert "Computation cost: 0.2500" in lowest.out
    for key, value in (("exit_criteria", "threshold"), ("exit_thres", "1")):
        edit_key(script, ponder, key, value).done()
    assert "Computation cost: 1.0000" in glue(ponder, *evaluate).out
    refused = glue(ponder, *evaluate, "--set", "prior_type=normal")
    refused.refused("prior_type: decided in training")


def test_exit_config_json_overrides_a_ponder_models_criterion(ponder, glue, script):
    overrides = ("--config_file", "exit_config.json")
    for key, value in (("exit_criteria", "threshold"), ("exit_thres", "0")):
        edit_key(script, ponder, key, value, *overrides).done()
    edit_json(ponder / "config.json", exit_config_path="exit_config.json")
    assert "Computation cost: 0.2500" in glue(ponder, *PONDER, "--do_eval").out
    edit_key(script, ponder, "cnt_thres", 2, *overrides).refused("unknown key cnt_thres")
    edit_json(ponder / "exit_config.json", exit_thres=2)
    glue(ponder, *PONDER, "--do_eval").refused("exit_config.json: exit_thres = 2")


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


def test_another_tasks_ponder_model_gives_its_encoder_only(ponder, albert_dir):
    mode = MODES["ponder_albert"]
    own, _ = mode.load(ponder)
    other, report = mode.load(ponder, other_task=True)
    assert torch.equal(own.albert_layer.ffn.weight, other.albert_layer.ffn.weight)
    assert {n.split(".")[0] for n in report.initialised} == {"classifier", "ponder"}
    assert {n.split(".")[0] for n in report.ignored} == {"classifier", "ponder"}
    _, plain = mode.load(albert_dir)
    assert {n.split(".")[0] for n in plain.initialised} == {"classifier", "ponder"}
