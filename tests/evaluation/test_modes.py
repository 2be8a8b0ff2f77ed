"""run_glue.py in the modes that learn when to stop: training, evaluation, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import change_config
import run_glue
import sweep_exits
from evaluation.modes import MODES, trained_mode
from glue.features import Features, encode
from glue.tasks import TASKS, Example, evaluation_tasks, get_task, read_examples
from modeling import (
    AlbertActConfig,
    AlbertActForPreTraining,
    AlbertActForSequenceClassification,
    PonderAlbertClassifier,
    UserError,
    load_tokenizer,
)
from tests.conftest import TINY, edit_json, random_ids, sentence, tsv, write_rte

PONDER = ("--model_type", "ponder_albert")
ACT = ("--model_type", "albert_act")


@pytest.fixture(scope="session")
def rte(tmp_path_factory) -> Path:
    return write_rte(tmp_path_factory.mktemp("glue") / "RTE")


@pytest.fixture(scope="session")
def sts_b(tmp_path_factory) -> Path:
    data = tmp_path_factory.mktemp("glue") / "STS-B"
    header = "index\tsentence1\tsentence2\tscore"
    for name in ("train", "dev", "test"):
        rows = [(i, sentence(i), sentence(i + 2), round(i * 0.45, 2)) for i in range(11)]
        if name == "test":
            header, rows = "index\tsentence1\tsentence2", [row[:3] for row in rows]
        tsv(data / f"{name}.tsv", header, rows)
    return data


def flags(weights, data, out, task="RTE") -> list[object]:
    return [
        *("--task_name", task, "--data_dir", data, "--output_dir", out),
        *("--model_name_or_path", weights, "--max_seq_length", 32, "--num_train_epochs", 1),
        *("--per_gpu_eval_batch_size", 1, "--learning_rate", 1e-3, "--no_cuda"),
    ]


def scalars(out: Path) -> dict[str, list[float]]:
    """What a training run wrote for TensorBoard."""
    events = EventAccumulator(str(out / "runs")).Reload()
    return {name: [e.value for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def report_of(out: Path) -> dict:
    return json.loads((out / "eval_results.json").read_text())


# What both modes share.


@pytest.mark.parametrize("mode", ["ponder_albert", "albert_act"])
def test_the_users_own_task_needs_no_flag_but_the_mode(mode, albert_dir, tmp_path, script):
    path, out = tmp_path / "mine.csv", tmp_path / "out"
    rows = "\n".join(f"{sentence(i)},class {i % 3}" for i in range(12))
    path.write_text(f"sentence1,label\n{rows}\n")
    common = ("--model_type", mode, "--model_name_or_path", albert_dir, "--output_dir", out)
    common = (*common, "--max_seq_length", 20, "--num_train_epochs", 1, "--no_cuda")
    files = ("--train_file", path, "--validation_file", path)
    outcome = script(run_glue.main, *common, *files, "--do_train", "--do_eval")
    assert outcome.status == 0, outcome.err
    together = report_of(out)["metrics"]
    # Later, with the labels that the model has.
    later = script(run_glue.main, *common, "--validation_file", path, "--do_eval")
    assert later.status == 0, later.err
    assert report_of(out)["metrics"] == together
    assert script(run_glue.main, *common, "--test_file", path, "--do_predict").status == 0
    assert len((out / "custom.tsv").read_text().splitlines()) == 13


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("mode", ["ponder_albert", "albert_act"])
def test_half_precision_checkpointing_and_accumulation(mode, albert_dir, rte, tmp_path, script):
    common = ("--model_type", mode, *flags(albert_dir, rte, tmp_path / "out"))
    cheap = ("--bf16", "--gradient_checkpointing", "--gradient_accumulation_steps", 2)
    outcome = script(run_glue.main, *common, "--do_train", *cheap)
    assert outcome.status == 0, outcome.err
    outcome = script(run_glue.main, *common, "--do_eval", "--dtype", "bf16", "--compile", "off")
    assert outcome.status == 0, outcome.err
    assert report_of(tmp_path / "out")["dtype"] == "bf16"


# Ponder models.


@pytest.fixture
def ponder(albert_dir, rte, tmp_path, script) -> Path:
    """A ponder model of RTE whose λ differ, so that examples halt at several layers."""
    out = tmp_path / "out/RTE"
    training = ("--do_train", "--target_halt_probability", 0.3, "--logging_steps", 1)
    outcome = script(run_glue.main, *PONDER, *flags(albert_dir, rte, out), *training)
    assert outcome.status == 0, outcome.err
    model = PonderAlbertClassifier.from_pretrained(out)
    with torch.no_grad():
        model.ponder[-1].weight.normal_(std=2.0, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(out)
    return out


def test_a_ponder_model_trains_evaluates_and_predicts(albert_dir, rte, tmp_path, script):
    out = tmp_path / "out"
    head = ("--lambda_layer_arch", "linear_cat", "--num_lambda_layers", 2, "--lambda_lr", 1e-2)
    chosen = ("--exit_criteria", "threshold", "--kl_penalty_factor", 0.02)
    actions = ("--do_train", "--do_eval", "--do_predict", "--logging_steps", 1)
    outcome = script(run_glue.main, *PONDER, *flags(albert_dir, rte, out), *actions, *head, *chosen)
    assert outcome.status == 0, outcome.err
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
def test_no_criterion_depends_on_the_batch_size(ponder, albert_dir, rte, script, criterion):
    reports = []
    for size in (1, 3, 16):
        common = (*PONDER, *flags(albert_dir, rte, ponder), "--do_eval")
        batch = ("--per_gpu_eval_batch_size", size, "--exit_criteria", criterion)
        outcome = script(run_glue.main, *common, *batch)
        assert outcome.status == 0, outcome.err
        reports.append(report_of(ponder))
    for key in ("metrics", "computation_cost", "exits_per_layer", "flops_ratio"):
        assert reports[0][key] == reports[1][key] == reports[2][key]
    layers = sum(count > 0 for count in reports[0]["exits_per_layer"])
    assert layers == 1 if criterion == "expectation" else layers > 1


def test_sampled_exits_are_a_function_of_the_seed(ponder, albert_dir, rte, script):
    details = []
    for seed in (1, 1, 2, 3, 4):
        common = (*PONDER, *flags(albert_dir, rte, ponder), "--do_predict", "--seed", seed)
        script(run_glue.main, *common)
        details.append((ponder / "predictions.tsv").read_text())
    assert details[0] == details[1]
    assert len(set(details)) > 1


def test_ponder_does_regression(albert_dir, sts_b, tmp_path, script):
    out = tmp_path / "out"
    common = (*PONDER, *flags(albert_dir, sts_b, out, "STS-B"))
    outcome = script(run_glue.main, *common, "--do_train", "--do_eval", "--do_predict")
    assert outcome.status == 0, outcome.err
    for name in ("corr", "pearson", "spearmanr"):
        assert re.search(rf"^{name} = -?[01]\.\d+", outcome.out, re.M)
    for line in (out / "STS-B.tsv").read_text().splitlines()[1:]:
        assert re.fullmatch(r"\d+\t[0-5]\.\d{3}", line)


def test_exit_keys_may_change_at_evaluation_and_others_not(ponder, albert_dir, rte, script):
    common = (*PONDER, *flags(albert_dir, rte, ponder), "--do_eval")
    lowest = script(run_glue.main, *common, "--exit_criteria", "threshold", "--exit_thres", 0)
    assert "Computation cost: 0.2500" in lowest.out
    edit = ("--task", "RTE", "--model", "tiny", "--out_dir", ponder.parent)
    for key, value in (("exit_criteria", "threshold"), ("exit_thres", "1")):
        edited = script(change_config.main, "--key", key, "--value", value, *edit)
        assert edited.status == 0, edited.err
    assert "Computation cost: 1.0000" in script(run_glue.main, *common).out
    refused = script(run_glue.main, *common, "--set", "prior_type=normal")
    assert refused.status == 2
    assert "prior_type: decided in training" in refused.err


def test_exit_config_json_overrides_a_ponder_models_criterion(ponder, albert_dir, rte, script):
    edit = ("--task", "RTE", "--model", "tiny", "--out_dir", ponder.parent)
    overrides = (*edit, "--config_file", "exit_config.json")
    for key, value in (("exit_criteria", "threshold"), ("exit_thres", "0")):
        assert script(change_config.main, "--key", key, "--value", value, *overrides).status == 0
    edit_json(ponder / "config.json", exit_config_path="exit_config.json")
    common = (*PONDER, *flags(albert_dir, rte, ponder), "--do_eval")
    assert "Computation cost: 0.2500" in script(run_glue.main, *common).out
    other = script(change_config.main, "--key", "cnt_thres", "--value", 2, *overrides)
    assert other.status == 2
    assert "unknown key cnt_thres" in other.err
    edit_json(ponder / "exit_config.json", exit_thres=2)
    outcome = script(run_glue.main, *common)
    assert outcome.status == 2
    assert "exit_config.json: exit_thres = 2" in outcome.err


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
    def prepared(count: int, seed: int) -> Features:
        texts = Features.from_lists([[2, 3]] * count, [[0, 0]] * count, [0] * count)
        return MODES["ponder_albert"].prepare(texts, seed)

    assert prepared(5, 1).draws.tolist() == prepared(40, 1).draws[:5].tolist()
    assert prepared(5, 1).draws.tolist() != prepared(5, 2).draws.tolist()


def test_another_tasks_ponder_model_gives_its_encoder_only(ponder, albert_dir):
    mode = MODES["ponder_albert"]
    own, _ = mode.load(ponder)
    other, report = mode.load(ponder, other_task=True)
    assert torch.equal(own.albert_layer.ffn.weight, other.albert_layer.ffn.weight)
    assert {n.split(".")[0] for n in report.initialised} == {"classifier", "ponder"}
    assert {n.split(".")[0] for n in report.ignored} == {"classifier", "ponder"}
    _, plain = mode.load(albert_dir)
    assert {n.split(".")[0] for n in plain.initialised} == {"classifier", "ponder"}


# Adaptive depth.


@pytest.fixture
def adaptive(albert_dir, rte, tmp_path, script) -> Path:
    """An ACT model of RTE whose tokens halt after different numbers of updates."""
    out = tmp_path / "out/RTE"
    training = ("--do_train", "--logging_steps", 1, "--evaluate_during_training", "--set", "tau=1")
    outcome = script(run_glue.main, *ACT, *flags(albert_dir, rte, out), *training)
    assert outcome.status == 0, outcome.err
    model = AlbertActForSequenceClassification.from_pretrained(out)
    act = model.albert.encoder.albert_layer.act.dense
    with torch.no_grad():
        act.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
        act.bias.fill_(-0.5)
    model.save_pretrained(out)
    return out


def test_an_act_model_reports_updates_against_a_pass_over_single_texts(
    adaptive, albert_dir, rte, script
):
    outcome = script(run_glue.main, *ACT, *flags(albert_dir, rte, adaptive), "--do_eval")
    assert outcome.status == 0, outcome.err
    report = report_of(adaptive)
    model = AlbertActForSequenceClassification.from_pretrained(adaptive).eval()
    tokenizer = load_tokenizer(adaptive)
    counts = {"[CLS]": [], "[SEP]": [], "others": []}
    for row in read_examples(TASKS["rte"], rte, "dev"):
        encoded = tokenizer(row.text_a, row.text_b, return_tensors="pt", return_token_type_ids=True)
        ids = encoded.pop("input_ids")
        with torch.no_grad():
            updates = model(ids, **encoded).updates[0, 0, 0]
        for token, number in zip(tokenizer.convert_ids_to_tokens(ids[0]), updates, strict=True):
            counts[token if token in counts else "others"].append(number.item())
    every = [number for numbers in counts.values() for number in numbers]
    mean = sum(every) / len(every)
    assert 1 < mean < 4
    assert report["mean_updates"] == pytest.approx(mean)
    assert report["computation_cost"] == pytest.approx(mean / 4)
    assert f"Computation cost: {mean / 4:.4f}" in outcome.out
    for name, numbers in counts.items():
        assert report["updates_per_token_class"][name] == pytest.approx(np.mean(numbers))
        assert f"mean updates of {name} = {np.mean(numbers):.2f}" in outcome.out
    assert report["tokens_per_updates"] == [every.count(n) for n in (1, 2, 3, 4)]
    assert {"metrics", "latency_ms", "flops_ratio", "environment"} <= set(report)
    assert (adaptive / "eval_results.txt").read_text().startswith(",acc,compute_ratio,act_epsilon")
    assert (adaptive / "tokens.png").read_bytes().startswith(b"\x89PNG")
    assert (adaptive / "tokens.html").read_text().count("<section>") == 10


def test_updates_do_not_depend_on_the_batch_size(adaptive, albert_dir, rte, script):
    reports = []
    for size in (1, 3, 16):
        common = (*ACT, *flags(albert_dir, rte, adaptive), "--do_eval", "--do_predict")
        outcome = script(run_glue.main, *common, "--per_gpu_eval_batch_size", size)
        assert outcome.status == 0, outcome.err
        reports.append(report_of(adaptive) | {"answers": (adaptive / "RTE.tsv").read_text()})
    for key in ("metrics", "computation_cost", "updates_per_token_class", "flops_ratio", "answers"):
        assert reports[0][key] == reports[1][key] == reports[2][key]
    details = (adaptive / "predictions.tsv").read_text().splitlines()
    assert details[0].split("\t") == ["index", "label", "prediction", "confidence", "mean_updates"]
    assert all(1 <= float(line.split("\t")[-1]) <= 4 for line in details[1:])


def test_act_training_logs_ponder_cost_and_mean_updates(adaptive):
    logged = scalars(adaptive)
    for loss, task_loss, cost in zip(
        logged["loss"], logged["task_loss"], logged["ponder_cost"], strict=True
    ):
        assert loss == pytest.approx(task_loss + cost, rel=1e-5)  # τ = 1
    assert len(logged["mean_updates"]) == len(logged["eval_computation_cost"]) == 3
    assert all(1 <= mean <= 4 for mean in logged["mean_updates"])
    assert all(0.25 <= cost <= 1 for cost in logged["eval_computation_cost"])
    assert set(logged) >= {"eval_acc"}


PAIR = "index\tsentence1\tsentence2\tlabel"
MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2 label1 gold_label"
).replace(" ", "\t")
ENTAILMENT = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")

# The first line of a task's training and dev files as GLUE has them, further rows, and metrics.
# CoLA's files have no header: their first line is an example.
LAYOUTS = {
    "CoLA": ("gj04\t1\t\ta cat runs", lambda i: ("gj04", i % 2, "*", sentence(i)), {"mcc"}),
    "SST-2": ("sentence\tlabel", lambda i: (sentence(i), i % 2), {"acc"}),
    "MRPC": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        lambda i: (i % 2, 70 + i, 80 + i, sentence(i), sentence(i + 1)),
        {"acc", "f1", "acc_and_f1"},
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        lambda i: (i, 2 * i, 2 * i + 1, sentence(i), sentence(i + 1), i % 2),
        {"acc", "f1", "acc_and_f1"},
    ),
    "MNLI": (
        MNLI,
        lambda i: (i, i, i, "fiction", *"abcd", sentence(i), sentence(i + 1), *2 * [NLI[i % 3]]),
        {"acc"},
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel",
        lambda i: (i, sentence(i), sentence(i + 1), ENTAILMENT[i % 2]),
        {"acc"},
    ),
    "WNLI": (PAIR, lambda i: (i, sentence(i), sentence(i + 1), i % 2), {"acc"}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_act_trains_and_evaluates_on_the_files_of_every_task(name, albert_dir, tmp_path, script):
    header, row, metrics = LAYOUTS[name]
    data, out, task = tmp_path / name, tmp_path / "out" / name, get_task(name)
    halves = evaluation_tasks(task)
    for file in (task.files["train"], *(half.files["dev"] for half, _ in halves)):
        tsv(data / file, header, [row(i) for i in range(6)])
    steps = ("--max_steps", 2, "--per_gpu_train_batch_size", 3)
    common = (*ACT, *flags(albert_dir, data, out, name), *steps)
    outcome = script(run_glue.main, *common, "--do_train", "--do_eval")
    assert outcome.status == 0, outcome.err
    for half, suffix in halves:
        report = report_of(tmp_path / "out" / f"{name}{suffix}")
        assert report["task"] == half.name
        assert report["examples"] == 6 + (name == "CoLA")
        assert report["metrics"].keys() == metrics
        assert 0 < report["computation_cost"] <= 1
        assert report["updates_per_token_class"].keys() == {"[CLS]", "[SEP]", "others"}
        assert all(1 <= mean <= 4 for mean in report["updates_per_token_class"].values())
        assert 0 < report["latency_ms"]["median"] <= report["latency_ms"]["p95"]


def test_act_does_regression(albert_dir, sts_b, tmp_path, script):
    out = tmp_path / "out"
    common = (*ACT, *flags(albert_dir, sts_b, out, "STS-B"))
    outcome = script(run_glue.main, *common, "--do_train", "--do_eval", "--do_predict")
    assert outcome.status == 0, outcome.err
    for name in ("corr", "pearson", "spearmanr"):
        assert re.search(rf"^{name} = -?[01]\.\d+", outcome.out, re.M)
    header = (out / "eval_results.txt").read_text().splitlines()[0]
    assert header == ",pearson,compute_ratio,spearmanr,corr,act_epsilon"
    for line in (out / "STS-B.tsv").read_text().splitlines()[1:]:
        assert re.fullmatch(r"\d+\t[0-5]\.\d{3}", line)


@pytest.mark.parametrize("head", ["bare", "PreTraining", "SequenceClassification"])
def test_a_plain_albert_gives_an_act_model_its_layer(head, tmp_path):
    kind = {
        "bare": transformers.AlbertModel,
        "PreTraining": transformers.AlbertForPreTraining,
        "SequenceClassification": transformers.AlbertForSequenceClassification,
    }[head]
    torch.manual_seed(0)
    twin = kind(transformers.AlbertConfig(**TINY)).eval()
    twin.save_pretrained(tmp_path)
    model, report = MODES["albert_act"].load(tmp_path)
    act = model.albert.encoder.albert_layer.act.dense
    torch.nn.init.constant_(act.bias, -100.0)  # nobody halts before the maximum, ...
    torch.nn.init.zeros_(act.weight)
    with torch.no_grad():  # ... and each update counts for nothing: so watch the layer itself
        ids = random_ids(2, 7)
        hidden = model.albert.embeddings(ids)
        hidden = model.albert.encoder.embedding_hidden_mapping_in(hidden)
        expected = getattr(twin, "albert", twin)(ids, output_hidden_states=True).hidden_states
        for state in expected[1:]:
            hidden = model.albert.encoder.albert_layer(hidden)
            torch.testing.assert_close(hidden, state, atol=1e-5, rtol=1e-5)
    fresh = {"albert.encoder.albert_layer.act.dense.weight": 0}
    assert fresh.keys() <= set(report.initialised)
    assert ("classifier.weight" in report.loaded) == (head == "SequenceClassification")


def test_an_act_checkpoint_gives_all_it_has_and_another_tasks_head_stays(adaptive, tmp_path):
    config = AlbertActConfig.from_pretrained(adaptive)
    torch.manual_seed(0)
    pretrained = AlbertActForPreTraining(config)
    pretrained.save_pretrained(tmp_path)
    model, report = MODES["albert_act"].load(tmp_path)
    for name, tensor in pretrained.albert.state_dict().items():
        assert torch.equal(model.albert.state_dict()[name], tensor)
    assert {name.split(".")[0] for name in report.initialised} == {"classifier"}
    _, own = MODES["albert_act"].load(adaptive)
    assert own.initialised == []
    _, other = MODES["albert_act"].load(adaptive, other_task=True)
    assert other.initialised == ["classifier.weight", "classifier.bias"]


def test_an_act_model_has_nothing_to_sweep(adaptive, rte, script):
    where = ("--model_dir", adaptive, "--data_dir", rte, "--task_name", "RTE", "--no_cuda")
    outcome = script(sweep_exits.main, *where, "--max_seq_length", 32)
    assert outcome.status == 2
    assert "--model_type albert_act" in outcome.err
    assert "nothing to sweep" in outcome.err


def test_act_keys_are_edited_and_epsilon_may_change_at_evaluation(
    adaptive, albert_dir, rte, script
):
    common = (*ACT, *flags(albert_dir, rte, adaptive), "--do_eval")
    script(run_glue.main, *common, "--set", "act_epsilon=0.9")
    lax = report_of(adaptive)["computation_cost"]
    edit = ("--task", "RTE", "--model", "tiny", "--out_dir", adaptive.parent)
    edited = script(change_config.main, "--key", "act_epsilon", "--value", "0.9", *edit)
    assert edited.status == 0, edited.err
    script(run_glue.main, *common)
    assert report_of(adaptive)["computation_cost"] == lax
    script(run_glue.main, *common, "--set", "act_epsilon=0.01")
    assert report_of(adaptive)["computation_cost"] > lax
    outcome = script(run_glue.main, *common, "--set", "tau=0")
    assert outcome.status == 2
    assert "tau: decided in training" in outcome.err


# What is refused.


def test_the_model_type_must_be_that_of_the_trained_model(ponder, albert_dir, rte, script):
    common = flags(albert_dir, rte, ponder)
    outcome = script(run_glue.main, "--model_type", "albert", *common, "--do_eval")
    assert outcome.status == 2
    for words in ("--model_type albert", str(ponder), "--model_type ponder_albert"):
        assert words in outcome.err
    assert trained_mode(ponder).name == "ponder_albert"
    edit_json(ponder / "config.json", model_type="albert")
    assert trained_mode(ponder).name == "albert"


def test_layers_that_are_not_shared_are_refused_with_the_remedy(rte, tmp_path, script):
    sizes = {k: v for k, v in TINY.items() if k != "embedding_size"}
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "bert")
    albert = transformers.AlbertConfig(**TINY, num_hidden_groups=2)
    transformers.AlbertModel(albert).save_pretrained(tmp_path / "groups")
    for name, words in (
        ("bert", ["model_type = 'bert'", "one layer at every depth", "ALBERT", "--from_scratch"]),
        ("groups", ["num_hidden_groups = 2", "one layer at every depth"]),
    ):
        common = flags(tmp_path / name, rte, tmp_path / "out")
        outcome = script(run_glue.main, *PONDER, *common, "--do_train")
        assert outcome.status == 2
        assert all(word in outcome.err for word in words), outcome.err


@pytest.mark.parametrize(
    ("mode", "more", "words"),
    [
        ("albert", ["--lambda_lr", "0.1"], ["--lambda_lr", "no key of --model_type albert"]),
        ("ponder_albert", ["--set", "cnt_thres=2"], ["cnt_thres", "no key of"]),
        ("ponder_albert", ["--target_halt_probability", "2"], ["target_halt_probability = 2"]),
        ("ponder_albert", ["--kl_penalty_factor", "-1"], ["kl_penalty_factor = -1", "at least 0"]),
        ("ponder_albert", ["--exit_criteria", "mean"], ["'mean'", "sample, threshold"]),
        ("ponder_albert", ["--max_seq_length", "3"], ["--max_seq_length 3", "4 to"]),
    ],
)
def test_a_bad_key_of_a_mode_is_named(albert_dir, rte, tmp_path, script, mode, more, words):
    common = ("--model_type", mode, *flags(albert_dir, rte, tmp_path / "out"), "--do_train")
    outcome = script(run_glue.main, *common, *more)
    assert outcome.status == 2
    for word in words:
        assert word in outcome.err
