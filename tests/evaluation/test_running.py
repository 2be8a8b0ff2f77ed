"""Reports against scikit-learn, FlopCounterMode and hand-worked tables."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch.utils.flop_counter import FlopCounterMode

from evaluation.running import (
    Record,
    append_results,
    labels_of,
    layer_curve,
    layer_table,
    predictions_table,
    print_results,
    record_all_exits,
    run_early_exit,
    summarise,
)
from glue.features import Features
from glue.tasks import Example, get_task
from modeling import PonderAlbertClassifier, PonderAlbertConfig, UserError
from modeling.flops import (
    early_exit_flops,
    embedding_flops,
    full_depth_flops,
    layer_pass_flops,
)
from tests.conftest import TINY, random_ids, tiny_model
from tests.forks import FORKS


def made_features(count: int = 12, classes: int = 2) -> Features:
    lengths = [3 + (5 * i) % 11 for i in range(count)]
    ids = [random_ids(1, n, i)[0].tolist() for i, n in enumerate(lengths)]
    return Features.from_lists(ids, [[0] * n for n in lengths], [i % classes for i in range(count)])


def counted(model, *arguments, **keywords) -> int:
    # torch knows no formula for matrix-vector products.
    sums = {torch.ops.aten.addmv: lambda _, matrix, *args, **kwargs: 2 * matrix[0] * matrix[1]}
    mode = FlopCounterMode(display=False, custom_mapping=sums)
    with mode as counter, torch.no_grad():
        model(*arguments, **keywords)
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"use_fc2": True, "use_out_pooler": False, "fc_size1": 8, "fc_size2": 12},
        {"num_exit_layers": 4, "use_out_pooler": False, "fc_size1": 16, "num_labels": 3},
        {"inner_group_num": 2, "num_hidden_groups": 2, "num_labels": 1},
    ],
)
def test_flops_are_those_that_torch_counts(shape):
    model = tiny_model(**shape, attn_implementation="eager", thres_name="entropy")
    config = model.config
    for length in (1, 7, 20):
        ids = random_ids(1, length)
        for exit_thres in (0.0, 1.0):  # full depth with all checks, and the first layer
            config.exit_thres = exit_thres
            with torch.no_grad():
                layer = model(ids).exit_layer.item()
            assert counted(model, ids) == early_exit_flops(config, length, layer)
        one_check = early_exit_flops(config, length, 2) - early_exit_flops(config, length, 1)
        checks = full_depth_flops(config, length) - early_exit_flops(config, length, 4)
        assert 0 < -checks < 3 * one_check  # full depth answers once, at the end


@pytest.mark.parametrize(
    "head",
    [
        {"lambda_layer_arch": "mlp", "num_labels": 3},
        {"lambda_layer_arch": "linear", "num_lambda_layers": 1},
        {"lambda_layer_arch": "linear_cat", "num_lambda_layers": 3, "num_labels": 1},
        {"lambda_layer_arch": "linear_diff", "num_lambda_layers": 2},
    ],
)
def test_flops_of_a_ponder_model_are_those_that_torch_counts(head):
    config = PonderAlbertConfig(
        **TINY, **head, exit_criteria="threshold", attn_implementation="eager"
    )
    model = PonderAlbertClassifier(config).eval()
    for length, exit_thres, layer in ((2, 0.0, 1), (7, 1.0, 4)):
        config.exit_thres = exit_thres
        ids = random_ids(1, length)
        assert counted(model, ids) == early_exit_flops(config, length, layer)
    passes = 4 * layer_pass_flops(config, 7) + embedding_flops(config, 7)
    assert full_depth_flops(config, 7) == passes + 2 * 128 * (32 + config.num_labels)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 32])
def test_the_record_is_in_input_order_whatever_the_batch_size(batch_size):
    model = tiny_model(thres_name="entropy", exit_thres=0.9)
    data = made_features()
    record = run_early_exit(model, data, batch_size, pad_token_id=0)
    for i in range(len(data)):
        with torch.no_grad():
            out = model(torch.tensor(data.input_ids(i)[None]))
        assert record.exit_layer[i] == out.exit_layer
        torch.testing.assert_close(record.logits[i], out.logits[0], atol=1e-5, rtol=0)
    assert len(set(record.exit_layer.tolist())) > 1
    assert (record.seconds > 0).all()


def test_recorded_answers_are_in_input_order():
    model, data = tiny_model(), made_features()
    recorded = record_all_exits(model, data, pad_token_id=0, batch_size=5)["all_logits"]
    for i in range(len(data)):
        with torch.no_grad():
            alone = model(torch.tensor(data.input_ids(i)[None]), output_all_exits=True).all_logits[
                :, 0
            ]
        torch.testing.assert_close(recorded[:, i], alone, atol=1e-5, rtol=0)


def test_the_summary_by_hand():
    model, data = tiny_model(), made_features(4)
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    record = Record(logits, torch.tensor([1, 4, 2, 4]), torch.tensor([0.001, 0.003, 0.002, 0.1]))
    summary = summarise(model, get_task("rte"), data, record)
    assert summary["metrics"] == {"acc": 0.75}  # labels 0 1 0 1
    assert summary["computation_cost"] == pytest.approx(11 / 16)
    assert summary["average_layer"] == pytest.approx(11 / 4)
    assert summary["exits_per_layer"] == [1, 1, 0, 2]
    assert summary["exit_sample_ratio"] == pytest.approx(0.5)
    assert summary["latency_ms"]["median"] == pytest.approx(2.5)
    assert summary["latency_ms"]["p95"] == pytest.approx(np.percentile([1, 3, 2, 100], 95))
    assert 0 < summary["flops_ratio"] < 1
    assert summary["rule"]["thres_name"] == "bias_1"
    json.dumps(summary, allow_nan=False)


def summary_of(cost=0.58812, exit_thres=0.1, **metrics) -> dict:
    rule = {"thres_name": "bias_1", "exit_thres": exit_thres, "cnt_thres": 8}
    rule |= {"margin": 0.0, "range_tmp": 0.2}
    metrics = metrics or {"acc": 0.8122743}
    return {"metrics": metrics, "computation_cost": cost, "rule": rule, "dtype": "fp32"}


def test_all_appends_rows_under_one_header_and_one_starts_anew(tmp_path):
    path = tmp_path / "eval_results.txt"
    append_results(path, summary_of(exit_thres=0.2), "all")
    append_results(path, summary_of(), "all")
    rows = list(csv.reader(path.open()))
    assert rows[0][:4] == ["", "exit_thres", "acc", "compute_ratio"]
    assert [row[:4] for row in rows[1:]] == [
        ["0", "0.20", "0.8123", "0.5881"],
        ["0", "0.10", "0.8123", "0.5881"],
    ]
    append_results(path, summary_of(), "one")
    rows = list(csv.reader(path.open()))
    assert len(rows) == 2


def write_rows(path: Path, thresholds: list[float]) -> None:
    for threshold in thresholds:
        append_results(path, summary_of(exit_thres=threshold), "all")


def test_processes_that_write_the_same_csv_lose_no_row(tmp_path):
    path = tmp_path / "eval_results.txt"
    parts = [[(i + 12 * part) / 100 for i in range(12)] for part in range(4)]
    together = [FORKS.Process(target=write_rows, args=(path, part)) for part in parts]
    for process in together:
        process.start()
    for process in together:
        process.join()
    assert [process.exitcode for process in together] == [0] * 4
    rows = list(csv.DictReader(path.open()))
    written = sorted(float(row["exit_thres"]) for row in rows)
    assert written == [i / 100 for i in range(48)]


def test_a_row_goes_on_its_own_line(tmp_path):
    path = tmp_path / "eval_results.txt"
    append_results(path, summary_of(), "one")
    path.write_text(path.read_text().rstrip("\n"))  # as an editor may leave it
    append_results(path, summary_of(), "all")
    assert len(path.read_text().splitlines()) == 3


def test_the_columns_of_another_task_are_not_mixed(tmp_path):
    path = tmp_path / "eval_results.txt"
    append_results(path, summary_of(), "one")
    before = path.read_bytes()
    with pytest.raises(UserError, match="--out_mode one"):
        append_results(path, summary_of(corr=0.5, pearson=0.4, spearmanr=0.6), "all")
    assert path.read_bytes() == before


def test_results_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="eval_results"):
        append_results(tmp_path / "file/eval_results.txt", summary_of(), "all")
    (tmp_path / "eval_results.txt.lock").mkdir()
    with pytest.raises(UserError, match="eval_results"):
        append_results(tmp_path / "eval_results.txt", summary_of(), "all")


def table(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("classes", [2, 3])
def test_layer_statistics_are_those_of_scikit_learn(classes):
    generator = torch.Generator().manual_seed(classes)
    all_logits = torch.randn(4, 30, classes, generator=generator)
    labels = torch.arange(30) % classes
    exit_layer = torch.tensor([1, 2, 4])[torch.arange(30) % 3 - 1]
    for exits_only in (False, True):
        rows = table(layer_table(all_logits, labels, exit_layer, exits_only))
        assert [row["layer"] for row in rows] == ["1", "2", "3", "4"]
        for layer, row in enumerate(rows, start=1):
            here = (exit_layer == layer).numpy() if exits_only else np.ones(30, bool)
            assert int(row["samples"]) == here.sum()
            if not here.any():
                assert (row["loss"], row["entropy"], row["accuracy"]) == ("", "", "")
                continue
            p = all_logits[layer - 1].double().softmax(-1).numpy()[here]
            truth = labels.numpy()[here]
            assert float(row["accuracy"]) == pytest.approx(
                accuracy_score(truth, p.argmax(-1)), abs=1e-6
            )
            assert float(row["loss"]) == pytest.approx(
                log_loss(truth, p, labels=range(classes)), abs=1e-5
            )
            entropy = -(p * np.log(p)).sum(-1).mean() / np.log(classes)
            assert float(row["entropy"]) == pytest.approx(entropy, abs=1e-5)


def test_layer_statistics_of_regression_are_squared_errors():
    all_logits = torch.tensor([[[1.0], [2.0]], [[0.0], [5.0]]])
    rows = table(layer_table(all_logits, torch.tensor([0.0, 4.0]), torch.tensor([1, 2]), False))
    assert [row["loss"] for row in rows] == ["2.500000", "0.500000"]
    assert [row["entropy"] + row["accuracy"] for row in rows] == ["", ""]


def test_layer_curve_is_the_main_metric_of_every_layer():
    all_logits = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    assert layer_curve(get_task("rte"), all_logits, np.array([0, 1])) == [0.5, 1.0]


def test_predictions_name_label_confidence_and_exit_layer():
    task = get_task("rte")
    examples = [Example("7", "a", "b", 1), Example("9", "a", "b", None)]
    record = Record(
        torch.tensor([[0.0, 0.0], [0.75, 0.25]]).log_softmax(-1),
        torch.tensor([2, 4]),
        torch.zeros(2),
    )
    rows = list(
        csv.DictReader(
            io.StringIO(predictions_table(task, examples, record.logits, record.details())),
            dialect="excel-tab",
        )
    )
    assert list(rows[0]) == ["index", "label", "prediction", "confidence", "exit_layer"]
    assert list(rows[0].values()) == ["7", "not_entailment", "entailment", "0.5000", "2"]
    assert rows[1]["label"] == ""
    assert (rows[1]["prediction"], rows[1]["exit_layer"]) == ("entailment", "4")


def test_the_published_lines_come_first_and_exactly(capsys):
    summary = summary_of(cost=0.58814, acc=0.8122743682310469)
    summary |= {"average_layer": 7.06, "num_layers": 12, "exits_per_layer": [0] * 12}
    summary |= {"flops_ratio": 0.6, "latency_ms": {"median": 1.0, "p95": 2.0}}
    print_results(summary)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "Computation cost: 0.5881",
        "***** Eval results  *****",
        "acc = 0.8122743682310469",
    ]


def test_a_file_without_labels_has_no_metrics():
    with pytest.raises(UserError, match="--do_predict"):
        labels_of(Features.from_lists([[2]], [[0]], [None]))
