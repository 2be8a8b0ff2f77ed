"""The files of a report: rows of eval_results.txt, keys of eval_results.json, what is outdated."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor

from matplotlib.figure import Figure

from evaluation.report import Report, ReportFile, append_results
from evaluation.scores import ClassScore, ClassScores
from evaluation.summary import DepthSummary, Summary
from runs.job import Origin
from runs.provenance import provenance


def summary_of(cost=0.58812, exit_thres=0.1, weights="", scores=None, **metrics) -> Summary:
    return Summary(
        task="rte",
        dataset="rte",
        examples=4,
        metrics=metrics or {"acc": 0.8122743},
        class_scores=scores or ClassScores(),
        remarks=[],
        median_ms=1.0,
        p95_ms=2.0,
        latency_means="one text at a time",
        texts_per_second=1000.0,
        rule={
            "thres_name": "bias_1",
            "exit_thres": exit_thres,
            "cnt_thres": 8,
            "margin": 0.0,
            "range_tmp": 0.2,
        },
        origin=Origin(provenance({}, {"weights": weights}, "d"), dtype="fp32"),
        batch_size=1,
        depth=DepthSummary(computation_cost=cost, flops_ratio=cost),
    )


def test_all_appends_rows_under_one_header_and_one_starts_anew(tmp_path):
    path = tmp_path / "eval_results.txt"
    append_results(path, summary_of(exit_thres=0.2), "all")
    path.write_text(path.read_text().rstrip("\n"))  # as an editor may leave it
    append_results(path, summary_of(), "all")
    rows = list(csv.reader(path.open()))
    assert rows[0][:4] == ["", "exit_thres", "acc", "compute_ratio"]
    assert [row[:4] for row in rows[1:]] == [
        ["0", "0.20", "0.8123", "0.5881"],
        ["0", "0.10", "0.8123", "0.5881"],
    ]
    append_results(path, summary_of(exit_thres=0.0049), "one")  # of a ponder model, say
    rows = list(csv.reader(path.open()))
    assert [row[1] for row in rows] == ["exit_thres", "0.0049"]


def test_rows_of_other_weights_are_said(tmp_path, caplog):
    first, second = (Report(summary_of(weights=name)) for name in "ab")
    for report, out_mode in ((first, "all"), (first, "all"), (second, "one"), (second, "all")):
        report.write(tmp_path, tmp_path, out_mode)
    assert not caplog.records
    first.write(tmp_path, tmp_path, "all")
    assert "holds rows of other weights;" in caplog.text


def test_rows_that_are_written_at_once_are_all_there(tmp_path):
    path, thresholds = tmp_path / "eval_results.txt", [i / 100 for i in range(48)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda x: append_results(path, summary_of(exit_thres=x), "all"), thresholds))
    assert sorted(float(row["exit_thres"]) for row in csv.DictReader(path.open())) == thresholds
    assert {x.name for x in tmp_path.iterdir()} == {path.name, "written.json"}


def test_the_summary_has_the_keys_that_it_always_had(tmp_path):
    scores = ClassScores({"yes": ClassScore(1.0, 0.5, 0.6, 3.0)}, 0.6, [[1]])
    Report(summary_of(scores=scores)).write(tmp_path, tmp_path, "all")
    written = json.loads((tmp_path / "eval_results.json").read_text())
    assert list(written) == [
        *("task", "dataset", "examples", "metrics", "classes", "macro_f1", "confusion", "remarks"),
        *("latency_ms", "latency_means", "texts_per_second", "rule", "provenance", "dtype"),
        *("batch_size", "computation_cost", "flops_ratio"),
    ]
    assert written["classes"] == {
        "yes": {"precision": 1.0, "recall": 0.5, "f1": 0.6, "examples": 3.0}
    }
    assert written["latency_ms"] == {"median": 1.0, "p95": 2.0}


def test_files_are_written_and_outdated_ones_removed(tmp_path, capsys):
    """Texts and pictures; in the folder of the results, and in that of the model."""
    folder, trained = tmp_path / "RTE-MM", tmp_path / "RTE"
    text, picture = trained / "stat_out/layers.csv", folder / "exits.png"
    files = [
        ReportFile(text, "layer,loss\n", owner=trained),
        ReportFile(picture, Figure(), owner=folder),
    ]
    Report(summary_of(), files=files).write(folder, trained, "all")
    assert text.read_text() == "layer,loss\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "written:"
    names = ["eval_results.txt", "eval_results.json", "layers.csv", "exits.png"]
    assert [line.rpartition("/")[2] for line in printed[1:]] == names
    user_file = trained / "stat_out/mine.csv"
    user_file.write_text("mine")
    outdated = [text, picture, user_file]
    Report(summary_of(), outdated=outdated).write(folder, trained, "all")
    assert [path.exists() for path in outdated] == [False, False, True]
    assert "removed, of an earlier evaluation: exits.png, stat_out/layers.csv" in (
        capsys.readouterr().out
    )
