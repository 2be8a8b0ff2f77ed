"""The submission: the official files and their lengths, and nothing else in the archive."""

import zipfile
from pathlib import Path

import pytest

import run_glue
from glue.submission import add_to_submission
from glue.tasks import TASKS
from modeling import UserError
from tests.commands import flags
from tests.conftest import sentence, tsv, write, write_rte

# Lines of each file, header included, as the GLUE server asks for them.
OFFICIAL_LINES = {
    "AX.tsv": 1105,
    "CoLA.tsv": 1064,
    "MNLI-m.tsv": 9797,
    "MNLI-mm.tsv": 9848,
    "MRPC.tsv": 1726,
    "QNLI.tsv": 5464,
    "QQP.tsv": 390966,
    "RTE.tsv": 3001,
    "SST-2.tsv": 1822,
    "STS-B.tsv": 1380,
    "WNLI.tsv": 147,
}


def test_the_official_files_have_their_names_and_line_counts():
    assert {task.submission: task.test_lines for task in TASKS.values()} == OFFICIAL_LINES


def official(folder: Path, name: str, lines: int | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    rows = (lines or OFFICIAL_LINES[name]) - 1
    return write(folder / name, "index\tprediction\n" + "7\t0\n" * rows)


def test_the_archive_is_made_when_the_last_file_is_there(tmp_path):
    source, target = tmp_path / "source", tmp_path / "all"
    for count, name in enumerate(OFFICIAL_LINES, start=1):
        said = add_to_submission(official(source, name), target)
        if count < len(OFFICIAL_LINES):
            left = {*OFFICIAL_LINES} - {path.name for path in target.iterdir()}
            assert said.startswith(f"{target}: {count} of 11 files")
            assert {*said.partition("missing: ")[2].split(", ")} == left
            assert not (target / "submission.zip").exists()
    assert said == f"{target / 'submission.zip'}: all 11 files, ready for gluebenchmark.com"
    with zipfile.ZipFile(target / "submission.zip") as archive:
        assert sorted(archive.namelist()) == sorted(OFFICIAL_LINES)
        for name in OFFICIAL_LINES:
            assert archive.read(name) == (source / name).read_bytes()


@pytest.mark.parametrize("lines", [146, 148, 1])
def test_a_file_of_another_length_is_refused_with_what_was_found(tmp_path, lines):
    path = official(tmp_path, "WNLI.tsv", lines)
    with pytest.raises(UserError, match=f"{path}: found {lines} lines, expected 147.*wnli"):
        add_to_submission(path, tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_predictions_go_into_the_submission(albert_dir, tmp_path, script):
    data = write_rte(tmp_path / "RTE")
    common = flags(albert_dir, data, tmp_path / "out", "WNLI", "--submission_dir", tmp_path / "all")
    for name in ("train", "test"):
        rows = [(i, sentence(i), "a cat", i % 2) for i in range(146)]
        tsv(data / f"{name}.tsv", "index\tsentence1\tsentence2\tlabel", rows)
    outcome = script(run_glue.main, *common, "--do_train", "--do_predict", "--max_steps", 1).done()
    assert f"{tmp_path / 'all'}: 1 of 11 files for a submission; missing: CoLA.tsv" in outcome.out
    assert (tmp_path / "all/WNLI.tsv").read_bytes() == (tmp_path / "out/WNLI.tsv").read_bytes()
    tsv(data / "test.tsv", "index\tsentence1\tsentence2", rows[:5])
    outcome = script(run_glue.main, *common, "--do_predict")
    outcome.refused("test.tsv of wnli has 5 examples, expected 146")
