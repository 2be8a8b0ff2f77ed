"""docs/extending.md, followed to the letter in a copy of the project."""

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands import ROOT, ran
from tests.scripts.conftest import rows_of

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
LEFT = ("*.pyc", "__pycache__", ".git", ".venv", "out", "runs", "node_modules", "glue_data")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the page's rule, key and mode added, and its commands run, in order."""
    copy = tmp_path_factory.mktemp("extended") / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for kind, block in blocks:
        if kind:
            edit(copy, kind, *block.split("\n", 1))
            continue
        for command in block.replace("\\\n", " ").splitlines():
            ran(sys.executable, *shlex.split(command)[1:], cwd=copy)
    return copy


def edit(copy: Path, kind: str, head: str, rest: str) -> None:
    """Append Python to the file that the block's first line names, or to a table in it; or change
    the file's lines."""
    name, _, where = head.removeprefix("# ").partition(", in ")
    path = copy / name
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if kind == "diff":
        old, new = ("".join(x[1:] for x in rest.splitlines(True) if x[0] in side) for side in PARTS)
        assert text.count(old) == 1
        text = text.replace(old, new)
    elif where:
        text = re.sub(rf"(^{where}\b.* = [({{])\n?", rf"\1\n{rest}", text, flags=re.MULTILINE)
        assert rest in text
    else:
        text = f"{text}\n\n{rest}" if text else rest
    path.write_text(text, encoding="utf-8")


PARTS = ("- ", "+ ")  # of a diff: the lines before, and after


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
    asked = """
from transformers import pipeline
import modeling
texts = ["a man sleeps", "a dog runs in the park"]
for answer in [*modeling.classify("out/truncated", texts), *PIPELINE("out/truncated")(texts)]:
    print(answer["exit_layer"])
""".replace(
        "PIPELINE(",
        'pipeline("text-classification", pipeline_class=modeling.EarlyExitPipeline, model=',
    )
    assert ran(sys.executable, "-c", asked, cwd=extended).split() == ["3"] * 4


@pytest.mark.slow
def test_a_key_that_all_rules_read_is_honoured_everywhere(extended):
    """A temperature of 4: at inference at both batch sizes, as in the sweep and in the file."""
    out, has_onnx = extended / "out/hot", find_spec("onnxscript")
    shutil.copytree(extended / "out/gap", out)
    before = (out / "eval_results.txt").read_text().splitlines()
    model = f"--model_type elbert --model_name_or_path {out} --output_dir {out} --do_lower_case "
    evaluate = f"run_glue.py --do_eval {model} --task_name RTE --data_dir configs/sample/RTE"
    if has_onnx:
        exported = ["--model_dir", out, "--output", out / "a.onnx"]
        ran(sys.executable, "export_onnx.py", *exported, cwd=extended)
    swept = rows_of(extended / "out/temperatures/sweep.csv")
    window = {"cnt_thres": 2, "margin": 0.0, "range_tmp": 0.1}
    for rule, more, keys in (
        ("gap", "--per_gpu_eval_batch_size 1", {}),
        ("bias_3", "--per_gpu_eval_batch_size 16", window),
        *([("gap", f"--onnx {out}/a.onnx", {})] if has_onnx else []),
    ):
        keys = {"exit_thres": 0.3, "exit_temperature": 4.0, **keys}
        words = [f"thres_name={rule}", *(f"{key}={value}" for key, value in keys.items())]
        printed = ran(
            sys.executable, *evaluate.split(), *more.split(), "--set", *words, cwd=extended
        )
        assert "exit_temperature = 4.0 (--set)" in printed
        assert "has no effect" not in printed
        wanted = {"rule": rule, **{key: str(value) for key, value in keys.items()}}
        (hot,) = (row for row in swept if wanted.items() <= row.items())
        cool = next(
            row for row in swept if (wanted | {"exit_temperature": "1.0"}).items() <= row.items()
        )
        found = json.loads((out / "eval_results.json").read_text())["exits_per_layer"]
        assert found == [int(hot[f"exits_{n}"]) for n in range(1, 13)]
        assert cool["compute_ratio"] != hot["compute_ratio"]
    after = (out / "eval_results.txt").read_text().splitlines()
    assert after[: len(before)] == before


@pytest.mark.slow
def test_what_the_page_adds_fails_no_test(extended):
    """Of those that know of rules and keys."""
    files = (
        "modeling/test_configuration.py modeling/test_exit_settings.py modeling/elbert exit_lab "
    )
    files += "evaluation/test_results.py modeling/test_export.py"
    tests = [f"tests/{name}" for name in files.split()]
    ran(sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *tests, cwd=extended)


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
