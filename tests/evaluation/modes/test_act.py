"""Adaptive depth in run_glue.py: updates of tokens, the files of every task, what is loaded."""

import numpy as np
import pytest
import torch

import sweep_exits
from glue.tasks import TASKS, evaluation_tasks, get_task, read_examples
from modeling import (
    AlbertActForSequenceClassification,
    load_tokenizer,
)
from tests.commands import edit_key, report_of
from tests.conftest import PAIRS, RTE_LABELS, sentence, tsv

ACT = ("--model_type", "albert_act")


@pytest.mark.pictures
def test_an_act_model_reports_updates_against_a_pass_over_single_texts(adaptive, rte, glue):
    outcome = glue(adaptive, *ACT, "--do_eval").done()
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
    assert (adaptive / "tokens.html").read_text().count("</section>") == 10


def test_updates_do_not_depend_on_the_batch_size(adaptive, glue):
    reports = []
    for size in (1, 3, 16):
        batch = ("--per_gpu_eval_batch_size", size)
        glue(adaptive, *ACT, "--do_eval", "--do_predict", *batch).done()
        reports.append(report_of(adaptive) | {"answers": (adaptive / "RTE.tsv").read_text()})
    for key in ("metrics", "computation_cost", "updates_per_token_class", "flops_ratio", "answers"):
        assert reports[0][key] == reports[1][key] == reports[2][key]
    details = (adaptive / "predictions.tsv").read_text().splitlines()
    assert details[0].split("\t") == ["index", "label", "prediction", "confidence", "mean_updates"]
    assert all(1 <= float(line.split("\t")[-1]) <= 4 for line in details[1:])


MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2 label1 gold_label"
).replace(" ", "\t")
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
        lambda i: (i, sentence(i), sentence(i + 1), RTE_LABELS[i % 2]),
        {"acc"},
    ),
    "WNLI": (f"{PAIRS}\tlabel", lambda i: (i, sentence(i), sentence(i + 1), i % 2), {"acc"}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_act_trains_and_evaluates_on_the_files_of_every_task(name, glue, tmp_path):
    header, row, metrics = LAYOUTS[name]
    data, out, task = tmp_path / name, tmp_path / "out" / name, get_task(name)
    halves = evaluation_tasks(task)
    for file in (task.files["train"], *(half.files["dev"] for half, _ in halves)):
        tsv(data / file, header, [row(i) for i in range(6)])
    steps = ("--max_steps", 2, "--per_gpu_train_batch_size", 3)
    glue(out, *ACT, "--do_train", "--do_eval", *steps, data=data, task=name).done()
    for half, suffix in halves:
        report = report_of(tmp_path / "out" / f"{name}{suffix}")
        assert report["task"] == half.name
        assert report["examples"] == 6 + (name == "CoLA")
        assert report["metrics"].keys() == metrics
        assert 0 < report["computation_cost"] <= 1
        assert report["updates_per_token_class"].keys() == {"[CLS]", "[SEP]", "others"}
        assert all(1 <= mean <= 4 for mean in report["updates_per_token_class"].values())
        assert 0 < report["latency_ms"]["median"] <= report["latency_ms"]["p95"]


def test_an_act_model_has_nothing_to_sweep(adaptive, rte, script):
    where = ("--model_dir", adaptive, "--data_dir", rte, "--task_name", "RTE", "--no_cuda")
    outcome = script(sweep_exits.main, *where, "--max_seq_length", 32)
    outcome.refused("--model_type albert_act", "nothing to sweep")


def test_act_keys_are_edited_and_epsilon_may_change_at_evaluation(adaptive, glue, script):
    def cost(*more) -> float:
        glue(adaptive, *ACT, "--do_eval", *more).done()
        return report_of(adaptive)["computation_cost"]

    lax = cost("--set", "act_epsilon=0.9")
    edit_key(script, adaptive, "act_epsilon", "0.9").done()
    assert cost() == lax
    assert cost("--set", "act_epsilon=0.01") > lax
    outcome = glue(adaptive, *ACT, "--do_eval", "--set", "tau=0")
    outcome.refused("tau: decided in training")
