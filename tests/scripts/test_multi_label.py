"""Examples of several labels: the numbers of transformers and scikit-learn, the rule by hand, and a
task of one's own from training to an exported file."""

import csv
import re
import sys
from itertools import compress

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from transformers.loss.loss_utils import ForSequenceClassificationLoss

import export_onnx
import run_glue
import sweep_exits
from elbert import ElbertConfig, classify
from evaluation.exit_metrics import metrics_at
from glue.custom import custom_task
from glue.splits import read_examples
from glue.tasks import Task
from modeling.errors import UserError
from modeling.exits.rules import RULES
from modeling.files import read_json
from modeling.rules import scan
from tests.commands import ROOT, ran, report_of
from tests.conftest import random_ids, sentence, tiny_model, write
from tests.modeling.exits.test_rules import fires, rule_of
from tests.scripts.conftest import rows_of

SEVERAL = {"num_labels": 3, "problem_type": "multi_label_classification"}


def test_every_exits_loss_is_hfs():
    model, labels = tiny_model(**SEVERAL, weight_name="equal"), torch.randint(0, 2, (5, 3)).float()
    ids = random_ids(5, 9)
    for out in (model.train()(ids, labels=labels), model.eval()(ids, labels=labels)):
        answers = [out.logits] if out.all_logits is None else out.all_logits
        losses = [ForSequenceClassificationLoss(labels, x, model.config) for x in answers]
        torch.testing.assert_close(out.loss, sum(losses))


@pytest.mark.parametrize("name", RULES)
def test_an_example_exits_where_every_label_would(name):
    torch.manual_seed(0)
    logits = torch.randn(6, 40, 3) + 4 * torch.randn(40, 3)
    config, recorded = ElbertConfig(num_hidden_layers=6, **SEVERAL), {"all_logits": logits}
    for keys in ({"exit_thres": 0.4, "cnt_thres": 3}, {"exit_thres": 0.2, "cnt_thres": 2}):
        setting, expected = rule_of(name, **keys), []
        for example in logits.sigmoid().double().transpose(0, 1):  # (layers, labels)
            pairs = torch.stack((1 - example, example), -1).transpose(0, 1).tolist()
            ends = (all(fires(label[:n], setting) for label in pairs) for n in range(1, 6))
            expected.append(next((n for n, end in enumerate(ends, 1) if end), 6))
        for fit in ("learnt_weights", "stopping_thresholds"):
            keys[fit] = getattr(setting, fit)
        assert scan(config.exit_rule(thres_name=name, **keys), recorded).tolist() == expected
        assert len({*expected}) > 1
        values = {**config.exit_keys(), **keys}
        numbers = [key for key, x in values.items() if isinstance(x, int | float)]
        many = {key: torch.tensor([[values[key]]] * 2) for key in numbers}
        rule = config.exit_rule(thres_name=name, **keys | many)
        assert scan(rule, recorded).tolist() == [expected, expected]


def test_f1_is_scikit_learns():
    rng, task = np.random.default_rng(0), Task("a", "", "", metric="f1_micro", multi_label=True)
    answers, labels = rng.random((4, 30, 3)) < 0.4, (rng.random((30, 3)) < 0.4).astype(float)
    answers[..., 2] = labels[:, 2] = 0  # never there: 0 by scikit-learn's default, too
    exits, weights = rng.integers(1, 5, (2, 30)), rng.integers(0, 3, (2, 30))
    metrics = metrics_at(task, answers, labels, exits, weights)
    for setting, draw in np.ndindex(2, 2):
        taken = answers[exits[setting] - 1, np.arange(30)].repeat(weights[draw], 0)
        for kind in ("micro", "macro"):
            expected = f1_score(
                labels.repeat(weights[draw], 0), taken, average=kind, zero_division=0
            )
            assert metrics[f"f1_{kind}"][setting, draw] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cells", "columns", "message"),
    [
        ("2,0", {"label_column": "a,b"}, "line 2: a '2' is neither 0 nor 1"),
        ("x,", {"label_column": "a", "separator": ";"}, "the only label is 'x'"),
        ("x;y,", {"label_column": "a", "separator": ";", "labels": "xz"}, "label 'y' is not one"),
    ],
)
def test_a_bad_label_is_named(cells, columns, message, tmp_path):
    path = write(tmp_path / "own.csv", f"sentence1,a,b\ntext,{cells}\n")
    with pytest.raises(UserError, match=message):
        read_examples(custom_task({"train": path}, **columns), "", "train")


COLUMNS = ("--label_column_name", "a,b,c")
CELL = ("--label_column_name", "kinds", "--label_separator", ";")


@pytest.fixture
def own_task(request, albert_dir, script, tmp_path):
    """A model trained on texts whose labels a, b and c follow from words, some without any: the
    labels, run_glue.py's flags for the data and the model, and the model's folder."""
    out, path = tmp_path / "out", tmp_path / "own.csv"
    texts = [sentence(i, 3 + i % 4) for i in range(48)]
    truth = np.array([[int(word in text) for word in ("dog", "park", "red")] for text in texts])
    with path.open("w", newline="") as file:
        cells = [";".join(compress("abc", is_there)) for is_there in truth]
        rows = zip(texts, *truth.T, cells, strict=True)
        csv.writer(file).writerows([("text", *"abc", "kinds"), *rows])
    data = ("--text_column_names", "text", *request.param, "--max_seq_length", 20)
    data = (*data, "--do_lower_case", "--validation_file", path)
    model = ("--model_type", "elbert", "--model_name_or_path", albert_dir, "--output_dir", out)
    training = ("--num_train_epochs", 4, "--learning_rate", 1e-3, "--class_weights", "balanced")
    training = (*training, "--set", "thres_name=entropy", "exit_thres=0.98")
    script(run_glue.main, *model, *data, "--do_train", "--train_file", path, *training).done()
    return truth, data, model, out


@pytest.mark.parametrize("own_task", [COLUMNS, CELL], indirect=True)
def test_a_task_of_ones_own_from_training_to_answers(own_task, script):
    truth, data, model, out = own_task
    weights = read_json(out / "training.json")["class_weights"]
    assert [*weights.values()] == pytest.approx((1 - truth).sum(0) / truth.sum(0))
    script(run_glue.main, *model, *data, "--do_predict", "--test_file", data[-1]).done()
    table = list(csv.DictReader((out / "predictions.tsv").open(), delimiter="\t"))
    answers = np.array([[float(row[f"probability of {x}"]) > 0.5 for x in "abc"] for row in table])
    assert len({row["exit_layer"] for row in table}) > 1
    for name, expected in (("label", truth), ("prediction", answers)):
        cells = [re.findall("[abc]", row[name]) for row in table]
        assert cells == [[*compress("abc", is_there)] for is_there in expected]
    for batch_size in (("--per_gpu_eval_batch_size", 1), ("--per_gpu_eval_batch_size", 8)):
        script(run_glue.main, "--output_dir", out, "--do_eval", *batch_size).done()
        for kind, value in report_of(out)["metrics"].items():
            expected_f1 = f1_score(
                truth, answers, average=kind.removeprefix("f1_"), zero_division=0
            )
            assert value == pytest.approx(expected_f1)
    classified = classify(out, table[0]["text"], top_k=None)
    classes = classified["classes"]
    assert classified["labels"] == [x["label"] for x in classes if x["score"] > 0.5]
    assert [x["score"] for x in classes] == pytest.approx(
        sorted((float(table[0][f"probability of {x}"]) for x in "abc"), reverse=True), abs=1e-4
    )
    script(sweep_exits.main, "--model_dir", out, "--pick", "max_drop=0.1").done()
    picked, rows = read_json(out / "exit_config.json"), rows_of(out / "sweep/sweep.csv")
    keys, rows = picked.keys() & rows[0], [x for x in rows if x["rule"] == picked["thres_name"]]
    (row,) = (row for row in rows if all(float(row[key]) == picked[key] for key in keys))
    script(run_glue.main, "--output_dir", out, "--do_eval").done()
    assert report_of(out)["exits_per_layer"] == [int(row[f"exits_{n}"]) for n in range(1, 5)]
    assert (out / "sweep/explorer.html").exists()
    other_columns = ("--label_column_name", "kinds", "--label_separator=")
    script(run_glue.main, *model, *other_columns, "--do_eval").refused("several columns")


@pytest.mark.slow
@pytest.mark.onnx
@pytest.mark.parametrize("own_task", [CELL], indirect=True)
def test_an_exported_file_answers_alike(own_task, script, tmp_path):
    pytest.importorskip("onnxruntime")
    (_, data, model, out), file = own_task, tmp_path / "own.onnx"
    script(export_onnx.main, "--model_dir", out, "--output", file).done()
    reports = []
    for file_flags in ((), ("--onnx", file)):
        script(run_glue.main, *model, *data, "--do_eval", *file_flags, "--skip_full_depth").done()
        reports.append({x: report_of(out)[x] for x in ("metrics", "exits_per_layer")})
    assert reports[0] == reports[1]
    text = sentence(1, 4)
    command = ROOT / "examples/onnx_python.py", file, out / "tokenizer.json", text
    answer, expected = ran(sys.executable, *command), classify(out, text)
    assert answer.startswith(", ".join(sorted(expected["labels"])) or "no label")
    assert answer.endswith(f"after layer {expected['exit_layer']}\n")
