"""A disk that fills up: results are printed and saved as far as possible, trainings go on."""

import os
import threading

import pytest
from PIL import Image

from modeling import UserError
from tests.commands import flags, no_file_above, report_of
from tests.forks import start
from utils.files import write_text

pytestmark = pytest.mark.pictures


@pytest.mark.parametrize("mode", ["albert", "albert_act"])
def test_without_room_for_a_figure_an_evaluation_prints_and_saves_what_it_can(mode, glue, tmp_path):
    out = tmp_path / "out"
    glue(out, "--do_train", "--model_type", mode).done()
    figure = "exits.png" if mode == "albert" else "tokens.html"
    with no_file_above(8_000):
        ended = glue(out, "--do_eval", "--model_type", mode)
    ended.refused(f"cannot write {out / figure}: ")
    assert "Computation cost: " in ended.out
    assert "acc = " in ended.out
    assert not (out / figure).exists()
    assert report_of(out)["metrics"].keys() == {"acc"}
    assert len((out / "eval_results.txt").read_text().splitlines()) == 2
    assert not list(out.glob(f".{figure}.*"))


def test_without_any_room_the_results_are_printed(trained, glue):
    with no_file_above(0):
        ended = glue(trained, "--do_eval")
    ended.refused("eval_results.txt", "eval_results.json", "exits.png")
    assert "Computation cost: " in ended.out


# Several that write the same.


def together(count: int, work) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_of_twelve_that_write_a_file_each_leaves_a_whole_one(tmp_path):
    """Nobody sees half of one, neither."""
    path, faults = tmp_path / "eval_results.json", []
    texts = {letter * 50_000 for letter in "abcdefghijkl"}

    def write(number: int) -> None:
        for _ in range(5):
            try:
                write_text(path, sorted(texts)[number])
                if path.read_text() not in texts:
                    faults.append(number)
            except (UserError, OSError) as error:
                faults.append(error)

    together(12, write)
    assert faults == []
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.slow
def test_four_evaluations_at_a_time(trained, albert_dir, rte):
    command = flags(albert_dir, rte, trained, "RTE", "--do_eval", "--out_mode", "all")
    processes = [start(command) for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len((trained / "eval_results.txt").read_text().splitlines()) == 5
    with Image.open(trained / "exits.png") as figure:
        figure.load()
