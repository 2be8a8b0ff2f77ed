"""docs/extending.md, followed to the letter in a copy of the project."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, ran
from tests.scripts.conftest import rows_of

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
LEFT = ("*.pyc", "__pycache__", ".git", ".venv", "out", "runs", "node_modules", "glue_data")


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the page's rule and mode added, and its commands run."""
    copy = tmp_path_factory.mktemp("extended") / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT))
    for code in blocks("python"):
        head, rest = code.split("\n", 1)
        path, _, where = head.removeprefix("# ").partition(", in ")
        text = (copy / path).read_text(encoding="utf-8") if (copy / path).exists() else ""
        if where:  # a line of a table
            text = re.sub(rf"(^{where} = [({{])\n?", rf"\1\n{rest}", text, flags=re.MULTILINE)
        else:
            text = f"{text}\n\n{rest}" if text else rest
        (copy / path).write_text(text, encoding="utf-8")
    for commands in blocks(""):
        for command in commands.replace("\\\n", " ").splitlines():
            ran(sys.executable, *shlex.split(command)[1:], cwd=copy)
    return copy


@pytest.mark.slow
def test_a_new_rule_trains_evaluates_and_is_swept(extended):
    report = json.loads((extended / "out/gap/eval_results.json").read_text())
    assert (report["rule"]["thres_name"], report["rule"]["exit_thres"]) == ("gap", 0.3)
    rows = rows_of(extended / "out/gap/sweep/sweep.csv")
    assert {row["rule"] for row in rows} == {"gap", "truncation"}
    swept = next(row for row in rows if row["exit_thres"] and float(row["exit_thres"]) == 0.3)
    assert float(swept["compute_ratio"]) == pytest.approx(report["computation_cost"])
    assert len({row["compute_ratio"] for row in rows}) > 3
    assert (extended / "out/gap/sweep/explorer.html").exists()


@pytest.mark.slow
def test_a_new_mode_trains_evaluates_and_is_swept(extended):
    out = extended / "out/truncated"
    assert json.loads((out / "config.json").read_text())["exit_at"] == 3  # as edited
    report = json.loads((out / "eval_results.json").read_text())
    assert report["exits_per_layer"] == [0, report["examples"], *[0] * 10]
    rows, layers = rows_of(out / "sweep/sweep.csv"), range(1, 13)
    rows, baseline = rows[:12], rows[12:]  # here the mode does what its baseline does
    assert {row["rule"] for row in baseline} == {"truncation"}
    assert [row["acc"] for row in rows] == [row["acc"] for row in baseline]
    assert [row["exit_at"] for row in rows] == [str(layer) for layer in layers]
    costs = [float(row["compute_ratio"]) for row in rows]
    assert costs == pytest.approx([layer / 12 for layer in layers])
    accuracy = report["acc_per_layer"]
    assert [float(row["acc"]) for row in rows] == pytest.approx(accuracy, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("gap", "elbert"), ("truncated", "truncated")])
def test_they_are_exported(extended, name, kind):
    """The file answers and leaves as the report, or its table of layers, says of the model."""
    pytest.importorskip("onnxscript", reason="pip install -r requirements-onnx.txt")
    out = f"out/{name}-file"
    shutil.copytree(extended / "out" / name, extended / out)
    before = json.loads((extended / out / "eval_results.json").read_text())
    data = ["--task_name", "RTE", "--data_dir", "configs/sample/RTE", "--do_lower_case"]
    model = ["--model_type", kind, "--model_name_or_path", out, "--output_dir", out]
    for words in (
        ["export_onnx.py", "--model_dir", out, "--output", f"{out}/model.onnx"],
        ["run_glue.py", "--do_eval", *model, *data, "--onnx", f"{out}/model.onnx"],
    ):
        ran(sys.executable, *words, cwd=extended)
    after = json.loads((extended / out / "eval_results.json").read_text())
    if name == "truncated":  # evaluated at layer 2, and edited to leave at 3
        assert after["exits_per_layer"] == [0, 0, before["examples"], *[0] * 9]
        assert after["metrics"]["acc"] == before["acc_per_layer"][2]
    else:
        assert after["exits_per_layer"] == before["exits_per_layer"]
        assert after["metrics"] == before["metrics"]
