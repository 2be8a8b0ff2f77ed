"""Files that are none, other encodings, closed consoles, Ctrl-C: one line, and a status."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluation import onnx_file
from modeling import UserError
from tests.commands import ROOT, exit_status, flags, report_of
from tests.conftest import slow, tiny_config, tiny_model, write, write_rte

ANEW = "--do_train --overwrite_output_dir"
HAS_ONNX = pytest.mark.skipif(not find_spec("onnxscript"), reason="no requirements-onnx.txt")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def latin(path: Path) -> None:
    path.write_bytes(b"\xff")


@pytest.mark.parametrize(
    ("make", "name", "more", "words"),
    [
        (latin, "RTE/title.txt", "--do_eval", ["title.txt", "not UTF-8"]),
        (pipe, "RTE/dev.tsv", "--do_eval", ["no regular file"]),
        (pipe, "RTE/train.tsv", ANEW, ["no regular file"]),
        (device, "a.tsv", f"{ANEW} --train_file PATH", ["a.tsv is no regular file"]),
        (pipe, "out/RTE/eval_results.txt", "--do_eval", ["not a regular file"]),
        pytest.param(
            *(pipe, "a.onnx", "--do_eval --onnx PATH", ["a.onnx", "no regular one"]), marks=HAS_ONNX
        ),
    ],
)
def test_what_cannot_be_read_or_written_is_named_at_once(
    make, name, more, words, trained, glue, tmp_path
):
    data = write_rte(tmp_path / "RTE")
    make(tmp_path / name)
    given = [tmp_path / name if word == "PATH" else word for word in more.split()]
    output = trained if "--do_eval" in more else tmp_path / "new"
    glue(output, *given, weights=trained, data=data).refused(*words)


@HAS_ONNX
@pytest.mark.parametrize(
    "stored",
    [{}, {"rule": "{"}, {"rule": "5"}, {"labels": "3"}, {"weights": "[" * 100_000}],
    ids=["nothing", "no JSON", "no rule", "no labels", "brackets"],
)
def test_what_an_onnx_file_says_of_itself_is_checked(stored, monkeypatch):
    whole = {
        **onnx_file.description(tiny_model()),
        "dtype": "fp32",
    }
    whole = {name: json.dumps(value) for name, value in whole.items()} | stored if stored else {}
    about = SimpleNamespace(custom_metadata_map=whole)
    session = SimpleNamespace(get_modelmeta=lambda: about)
    monkeypatch.setattr(onnx_file, "session_of", lambda path: session)
    with pytest.raises(UserError, match=r"a\.onnx: not a file of export_onnx"):
        onnx_file.OnnxFile("a.onnx", tiny_config())


def test_answers_to_texts_of_odd_names_are_a_table_without_formulas(glue, tmp_path):
    """A cell of JSON can carry a tab or a line break."""
    rows = [{"sentence1": f"a {i}", "label": i % 2} for i in range(6)]
    own = write(tmp_path / "own.jsonl", "\n".join(map(json.dumps, rows)))
    for row, name in zip(rows, ("=HYPERLINK(1)", "a\tb\nc", "-1", "+x", "4", "5"), strict=True):
        row["index"] = name
    test = write(tmp_path / "test.jsonl", "\n".join(map(json.dumps, rows)))
    glue(tmp_path / "out", "--do_train", "--train_file", own, "--max_steps", 1).done()
    glue(tmp_path / "out", "--do_predict", "--test_file", test).done()
    lines = (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:]
    names = [line.split("\t")[0] for line in lines]
    assert names == ["'=HYPERLINK(1)", "a b c", "-1", "'+x", "4", "5"]


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
@pytest.mark.parametrize("more", ["--do_train", "--hp_search"])
def test_a_launchers_variable_that_is_no_number_is_named(name, more, glue, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "x")
    glue(tmp_path / "out", more).refused(f"{name}=x")


def test_ctrl_c_is_one_line_and_130(capsys):
    def main() -> None:
        raise KeyboardInterrupt

    assert exit_status(main) == 130
    assert capsys.readouterr().err == "SIGINT: stopped\n"


@pytest.mark.parametrize(
    ("console", "wrong"),
    [
        slow("2>&1 | head -c 1; exit ${PIPESTATUS[0]}", False),
        slow("2>&1 | head -c 1; exit ${PIPESTATUS[0]}", True),
    ],
)
def test_a_closed_pipe_stops_nothing_and_the_status_is_right(
    console, wrong, trained, albert_dir, rte
):
    command = flags(albert_dir, rte, trained.parent if wrong else trained, "RTE", "--do_eval")
    shell = ["bash", "-c", f'"$@" {console}', "-", sys.executable, "run_glue.py", *command]
    assert subprocess.run(shell, cwd=ROOT, check=False).returncode == (2 if wrong else 0)
    assert wrong or report_of(trained)["metrics"].keys() == {"acc"}
