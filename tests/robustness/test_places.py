"""Where results are written: odd folders, folders that others hold, and disks that fill up."""

import os
from pathlib import Path

import pytest

from runs.files import locked
from runs.output_dir import checkpoints_of, is_finished, results_folder
from tests.commands import no_file_above, report_of

pytestmark = pytest.mark.pictures
WORK = ("--do_train", "--do_eval", "--do_predict", "--save_steps", 2, "--max_steps", 3)


def check_whole(out: Path) -> None:
    assert is_finished(out)
    assert len(checkpoints_of(out)) == 1
    names = {"model.safetensors", "tokenizer.json", "eval_results.json", "exits.png", "RTE.tsv"}
    assert names <= {path.name for path in out.iterdir()}
    assert not list(out.rglob("*.partial"))


def test_the_folder_that_one_is_in(glue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert results_folder(Path("."), "-MM") == tmp_path.parent / f"{tmp_path.name}-MM"
    for more in ((), ("--overwrite_output_dir",)):
        glue(Path("."), *WORK, *more).done()
        check_whole(tmp_path)


def test_a_second_run_is_told_that_another_holds_the_folder(glue, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with locked(out / "training"):
        before = os.listdir(out)
        for more in ((), ("--overwrite_output_dir",), ("--resume_from_checkpoint",)):
            glue(out, *WORK, *more).refused(out, "another run is training", "choose another")
        assert os.listdir(out) == before


@pytest.mark.parametrize("mode", ["elbert", "albert_act"])
def test_without_room_for_a_figure_an_evaluation_prints_and_saves_what_it_can(mode, glue, tmp_path):
    out = tmp_path / "out"
    glue(out, "--do_train", "--model_type", mode).done()
    figure = "exits.png" if mode == "elbert" else "tokens.html"
    with no_file_above(12_000):
        ended = glue(out, "--do_eval", "--model_type", mode)
    ended.refused(f"cannot write {out / figure}: ")
    assert "Computation cost: " in ended.out
    assert not (out / figure).exists()
    assert report_of(out)["metrics"].keys() == {"acc"}
    assert not list(out.glob(f".{figure}.*"))
    before = (out / "eval_results.txt").read_bytes()
    with no_file_above(0):
        ended = glue(out, "--do_eval", "--model_type", mode)
    ended.refused(f"cannot write {out / 'eval_results.txt'}: ")
    assert "Computation cost: " in ended.out
    assert (out / "eval_results.txt").read_bytes() == before
