"""Files that are none, other encodings, a closed pipe, Ctrl-C: one line, and a status."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.commands import ROOT, exit_status, flags, ran, report_of
from tests.conftest import slow, write, write_rte


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\n")


def latin(path: Path) -> None:
    path.write_bytes(b"\xff")


@pytest.mark.parametrize(
    ("make", "name", "more", "words"),
    [
        (latin, "RTE/title.txt", "--do_eval", ["title.txt", "not UTF-8"]),
        (pipe, "RTE/dev.tsv", "--do_eval", ["is a pipe"]),
        (pointer, "RTE/dev.tsv", "--do_eval", ["dev.tsv", "git lfs pull"]),
        (pipe, "out/RTE/eval_results.txt", "--do_eval", ["not a regular file"]),
    ],
)
def test_what_cannot_be_read_or_written_is_named_at_once(
    make, name, more, words, trained, glue, tmp_path
):
    make((data := write_rte(tmp_path / "RTE")).parent / name)
    glue(trained, *more.split(), weights=trained, data=data).refused(*words)


def test_answers_to_texts_of_odd_names_are_a_table_without_formulas(trained, glue, tmp_path):
    """A cell of JSON can carry a tab or a line break."""
    names = ("=HYPERLINK(1)", "a\tb\nc", "-1", "+x")
    texts = {"sentence1": "a", "sentence2": "b", "label": "entailment"}
    rows = [json.dumps({"index": name, **texts}) for name in names]
    test = write(tmp_path / "test.jsonl", "\n".join(rows))
    glue(trained, "--do_predict", "--test_file", test).done()
    lines = (trained / "predictions.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[0] for line in lines] == ["'=HYPERLINK(1)", "a b c", "-1", "'+x"]


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
@pytest.mark.parametrize("more", ["--do_train", "--hp_search"])
def test_a_launchers_variable_that_is_no_number_is_named(name, more, glue, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "x")
    glue(tmp_path / "out", more).refused(f"{name}=x")


def test_what_a_console_cannot_show_is_printed_with_escapes(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", console)
    assert exit_status(lambda: print("classes 好, gut")) == 0
    assert console.buffer.getvalue() == b"classes \\u597d, gut\n"


STREAMS = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-", "all": "<&- >&- 2>&-"}


@pytest.mark.parametrize("closed", STREAMS)
@pytest.mark.parametrize(("flag", "status"), [("--help", 0), ("--nonsense", 2)])
def test_without_a_stream_a_script_ends_with_its_own_status(closed, flag, status):
    shell = ["bash", "-c", f'"$@" {STREAMS[closed]}', "-", sys.executable, "classify.py", flag]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)
    if closed == "stderr" and flag == "--help":
        assert "--model_dir" in done.stdout


def test_answers_for_a_closed_stream_are_not_lost_in_silence(tmp_path):
    table = write(tmp_path / "new.csv", "text\na film\n")
    command = f'"$@" classify.py --model_dir . --input_file {table} --output_file - '
    command += "--output_format csv >&-"
    shell = ["bash", "-c", command, "-", sys.executable]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "standard output is closed" in done.stderr) == (2, True)


SCRIPTS = sorted(path.name for path in ROOT.glob("*.py"))


@pytest.mark.parametrize("name", ["change_config.py", *map(slow, SCRIPTS)])
def test_a_script_finds_its_packages_through_a_link_and_on_python_s_safe_path(name, tmp_path):
    (tmp_path / "link.py").symlink_to(ROOT / name)
    assert "usage:" in ran(sys.executable, "-P", "link.py", "--help", cwd=tmp_path)


def test_ctrl_c_is_one_line_and_130(capsys):
    def main() -> None:
        raise KeyboardInterrupt

    assert exit_status(main) == 130
    assert capsys.readouterr().err == "SIGINT: stopped\n"


@pytest.mark.slow
def test_a_script_stops_when_the_one_that_runs_it_is_killed(tmp_path):
    """As make_classifier.py and a search run theirs: in a session of its own, with a lock."""
    child = tmp_path / "child.py"
    code = f"import os, sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
    code += "from runs.processes import call, run_script\n"
    child.write_text(code + "print(os.getpid(), flush=True); run_script(lambda: time.sleep(60))")
    parent = [sys.executable, "-c", code + f"call({str(child)!r}, [])"]
    with subprocess.Popen(parent, stdout=subprocess.PIPE, text=True) as process:
        child_process = psutil.Process(int(process.stdout.readline()))
        process.kill()
        psutil.wait_procs([child_process], timeout=20)
        assert not child_process.is_running()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_a_closed_pipe_stops_nothing_and_the_status_is_right(wrong, trained, albert_dir, rte):
    command = flags(albert_dir, rte, trained.parent if wrong else trained, "RTE", "--do_eval")
    piped = '"$@" 2>&1 | head -c 1; exit ${PIPESTATUS[0]}'
    shell = ["bash", "-c", piped, "-", sys.executable, "run_glue.py", *command]
    assert subprocess.run(shell, cwd=ROOT, check=False).returncode == (2 if wrong else 0)
    assert wrong or report_of(trained)["metrics"].keys() == {"acc"}
